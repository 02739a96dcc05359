//! Counts of what pushes came to: how many commits share a transaction, and with it an fsync.

use std::sync::atomic::{AtomicU64, Ordering};

/// What pushes have come to since the engine was opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PushTotals {
    /// Write transactions that became durable with at least one commit.
    pub transactions: u64,
    /// Commits decided and recorded in them, applied or rejected. Replays are not among them.
    pub commits: u64,
}

/// The counts while they grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    transactions: AtomicU64,
    commits: AtomicU64,
}

impl Counters {
    /// Counts a transaction with what it recorded, if that was anything.
    pub(super) fn count(&self, commits: usize) {
        if commits > 0 {
            let commits = u64::try_from(commits).expect("a group is small");
            self.transactions.fetch_add(1, Ordering::Relaxed);
            self.commits.fetch_add(commits, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> PushTotals {
        PushTotals {
            transactions: self.transactions.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
        }
    }
}
