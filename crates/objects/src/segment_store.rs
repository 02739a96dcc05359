//! The contract with a place where segments are kept (§5.1).
//!
//! A segment is a cache entry: immutable bytes under their content address, and a record that
//! lists what they were published as. Whoever asks must be ready for any of it to be gone.
//!
//! Every sentence here is a case of the conformance suite.

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tempfile::TempPath;
use tidewater_model::PartitionId;
use tidewater_wire::content_address;

use crate::{
    ObjectError, ObjectStream, PublicationContext, SegmentId, SegmentKey, SegmentRecord, SignedUrl,
};

/// Keeps segments.
///
/// Time is an argument, Unix milliseconds. No call waits without a bound.
#[async_trait]
pub trait SegmentStore: Send + Sync + 'static {
    /// Stores a segment under its address, or renews the publication with an equal context.
    /// Other publications keep their time.
    ///
    /// The bytes under an address never change: a segment whose length or row count differs from
    /// what the address has is refused as `ContentMismatch`, and so is a file whose content is
    /// not what its address says. `TooLarge` if it does not fit alone.
    async fn publish(
        &self,
        segment: NewSegment,
        now_ms: i64,
    ) -> Result<Arc<SegmentRecord>, ObjectError>;

    /// The unexpired segment that holds every row of `key`, if its bytes are there.
    async fn find(
        &self,
        key: &SegmentKey,
        now_ms: i64,
    ) -> Result<Option<FoundSegment>, ObjectError>;

    /// The unexpired page of `key` that starts at `row_cursor`, fits `size` and has the most
    /// rows, if its bytes are there.
    ///
    /// A store may remember only some of the pages that start at one place.
    async fn find_page(
        &self,
        key: &SegmentKey,
        row_cursor: Option<&str>,
        size: PageSize,
        now_ms: i64,
    ) -> Result<Option<FoundSegment>, ObjectError>;

    /// A segment's record, with the publications to check a download against, expired ones
    /// included. A malformed address is one that no segment has, and reaches no backend.
    async fn record(&self, id: &str) -> Result<Option<Arc<SegmentRecord>>, ObjectError>;

    /// Opens a segment's bytes, or those of `range` cut at the segment's end. The caller has
    /// checked a publication of its record.
    async fn open(
        &self,
        id: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError>;

    /// A URL that fetches the bytes from the backend itself until it ends; `None` where the
    /// backend has no such thing. It is a capability: the caller has authorized whoever gets it.
    ///
    /// `lifetime` is cut at 15 minutes (§5.4). Whether the segment exists is not checked.
    async fn presign(
        &self,
        id: &str,
        lifetime: Duration,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError>;

    /// Removes every publication that ended at or before `ended_by_ms`, and segments without
    /// any, bytes included. Pass a time in the past to let late clients learn that what they ask
    /// for has expired.
    async fn expire(&self, ended_by_ms: i64) -> Result<Removed, ObjectError>;

    /// Removes publications whether they ended or not, and segments without any.
    async fn prune(&self, what: &Prune) -> Result<Removed, ObjectError>;

    /// At most `limit` records in the order of their addresses, from the first after `after`.
    async fn list(
        &self,
        after: Option<&SegmentId>,
        limit: usize,
    ) -> Result<Vec<Arc<SegmentRecord>>, ObjectError>;

    /// What the store holds and did.
    async fn stats(&self) -> Result<SegmentStats, ObjectError>;
}

/// A segment to publish.
#[derive(Debug)]
pub struct NewSegment {
    /// What it is published as.
    pub context: PublicationContext,
    /// Rows in it.
    pub row_count: u64,
    id: SegmentId,
    byte_length: u64,
    body: SegmentBody,
}

/// Where the bytes of a new segment are.
pub enum SegmentBody {
    /// In memory: a page.
    Bytes(Bytes),
    /// In a file that nobody else uses and that goes away with this value: an image.
    File(TempPath),
}

impl NewSegment {
    /// A segment in memory. This hashes the bytes: not for an async thread if they are many.
    pub fn from_bytes(context: PublicationContext, row_count: u64, bytes: Bytes) -> Self {
        Self {
            context,
            row_count,
            id: SegmentId::new(content_address(&bytes)),
            byte_length: u64::try_from(bytes.len()).expect("a length fits in 64 bits"),
            body: SegmentBody::Bytes(bytes),
        }
    }

    /// A segment in a file that is complete and closed, with the content address and the length
    /// that its builder computed. The store that copies the file checks both.
    pub fn from_file(
        context: PublicationContext,
        row_count: u64,
        file: TempPath,
        id: SegmentId,
        byte_length: u64,
    ) -> Self {
        Self {
            context,
            row_count,
            id,
            byte_length,
            body: SegmentBody::File(file),
        }
    }

    /// The content address.
    pub fn id(&self) -> &SegmentId {
        &self.id
    }

    /// Size in bytes.
    pub fn byte_length(&self) -> u64 {
        self.byte_length
    }

    /// Takes it apart: context, row count, address, length and bytes.
    pub fn into_parts(self) -> (PublicationContext, u64, SegmentId, u64, SegmentBody) {
        (
            self.context,
            self.row_count,
            self.id,
            self.byte_length,
            self.body,
        )
    }
}

/// Without the rows: they have no place in a log.
impl fmt::Debug for SegmentBody {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Bytes(_) => "Bytes",
            Self::File(_) => "File",
        })
    }
}

