//! Removing what expired, or what an operator wants gone.
//!
//! A record says first that its segment is being removed, then the bytes go, then the record. Who
//! publishes meanwhile begins a new record and looks at the bytes once more. A removal that is
//! interrupted is finished by the next one.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;

use super::{
    backend::Update,
    documents::{self, PagesPointer, WholePointer},
    keys,
    segments::{Known, Shared, parse},
};
use crate::{ObjectError, Publication, Removed, SegmentRecord};

const CLEAN: &str = "remove segments";

/// Which publications a clean-up removes.
pub(super) type Goes = Arc<dyn Fn(&Publication) -> bool + Send + Sync>;

/// What a clean-up saw.
#[derive(Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) segments: u64,
    pub(super) publications: u64,
    pub(super) bytes: u64,
}

impl Shared {
    /// Removes publications from every record, and the segments that have none left.
    pub(super) async fn clean(&self, goes: &Goes, counts: bool) -> Result<Removed, ObjectError> {
        let listing = self.backend.list(CLEAN, &self.keys.records());
        let at_once = self.backend.limits().requests_at_once;
        let (removed, held) = listing
            .map_ok(|meta| async move {
                match keys::id_of(&meta.location) {
                    Some(id) => self.clean_one(&id, Arc::clone(goes)).await,
                    None => Ok(Cleaned::default()),
                }
            })
            .try_buffer_unordered(at_once)
            .try_fold(
                (Removed::default(), Held::default()),
                |(mut removed, mut held), cleaned| async move {
                    removed.segments += cleaned.removed.segments;
                    removed.publications += cleaned.removed.publications;
                    removed.bytes += cleaned.removed.bytes;
                    held.segments += cleaned.held.segments;
                    held.publications += cleaned.held.publications;
                    held.bytes += cleaned.held.bytes;
                    Ok((removed, held))
                },
            )
            .await?;
        if counts {
            *self.held.lock() = held;
        }
        Ok(removed)
    }

    async fn clean_one(&self, id: &str, goes: Goes) -> Result<Cleaned, ObjectError> {
        let path = self.keys.record(id).expect("it was listed");
        let owned_id = id.to_owned();
        let decide = move |document: Option<&[u8]>| {
            let record = match parse(CLEAN, &owned_id, document)? {
                Known::Record(record) => record,
                Known::Nothing => return Ok(Update::Keep(Cleaned::default())),
                Known::Removed => return Ok(Update::Keep(Cleaned::removing())),
            };
            let (gone, stays): (Vec<_>, Vec<_>) = record
                .publications
                .iter()
                .cloned()
                .partition(|publication| goes(publication));
            let mut cleaned = Cleaned::default();
            if gone.is_empty() || !stays.is_empty() {
                cleaned.held.segments = 1;
                cleaned.held.publications = count(stays.len());
                cleaned.held.bytes = record.byte_length;
            }
            if gone.is_empty() {
                return Ok(Update::Keep(cleaned));
            }
            cleaned.removed.publications = count(gone.len());
            if stays.is_empty() {
                cleaned.is_removed = true;
                cleaned.removed.segments = 1;
                cleaned.removed.bytes = record.byte_length;
                return Ok(Update::Write(documents::write_removed(&record), cleaned));
            }
            let rest = SegmentRecord {
                publications: stays,
                ..record
            };
            Ok(Update::Write(documents::write_record(&rest), cleaned))
        };
        let cleaned = self.backend.update(CLEAN, path.clone(), decide).await?;
        if cleaned.is_removed {
            let bytes_path = self.keys.segment(id).expect("it was listed");
            self.backend.delete(CLEAN, &bytes_path).await?;
            // Whoever published meanwhile has written the record again, and the bytes after it.
            let document = self.backend.read_document(CLEAN, &path).await?;
            let json = document.as_ref().map(|(json, _)| &**json);
            if matches!(parse(CLEAN, id, json)?, Known::Removed) {
                self.backend.delete(CLEAN, &path).await?;
            }
        }
        Ok(cleaned)
    }

    /// Removes bytes that have no record: those of the oldest generation when their time is
    /// over, and those whose publisher was interrupted.
    pub(super) async fn clean_orphans(&self, ended_by_ms: i64) -> Result<(), ObjectError> {
        let listing = self.backend.list(CLEAN, &self.keys.segments());
        let at_once = self.backend.limits().requests_at_once;
        listing
            .map_ok(|meta| async move {
                let Some(id) = keys::id_of(&meta.location) else {
                    return Ok(());
                };
                let record_path = self.keys.record(&id).expect("an address has a key");
                if self.backend.head(CLEAN, &record_path).await?.is_some() {
                    return Ok(());
                }
                let written_at_ms = meta.last_modified.timestamp_millis();
                let expires_at_ms = match self.known(CLEAN, &id).await? {
                    Known::Record(record) => record.expires_at_ms(),
                    Known::Nothing => written_at_ms.saturating_add(self.lifetime_ms),
                    Known::Removed => return Ok(()),
                };
                if expires_at_ms <= ended_by_ms {
                    self.backend.delete(CLEAN, &meta.location).await?;
                }
                Ok(())
            })
            .try_buffer_unordered(at_once)
            .try_collect()
            .await
    }

    /// Removes pointers to what has expired.
    pub(super) async fn clean_pointers(&self, ended_by_ms: i64) -> Result<(), ObjectError> {
        let at_once = self.backend.limits().requests_at_once;
        let wholes = self.backend.list(CLEAN, &self.keys.wholes());
        let pages = self.backend.list(CLEAN, &self.keys.pages());
        wholes
            .chain(pages)
            .map_ok(|meta| async move {
                let path = meta.location;
                let written_at_ms = meta.last_modified.timestamp_millis();
                let expires_at_ms = self
                    .pointer_expiry(&path)
                    .await?
                    .unwrap_or_else(|| written_at_ms.saturating_add(self.lifetime_ms));
                if expires_at_ms <= ended_by_ms {
                    self.backend.delete(CLEAN, &path).await?;
                }
                Ok(())
            })
            .try_buffer_unordered(at_once)
            .try_collect()
            .await
    }

    async fn pointer_expiry(&self, path: &Path) -> Result<Option<i64>, ObjectError> {
        let Some((json, _)) = self.backend.read_document(CLEAN, path).await? else {
            return Ok(Some(i64::MAX));
        };
        if let Ok(pages) = serde_json::from_slice::<PagesPointer>(&json) {
            return Ok(pages.expires_at_ms());
        }
        let whole = serde_json::from_slice::<WholePointer>(&json).ok();
        Ok(whole.and_then(|pointer| pointer.expires_at_ms))
    }
}

/// What a clean-up did to one segment.
#[derive(Clone, Copy, Default)]
struct Cleaned {
    is_removed: bool,
    removed: Removed,
    held: Held,
}

impl Cleaned {
    /// A removal that was interrupted is finished.
    fn removing() -> Self {
        Self {
            is_removed: true,
            ..Self::default()
        }
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).expect("a count fits in 64 bits")
}
