//! Segments: bootstrap data that is built once and fetched by many (§5.1).
//!
//! A segment is immutable and named by the hash of its bytes. Who may fetch it is decided by its
//! *publications*: the contexts it was made for. A segment is a cache entry: it may vanish at any
//! time and be built again, so nothing here is durable and nothing here is the only copy.
//!
//! Not here: building segments and deciding about a download; the engine does both. Time is an
//! argument.

#![warn(missing_docs)]

mod error;
mod memory;
mod segment;

pub use error::SegmentError;
pub use memory::{FoundSegment, MemorySegments, PageSize, SegmentStats};
pub use segment::{Publication, PublicationContext, SegmentId, SegmentKey, SegmentRecord};
