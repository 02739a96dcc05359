//! The SQLite store keeps every promise of the contract, in a file and in memory.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::Connection;
use tempfile::TempDir;
use tidewater_model::{HorizonSeq, PartitionId};
use tidewater_store::{
    MemoryStore, PushKey, RowKey, Store,
    conformance::{Database, fixtures, history},
    store_conformance,
};
use tidewater_store_sqlite::{SqliteConfig, SqliteStore};

/// A database file of its own.
struct FileDatabase {
    directory: TempDir,
}

impl FileDatabase {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("database")
    }

    /// What the contract does not show, seen and changed from outside.
    fn outside(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }
}

#[async_trait]
impl Database for FileDatabase {
    fn stages(&self) -> bool {
        true
    }

    fn has_sql(&self) -> bool {
        true
    }

    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(SqliteConfig::file(self.path())).unwrap())
    }

    async fn rows_with_blob(
        &self,
        _store: &Arc<dyn Store>,
        partition: &PartitionId,
        blob_id: &str,
    ) -> Option<Vec<RowKey>> {
        let schema = fixtures::schema();
        let connection = self.outside();
        let mut statement = connection
            .prepare("SELECT tbl, row_id FROM sync_blob_refs WHERE partition = ?1 AND blob_id = ?2")
            .unwrap();
        let rows = statement
            .query_map((partition.as_str(), blob_id), |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
            })
            .unwrap();
        let mut keys: Vec<RowKey> = rows
            .map(|row| {
                let (table, row_id) = row.unwrap();
                RowKey {
                    partition: partition.clone(),
                    table: schema.find(&table).unwrap(),
                    row_id: row_id.into(),
                }
            })
            .collect();
        keys.sort();
        Some(keys)
    }

    async fn interrupt_prune(
        &self,
        _store: &Arc<dyn Store>,
        partition: &PartitionId,
        horizon: HorizonSeq,
    ) -> bool {
        let raised = self.outside().execute(
            "UPDATE sync_partitions SET horizon_seq = ?2 WHERE partition = ?1",
            (partition.as_str(), horizon.to_i64()),
        );
        assert_eq!(raised.unwrap(), 1);
        true
    }

    async fn damage_push_result(&self, _store: &Arc<dyn Store>, key: &PushKey) -> bool {
        let commit: &str = &key.client_commit_id;
        let damaged = self.outside().execute(
            "UPDATE sync_push_results SET result = '{' \
             WHERE partition = ?1 AND client_id = ?2 AND client_commit_id = ?3",
            (key.partition.as_str(), key.client.as_str(), commit),
        );
        assert_eq!(damaged.unwrap(), 1);
        true
    }
}

/// A database in memory, whose store stays open as long as it does.
struct UnnamedDatabase(Arc<SqliteStore>);

impl UnnamedDatabase {
    fn new() -> Self {
        Self(Arc::new(
            SqliteStore::open(SqliteConfig::in_memory()).unwrap(),
        ))
    }
}

#[async_trait]
impl Database for UnnamedDatabase {
    fn stages(&self) -> bool {
        true
    }

    fn has_sql(&self) -> bool {
        true
    }

    async fn open(&self) -> Arc<dyn Store> {
        self.0.clone()
    }
}

mod file {
    use super::*;

    store_conformance!(FileDatabase::new());
}

mod in_memory {
    use super::*;

    store_conformance!(UnnamedDatabase::new());
}

/// The memory store keeps its state for the next time it is opened.
#[derive(Default)]
struct MemoryDatabase(Mutex<MemoryStore>);

#[async_trait]
impl Database for MemoryDatabase {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.lock().clone())
    }
}

#[test]
fn a_file_and_the_memory_store_have_the_same_history() {
    for seed in 0..8 {
        history::run(seed, 150, &FileDatabase::new(), &MemoryDatabase::default());
    }
}