/// A segment found for reuse.
#[derive(Clone, Debug)]
pub struct FoundSegment {
    /// The segment.
    pub record: Arc<SegmentRecord>,
    /// The publication that makes it usable, with the cursors of a page.
    pub context: Arc<PublicationContext>,
}

/// Which stored pages can stand in for one that would be read now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PageSize {
    /// Most rows the client takes: no page with more is found.
    pub rows_max: u64,
    /// A page of this size was ended by its bytes. Any other that is followed by a page and has
    /// fewer than `rows_max` rows was cut for a client that takes less, and is not found: one
    /// such client would slow down everybody else.
    pub full_bytes: u64,
}

impl PageSize {
    /// Whether a page of so many rows and bytes can stand in.
    pub fn admits(&self, row_count: u64, byte_length: u64, is_last: bool) -> bool {
        row_count <= self.rows_max
            && (is_last || row_count == self.rows_max || byte_length >= self.full_bytes)
    }
}

/// What is removed before its time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Prune {
    /// Everything.
    All,
    /// What was published for one partition. Others keep what they share with it.
    Partition(PartitionId),
}

impl Prune {
    /// Whether a publication is to go.
    pub fn covers(&self, context: &PublicationContext) -> bool {
        match self {
            Self::All => true,
            Self::Partition(partition) => context.key.partition == *partition,
        }
    }
}

/// What a clean-up removed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Removed {
    /// Segments, their bytes included.
    pub segments: u64,
    /// Publications.
    pub publications: u64,
    /// Bytes of those segments.
    pub bytes: u64,
}

/// What a store holds and what it did since it was opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SegmentStats {
    /// Segments held. Where counting them means listing them, the number is from the last call
    /// of [`SegmentStore::expire`], like the next two.
    pub segments: u64,
    /// Publications held, expired ones included.
    pub publications: u64,
    /// Bytes held; in memory what is charged, at most the bound.
    pub bytes: u64,
    /// Publications added.
    pub published: u64,
    /// Publications renewed.
    pub renewed: u64,
    /// Look-ups for reuse that found a segment.
    pub hits: u64,
    /// Look-ups for reuse that found none.
    pub misses: u64,
    /// Segments dropped to make room.
    pub evicted: u64,
    /// Segments dropped because their last publication ended.
    pub expired: u64,
}
