//! How a bootstrap's rows travel: as pages, or as one image (§4.7, §5.3).
//!
//! The lane is chosen before anything of the section is written and only at the first row. More
//! rows than one page holds go as an image, if the client takes one and the table can be one.

use bytes::BytesMut;
use std::sync::Arc;
use tidewater_objects::SegmentRecord;
use tidewater_store::ScopeSizeRequest;
use tidewater_wire::{MediaType, ResponseFrame, SegmentRef, SubStatus};

use super::{
    Bootstrap, End, PullRun,
    bootstrap::{self, Next, ResumeToken},
    gate, image,
    page::{self, Content, Page},
    put, put_active_start,
};
use crate::{
    RoundError,
    builds::{ImageOutcome, count},
};

/// One step of a bootstrap, ready to be sent.
enum Delivery {
    Page(Page),
    Image(Arc<SegmentRecord>),
    /// The bootstrap must start over.
    Reset,
}

impl PullRun {
    /// Sends the next step of a bootstrap, with what comes before the first and after the last.
    pub(super) async fn send_page(
        &mut self,
        mut bootstrap: Bootstrap,
        out: &mut BytesMut,
    ) -> Result<(), RoundError> {
        let delivery = self.load(&mut bootstrap).await?;
        if let Delivery::Reset = delivery {
            return self.put_inactive(bootstrap.section.subscription, SubStatus::Reset, out);
        }
        let next_row_cursor = match &delivery {
            Delivery::Page(page) => page.next_row_cursor.clone(),
            Delivery::Image(_) | Delivery::Reset => None,
        };
        let frame = self.frame(delivery, &bootstrap).await?;
        if !bootstrap.has_begun {
            put_active_start(&self.context, &bootstrap.section, true, out)?;
            bootstrap.has_begun = true;
        }
        put(&self.context, frame, out)?;
        let token = match bootstrap.progress.pass_page(next_row_cursor) {
            Next::Page => {
                self.open = Some(bootstrap);
                return Ok(());
            }
            Next::Paused => {
                let row_cursor = bootstrap.progress.row_cursor;
                let token = ResumeToken {
                    pin: bootstrap.pin,
                    row_cursor,
                };
                Some(token.format(&bootstrap.section.subscription.table))
            }
            Next::Complete => None,
        };
        // An image that others asked for may have an older pin than was chosen here.
        let is_current = !bootstrap.is_resumed && bootstrap.pin >= bootstrap.first_pin;
        let end = End {
            next_cursor: bootstrap.pin,
            reached: if is_current {
                self.context.head
            } else {
                bootstrap.pin
            },
            token,
        };
        self.put_active_end(bootstrap.section, end, out)
    }

    async fn load(&self, bootstrap: &mut Bootstrap) -> Result<Delivery, RoundError> {
        if let Some(delivery) = self.load_first(bootstrap).await? {
            return Ok(delivery);
        }
        let request = self.page_request(bootstrap);
        let found = page::find(&request, &bootstrap.scope_digest, bootstrap.pin).await?;
        if let Some(found) = found {
            return Ok(Delivery::Page(found));
        }
        let (digest, pin) = (&bootstrap.scope_digest, bootstrap.pin);
        let effective = &bootstrap.section.effective;
        let outcome = page::obtain(&request, effective, digest, pin).await?;
        Ok(settle(bootstrap, outcome))
    }

    /// Chooses the lane at the first row: an image, or the only page there is. `None` leaves it to
    /// the pages.
    async fn load_first(&self, bootstrap: &mut Bootstrap) -> Result<Option<Delivery>, RoundError> {
        let engine = &self.context.engine;
        let is_image_possible = !bootstrap.has_begun
            && !bootstrap.is_resumed
            && bootstrap.progress.row_cursor.is_none()
            && self.header.accept.images()
            && image::is_possible(engine, bootstrap.section.table);
        if !is_image_possible {
            return Ok(None);
        }
        let asked = image::ImageRequest {
            context: &self.context,
            table: bootstrap.section.table,
            effective: &bootstrap.section.effective,
            scope_digest: &bootstrap.scope_digest,
            pin: bootstrap.pin,
        };
        if let Some(record) = image::find(&asked).await? {
            return Ok(Some(Delivery::Image(record)));
        }
        if image::is_unsuited(&asked) {
            count(&engine.builds.counts.image_declines);
            return Ok(None);
        }
        if !image::is_under_way(&asked)
            && let Some(outcome) = self.load_only_page(bootstrap).await?
        {
            count(&engine.builds.counts.image_declines);
            return Ok(Some(settle(bootstrap, outcome)));
        }
        match image::obtain(&asked).await? {
            ImageOutcome::Rows => Ok(None),
            ImageOutcome::Built { pin, record } => {
                bootstrap.pin = pin;
                Ok(Some(Delivery::Image(record)))
            }
        }
    }

