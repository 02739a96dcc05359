//! The image lane: a bootstrap whose rows are one database file (§5.3).
//!
//! Only at the start of a table and only for a table without encrypted columns; never changed in
//! the middle. An image is published at its scope pin and found there until its own scope is
//! written, however much is written elsewhere. Whoever needs one that is being built waits for
//! it: their scopes were resolved before that, in their own round.
//!
//! **The pin of an image is that of its snapshot.** It is at or after the pin that a bootstrap was
//! given before the build began. One that joins a build under way may be given a later pin than
//! the snapshot has; it then waits for one more build, which begins after it asked.
//!
//! The write side is a thread that takes pieces of rows as fast as it writes them; the store is
//! at most two pieces ahead, so a build holds some pieces and never the table.

use std::{sync::Arc, time::Duration};

use tidewater_image::{Image, ImageError, ImageErrorKind, ImageSpec, ImageWriter, is_eligible};
use tidewater_model::{CommitSeq, ScopeFilter};
use tidewater_objects::{
    NewSegment, ObjectErrorKind, PublicationContext, SegmentId, SegmentKey, SegmentRecord,
};
use tidewater_schema::{SchemaView, Table, TableIndex};
use tidewater_store::{RowPage, RowStream, RowStreamRequest};
use tidewater_wire::MediaType;
use tokio::sync::mpsc;

use super::{bootstrap::scope_pin, gate};
use crate::{
    Engine, RoundError,
    builds::{ImageKey, ImageOutcome, count},
    round::RoundContext,
};

/// Rows and payload bytes of a piece on its way from the store to the file.
const PIECE_ROWS_MAX: usize = 5_000;
const PIECE_BYTES_MAX: usize = 1024 * 1024;

/// Asks for the image of a bootstrap that has not begun.
pub(super) struct ImageRequest<'a> {
    pub(super) context: &'a Arc<RoundContext>,
    pub(super) table: TableIndex,
    pub(super) effective: &'a ScopeFilter,
    pub(super) scope_digest: &'a str,
    pub(super) pin: CommitSeq,
}

impl ImageRequest<'_> {
    fn key(&self) -> SegmentKey {
        SegmentKey {
            partition: self.context.identity.partition.clone(),
            log_epoch: self.context.log_epoch.clone(),
            table: self.context.engine.schema().table(self.table).name.clone(),
            schema_version: self.context.schema_version,
            media_type: MediaType::Sqlite,
            scope_digest: self.scope_digest.to_owned(),
            as_of: self.pin,
        }
    }
}

/// Whether this server makes an image of the table, if its rows are many.
pub(super) fn is_possible(engine: &Engine, table: TableIndex) -> bool {
    engine.parts.config.image_builds_max > 0 && is_eligible(engine.schema().table(table))
}

/// The image that is there already.
pub(super) async fn find(
    request: &ImageRequest<'_>,
) -> Result<Option<Arc<SegmentRecord>>, RoundError> {
    let engine = &request.context.engine;
    let found = engine
        .parts
        .segments
        .find(&request.key(), engine.parts.clock.now_ms())
        .await
        .map_err(|error| RoundError::internal(&error, "find an image"))?;
    if found.is_some() {
        count(&engine.builds.counts.image_reuses);
    }
    Ok(found.map(|found| found.record))
}

/// Whether these rows are known to have no image.
pub(super) fn is_unsuited(request: &ImageRequest<'_>) -> bool {
    let unsuited = &request.context.engine.builds.unsuited;
    unsuited.lock().contains(&request.key())
}

/// Whether somebody builds the image at this moment.
pub(super) fn is_under_way(request: &ImageRequest<'_>) -> bool {
    let key = ImageKey::new(request.key());
    request.context.engine.builds.images.find(&key).is_some()
}

/// Builds the image, or waits for whoever does.
pub(super) async fn obtain(request: &ImageRequest<'_>) -> Result<ImageOutcome, RoundError> {
    let engine = &request.context.engine;
    loop {
        if engine.builds.images.len() >= engine.parts.config.image_builds_waiting_max
            && !is_under_way(request)
        {
            count(&engine.builds.counts.image_declines);
            return Ok(ImageOutcome::Rows);
        }
        let (landing, joined) =
            engine
                .builds
                .images
                .join(ImageKey::new(request.key()), "build an image", || {
                    Build::of(request).run()
                });
        if joined {
            count(&engine.builds.counts.image_joins);
        }
        match landing.await? {
            // Its snapshot is older than what this bootstrap must show.
            ImageOutcome::Built { pin, .. } if pin < request.pin && joined => {}
            ImageOutcome::Rows => {
                count(&engine.builds.counts.image_declines);
                return Ok(ImageOutcome::Rows);
            }
            outcome @ ImageOutcome::Built { .. } => return Ok(outcome),
        }
    }
}

/// A build, with all it needs once whoever asked for it is gone.
struct Build {
    context: Arc<RoundContext>,
    key: ImageKey,
    asked_pin: CommitSeq,
    table: TableIndex,
    stream: RowStreamRequest,
}

impl Build {
    fn of(request: &ImageRequest<'_>) -> Self {
        Self {
            context: Arc::clone(request.context),
            key: ImageKey::new(request.key()),
            asked_pin: request.pin,
            table: request.table,
            stream: RowStreamRequest {
                partition: request.context.identity.partition.clone(),
                table: request.table,
                filter: request.effective.clone(),
                rows_max: PIECE_ROWS_MAX,
                bytes_max: PIECE_BYTES_MAX,
            },
        }
    }

