//! A database file that is seen by the store and from outside.

use std::{path::PathBuf, sync::Arc};

use rusqlite::Connection;
use tempfile::TempDir;
use tidewater_store::{
    CommitWrite, Finished, LoadRequest, Store, StoreError,
    conformance::fixtures::{Draft, partition},
};
use tidewater_store_sqlite::{SqliteConfig, SqliteStore};

/// A directory with a database file that need not exist yet.
pub(crate) struct Files {
    directory: TempDir,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("database")
    }

    pub(crate) fn config(&self) -> SqliteConfig {
        SqliteConfig::file(self.path())
    }

    pub(crate) fn open(&self) -> SqliteStore {
        SqliteStore::open(self.config()).unwrap()
    }

    /// A connection of somebody who does not know the store.
    pub(crate) fn outside(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    pub(crate) fn execute(&self, sql: &str) {
        self.outside().execute_batch(sql).unwrap();
    }

    pub(crate) fn texts(&self, sql: &str) -> Vec<String> {
        let connection = self.outside();
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    }

    pub(crate) fn number(&self, sql: &str) -> i64 {
        self.outside().query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

/// Commits drafts of the partition `p` in one transaction.
pub(crate) async fn commit(
    store: &dyn Store,
    drafts: impl IntoIterator<Item = Draft>,
) -> Result<Finished, StoreError> {
    let commits: Vec<Arc<CommitWrite>> = drafts.into_iter().map(Draft::build).collect();
    let wanted = LoadRequest {
        partitions: vec![partition("p")],
        ..LoadRequest::default()
    };
    let (txn, _) = store.begin_write(wanted).await?;
    txn.finish(commits).await
}

/// Commits drafts that break nothing.
pub(crate) async fn write(store: &dyn Store, drafts: impl IntoIterator<Item = Draft>) {
    let finished = commit(store, drafts).await.unwrap();
    assert!(matches!(finished, Finished::Committed));
}
