//! The database under the suite: in memory.

use std::sync::Arc;

use tidewater_store::{MemoryStore, Store};

/// An empty database that nobody else has.
pub(crate) fn open() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

/// Has time go on only where everybody waits for it. Returns whether that is possible here.
pub(crate) fn pause_time() -> bool {
    tokio::time::pause();
    true
}

/// Random histories to run.
pub(crate) const CASES: u32 = 128;

/// Where each call to the database fails in turn: every one of so many.
pub(crate) const FAULTS_STEP: usize = 1;
