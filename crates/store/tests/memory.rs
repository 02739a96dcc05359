//! The memory store keeps every promise of the contract.

use std::sync::Arc;

use async_trait::async_trait;
use tidewater_model::{HorizonSeq, PartitionId};
use tidewater_store::{
    MemoryStore, PushKey, RowKey, Store, StoredResult,
    conformance::{Database, history},
    store_conformance,
};

/// Its store stays when it is closed, as a file would.
#[derive(Default)]
struct MemoryDatabase(MemoryStore);

#[async_trait]
impl Database for MemoryDatabase {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    async fn rows_with_blob(
        &self,
        _store: &Arc<dyn Store>,
        partition: &PartitionId,
        blob_id: &str,
    ) -> Option<Vec<RowKey>> {
        let rows = self.0.rows_with_blob(partition, blob_id);
        Some(rows.into_iter().map(|(key, _)| key).collect())
    }

    fn stages(&self) -> bool {
        true
    }

    async fn interrupt_prune(
        &self,
        _store: &Arc<dyn Store>,
        partition: &PartitionId,
        horizon: HorizonSeq,
    ) -> bool {
        self.0.raise_horizon(partition, horizon).await;
        true
    }

    async fn damage_push_result(&self, _store: &Arc<dyn Store>, key: &PushKey) -> bool {
        self.0
            .replace_push_result(key, StoredResult::Unreadable)
            .await;
        true
    }
}

store_conformance!(MemoryDatabase::default());

#[test]
fn two_memory_stores_have_the_same_history() {
    for seed in 0..5 {
        let (left, right) = (MemoryDatabase::default(), MemoryDatabase::default());
        history::run(seed, 150, &left, &right);
    }
}
