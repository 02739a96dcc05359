//! Segments on a backend: immutable bytes, a mutable record, pointers for reuse.
//!
//! The bytes are written once. The record is a document of its own that every publication
//! extends, so that writing it can be conditional: nobody's publication is lost to another one
//! that came at the same time. Pointers save a search and prove nothing: what they point to is
//! looked up and its publication checked.
//!
//! A segment may lose its bytes at any time to a lifecycle rule. What is found has been seen to
//! be there.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use object_store::{Attribute, Attributes, path::Path};
use parking_lot::Mutex;

use super::{
    backend::{Backend, Update},
    cleaning::{Goes, Held},
    documents::{self, PagePointer, PagesPointer, WholePointer},
    keys::{self, Keys},
    upload::{self, Expected, Target},
};
use crate::{
    FoundSegment, NewSegment, ObjectError, ObjectErrorKind, ObjectStream, PageSize, Prune,
    Publication, Removed, SegmentBody, SegmentId, SegmentKey, SegmentRecord, SegmentStats,
    SegmentStore, SignedUrl,
};

const PUBLISH: &str = "publish a segment";
const FIND: &str = "find a segment";
const READ: &str = "read a segment";
const LIST: &str = "list segments";

/// Segments on a backend. Clones share it.
#[derive(Clone)]
pub struct RemoteSegments {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) backend: Backend,
    pub(super) keys: Keys,
    pub(super) lifetime_ms: i64,
    counters: Counters,
    /// What the last clean-up saw.
    pub(super) held: Mutex<Held>,
}

#[derive(Default)]
struct Counters {
    published: AtomicU64,
    renewed: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    expired: AtomicU64,
}

/// What is known about a segment.
pub(super) enum Known {
    /// Nothing is.
    Nothing,
    /// It is being removed, or was.
    Removed,
    Record(SegmentRecord),
}

impl Known {
    pub(super) fn record(self) -> Option<SegmentRecord> {
        match self {
            Self::Record(record) => Some(record),
            Self::Nothing | Self::Removed => None,
        }
    }
}

impl RemoteSegments {
    /// Segments on `backend`, each publication for `lifetime_ms`. A lifecycle rule of the bucket
    /// must be well above that.
    pub fn new(backend: Backend, lifetime_ms: i64) -> Self {
        let keys = backend.keys();
        Self {
            shared: Arc::new(Shared {
                backend,
                keys,
                lifetime_ms,
                counters: Counters::default(),
                held: Mutex::default(),
            }),
        }
    }
}

#[async_trait]
impl SegmentStore for RemoteSegments {
    async fn publish(
        &self,
        segment: NewSegment,
        now_ms: i64,
    ) -> Result<Arc<SegmentRecord>, ObjectError> {
        let shared = &self.shared;
        let (context, row_count, id, byte_length, body) = segment.into_parts();
        let bytes_path = shared.keys.segment(id.as_str()).ok_or_else(|| {
            ObjectError::new(ObjectErrorKind::ContentMismatch, PUBLISH)
                .with_detail(format!("{id} is not a content address"))
        })?;
        let stored = shared
            .put_bytes(&bytes_path, &id, byte_length, &body)
            .await?;
        let publication = Publication {
            context: Arc::new(context),
            created_at_ms: now_ms,
            expires_at_ms: now_ms.saturating_add(shared.lifetime_ms),
        };
        let new = SegmentRecord {
            id: id.clone(),
            byte_length,
            row_count,
            publications: vec![publication.clone()],
        };
        let merged = shared.put_record(new, stored.legacy).await?;
        // A clean-up may have removed the bytes after they were seen or written, and before the
        // record said that they are wanted.
        if merged.was_removed || stored.were_there && merged.was_unknown {
            shared
                .put_bytes(&bytes_path, &id, byte_length, &body)
                .await?;
        }
        shared.put_pointers(&merged.record, &publication).await?;
        let counters = &shared.counters;
        let counter = if merged.was_renewed {
            &counters.renewed
        } else {
            &counters.published
        };
        counter.fetch_add(1, Relaxed);
        Ok(Arc::new(merged.record))
    }

    async fn find(
        &self,
        key: &SegmentKey,
        now_ms: i64,
    ) -> Result<Option<FoundSegment>, ObjectError> {
        let shared = &self.shared;
        let found = shared.find_whole(key, now_ms).await?;
        shared.count_search(found.is_some());
        Ok(found)
    }

