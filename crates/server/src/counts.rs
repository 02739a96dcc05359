//! Counts what was sent and taken since the start.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one server.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) segment_downloads: Counter,
    pub(crate) signed_downloads: Counter,
    pub(crate) blob_downloads: Counter,
    pub(crate) blob_uploads: Counter,
    pub(crate) upload_grants: Counter,
    pub(crate) not_modified: Counter,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Transfers since the start. Each is counted when its answer begins.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TransferCounts {
    /// Segments sent after a check of scopes.
    pub segment_downloads: u64,
    /// Segments sent because of a signed URL.
    pub signed_downloads: u64,
    /// Blobs sent, or URLs given out in their place.
    pub blob_downloads: u64,
    /// Blobs taken.
    pub blob_uploads: u64,
    /// Grants of an upload past the server that were asked for.
    pub upload_grants: u64,
    /// Requests of clients that had what they asked for.
    pub not_modified: u64,
    /// Compressed copies made.
    pub copies_made: u64,
}
