//! A store that a test can make lie once.
//!
//! It forwards everything, and it can answer the next recorded outcome as unreadable, as a
//! damaged record would be (§2.3). Product code has no hook for that.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use bytestring::ByteString;
use tidewater_model::{ClientId, CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_schema::{Schema, TableIndex};
use tidewater_store::{
    ActivityBatch, ChangeWrite, Checkpoint, CheckpointChange, CheckpointKey, CheckpointOutcome,
    Child, ChildQuestion, ClientRecord, CommitWrite, Finished, Gate, IndexScan, Job, Lane,
    LoadRequest, Loaded, PartitionRecord, PartitionTouch, Pruned, PushKey, ReactionRecord,
    ReactionStatus, RetentionInputs, RowKey, RowPage, RowScan, RowStream, RowStreamRequest,
    SchemaState, ScopeSize, ScopeSizeRequest, ScopesTest, SqlQuery, SqlValue, Store, StoreError,
    StoredResult, StoredRow, TableScan, Violation, Window, WindowRequest, WriteLanes, WriteTxn,
};

/// The lie, kept across the stores it is told in.
#[derive(Debug, Default)]
pub(crate) struct Probe(AtomicBool);

impl Probe {
    /// The next recorded outcome that is found will be unreadable.
    pub(crate) fn blind_next_outcome(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn look(&self, found: Option<StoredResult>) -> Option<StoredResult> {
        let found = found?;
        if self.0.swap(false, Ordering::Relaxed) {
            return Some(StoredResult::Unreadable);
        }
        Some(found)
    }

    fn look_all(&self, mut loaded: Loaded) -> Loaded {
        for result in &mut loaded.push_results {
            *result = self.look(result.take());
        }
        loaded
    }
}

/// A store with a probe in front of it.
pub(crate) struct ProbedStore {
    inner: Arc<dyn Store>,
    probe: Arc<Probe>,
}

impl ProbedStore {
    /// Puts `probe` in front of `inner`.
    pub(crate) fn new(inner: Arc<dyn Store>, probe: Arc<Probe>) -> Self {
        Self { inner, probe }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for ProbedStore {
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
        self.inner.stream_rows(request).await
    }

    async fn scope_size(&self, request: ScopeSizeRequest) -> Result<ScopeSize, StoreError> {
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
        let found = self.inner.find_push_result(key).await?;
        Ok(self.probe.look(found))
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
        let (inner, loaded) = self.inner.begin_write(wanted).await?;
        let txn = ProbedTxn {
            inner,
            probe: Arc::clone(&self.probe),
        };
        Ok((Box::new(txn), self.probe.look_all(loaded)))
    }

    async fn read_gate(&self, partition: &PartitionId) -> Result<Gate, StoreError> {
        self.inner.read_gate(partition).await
    }

    async fn schema_state(&self) -> Result<SchemaState, StoreError> {
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

    async fn holds(&self, job: Job) -> Result<bool, StoreError> {
        self.inner.holds(job).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.inner.check().await
    }
}

struct ProbedTxn {
    inner: Box<dyn WriteTxn>,
    probe: Arc<Probe>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl WriteTxn for ProbedTxn {
    async fn load(&mut self, wanted: LoadRequest) -> Result<Loaded, StoreError> {
        let loaded = self.inner.load(wanted).await?;
        Ok(self.probe.look_all(loaded))
    }

    async fn apply(
        &mut self,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Option<Violation>, StoreError> {
        self.inner.apply(commits).await
    }

    async fn stage(
        &mut self,
        partition: &PartitionId,
        changes: Vec<ChangeWrite>,
    ) -> Result<Option<i32>, StoreError> {
        self.inner.stage(partition, changes).await
    }

    async fn unstage(&mut self) -> Result<(), StoreError> {
        self.inner.unstage().await
    }

    async fn scan_rows(&mut self, scan: RowScan) -> Result<RowPage, StoreError> {
        self.inner.scan_rows(scan).await
    }

    async fn scan_index(
        &mut self,
        scan: IndexScan,
    ) -> Result<Vec<(ByteString, StoredRow)>, StoreError> {
        self.inner.scan_index(scan).await
    }

    async fn load_children(
        &mut self,
        questions: Vec<ChildQuestion>,
    ) -> Result<Vec<Vec<Child>>, StoreError> {
        self.inner.load_children(questions).await
    }

    async fn query(&mut self, query: SqlQuery) -> Result<Vec<Vec<SqlValue>>, StoreError> {
        self.inner.query(query).await
    }

    async fn finish(
        self: Box<Self>,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Finished, StoreError> {
        let Self { inner, probe } = *self;
        Ok(match inner.finish(commits).await? {
            Finished::Committed => Finished::Committed,
            Finished::Violated(inner, violation) => {
                Finished::Violated(Box::new(Self { inner, probe }), violation)
            }
        })
    }
}
