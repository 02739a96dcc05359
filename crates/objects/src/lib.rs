//! Segments and blobs: bytes that are named by their hash (§5.1, §5.9.2).
//!
//! A *segment* is bootstrap data that is built once and fetched by many. Who may fetch it is
//! decided by its *publications*: the contexts it was made for. It is a cache entry: it may vanish
//! at any time and be built again. A *blob* is data of one partition: it is durable, and only the
//! sweep removes it.
//!
//! Both live behind a small contract ([`SegmentStore`], [`BlobStore`]), and every implementation
//! runs the same conformance suite.
//!
//! Not here: building segments, deciding about a download, and the index of what references a
//! blob; the engine and the store of the log have those. Time is an argument.

#![warn(missing_docs)]

mod blob_store;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod memory;
mod memory_blobs;
mod remote;
mod segment;
mod segment_store;
mod signed;
mod stream;

pub use blob_store::{
    BlobRecord, BlobStore, BlobUsage, BodyError, HELD_BLOBS_MAX, HOLD_MS, NewBlob, PutBlob,
    check_held,
};
pub use error::{ObjectError, ObjectErrorKind};
pub use memory::MemorySegments;
pub use memory_blobs::MemoryBlobs;
pub use remote::{Backend, BackendLimits, Conditions, RemoteBlobs, RemoteSegments, S3Config};
pub use segment::{
    Publication, PublicationContext, SegmentId, SegmentKey, SegmentRecord, SignedUrl,
};
pub use segment_store::{
    FoundSegment, NewSegment, PageSize, Prune, Removed, SegmentBody, SegmentStats, SegmentStore,
};
pub use signed::{
    Claim, SIGNED_URL_SECONDS_MAX, SIGNING_KEY_BYTES_MIN, SigningKeys, SigningKeysError, TokenError,
};
pub use stream::{CHUNK_BYTES_MAX, ObjectStream, clamp};