    /// The page that holds every row, if one does.
    async fn load_only_page(
        &self,
        bootstrap: &Bootstrap,
    ) -> Result<Option<page::PageOutcome>, RoundError> {
        let request = self.page_request(bootstrap);
        let (digest, pin) = (&bootstrap.scope_digest, bootstrap.pin);
        if let Some(page) = page::find(&request, digest, pin).await? {
            let horizon = self.context.horizon;
            let is_all = page.next_row_cursor.is_none();
            return Ok(is_all.then_some(page::PageOutcome { page, horizon }));
        }
        if self.has_many_rows(bootstrap).await? {
            return Ok(None);
        }
        let rows = page::scan(&request, &bootstrap.section.effective).await?;
        gate::admit(&self.context, &rows.gate).await?;
        if rows.has_more {
            return Ok(None);
        }
        page::build(&request, request.key(digest, pin), rows)
            .await
            .map(Some)
    }

    /// Whether the scope has more rows than a page, by a count. Of several variables the rows in
    /// common may still be few: then it is not known.
    async fn has_many_rows(&self, bootstrap: &Bootstrap) -> Result<bool, RoundError> {
        let [only] = bootstrap.section.effective.entries() else {
            return Ok(false);
        };
        let rows_max = u64::try_from(self.limits.rows).unwrap_or(u64::MAX);
        let request = ScopeSizeRequest {
            partition: self.context.identity.partition.clone(),
            table: bootstrap.section.table,
            variable: only.variable.clone(),
            values: only.values.clone(),
            after: self.context.head,
            through: self.context.head,
            limit: rows_max.saturating_add(1),
        };
        let size = self.context.engine.store().scope_size(request).await?;
        Ok(size.rows > rows_max)
    }

    fn page_request<'a>(&'a self, bootstrap: &'a Bootstrap) -> page::PageRequest<'a> {
        page::PageRequest {
            context: &self.context,
            accept: self.header.accept,
            rows_max: self.limits.rows,
            table: bootstrap.section.table,
            row_cursor: bootstrap.progress.row_cursor.as_deref(),
        }
    }

    /// The frame that delivers a step, with a signed URL for those who take one.
    async fn frame(
        &self,
        delivery: Delivery,
        bootstrap: &Bootstrap,
    ) -> Result<ResponseFrame, RoundError> {
        let (record, media_type, next_row_cursor) = match delivery {
            Delivery::Page(page) => match page.content {
                Content::Inline(bytes) => return Ok(ResponseFrame::SegmentInline(bytes)),
                Content::External(record) => (record, MediaType::Rows, page.next_row_cursor),
            },
            Delivery::Image(record) => (record, MediaType::Sqlite, None),
            Delivery::Reset => unreachable!("a reset has no frame"),
        };
        let parts = &self.context.engine.parts;
        let url = if self.header.accept.signed_urls() {
            let (partition, id) = (&self.context.identity.partition, record.id.as_str());
            let (digest, now_ms) = (&bootstrap.scope_digest, parts.clock.now_ms());
            let urls = &parts.transfers.segment_urls;
            urls.segment(parts.segments.as_ref(), partition, id, digest, now_ms)
                .await
                .map_err(|error| RoundError::internal(&error, "sign a URL"))?
        } else {
            None
        };
        let row_cursor = bootstrap.progress.row_cursor.as_deref();
        Ok(ResponseFrame::SegmentRef(SegmentRef {
            segment_id: record.id.as_str().into(),
            media_type,
            table: bootstrap.section.subscription.table.clone(),
            byte_length: i64::try_from(record.byte_length).expect("a length fits in 63 bits"),
            row_count: i64::try_from(record.row_count).expect("a count fits in 63 bits"),
            as_of_commit_seq: bootstrap.pin.to_i64(),
            scope_digest: bootstrap.scope_digest.as_str().into(),
            row_cursor: row_cursor.map(Into::into),
            next_row_cursor: next_row_cursor.map(Into::into),
            url: url.map(|url| (url.url.into(), url.expires_at_ms)),
        }))
    }
}

/// Settles the pin by what the first page was read under.
fn settle(bootstrap: &mut Bootstrap, outcome: page::PageOutcome) -> Delivery {
    if !bootstrap.has_begun {
        let settled = bootstrap::settle_pin(bootstrap.pin, bootstrap.is_resumed, outcome.horizon);
        match settled {
            Some(pin) => bootstrap.pin = pin,
            None => return Delivery::Reset,
        }
    }
    Delivery::Page(outcome.page)
}
