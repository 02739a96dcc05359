//! Segments in memory: a bounded, content-addressed cache.
//!
//! One entry per content address, with the list of its publications; an index from a context to
//! the entry it was published as. **Invariant:** bytes under an address never change, and the
//! charges of all entries together stay within the bound. Room is made by dropping what expired,
//! then what was used longest ago.
//!
//! Publications cost memory too: the same empty page may be published for every tenant. They are
//! charged like bytes and their number per entry is bounded.
//!
//! The lock is held for index work only: hashing and comparing content happen outside of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
    path::Path,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use tidewater_model::limits::PUBLICATIONS_PER_SEGMENT_MAX;
use tidewater_wire::content_address;

use crate::{
    FoundSegment, NewSegment, ObjectError, ObjectErrorKind, ObjectStream, PageSize, Prune,
    Publication, PublicationContext, Removed, SegmentBody, SegmentId, SegmentKey, SegmentRecord,
    SegmentStats, SegmentStore, SignedUrl,
};

/// What a publication is charged beside the text of its context: its places in the maps.
const PUBLICATION_OVERHEAD_BYTES: usize = 512;

/// A segment store that forgets everything when the process ends. Clones share what it holds.
#[derive(Clone)]
pub struct MemorySegments {
    cache: Arc<Cache>,
}

struct Cache {
    bytes_max: usize,
    lifetime_ms: i64,
    state: Mutex<State>,
}

impl MemorySegments {
    /// An empty store that holds at most `bytes_max` bytes and keeps a publication for
    /// `lifetime_ms`.
    pub fn new(bytes_max: usize, lifetime_ms: i64) -> Self {
        Self {
            cache: Arc::new(Cache::new(bytes_max, lifetime_ms)),
        }
    }
}

#[async_trait]
impl SegmentStore for MemorySegments {
    async fn publish(
        &self,
        segment: NewSegment,
        now_ms: i64,
    ) -> Result<Arc<SegmentRecord>, ObjectError> {
        let (context, row_count, id, byte_length, body) = segment.into_parts();
        let charge = publication_charge(&context);
        let byte_length = usize::try_from(byte_length).unwrap_or(usize::MAX);
        self.cache.check_size(byte_length.saturating_add(charge))?;
        let bytes = match body {
            SegmentBody::Bytes(bytes) => bytes,
            SegmentBody::File(file) => {
                let expected = id.clone();
                tokio::task::spawn_blocking(move || read(&file, &expected, byte_length))
                    .await
                    .map_err(|error| {
                        ObjectError::new(ObjectErrorKind::Unavailable, PUBLISH).with_source(error)
                    })??
            }
        };
        self.cache.publish_at(id, context, row_count, bytes, now_ms)
    }

    async fn find(
        &self,
        key: &SegmentKey,
        now_ms: i64,
    ) -> Result<Option<FoundSegment>, ObjectError> {
        Ok(self.cache.find(key, now_ms))
    }

    async fn find_page(
        &self,
        key: &SegmentKey,
        row_cursor: Option<&str>,
        size: PageSize,
        now_ms: i64,
    ) -> Result<Option<FoundSegment>, ObjectError> {
        Ok(self.cache.find_page(key, row_cursor, size, now_ms))
    }

    async fn record(&self, id: &str) -> Result<Option<Arc<SegmentRecord>>, ObjectError> {
        Ok(self.cache.record(id))
    }