    async fn find_page(
        &self,
        key: &SegmentKey,
        row_cursor: Option<&str>,
        size: PageSize,
        now_ms: i64,
    ) -> Result<Option<FoundSegment>, ObjectError> {
        let shared = &self.shared;
        let found = shared.find_page(key, row_cursor, size, now_ms).await?;
        shared.count_search(found.is_some());
        Ok(found)
    }

    async fn record(&self, id: &str) -> Result<Option<Arc<SegmentRecord>>, ObjectError> {
        let known = self.shared.known(READ, id).await?;
        Ok(known.record().map(Arc::new))
    }

    async fn open(
        &self,
        id: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError> {
        let Some(path) = self.shared.keys.segment(id) else {
            return Ok(None);
        };
        self.shared.backend.open(READ, &path, range).await
    }

    async fn presign(
        &self,
        id: &str,
        lifetime: Duration,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        let Some(path) = self.shared.keys.segment(id) else {
            return Ok(None);
        };
        self.shared
            .backend
            .presign_get("sign a URL", &path, lifetime, now_ms)
            .await
    }

    async fn expire(&self, ended_by_ms: i64) -> Result<Removed, ObjectError> {
        let goes: Goes = Arc::new(move |publication| publication.is_expired(ended_by_ms));
        let removed = self.shared.clean(&goes, true).await?;
        self.shared.clean_orphans(ended_by_ms).await?;
        self.shared.clean_pointers(ended_by_ms).await?;
        self.shared
            .counters
            .expired
            .fetch_add(removed.segments, Relaxed);
        Ok(removed)
    }

    async fn prune(&self, what: &Prune) -> Result<Removed, ObjectError> {
        let what = what.clone();
        let goes: Goes = Arc::new(move |publication| what.covers(&publication.context));
        self.shared.clean(&goes, false).await
    }

    async fn list(
        &self,
        after: Option<&SegmentId>,
        limit: usize,
    ) -> Result<Vec<Arc<SegmentRecord>>, ObjectError> {
        let shared = &self.shared;
        let mut after = after.map(|id| id.as_str().trim_start_matches("sha256:").to_owned());
        let mut records = Vec::new();
        while records.len() < limit {
            let name = after.as_ref().map(|hex| format!("{hex}.json"));
            let wanted = limit - records.len();
            let prefix = shared.keys.records();
            let page = shared
                .backend
                .list_page(LIST, &prefix, name.as_deref(), wanted)
                .await?;
            let ids: Vec<String> = page
                .iter()
                .filter_map(|meta| keys::id_of(&meta.location))
                .collect();
            let Some(last) = ids.last() else {
                break;
            };
            after = Some(last.trim_start_matches("sha256:").to_owned());
            let at_once = shared.backend.limits().requests_at_once;
            let known: Vec<Known> = futures_util::stream::iter(ids)
                .map(|id| async move { shared.known(LIST, &id).await })
                .buffered(at_once)
                .try_collect()
                .await?;
            records.extend(known.into_iter().filter_map(Known::record).map(Arc::new));
        }
        Ok(records)
    }

    async fn stats(&self) -> Result<SegmentStats, ObjectError> {
        let held = *self.shared.held.lock();
        let counters = &self.shared.counters;
        Ok(SegmentStats {
            segments: held.segments,
            publications: held.publications,
            bytes: held.bytes,
            published: counters.published.load(Relaxed),
            renewed: counters.renewed.load(Relaxed),
            hits: counters.hits.load(Relaxed),
            misses: counters.misses.load(Relaxed),
            evicted: 0,
            expired: counters.expired.load(Relaxed),
        })
    }
}

/// How the bytes of a segment came to be there.
struct Stored {
    were_there: bool,
    /// A record of the oldest generation.
    legacy: Option<SegmentRecord>,
}

impl Stored {
    const NEW: Self = Self {
        were_there: false,
        legacy: None,
    };
}

/// What publishing made of a record.
struct Merged {
    record: SegmentRecord,
    was_renewed: bool,
    was_unknown: bool,
    was_removed: bool,
}

impl Shared {
    fn count_search(&self, is_hit: bool) {
        let counter = if is_hit {
            &self.counters.hits
        } else {
            &self.counters.misses
        };
        counter.fetch_add(1, Relaxed);
    }

