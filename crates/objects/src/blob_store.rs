//! The contract with a place where blobs are kept (§5.9.2).
//!
//! A blob is data of one partition, named by its content address, with no end of its own. Bytes
//! are uploaded first and referenced by a row afterwards; the sweep removes what nothing
//! references and nobody used for a while.
//!
//! **A blob that a push has held is not removed under it.** The push holds what it references
//! before it is decided; removal is conditional on nobody having held the blob since a time, and
//! one of the two wins. The sweep reads the reference index between the two times.
//!
//! Every sentence here is a case of the conformance suite.

use std::{error::Error, fmt, ops::Range, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::StreamExt;
use tidewater_model::PartitionId;

use crate::{ObjectError, ObjectErrorKind, ObjectStream, SignedUrl};

/// How long a held blob is safe at least, in milliseconds: one hour. A push is decided in far
/// less.
///
/// [`BlobStore::remove`] leaves alone what was used within twice this time, whatever it is asked,
/// so a store need not write anything to hold a blob that was used lately.
pub const HOLD_MS: i64 = 60 * 60 * 1_000;

/// Keeps blobs.
///
/// Time is an argument, Unix milliseconds. No call waits without a bound, and none is made while
/// a partition is locked. A malformed address is one that no blob has, and reaches no backend.
#[async_trait]
pub trait BlobStore: Send + Sync + 'static {
    /// Stores a blob and makes it visible as a whole, or not at all: its content is hashed while
    /// it streams in. What is acknowledged survives a loss of power where the backend does.
    ///
    /// A blob that is there already keeps its record and is held for the uploader; the content is
    /// checked all the same. `ContentMismatch` if the content is not what the address says,
    /// `TooLarge` above the bound, `Interrupted` if the stream ends in an error.
    async fn put(&self, blob: NewBlob, now_ms: i64) -> Result<PutBlob, ObjectError>;

    /// A blob's record.
    async fn head(
        &self,
        partition: &PartitionId,
        id: &str,
    ) -> Result<Option<BlobRecord>, ObjectError>;

    /// Which of these blobs are missing, in the order given; all others are held: for the next
    /// [`HOLD_MS`] they are not removed. At most [`HELD_BLOBS_MAX`] at once.
    ///
    /// What was uploaded past the server, by a presigned URL, is verified here; content that is
    /// not what its address says, or is above `bytes_max`, is missing.
    async fn hold(
        &self,
        partition: &PartitionId,
        ids: &[&str],
        bytes_max: u64,
        now_ms: i64,
    ) -> Result<Vec<String>, ObjectError>;

    /// Opens a blob's bytes, or those of `range` cut at the blob's end.
    async fn open(
        &self,
        partition: &PartitionId,
        id: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError>;

    /// Removes a blob that was neither stored nor held at or after `unused_since_ms`; whether it
    /// did. Only the sweep calls it, after the index showed no reference.
    async fn remove(
        &self,
        partition: &PartitionId,
        id: &str,
        unused_since_ms: i64,
        now_ms: i64,
    ) -> Result<bool, ObjectError>;

    /// At most `limit` blobs of a partition in the order of their addresses, from the first
    /// after `after`.
    ///
    /// Where a backend keeps the time of storing aside, `created_at_ms` is here the time at
    /// which it last wrote the object.
    async fn list(
        &self,
        partition: &PartitionId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobRecord>, ObjectError>;

    /// A URL that fetches a blob from the backend itself; `None` where the backend has no such
    /// thing. `lifetime` is cut at 15 minutes. The caller has authorized whoever gets it.
    async fn presign_get(
        &self,
        partition: &PartitionId,
        id: &str,
        lifetime: Duration,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError>;

    /// A URL for one PUT of `byte_length` bytes past the server; `None` where the backend has no
    /// such thing. `lifetime` is cut at 15 minutes. The length is signed.
    ///
    /// The upload does not make the blob visible, and can neither replace nor damage one that
    /// is: [`BlobStore::hold`] takes it over when a push first references it.
    async fn presign_put(
        &self,
        partition: &PartitionId,
        id: &str,
        byte_length: u64,
        lifetime: Duration,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError>;

    /// Removes uploads past the server that arrived before `before_ms` and were never referenced;
    /// how many.
    async fn expire_uploads(&self, before_ms: i64) -> Result<u64, ObjectError>;

    /// What a partition's blobs take.
    async fn usage(&self, partition: &PartitionId) -> Result<BlobUsage, ObjectError>;
}

/// Blobs that one call can hold: a push has fewer operations than that.
pub const HELD_BLOBS_MAX: usize = 10_000;

/// Refuses to hold more than [`HELD_BLOBS_MAX`].
pub fn check_held(count: usize) -> Result<(), ObjectError> {
    if count <= HELD_BLOBS_MAX {
        return Ok(());
    }
    Err(ObjectError::new(ObjectErrorKind::TooLarge, "hold blobs")
        .with_detail(format!("{count} are more than {HELD_BLOBS_MAX} at once")))
}

/// A failure of whoever sends a blob's content.
pub type BodyError = Box<dyn Error + Send + Sync>;

/// A blob to store.
pub struct NewBlob {
    /// The partition it belongs to.
    pub partition: PartitionId,
    /// Its content address, as the uploader declares it.
    pub id: String,
    /// Its media type, as the uploader declares it. Advice only, never sent to a browser.
    pub media_type: Option<String>,
    /// Most bytes it may have.
    pub bytes_max: u64,
    /// The content.
    pub body: BoxStream<'static, Result<Bytes, BodyError>>,
}

impl NewBlob {
    /// A blob whose content is in memory.
    pub fn from_bytes(partition: PartitionId, id: impl Into<String>, bytes: Bytes) -> Self {
        Self {
            partition,
            id: id.into(),
            media_type: None,
            bytes_max: u64::MAX,
            body: futures_util::stream::iter([Ok(bytes)]).boxed(),
        }
    }
}

impl fmt::Debug for NewBlob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NewBlob")
            .field("partition", &self.partition)
            .field("id", &self.id)
            .field("bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}

/// What became of a blob that was put.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PutBlob {
    /// The blob as it is stored now.
    pub record: BlobRecord,
    /// Whether it was not there before.
    pub is_new: bool,
}

/// A blob without its bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BlobRecord {
    /// Its content address.
    pub id: String,
    /// Its size.
    pub byte_length: u64,
    /// What its first uploader called it; `None` too where the backend does not keep it.
    pub media_type: Option<String>,
    /// When it was first stored, Unix milliseconds.
    pub created_at_ms: i64,
}

/// What blobs take.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BlobUsage {
    /// How many they are.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
}