    async fn run(self) -> Result<ImageOutcome, RoundError> {
        let engine = Arc::clone(&self.context.engine);
        let permits = Arc::clone(&engine.builds.permits);
        let Ok(permit) = permits.acquire_owned().await else {
            unreachable!("the semaphore is never closed");
        };
        if let Some(outcome) = self.find_again().await {
            return Ok(outcome);
        }
        let deadline: Duration = engine.parts.config.image_build_timeout;
        let outcome = match tokio::time::timeout(deadline, self.build()).await {
            Ok(outcome) => outcome,
            Err(elapsed) => Err(RoundError::internal(&elapsed, "build an image")),
        };
        drop(permit);
        let counts = &engine.builds.counts;
        match &outcome {
            Ok(ImageOutcome::Built { .. }) => count(&counts.image_builds),
            Ok(ImageOutcome::Rows) => {}
            Err(_) => count(&counts.image_failures),
        }
        outcome
    }

    /// What another build has published between the look that found nothing and this one's begin.
    async fn find_again(&self) -> Option<ImageOutcome> {
        let engine = &self.context.engine;
        let (key, now_ms) = (self.key.at(self.asked_pin), engine.parts.clock.now_ms());
        // A store that fails is told apart from an empty one when the image is published.
        let found = engine.parts.segments.find(&key, now_ms).await.ok()??;
        count(&engine.builds.counts.image_reuses);
        Some(ImageOutcome::Built {
            pin: self.asked_pin,
            record: found.record,
        })
    }

    async fn build(self) -> Result<ImageOutcome, RoundError> {
        let engine = &self.context.engine;
        let stream = engine.store().stream_rows(self.stream.clone()).await?;
        gate::admit(&self.context, &stream.gate).await?;
        let pin = scope_pin(stream.newest_change, stream.gate.head, stream.gate.horizon);
        let image = match self.write(stream, pin).await? {
            Ok(image) => image,
            Err(error) if error.kind == ImageErrorKind::Unsuited => {
                tracing::info!(table = %self.key.at(pin).table, %error, "rows are sent without an image");
                self.remember_unsuited(pin);
                return Ok(ImageOutcome::Rows);
            }
            Err(error) => return Err(RoundError::internal(&error, "write an image")),
        };
        let context = PublicationContext {
            key: self.key.at(pin),
            row_cursor: None,
            next_row_cursor: None,
        };
        let id = SegmentId::new(image.id);
        let segment =
            NewSegment::from_file(context, image.row_count, image.file, id, image.byte_length);
        let published = engine
            .parts
            .segments
            .publish(segment, engine.parts.clock.now_ms())
            .await;
        match published {
            Ok(record) => Ok(ImageOutcome::Built { pin, record }),
            // It is larger than all the room there is: rows need less at a time.
            Err(error) if error.kind == ObjectErrorKind::TooLarge => {
                tracing::warn!(%error, "an image does not fit into the segment store");
                self.remember_unsuited(pin);
                Ok(ImageOutcome::Rows)
            }
            Err(error) => Err(RoundError::internal(&error, "publish an image")),
        }
    }

    /// As the requester knows it.
    fn shown_table(&self) -> &Arc<Table> {
        let table = self.context.view.table(self.table);
        table.expect("a table that was found by its name is in the view")
    }

    fn remember_unsuited(&self, pin: CommitSeq) {
        let mut unsuited = self.context.engine.builds.unsuited.lock();
        unsuited.put(self.key.at(pin), ());
        unsuited.put(self.key.at(self.asked_pin), ());
    }

    /// Writes the rows of the stream on a thread of its own.
    async fn write(
        &self,
        mut stream: RowStream,
        pin: CommitSeq,
    ) -> Result<Result<Image, ImageError>, RoundError> {
        let key = self.key.at(pin);
        let spec = ImageSpec {
            table: Arc::clone(self.shown_table()),
            schema_version: key.schema_version,
            as_of: pin,
            scope_digest: key.scope_digest,
        };
        let directory = self.context.engine.parts.config.image_directory.clone();
        let (context, table) = (Arc::clone(&self.context), self.table);
        let (sender, mut pieces) = mpsc::channel::<Piece>(1);
        let writing = tokio::task::spawn_blocking(move || {
            let mut writer = ImageWriter::create(directory.as_deref(), spec)?;
            while let Some(piece) = pieces.blocking_recv() {
                let Piece::Rows(page) = piece else {
                    return writer.finish().map(Some);
                };
                push_rows(&mut writer, &context.view, table, &page)?;
            }
            // Given up: what was written is not all of it.
            Ok(None)
        });
        // A writer that has failed takes no more, and says why below.
        while let Some(page) = stream.next().await? {
            if sender.send(Piece::Rows(page)).await.is_err() {
                break;
            }
        }
        drop(stream);
        let _ = sender.send(Piece::End).await;
        drop(sender);
        match writing.await {
            Ok(Ok(Some(image))) => Ok(Ok(image)),
            Ok(Ok(None)) => unreachable!("the end was sent before the channel closed"),
            Ok(Err(error)) => Ok(Err(error)),
            Err(error) => Err(RoundError::internal(&error, "write an image")),
        }
    }
}

/// Writes rows in the columns of the requester. One that is damaged is left as it is for the
/// writer to refuse.
fn push_rows(
    writer: &mut ImageWriter,
    view: &SchemaView,
    table: TableIndex,
    page: &RowPage,
) -> Result<(), ImageError> {
    if view.is_whole(table) {
        return writer.push(page.rows().map(|row| (row.row_version, row.payload)));
    }
    for row in page.rows() {
        let shown = view.project(table, row.payload);
        let payload = shown.as_deref().unwrap_or(row.payload);
        writer.push([(row.row_version, payload)])?;
    }
    Ok(())
}

enum Piece {
    Rows(RowPage),
    End,
}