    async fn put_bytes(
        &self,
        path: &Path,
        id: &SegmentId,
        byte_length: u64,
        body: &SegmentBody,
    ) -> Result<Stored, ObjectError> {
        if let Some((meta, attributes)) = self.backend.head(PUBLISH, path).await? {
            if meta.size != byte_length {
                return Err(other_content(id));
            }
            return Ok(Stored {
                were_there: true,
                legacy: legacy_record(id.as_str(), &attributes),
            });
        }
        let expected = Expected {
            id: id.as_str(),
            bytes_max: byte_length,
        };
        let body = match body {
            SegmentBody::Bytes(bytes) => upload::body_of(bytes.clone()),
            SegmentBody::File(file) => {
                let file = file.to_path_buf();
                if self.backend.is_directory() {
                    let body = upload::body_of_file(PUBLISH, file.clone());
                    let length = upload::verify(PUBLISH, expected, body).await?;
                    if length != byte_length {
                        return Err(other_content(id));
                    }
                    if self.backend.link(PUBLISH, path, file.clone()).await? {
                        return Ok(Stored::NEW);
                    }
                }
                upload::body_of_file(PUBLISH, file)
            }
        };
        let target = Target {
            path,
            attributes: &|_| Attributes::new(),
            before_visible: Box::pin(std::future::ready(Ok(()))),
        };
        let length = upload::upload(&self.backend, PUBLISH, target, expected, body).await?;
        if length != byte_length {
            return Err(other_content(id));
        }
        Ok(Stored::NEW)
    }

    async fn put_record(
        &self,
        new: SegmentRecord,
        legacy: Option<SegmentRecord>,
    ) -> Result<Merged, ObjectError> {
        let path = self
            .keys
            .record(new.id.as_str())
            .expect("its bytes have a key");
        let decide = move |document: Option<&[u8]>| {
            let known = parse(PUBLISH, new.id.as_str(), document)?;
            let was_unknown = !matches!(known, Known::Record(_));
            let was_removed = matches!(known, Known::Removed);
            let stored = match known {
                Known::Record(record) => Some(record),
                Known::Removed => None,
                Known::Nothing => legacy.clone(),
            };
            let Some(mut record) = stored else {
                let bytes = documents::write_record(&new);
                let merged = Merged {
                    record: new.clone(),
                    was_renewed: false,
                    was_unknown,
                    was_removed,
                };
                return Ok(Update::Write(bytes, merged));
            };
            if (record.byte_length, record.row_count) != (new.byte_length, new.row_count) {
                return Err(other_content(&new.id));
            }
            let was_renewed = documents::merge(&mut record.publications, &new.publications[0]);
            let bytes = documents::write_record(&record);
            let merged = Merged {
                record,
                was_renewed,
                was_unknown,
                was_removed,
            };
            Ok(Update::Write(bytes, merged))
        };
        self.backend.update(PUBLISH, path, decide).await
    }

    async fn put_pointers(
        &self,
        record: &SegmentRecord,
        publication: &Publication,
    ) -> Result<(), ObjectError> {
        let context = &publication.context;
        if context.is_whole_table() {
            let pointer = WholePointer {
                segment_id: record.id.as_str().to_owned(),
                expires_at_ms: Some(publication.expires_at_ms),
            };
            let path = self.keys.whole(&context.key);
            let payload = documents::to_json(&pointer).into();
            self.backend
                .put(PUBLISH, &path, payload, Attributes::new())
                .await?;
        }
        if context.key.media_type != tidewater_wire::MediaType::Rows {
            return Ok(());
        }
        let path = self
            .keys
            .pages_at(&context.key, context.row_cursor.as_deref());
        let page = PagePointer {
            segment_id: record.id.as_str().to_owned(),
            row_count: record.row_count,
            byte_length: record.byte_length,
            next_row_cursor: context.next_row_cursor.clone(),
            expires_at_ms: publication.expires_at_ms,
        };
        let decide = move |document: Option<&[u8]>| {
            let mut pointer: PagesPointer = document
                .and_then(|json| serde_json::from_slice(json).ok())
                .unwrap_or_default();
            pointer.add(page.clone());
            Ok(Update::Write(documents::to_json(&pointer), ()))
        };
        self.backend.update(PUBLISH, path, decide).await
    }

