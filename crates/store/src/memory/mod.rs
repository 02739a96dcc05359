//! A database in memory, for tests, simulation and trying things out.
//!
//! All state is one value of persistent maps behind a pointer. A read takes the pointer, a write
//! transaction changes a copy of its own and puts it in the place of the old one when it
//! finishes. So every read is a snapshot, an abandoned transaction is a value nobody keeps, and a
//! commit that breaks a constraint is undone by returning to the value before it.
//!
//! All partitions share one writer. Every write takes its turn, also those without a transaction,
//! because a transaction that finishes replaces the whole state.
//!
//! It is stricter than a database can be: a commit whose partition was not locked, or that says
//! something untrue about a row it writes, is a bug of the caller and panics.

mod checkpoints;
mod index;
mod migrate;
mod operator;
mod reads;
mod state;
mod stream;
mod txn;
mod values;

use std::{mem, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidewater_model::{ClientId, CommitSeq, HorizonSeq, LogEpoch, PartitionId, StoredScopes};
use tidewater_schema::{Schema, TableIndex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::{
    state::{Registration, State},
    txn::MemoryTxn,
};
use crate::{
    ActivityBatch, Checkpoint, CheckpointChange, CheckpointKey, CheckpointOutcome, ClientRecord,
    Gate, LoadRequest, Loaded, PartitionRecord, PartitionTouch, Pruned, PushKey, ReactionRecord,
    ReactionStatus, RetentionInputs, RowKey, RowPage, RowScan, RowStream, RowStreamRequest,
    SchemaState, ScopeSize, ScopeSizeRequest, ScopesTest, StorageCode, Store, StoreError,
    StoredResult, StoredRow, TableScan, Window, WindowRequest, WriteLanes, WriteTxn,
};

/// A database in memory. A clone is another handle to the same one.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<Arc<State>>,
    /// One permit: the turn to write. Waiters get it in the order in which they came.
    turn: Arc<Semaphore>,
}

impl Shared {
    fn snapshot(&self) -> Arc<State> {
        Arc::clone(&self.state.lock())
    }

    async fn take_turn(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.turn)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed")
    }

    /// Makes `state` what everybody sees. The caller holds the turn.
    fn publish(&self, state: State) {
        let before = mem::replace(&mut *self.state.lock(), Arc::new(state));
        // Freed after the lock is.
        drop(before);
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty database.
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                turn: Arc::new(Semaphore::new(1)),
            }),
        }
    }

    /// Another database with the same content, as a backup is: what is written to one of the two
    /// from now on is not in the other.
    pub fn fork(&self) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(self.shared.snapshot()),
                turn: Arc::new(Semaphore::new(1)),
            }),
        }
    }

    /// The rows that reference a blob, by table and bytewise row id, with their scopes.
    pub fn rows_with_blob(
        &self,
        partition: &PartitionId,
        blob_id: &str,
    ) -> Vec<(RowKey, StoredScopes)> {
        self.shared.snapshot().rows_with_blob(partition, blob_id)
    }

    /// Puts an outcome under a key whether or not there is one, as damage to a database would.
    pub async fn replace_push_result(&self, key: &PushKey, result: StoredResult) {
        self.write(|state| {
            state
                .partition_mut(&key.partition)
                .replace_result(key, result);
        })
        .await;
    }

    /// Raises a horizon and deletes nothing, as pruning that was interrupted would.
    pub async fn raise_horizon(&self, partition: &PartitionId, horizon: HorizonSeq) {
        self.write(|state| state.partition_mut(partition).horizon = horizon)
            .await;
    }

    /// Changes the state in one step.
    async fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let turn = self.shared.take_turn().await;
        let mut state = State::clone(&self.shared.snapshot());
        let value = change(&mut state);
        self.shared.publish(state);
        drop(turn);
        value
    }

    /// Changes the state in one step, or not at all.
    async fn try_write<T>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let turn = self.shared.take_turn().await;
        let mut state = State::clone(&self.shared.snapshot());
        let value = change(&mut state)?;
        self.shared.publish(state);
        drop(turn);
        Ok(value)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn prepare(&self, schema: &Arc<Schema>) -> Result<(), StoreError> {
        self.try_write(|state| state.migrate(schema)).await
    }

    fn write_lanes(&self) -> WriteLanes {
        WriteLanes::One
    }

    async fn touch_partition(&self, touch: PartitionTouch) -> Result<PartitionRecord, StoreError> {
        let record = self
            .write(|state| {
                let partition = state.partition_mut(&touch.partition);
                match &mut partition.registration {
                    Some(registration) => registration.seen(touch.at_ms),
                    none => {
                        *none = Some(Registration {
                            log_epoch: touch.initial_epoch,
                            epoch_required: false,
                            last_authenticated_at_ms: touch.at_ms,
                        });
                    }
                }
                partition.record(&touch.partition)
            })
            .await;
        Ok(record.expect("it was just registered"))
    }

    async fn find_partition(
        &self,
        partition: &PartitionId,
    ) -> Result<Option<PartitionRecord>, StoreError> {
        Ok(self.shared.snapshot().find_partition(partition))
    }

    async fn list_partitions(
        &self,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<PartitionRecord>, StoreError> {
        Ok(self.shared.snapshot().list_partitions(after, limit))
    }

    async fn rotate_epoch(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        at_ms: i64,
    ) -> Result<PartitionRecord, StoreError> {
        let record = self
            .write(|state| {
                let entry = state.partition_mut(partition);
                let seen_at_ms = entry
                    .registration
                    .as_ref()
                    .map_or(at_ms, |before| before.last_authenticated_at_ms.max(at_ms));
                entry.registration = Some(Registration {
                    log_epoch: epoch.clone(),
                    epoch_required: true,
                    last_authenticated_at_ms: seen_at_ms,
                });
                entry.clients.clear();
                entry.record(partition)
            })
            .await;
        Ok(record.expect("it was just registered"))
    }

    async fn read_window(&self, request: WindowRequest) -> Result<Window, StoreError> {
        Ok(self.shared.snapshot().read_window(&request))
    }

    async fn scan_rows(&self, scan: RowScan) -> Result<RowPage, StoreError> {
        Ok(self.shared.snapshot().scan_rows(&scan))
    }

    async fn stream_rows(&self, request: RowStreamRequest) -> Result<RowStream, StoreError> {
        Ok(stream::stream(self.shared.snapshot(), request))
    }

    async fn scope_size(&self, request: ScopeSizeRequest) -> Result<ScopeSize, StoreError> {
        Ok(self.shared.snapshot().scope_size(&request))
    }

    async fn scan_table(&self, scan: TableScan) -> Result<RowPage, StoreError> {
        Ok(self.shared.snapshot().scan_table(&scan))
    }

    async fn list_reactions(
        &self,
        partition: &PartitionId,
        status: Option<ReactionStatus>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ReactionRecord>, StoreError> {
        Ok(self
            .shared
            .snapshot()
            .list_reactions(partition, status, after, limit))
    }

    async fn prune_push_results(
        &self,
        partition: &PartitionId,
        after: Option<&PushKey>,
        recorded_before_ms: i64,
        limit: usize,
    ) -> Result<(Option<PushKey>, u64), StoreError> {
        Ok(self
            .write(|state| state.prune_push_results(partition, after, recorded_before_ms, limit))
            .await)
    }

    async fn newest_change(
        &self,
        partition: &PartitionId,
        table: TableIndex,
        variable: &str,
        values: &[String],
    ) -> Result<Option<CommitSeq>, StoreError> {
        Ok(self
            .shared
            .snapshot()
            .newest_change(partition, table, variable, values))
    }

    async fn find_rows(&self, keys: Vec<RowKey>) -> Result<Vec<Option<StoredRow>>, StoreError> {
        let state = self.shared.snapshot();
        Ok(keys.iter().map(|key| state.find_row(key)).collect())
    }

    async fn find_push_result(&self, key: &PushKey) -> Result<Option<StoredResult>, StoreError> {
        Ok(self.shared.snapshot().find_push_result(key))
    }

    async fn find_client(
        &self,
        partition: &PartitionId,
        client: &ClientId,
    ) -> Result<Option<ClientRecord>, StoreError> {
        Ok(self.shared.snapshot().find_client(partition, client))
    }

    async fn list_clients(
        &self,
        partition: &PartitionId,
        after: Option<&ClientId>,
        limit: usize,
    ) -> Result<Vec<(ClientId, ClientRecord)>, StoreError> {
        Ok(self.shared.snapshot().list_clients(partition, after, limit))
    }

    async fn put_activity(&self, batch: ActivityBatch) -> Result<(), StoreError> {
        self.write(|state| state.put_activity(batch)).await;
        Ok(())
    }

    async fn retention_inputs(
        &self,
        partition: &PartitionId,
        seen_since_ms: i64,
        aged_before_ms: i64,
    ) -> Result<RetentionInputs, StoreError> {
        Ok(self
            .shared
            .snapshot()
            .retention_inputs(partition, seen_since_ms, aged_before_ms))
    }

    async fn prune(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        horizon: HorizonSeq,
    ) -> Result<Pruned, StoreError> {
        self.try_write(|state| {
            let entry = state.partition_mut(partition);
            let Some(registration) = &entry.registration else {
                return Err(StoreError::refused(
                    StorageCode::PartitionUnregistered,
                    "prune the log",
                    "the partition was never touched",
                ));
            };
            if registration.log_epoch != *epoch {
                return Err(StoreError::refused(
                    StorageCode::PruneEpochMismatch,
                    "prune the log",
                    "the epoch changed after the pruning inputs were read",
                ));
            }
            Ok(entry.prune(horizon))
        })
        .await
    }

    async fn find_blob_row(
        &self,
        partition: &PartitionId,
        blob_id: &str,
        wanted: ScopesTest,
    ) -> Result<Option<RowKey>, StoreError> {
        let state = self.shared.snapshot();
        Ok(state.find_blob_row(partition, blob_id, &wanted))
    }

    async fn are_referenced(
        &self,
        partition: &PartitionId,
        blob_ids: Vec<String>,
    ) -> Result<Vec<bool>, StoreError> {
        Ok(self.shared.snapshot().are_referenced(partition, &blob_ids))
    }

    async fn begin_write(
        &self,
        wanted: LoadRequest,
    ) -> Result<(Box<dyn WriteTxn>, Loaded), StoreError> {
        let turn = self.shared.take_turn().await;
        let mut txn = MemoryTxn::new(Arc::clone(&self.shared), turn);
        let loaded = txn.load(wanted).await?;
        Ok((Box::new(txn), loaded))
    }

    async fn read_gate(&self, partition: &PartitionId) -> Result<Gate, StoreError> {
        Ok(self.shared.snapshot().gate(partition))
    }

    async fn schema_state(&self) -> Result<SchemaState, StoreError> {
        Ok(self.shared.snapshot().schema_state())
    }

    async fn raise_fence(&self, partition: &PartitionId, version: i32) -> Result<i32, StoreError> {
        Ok(self
            .write(|state| state.partition_mut(partition).raise_fence(version))
            .await)
    }

    async fn change_checkpoint(
        &self,
        key: &CheckpointKey,
        change: CheckpointChange,
    ) -> Result<(CheckpointOutcome, Checkpoint), StoreError> {
        self.try_write(|state| state.change_checkpoint(key, change))
            .await
    }

    async fn list_checkpoints(
        &self,
        after: Option<&CheckpointKey>,
        limit: usize,
    ) -> Result<Vec<Checkpoint>, StoreError> {
        Ok(self.shared.snapshot().list_checkpoints(after, limit))
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
