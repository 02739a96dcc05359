//! Snapshot pages: found, or read and encoded (§5.2, §5.7).
//!
//! A page is a rows segment made by copying stored rows. What goes outside of the response is
//! published under its content address for whoever may see the same rows.
//!
//! **A published page stands in for one that would be read now** when it was made for the same
//! rows of the same log at the same pin. Both show every row as of some place at or after that
//! pin, and the client replays everything after the pin, so it ends with the same rows. A new
//! bootstrap takes a pin at or after the newest change of its scope; an equal pin therefore even
//! means equal rows.

use std::sync::Arc;

use bytes::Bytes;
use tidewater_model::{CommitSeq, HorizonSeq, ScopeFilter};
use tidewater_objects::{
    FoundSegment, NewSegment, ObjectErrorKind, PageSize, PublicationContext, SegmentKey,
    SegmentRecord,
};
use tidewater_schema::{Table, TableIndex};
use tidewater_store::{RowPage, RowScan};
use tidewater_wire::{Accept, MediaType, SegmentWriter};

use super::{bootstrap::Delivery, gate};
use crate::{
    RoundError,
    builds::{PageKey, count},
    round::RoundContext,
};

/// From this size on, encoding and hashing a page takes long enough to keep other rounds waiting
/// and is done on a thread of its own.
const BLOCKING_BYTES_MIN: usize = 256 * 1024;

/// Asks for one page.
pub(super) struct PageRequest<'a> {
    pub(super) context: &'a Arc<RoundContext>,
    pub(super) accept: Accept,
    pub(super) rows_max: usize,
    pub(super) table: TableIndex,
    /// Exclusive start; `None` at the first row.
    pub(super) row_cursor: Option<&'a str>,
}

/// A page, ready to be sent.
#[derive(Clone)]
pub(super) struct Page {
    /// Its last row, if others follow.
    pub(super) next_row_cursor: Option<String>,
    pub(super) content: Content,
}

/// A page and the horizon under which it was read.
#[derive(Clone)]
pub(crate) struct PageOutcome {
    pub(super) page: Page,
    pub(super) horizon: HorizonSeq,
}

#[derive(Clone)]
pub(super) enum Content {
    Inline(Bytes),
    External(Arc<SegmentRecord>),
}

impl PageRequest<'_> {
    /// What the page is published under.
    pub(super) fn key(&self, scope_digest: &str, pin: CommitSeq) -> SegmentKey {
        SegmentKey {
            partition: self.context.identity.partition.clone(),
            log_epoch: self.context.log_epoch.clone(),
            table: self.table().name.clone(),
            schema_version: self.context.schema_version,
            media_type: MediaType::Rows,
            scope_digest: scope_digest.to_owned(),
            as_of: pin,
        }
    }

    fn table(&self) -> &Arc<Table> {
        let view = &self.context.view;
        view.table(self.table)
            .expect("a table that was found by its name is in the view")
    }

    fn delivery(&self, byte_len: usize) -> Delivery {
        let inline_bytes_max = self.context.engine.parts.config.inline_segment_bytes_max;
        Delivery::of(self.accept, byte_len, inline_bytes_max)
    }
}

/// Finds a published page.
pub(super) async fn find(
    request: &PageRequest<'_>,
    scope_digest: &str,
    pin: CommitSeq,
) -> Result<Option<Page>, RoundError> {
    // What such a client gets is never published.
    if !request.accept.external_rows() {
        return Ok(None);
    }
    let parts = &request.context.engine.parts;
    let size = PageSize {
        rows_max: u64::try_from(request.rows_max).unwrap_or(u64::MAX),
        // The bound counts other bytes than the segment holds, so it is only nearly reached.
        full_bytes: u64::try_from(parts.config.section_bytes_max / 2).unwrap_or(u64::MAX),
    };
    let key = request.key(scope_digest, pin);
    let now_ms = parts.clock.now_ms();
    let segments = &parts.segments;
    let failed = |error| RoundError::internal(&error, "find a page");
    let found = segments
        .find_page(&key, request.row_cursor, size, now_ms)
        .await
        .map_err(failed)?;
    let Some(FoundSegment { record, context }) = found else {
        return Ok(None);
    };
    let byte_len = usize::try_from(record.byte_length).unwrap_or(usize::MAX);
    let content = match request.delivery(byte_len) {
        Delivery::External => Content::External(record),
        // It was published for a client that takes no inline pages.
        Delivery::Inline => match segments
            .open(record.id.as_str(), None)
            .await
            .map_err(failed)?
        {
            Some(stream) => Content::Inline(stream.collect(byte_len).await.map_err(failed)?),
            None => return Ok(None),
        },
    };
    count(&request.context.engine.builds.counts.page_reuses);
    Ok(Some(Page {
        next_row_cursor: context.next_row_cursor.clone(),
        content,
    }))
}

/// Reads the rows of a page.
pub(super) async fn scan(
    request: &PageRequest<'_>,
    effective: &ScopeFilter,
) -> Result<RowPage, RoundError> {
    let engine = &request.context.engine;
    let scan = RowScan {
        partition: request.context.identity.partition.clone(),
        table: request.table,
        filter: effective.clone(),
        after: request.row_cursor.map(str::to_owned),
        rows_max: request.rows_max,
        bytes_max: engine.parts.config.section_bytes_max,
    };
    Ok(engine.store().scan_rows(scan).await?)
}

