//! What is known about a segment beside its bytes (§5.1).

use std::{fmt, sync::Arc};

use tidewater_model::{CommitSeq, LogEpoch, PartitionId};
use tidewater_wire::MediaType;

/// The content address of a segment: `sha256:` and the hash of its uncompressed bytes.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SegmentId(Arc<str>);

impl SegmentId {
    /// Wraps an address. A malformed one is one that no segment has.
    pub fn new(address: impl Into<Arc<str>>) -> Self {
        Self(address.into())
    }

    /// The address as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for SegmentId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Which rows a segment was made from: those of one table that one set of scopes selects, at one
/// place in one log, encoded for one schema version.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct SegmentKey {
    /// The partition.
    pub partition: PartitionId,
    /// Its epoch.
    pub log_epoch: LogEpoch,
    /// The table's name.
    pub table: String,
    /// The schema version of the encoding.
    pub schema_version: i32,
    /// Rows or image.
    pub media_type: MediaType,
    /// Digest of the effective scopes (§3.5).
    pub scope_digest: String,
    /// The pin.
    pub as_of: CommitSeq,
}

/// What a segment was published as. Two equal contexts are one publication.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct PublicationContext {
    /// The rows it belongs to.
    pub key: SegmentKey,
    /// Where the page starts; `None` at the first row.
    pub row_cursor: Option<String>,
    /// Where the next page starts; `None` when the table ends here.
    pub next_row_cursor: Option<String>,
}

impl PublicationContext {
    /// Whether the segment holds every row of its key.
    pub fn is_whole_table(&self) -> bool {
        self.row_cursor.is_none() && self.next_row_cursor.is_none()
    }
}

/// One publication of a segment. No other one's context authorizes anything (§5.1).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Publication {
    /// What it was published as.
    pub context: Arc<PublicationContext>,
    /// When it was first published, Unix milliseconds.
    pub created_at_ms: i64,
    /// When it ends, Unix milliseconds.
    pub expires_at_ms: i64,
}

impl Publication {
    /// Whether it has ended. It has at the very millisecond of its expiry.
    pub fn is_expired(&self, now_ms: i64) -> bool {
        now_ms >= self.expires_at_ms
    }
}

/// A segment without its bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SegmentRecord {
    /// Its address.
    pub id: SegmentId,
    /// Uncompressed size.
    pub byte_length: u64,
    /// Rows in it.
    pub row_count: u64,
    /// What it was published as, oldest first. Expired ones are kept for a while, so that a late
    /// client learns that its segment expired. Never empty.
    pub publications: Vec<Publication>,
}

impl SegmentRecord {
    /// The publication with this context.
    pub fn publication(&self, context: &PublicationContext) -> Option<&Publication> {
        self.publications
            .iter()
            .find(|publication| *publication.context == *context)
    }

    /// When the last publication ends.
    pub fn expires_at_ms(&self) -> i64 {
        self.publications
            .iter()
            .map(|publication| publication.expires_at_ms)
            .max()
            .expect("a record has a publication")
    }
}

/// A URL that needs no credentials until it ends.
#[derive(Clone, Eq, PartialEq)]
pub struct SignedUrl {
    /// The URL. It is a secret: whoever has it can use it.
    pub url: String,
    /// When it ends, Unix milliseconds.
    pub expires_at_ms: i64,
}

/// Without the signature: it has no place in a log.
impl fmt::Debug for SignedUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SignedUrl")
            .field("expires_at_ms", &self.expires_at_ms)
            .finish_non_exhaustive()
    }
}