    async fn open(
        &self,
        id: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError> {
        let bytes = self.cache.bytes(id);
        Ok(bytes.map(|bytes| ObjectStream::from_bytes(&bytes, range)))
    }

    async fn presign(
        &self,
        _id: &str,
        _lifetime: Duration,
        _now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        Ok(None)
    }

    async fn expire(&self, ended_by_ms: i64) -> Result<Removed, ObjectError> {
        let ended = |publication: &Publication| publication.is_expired(ended_by_ms);
        let removed = self.cache.remove(ended);
        self.cache.state.lock().stats.expired += removed.segments;
        Ok(removed)
    }

    async fn prune(&self, what: &Prune) -> Result<Removed, ObjectError> {
        let covered = |publication: &Publication| what.covers(&publication.context);
        Ok(self.cache.remove(covered))
    }

    async fn list(
        &self,
        after: Option<&SegmentId>,
        limit: usize,
    ) -> Result<Vec<Arc<SegmentRecord>>, ObjectError> {
        let mut records: Vec<Arc<SegmentRecord>> = self
            .cache
            .state
            .lock()
            .entries
            .iter()
            .filter(|(id, _)| after.is_none_or(|after| *id > after))
            .map(|(_, entry)| Arc::clone(&entry.record))
            .collect();
        records.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        records.truncate(limit);
        Ok(records)
    }

    async fn stats(&self) -> Result<SegmentStats, ObjectError> {
        Ok(self.cache.stats())
    }
}

const PUBLISH: &str = "publish a segment";

/// Reads a file whose size fits the bound, and checks that it is what it is said to be.
fn read(file: &Path, id: &SegmentId, byte_length: usize) -> Result<Bytes, ObjectError> {
    let bytes = std::fs::read(file).map_err(|error| {
        ObjectError::new(ObjectErrorKind::Unavailable, PUBLISH).with_source(error)
    })?;
    if bytes.len() != byte_length || content_address(&bytes) != id.as_str() {
        return Err(ObjectError::new(ObjectErrorKind::ContentMismatch, PUBLISH)
            .with_detail(format!("the file is not segment {id}")));
    }
    Ok(bytes.into())
}

impl Cache {
    fn new(bytes_max: usize, lifetime_ms: i64) -> Self {
        Self {
            bytes_max,
            lifetime_ms,
            state: Mutex::new(State::new()),
        }
    }

    fn find(&self, key: &SegmentKey, now_ms: i64) -> Option<FoundSegment> {
        let mut state = self.state.lock();
        state.find(key, None, now_ms, |_, context| context.is_whole_table())
    }

    /// The unexpired page of `key` that starts at `row_cursor` and has the most rows.
    fn find_page(
        &self,
        key: &SegmentKey,
        row_cursor: Option<&str>,
        size: PageSize,
        now_ms: i64,
    ) -> Option<FoundSegment> {
        let mut state = self.state.lock();
        state.find(key, row_cursor, now_ms, |record, context| {
            let is_last = context.next_row_cursor.is_none();
            size.admits(record.row_count, record.byte_length, is_last)
        })
    }

    /// A segment's record, with the publications to check a download against.
    fn record(&self, id: &str) -> Option<Arc<SegmentRecord>> {
        let mut state = self.state.lock();
        state.entries.get(id).map(|entry| Arc::clone(&entry.record))
    }

    /// A segment's bytes. The caller has checked a publication of its record.
    fn bytes(&self, id: &str) -> Option<Bytes> {
        let mut state = self.state.lock();
        state.entries.get(id).map(|entry| entry.bytes.clone())
    }

    /// What the store holds and did.
    fn stats(&self) -> SegmentStats {
        let state = self.state.lock();
        SegmentStats {
            bytes: count(state.bytes),
            ..state.stats
        }
    }

    fn check_size(&self, segment_bytes: usize) -> Result<(), ObjectError> {
        let bytes_max = self.bytes_max;
        if segment_bytes > bytes_max {
            let detail = format!(
                "a segment of {segment_bytes} bytes does not fit the segment cache of {bytes_max} \
                 bytes: raise the cache's size"
            );
            return Err(ObjectError::new(ObjectErrorKind::TooLarge, PUBLISH).with_detail(detail));
        }
        Ok(())
    }

    /// Removes publications, and segments that have none left.
    fn remove(&self, goes: impl Fn(&Publication) -> bool) -> Removed {
        let mut state = self.state.lock();
        let concerned: Vec<SegmentId> = state
            .entries
            .iter()
            .filter(|(_, entry)| entry.record.publications.iter().any(&goes))
            .map(|(id, _)| id.clone())
            .collect();
        let mut removed = Removed::default();
        for id in concerned {
            state.remove(&id, &goes, &mut removed);
        }
        removed
    }