/// Reads, encodes and publishes a page, or waits for whoever does.
///
/// A page that is being made stands in like one that is published: it has the same key.
pub(super) async fn obtain(
    request: &PageRequest<'_>,
    effective: &ScopeFilter,
    scope_digest: &str,
    pin: CommitSeq,
) -> Result<PageOutcome, RoundError> {
    let key = request.key(scope_digest, pin);
    // What such a client gets is for nobody else.
    if !request.accept.external_rows() {
        return make(request, key, effective).await;
    }
    let builds = &request.context.engine.builds;
    let page_key = PageKey {
        key: key.clone(),
        row_cursor: request.row_cursor.map(str::to_owned),
        rows_max: request.rows_max,
        inline: request.accept.inline_rows(),
    };
    let (landing, joined) = builds.pages.join(page_key, "build a page", || {
        let context = Arc::clone(request.context);
        let row_cursor = request.row_cursor.map(str::to_owned);
        let (accept, rows_max, table) = (request.accept, request.rows_max, request.table);
        let effective = effective.clone();
        async move {
            let request = PageRequest {
                context: &context,
                accept,
                rows_max,
                table,
                row_cursor: row_cursor.as_deref(),
            };
            make(&request, key, &effective).await
        }
    });
    if joined {
        count(&builds.counts.page_joins);
    }
    landing.await
}

async fn make(
    request: &PageRequest<'_>,
    key: SegmentKey,
    effective: &ScopeFilter,
) -> Result<PageOutcome, RoundError> {
    let rows = scan(request, effective).await?;
    gate::admit(request.context, &rows.gate).await?;
    build(request, key, rows).await
}

/// Encodes a page and publishes it if it does not go inline.
pub(super) async fn build(
    request: &PageRequest<'_>,
    key: SegmentKey,
    rows: RowPage,
) -> Result<PageOutcome, RoundError> {
    let engine = &request.context.engine;
    let horizon = rows.gate.horizon;
    let builder = Builder {
        context: Arc::clone(request.context),
        index: request.table,
        table: Arc::clone(request.table()),
        accept: request.accept,
        inline_bytes_max: engine.parts.config.inline_segment_bytes_max,
        key,
        row_cursor: request.row_cursor.map(str::to_owned),
    };
    let built = if rows.byte_count() < BLOCKING_BYTES_MIN {
        builder.build(&rows)?
    } else {
        tokio::task::spawn_blocking(move || builder.build(&rows))
            .await
            .map_err(|error| RoundError::internal(&error, "encode a page"))??
    };
    count(&engine.builds.counts.page_builds);
    let content = match built.content {
        Built::Inline(bytes) => Content::Inline(bytes),
        Built::External(segment, bytes) => publish(request, *segment, bytes).await?,
    };
    let next_row_cursor = built.next_row_cursor;
    let page = Page {
        next_row_cursor,
        content,
    };
    Ok(PageOutcome { page, horizon })
}

/// Publishes a page. One that is larger than all the room there is goes inline to those who take
/// it there.
async fn publish(
    request: &PageRequest<'_>,
    segment: NewSegment,
    bytes: Bytes,
) -> Result<Content, RoundError> {
    let parts = &request.context.engine.parts;
    let published = parts.segments.publish(segment, parts.clock.now_ms()).await;
    match published {
        Ok(record) => Ok(Content::External(record)),
        Err(error) if error.kind == ObjectErrorKind::TooLarge && request.accept.inline_rows() => {
            tracing::warn!(%error, "a page does not fit into the segment store and goes inline");
            Ok(Content::Inline(bytes))
        }
        Err(error) => Err(RoundError::internal(&error, "publish a page")),
    }
}

/// An encoded page that is not published yet.
struct BuiltPage {
    next_row_cursor: Option<String>,
    content: Built,
}

enum Built {
    Inline(Bytes),
    /// To be published, and the same bytes.
    External(Box<NewSegment>, Bytes),
}

/// Everything that encoding needs, without a loan.
struct Builder {
    context: Arc<RoundContext>,
    index: TableIndex,
    /// As the requester knows it.
    table: Arc<Table>,
    accept: Accept,
    inline_bytes_max: usize,
    key: SegmentKey,
    row_cursor: Option<String>,
}

impl Builder {
    fn build(self, rows: &RowPage) -> Result<BuiltPage, RoundError> {
        let next_row_cursor = rows
            .has_more
            .then(|| rows.rows().next_back().map(|row| row.row_id.to_owned()))
            .flatten();
        let (row_count, bytes) = self.encode(rows)?;
        let content = match Delivery::of(self.accept, bytes.len(), self.inline_bytes_max) {
            Delivery::Inline => Built::Inline(bytes),
            Delivery::External => {
                let context = PublicationContext {
                    key: self.key,
                    row_cursor: self.row_cursor,
                    next_row_cursor: next_row_cursor.clone(),
                };
                let segment = NewSegment::from_bytes(context, row_count, bytes.clone());
                Built::External(Box::new(segment), bytes)
            }
        };
        Ok(BuiltPage {
            next_row_cursor,
            content,
        })
    }

    fn encode(&self, rows: &RowPage) -> Result<(u64, Bytes), RoundError> {
        let mut writer = SegmentWriter::new(
            &self.table.name,
            self.key.schema_version,
            &self.table.columns,
        );
        for row in rows.rows() {
            let payload = self.context.shown(self.index, row.payload)?;
            writer.push(row.row_version, &payload);
        }
        Ok((writer.row_count(), writer.finish().into()))
    }
}
