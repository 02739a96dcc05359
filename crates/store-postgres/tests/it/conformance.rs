//! The PostgreSQL store keeps every promise of the contract.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidewater_model::{HorizonSeq, PartitionId};
use tidewater_store::{
    MemoryStore, PushKey, RowKey, Store,
    conformance::{Database, fixtures, history},
    store_conformance,
};

use crate::support::TestDatabase;

/// A database, with or without prepared statements.
struct Conforming {
    database: TestDatabase,
    prepared: bool,
}

impl Conforming {
    fn new() -> Self {
        Self {
            database: TestDatabase::new(),
            prepared: true,
        }
    }

    fn unprepared() -> Self {
        Self {
            prepared: false,
            ..Self::new()
        }
    }
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[async_trait]
impl Database for Conforming {
    fn stages(&self) -> bool {
        true
    }

    fn has_sql(&self) -> bool {
        true
    }

    async fn open(&self) -> Arc<dyn Store> {
        let prepared = self.prepared;
        Arc::new(
            self.database
                .open_with(|config| config.prepared_statements = prepared),
        )
    }

    async fn rows_with_blob(
        &self,
        _store: &Arc<dyn Store>,
        partition: &PartitionId,
        blob_id: &str,
    ) -> Option<Vec<RowKey>> {
        let schema = fixtures::schema();
        let (name, blob) = (literal(partition.as_str()), literal(blob_id));
        let rows = self.database.texts(&format!(
            "SELECT tbl || ' ' || row_id FROM sync_blob_refs \
             WHERE partition = {name} AND blob_id = {blob}"
        ));
        let mut keys: Vec<RowKey> = rows
            .iter()
            .map(|row| {
                let (table, row_id) = row.split_once(' ').unwrap();
                RowKey {
                    partition: partition.clone(),
                    table: schema.find(table).unwrap(),
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
        self.database.run(&format!(
            "UPDATE sync_partitions SET horizon_seq = {} WHERE partition = {}",
            horizon.to_i64(),
            literal(partition.as_str())
        ));
        true
    }

    async fn damage_push_result(&self, _store: &Arc<dyn Store>, key: &PushKey) -> bool {
        self.database.run(&format!(
            "UPDATE sync_push_results SET result = '7' \
             WHERE partition = {} AND client_id = {} AND client_commit_id = {}",
            literal(key.partition.as_str()),
            literal(key.client.as_str()),
            literal(&key.client_commit_id)
        ));
        true
    }
}

store_conformance!(Conforming::new());

/// As through a pooler that hands connections out per transaction.
mod unprepared {
    use super::*;

    store_conformance!(Conforming::unprepared());
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
fn postgres_and_the_memory_store_have_the_same_history() {
    for seed in 0..6 {
        history::run(seed, 150, &Conforming::new(), &MemoryDatabase::default());
    }
}