    fn publish_at(
        &self,
        id: SegmentId,
        context: PublicationContext,
        row_count: u64,
        bytes: Bytes,
        now_ms: i64,
    ) -> Result<Arc<SegmentRecord>, ObjectError> {
        let stored = self
            .state
            .lock()
            .entries
            .peek(&id)
            .map(|entry| (entry.bytes.clone(), entry.record.row_count));
        if let Some((stored_bytes, stored_rows)) = stored
            && (stored_bytes != bytes || stored_rows != row_count)
        {
            return Err(ObjectError::new(ObjectErrorKind::ContentMismatch, PUBLISH)
                .with_detail(format!("segment {id} is stored with other content")));
        }
        let publication = Publication {
            context: Arc::new(context),
            created_at_ms: now_ms,
            expires_at_ms: now_ms.saturating_add(self.lifetime_ms),
        };
        let mut state = self.state.lock();
        state.drop_expired(now_ms);
        if !state.renew(&id, &publication) {
            state.append(&id, row_count, bytes, publication.clone());
            state.make_room(&id, &publication.context, self.bytes_max);
        }
        let entry = state.entries.peek(&id).expect("it was just published");
        Ok(Arc::clone(&entry.record))
    }
}

struct State {
    /// By address; the least recently used is the first to go.
    entries: LruCache<SegmentId, Entry>,
    /// Published pages by what they hold and where they start.
    pages: HashMap<SegmentKey, BTreeMap<Option<String>, Vec<Page>>>,
    /// When the last publication of each entry ends.
    expiries: BTreeSet<(i64, SegmentId)>,
    /// What is charged.
    bytes: usize,
    stats: SegmentStats,
}

struct Entry {
    record: Arc<SegmentRecord>,
    bytes: Bytes,
}

struct Page {
    id: SegmentId,
    context: Arc<PublicationContext>,
}

impl State {
    fn new() -> Self {
        Self {
            entries: LruCache::unbounded(),
            pages: HashMap::new(),
            expiries: BTreeSet::new(),
            bytes: 0,
            stats: SegmentStats::default(),
        }
    }

    fn find(
        &mut self,
        key: &SegmentKey,
        row_cursor: Option<&str>,
        now_ms: i64,
        is_usable: impl Fn(&SegmentRecord, &PublicationContext) -> bool,
    ) -> Option<FoundSegment> {
        let found = self
            .pages
            .get(key)
            .and_then(|pages| pages.get(&row_cursor.map(str::to_owned)))
            .into_iter()
            .flatten()
            .filter_map(|page| {
                let record = &self.entries.peek(&page.id)?.record;
                let publication = record.publication(&page.context)?;
                (!publication.is_expired(now_ms) && is_usable(record, &page.context)).then(|| {
                    FoundSegment {
                        record: Arc::clone(record),
                        context: Arc::clone(&page.context),
                    }
                })
            })
            .max_by_key(|found| found.record.row_count);
        match &found {
            Some(found) => {
                self.stats.hits += 1;
                self.entries.promote(&found.record.id);
            }
            None => self.stats.misses += 1,
        }
        found
    }

    /// Gives the publication with an equal context the new one's expiry, if there is one.
    fn renew(&mut self, id: &SegmentId, publication: &Publication) -> bool {
        let Some(entry) = self.entries.get_mut(id) else {
            return false;
        };
        let ended_at_ms = entry.record.expires_at_ms();
        let same = entry
            .record
            .publications
            .iter()
            .position(|stored| stored.context == publication.context);
        let Some(same) = same else {
            return false;
        };
        let stored = &mut Arc::make_mut(&mut entry.record).publications[same];
        // A clock that was set back must not shorten a lifetime that was promised.
        stored.expires_at_ms = stored.expires_at_ms.max(publication.expires_at_ms);
        self.expiries.remove(&(ended_at_ms, id.clone()));
        self.expiries
            .insert((entry.record.expires_at_ms(), id.clone()));
        self.stats.renewed += 1;
        true
    }

    /// Adds a publication, and the entry if it is the first.
    fn append(&mut self, id: &SegmentId, row_count: u64, bytes: Bytes, publication: Publication) {
        self.bytes += publication_charge(&publication.context);
        self.stats.publications += 1;
        self.stats.published += 1;
        let page = Page {
            id: id.clone(),
            context: Arc::clone(&publication.context),
        };
        self.pages
            .entry(publication.context.key.clone())
            .or_default()
            .entry(publication.context.row_cursor.clone())
            .or_default()
            .push(page);
        if let Some(entry) = self.entries.get_mut(id) {
            let ended_at_ms = entry.record.expires_at_ms();
            self.expiries.remove(&(ended_at_ms, id.clone()));
            let record = Arc::make_mut(&mut entry.record);
            record.publications.push(publication);
            self.expiries.insert((record.expires_at_ms(), id.clone()));
            return;
        }
        self.bytes += bytes.len();
        self.stats.segments += 1;
        self.expiries
            .insert((publication.expires_at_ms, id.clone()));
        let record = Arc::new(SegmentRecord {
            id: id.clone(),
            byte_length: count(bytes.len()),
            row_count,
            publications: vec![publication],
        });
        self.entries.put(id.clone(), Entry { record, bytes });
    }

