//! A memory store whose writes can be held up and which can pretend to be out.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use tidewater_model::{ClientId, CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_schema::{Schema, TableIndex};
use tidewater_store::{
    ActivityBatch, Checkpoint, CheckpointChange, CheckpointKey, CheckpointOutcome, ClientRecord,
    Gate, Lane, LoadRequest, Loaded, MemoryStore, PartitionRecord, PartitionTouch, Pruned, PushKey,
    ReactionRecord, ReactionStatus, RetentionInputs, RowKey, RowPage, RowScan, RowStream,
    RowStreamRequest, SchemaState, ScopeSize, ScopeSizeRequest, ScopesTest, Store, StoreError,
    StoreErrorKind, StoredResult, StoredRow, TableScan, Window, WindowRequest, WriteLanes,
    WriteTxn,
};
use tokio::sync::watch;

/// The memory store behind a gate.
pub(crate) struct HeldStore {
    inner: MemoryStore,
    is_held: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
    is_out: AtomicBool,
}

impl HeldStore {
    pub(crate) fn new(inner: MemoryStore) -> Self {
        Self {
            inner,
            is_held: watch::Sender::new(false),
            waiting: watch::Sender::new(0),
            is_out: AtomicBool::new(false),
        }
    }

    /// Writes that begin from now on wait.
    pub(crate) fn hold(&self) {
        self.is_held.send_replace(true);
    }

    /// Writes go on.
    pub(crate) fn release(&self) {
        self.is_held.send_replace(false);
    }

    /// Ends when a write waits.
    pub(crate) async fn write_waits(&self) {
        self.waiting
            .subscribe()
            .wait_for(|waiting| *waiting > 0)
            .await
            .unwrap();
    }

    /// From now on the database does not answer.
    pub(crate) fn go_out(&self) {
        self.is_out.store(true, Ordering::SeqCst);
    }

    async fn pass(&self) {
        self.waiting.send_modify(|waiting| *waiting += 1);
        self.is_held
            .subscribe()
            .wait_for(|held| !held)
            .await
            .unwrap();
        self.waiting.send_modify(|waiting| *waiting -= 1);
    }
}

#[async_trait]
impl Store for HeldStore {
    async fn prepare(&self, schema: &Arc<Schema>) -> Result<(), StoreError> {
        self.inner.prepare(schema).await
    }

    fn write_lanes(&self) -> WriteLanes {
        self.inner.write_lanes()
    }

    fn adopt_lane(&self, lane: Lane) -> Option<Lane> {
        self.inner.adopt_lane(lane)
    }

    async fn touch_partition(&self, touch: PartitionTouch) -> Result<PartitionRecord, StoreError> {
        self.inner.touch_partition(touch).await
    }

    async fn find_partition(
        &self,
        partition: &PartitionId,
    ) -> Result<Option<PartitionRecord>, StoreError> {
        self.inner.find_partition(partition).await
    }