    async fn find_whole(
        &self,
        key: &SegmentKey,
        now_ms: i64,
    ) -> Result<Option<FoundSegment>, ObjectError> {
        let path = self.keys.whole(key);
        let Some(pointer) = self.pointer::<WholePointer>(&path).await? else {
            return Ok(None);
        };
        let usable = |publication: &Publication| {
            publication.context.key == *key && publication.context.is_whole_table()
        };
        self.found(&pointer.segment_id, now_ms, usable).await
    }

    async fn find_page(
        &self,
        key: &SegmentKey,
        row_cursor: Option<&str>,
        size: PageSize,
        now_ms: i64,
    ) -> Result<Option<FoundSegment>, ObjectError> {
        let path = self.keys.pages_at(key, row_cursor);
        let Some(pointer) = self.pointer::<PagesPointer>(&path).await? else {
            return Ok(None);
        };
        let mut pages: Vec<PagePointer> = pointer
            .pages
            .into_iter()
            .filter(|page| page.expires_at_ms > now_ms)
            .filter(|page| {
                let is_last = page.next_row_cursor.is_none();
                size.admits(page.row_count, page.byte_length, is_last)
            })
            .collect();
        pages.sort_by_key(|page| std::cmp::Reverse(page.row_count));
        for page in pages {
            let usable = |publication: &Publication| {
                let context = &publication.context;
                context.key == *key
                    && context.row_cursor.as_deref() == row_cursor
                    && context.next_row_cursor == page.next_row_cursor
            };
            if let Some(found) = self.found(&page.segment_id, now_ms, usable).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Reads a pointer. One that does not parse points to nothing.
    async fn pointer<T: serde::de::DeserializeOwned>(
        &self,
        path: &Path,
    ) -> Result<Option<T>, ObjectError> {
        let document = self.backend.read_document(FIND, path).await?;
        Ok(document.and_then(|(json, _)| serde_json::from_slice(&json).ok()))
    }

    /// A segment that is there with a publication that can be used now.
    async fn found(
        &self,
        id: &str,
        now_ms: i64,
        usable: impl Fn(&Publication) -> bool,
    ) -> Result<Option<FoundSegment>, ObjectError> {
        let Some(path) = self.keys.segment(id) else {
            return Ok(None);
        };
        let (known, bytes) =
            futures_util::try_join!(self.known(FIND, id), self.backend.head(FIND, &path))?;
        let (Some(record), Some(_)) = (known.record(), bytes) else {
            return Ok(None);
        };
        let context = record
            .publications
            .iter()
            .find(|publication| !publication.is_expired(now_ms) && usable(publication))
            .map(|publication| Arc::clone(&publication.context));
        Ok(context.map(|context| FoundSegment {
            record: Arc::new(record),
            context,
        }))
    }

    pub(super) async fn known(&self, during: &'static str, id: &str) -> Result<Known, ObjectError> {
        let (Some(record_path), Some(bytes_path)) = (self.keys.record(id), self.keys.segment(id))
        else {
            return Ok(Known::Nothing);
        };
        if let Some((json, _)) = self.backend.read_document(during, &record_path).await? {
            return parse(during, id, Some(&json));
        }
        if !self.backend.has_attributes() {
            return Ok(Known::Nothing);
        }
        let bytes = self.backend.head(during, &bytes_path).await?;
        let legacy = bytes.and_then(|(_, attributes)| legacy_record(id, &attributes));
        Ok(legacy.map_or(Known::Nothing, Known::Record))
    }
}

pub(super) fn parse(
    during: &'static str,
    id: &str,
    document: Option<&[u8]>,
) -> Result<Known, ObjectError> {
    let Some(json) = document else {
        return Ok(Known::Nothing);
    };
    let record = documents::read_record(during, id, json)?;
    Ok(record.map_or(Known::Removed, Known::Record))
}

fn legacy_record(id: &str, attributes: &Attributes) -> Option<SegmentRecord> {
    let attribute = Attribute::Metadata(documents::RECORD_ATTRIBUTE.into());
    documents::read_attribute(id, attributes.get(&attribute)?)
}

fn other_content(id: &SegmentId) -> ObjectError {
    ObjectError::new(ObjectErrorKind::ContentMismatch, PUBLISH)
        .with_detail(format!("segment {id} is stored with other content"))
}
