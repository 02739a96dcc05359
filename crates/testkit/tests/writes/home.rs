//! The database under the suite: SQLite without a file.

use std::sync::Arc;

use tidewater_store::Store;
use tidewater_store_sqlite::{SqliteConfig, SqliteStore};

/// An empty database that nobody else has.
pub(crate) fn open() -> Arc<dyn Store> {
    let store = SqliteStore::open(SqliteConfig::in_memory()).expect("memory");
    Arc::new(store)
}

/// Has time go on only where everybody waits for it. Returns whether that is possible here.
pub(crate) fn pause_time() -> bool {
    tokio::time::pause();
    true
}

/// Random histories to run.
pub(crate) const CASES: u32 = 48;

/// Where each call to the database fails in turn: every one of so many.
pub(crate) const FAULTS_STEP: usize = 1;