    async fn list_partitions(
        &self,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<PartitionRecord>, StoreError> {
        self.inner.list_partitions(after, limit).await
    }

    async fn rotate_epoch(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        at_ms: i64,
    ) -> Result<PartitionRecord, StoreError> {
        self.inner.rotate_epoch(partition, epoch, at_ms).await
    }

    async fn read_window(&self, request: WindowRequest) -> Result<Window, StoreError> {
        self.inner.read_window(request).await
    }

    async fn scan_rows(&self, scan: RowScan) -> Result<RowPage, StoreError> {
        self.inner.scan_rows(scan).await
    }

    async fn stream_rows(&self, request: RowStreamRequest) -> Result<RowStream, StoreError> {
        self.pass().await;
        self.inner.stream_rows(request).await
    }

    async fn scope_size(&self, request: ScopeSizeRequest) -> Result<ScopeSize, StoreError> {
        self.pass().await;
        self.inner.scope_size(request).await
    }

    async fn scan_table(&self, scan: TableScan) -> Result<RowPage, StoreError> {
        self.inner.scan_table(scan).await
    }

    async fn list_reactions(
        &self,
        partition: &PartitionId,
        status: Option<ReactionStatus>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ReactionRecord>, StoreError> {
        self.inner
            .list_reactions(partition, status, after, limit)
            .await
    }

    async fn prune_push_results(
        &self,
        partition: &PartitionId,
        after: Option<&PushKey>,
        recorded_before_ms: i64,
        limit: usize,
    ) -> Result<(Option<PushKey>, u64), StoreError> {
        self.inner
            .prune_push_results(partition, after, recorded_before_ms, limit)
            .await
    }

    async fn newest_change(
        &self,
        partition: &PartitionId,
        table: TableIndex,
        variable: &str,
        values: &[String],
    ) -> Result<Option<CommitSeq>, StoreError> {
        self.inner
            .newest_change(partition, table, variable, values)
            .await
    }

    async fn find_rows(&self, keys: Vec<RowKey>) -> Result<Vec<Option<StoredRow>>, StoreError> {
        self.inner.find_rows(keys).await
    }

    async fn find_push_result(&self, key: &PushKey) -> Result<Option<StoredResult>, StoreError> {
        self.inner.find_push_result(key).await
    }

    async fn find_client(
        &self,
        partition: &PartitionId,
        client: &ClientId,
    ) -> Result<Option<ClientRecord>, StoreError> {
        self.inner.find_client(partition, client).await
    }

    async fn list_clients(
        &self,
        partition: &PartitionId,
        after: Option<&ClientId>,
        limit: usize,
    ) -> Result<Vec<(ClientId, ClientRecord)>, StoreError> {
        self.inner.list_clients(partition, after, limit).await
    }

    async fn put_activity(&self, batch: ActivityBatch) -> Result<(), StoreError> {
        self.inner.put_activity(batch).await
    }

    async fn retention_inputs(
        &self,
        partition: &PartitionId,
        seen_since_ms: i64,
        aged_before_ms: i64,
    ) -> Result<RetentionInputs, StoreError> {
        self.inner
            .retention_inputs(partition, seen_since_ms, aged_before_ms)
            .await
    }

    async fn prune(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        horizon: HorizonSeq,
    ) -> Result<Pruned, StoreError> {
        self.inner.prune(partition, epoch, horizon).await
    }

    async fn find_blob_row(
        &self,
        partition: &PartitionId,
        blob_id: &str,
        wanted: ScopesTest,
    ) -> Result<Option<RowKey>, StoreError> {
        self.inner.find_blob_row(partition, blob_id, wanted).await
    }

    async fn are_referenced(
        &self,
        partition: &PartitionId,
        blob_ids: Vec<String>,
    ) -> Result<Vec<bool>, StoreError> {
        self.inner.are_referenced(partition, blob_ids).await
    }

    async fn begin_write(
        &self,
        wanted: LoadRequest,
    ) -> Result<(Box<dyn WriteTxn>, Loaded), StoreError> {
        self.pass().await;
        self.inner.begin_write(wanted).await
    }

    async fn read_gate(&self, partition: &PartitionId) -> Result<Gate, StoreError> {
        self.inner.read_gate(partition).await
    }

    async fn schema_state(&self) -> Result<SchemaState, StoreError> {
        self.check().await?;
        self.inner.schema_state().await
    }

    async fn raise_fence(&self, partition: &PartitionId, version: i32) -> Result<i32, StoreError> {
        self.inner.raise_fence(partition, version).await
    }

    async fn change_checkpoint(
        &self,
        key: &CheckpointKey,
        change: CheckpointChange,
    ) -> Result<(CheckpointOutcome, Checkpoint), StoreError> {
        self.inner.change_checkpoint(key, change).await
    }

    async fn list_checkpoints(
        &self,
        after: Option<&CheckpointKey>,
        limit: usize,
    ) -> Result<Vec<Checkpoint>, StoreError> {
        self.inner.list_checkpoints(after, limit).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        if self.is_out.load(Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "check"));
        }
        self.inner.check().await
    }
}
