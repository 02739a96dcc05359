//! Segments that cannot be published.

use crate::SegmentId;

/// Why a segment was not published.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SegmentError {
    /// The segment alone is bigger than everything the store may hold.
    #[error(
        "segment of {segment_bytes} bytes does not fit the segment cache of {bytes_max} bytes: \
         raise the cache's size"
    )]
    TooLarge {
        /// What the segment needs.
        segment_bytes: usize,
        /// What the store may hold.
        bytes_max: usize,
    },
    /// The address names something else already. One of the two is corrupt, or the address was
    /// not computed from the bytes: someone must look.
    #[error("segment {0} is stored with other content")]
    ContentMismatch(SegmentId),
}