    /// Keeps the bounds by dropping other segments, then other publications of this one.
    fn make_room(&mut self, id: &SegmentId, context: &PublicationContext, bytes_max: usize) {
        while self.bytes > bytes_max && self.entries.len() > 1 {
            let (_, entry) = self
                .entries
                .pop_lru()
                .expect("there is more than one entry");
            assert!(entry.record.id != *id, "the newest entry is used last");
            self.forget(&entry);
            self.stats.evicted += 1;
        }
        while self.publication_count(id) > PUBLICATIONS_PER_SEGMENT_MAX || self.bytes > bytes_max {
            self.drop_publication_beside(id, context);
        }
    }

    fn publication_count(&self, id: &SegmentId) -> usize {
        self.entries
            .peek(id)
            .map_or(0, |entry| entry.record.publications.len())
    }

    /// Drops the publication that ends first, but not the one with this context.
    fn drop_publication_beside(&mut self, id: &SegmentId, context: &PublicationContext) {
        let entry = self.entries.peek_mut(id).expect("the segment is stored");
        let ended_at_ms = entry.record.expires_at_ms();
        let record = Arc::make_mut(&mut entry.record);
        let (position, _) = record
            .publications
            .iter()
            .enumerate()
            .filter(|(_, publication)| *publication.context != *context)
            .min_by_key(|(_, publication)| publication.expires_at_ms)
            .expect("one publication alone is within every bound");
        let dropped = record.publications.remove(position);
        self.expiries.remove(&(ended_at_ms, id.clone()));
        self.expiries.insert((record.expires_at_ms(), id.clone()));
        self.forget_publication(id, &dropped.context);
    }

    /// Removes those publications of a segment, and the segment with the last one.
    fn remove(
        &mut self,
        id: &SegmentId,
        goes: &impl Fn(&Publication) -> bool,
        removed: &mut Removed,
    ) {
        let entry = self.entries.peek_mut(id).expect("the segment is stored");
        if entry.record.publications.iter().all(goes) {
            let entry = self.entries.pop(id).expect("the segment is stored");
            self.forget(&entry);
            removed.segments += 1;
            removed.publications += count(entry.record.publications.len());
            removed.bytes += entry.record.byte_length;
            return;
        }
        let ended_at_ms = entry.record.expires_at_ms();
        let record = Arc::make_mut(&mut entry.record);
        let gone: Vec<Publication> = record.publications.extract_if(.., |p| goes(p)).collect();
        self.expiries.remove(&(ended_at_ms, id.clone()));
        self.expiries.insert((record.expires_at_ms(), id.clone()));
        removed.publications += count(gone.len());
        for publication in gone {
            self.forget_publication(id, &publication.context);
        }
    }

    fn drop_expired(&mut self, now_ms: i64) {
        while let Some((ended_at_ms, id)) = self.expiries.first()
            && *ended_at_ms <= now_ms
        {
            let entry = self.entries.pop(id).expect("an expiry belongs to an entry");
            self.forget(&entry);
            self.stats.expired += 1;
        }
    }

    /// Takes an entry that is gone out of the other maps and the sums.
    fn forget(&mut self, entry: &Entry) {
        let record = &entry.record;
        self.expiries
            .remove(&(record.expires_at_ms(), record.id.clone()));
        for publication in &record.publications {
            self.forget_publication(&record.id, &publication.context);
        }
        self.bytes -= entry.bytes.len();
        self.stats.segments -= 1;
    }

    fn forget_publication(&mut self, id: &SegmentId, context: &PublicationContext) {
        self.bytes -= publication_charge(context);
        self.stats.publications -= 1;
        let starts = self
            .pages
            .get_mut(&context.key)
            .expect("a publication is indexed");
        let pages = starts
            .get_mut(&context.row_cursor)
            .expect("a publication is indexed");
        pages.retain(|page| page.id != *id || *page.context != *context);
        if pages.is_empty() {
            starts.remove(&context.row_cursor);
        }
        if starts.is_empty() {
            self.pages.remove(&context.key);
        }
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).expect("a count fits in 64 bits")
}

/// The memory a publication takes, roughly: its text is in the record and in the index.
fn publication_charge(context: &PublicationContext) -> usize {
    let key = &context.key;
    let text = key.partition.as_str().len()
        + key.log_epoch.as_str().len()
        + key.table.len()
        + key.scope_digest.len()
        + context.row_cursor.as_ref().map_or(0, String::len)
        + context.next_row_cursor.as_ref().map_or(0, String::len);
    PUBLICATION_OVERHEAD_BYTES.saturating_add(text.saturating_mul(2))
}

#[cfg(test)]
mod tests;
