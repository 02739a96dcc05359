//! A store that counts its reads of rows and log, and lets a test act in front of one.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidewater_model::{ClientId, CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_schema::{Schema, TableIndex};
use tidewater_store::{
    ActivityBatch, Checkpoint, CheckpointChange, CheckpointKey, CheckpointOutcome, ClientRecord,
    Gate, Job, Lane, LoadRequest, Loaded, MemoryStore, PartitionRecord, PartitionTouch, Pruned,
    PushKey, ReactionRecord, ReactionStatus, RetentionInputs, RowKey, RowPage, RowScan, RowStream,
    RowStreamRequest, SchemaState, ScopeSize, ScopeSizeRequest, ScopesTest, Store, StoreError,
    StoreErrorKind, StoredResult, StoredRow, TableScan, Window, WindowRequest, WriteLanes,
    WriteTxn,
};
use tokio::sync::Semaphore;

type Act = Box<dyn FnOnce(MemoryStore) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// The memory store behind a probe.
#[derive(Default)]
pub(crate) struct ProbedStore {
    inner: MemoryStore,
    /// Whether another node has every job.
    pub(crate) jobs_taken: AtomicBool,
    reads: AtomicU64,
    writes_fail: AtomicU64,
    streams: AtomicU64,
    streams_fail: AtomicU64,
    /// A stream that has begun takes a permit before its caller gets it.
    stream_gate: Mutex<Option<Arc<Semaphore>>>,
    activity_writes: AtomicU64,
    /// What to do before a read, and how many go first.
    act: Mutex<Option<(u64, Act)>>,
}

impl ProbedStore {
    /// Reads of log, rows and scope index so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }

    /// Streams of rows so far.
    pub(crate) fn streams(&self) -> u64 {
        self.streams.load(Ordering::SeqCst)
    }

    /// From now on, streams wait for a permit once they have their snapshot.
    pub(crate) fn hold_streams(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.stream_gate.lock() = Some(Arc::clone(&gate));
        gate
    }

    /// The next `times` streams fail.
    pub(crate) fn fail_streams(&self, times: u64) {
        self.streams_fail.store(times, Ordering::SeqCst);
    }

    /// Attempts to write activity so far.
    pub(crate) fn activity_writes(&self) -> u64 {
        self.activity_writes.load(Ordering::SeqCst)
    }

    /// Does this once, directly before the next read of log or rows.
    pub(crate) fn before_next_read<F>(&self, act: impl FnOnce(MemoryStore) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.before_read_after(0, act);
    }

    /// Does this once, after `skipped` reads of log or rows and directly before the next.
    pub(crate) fn before_read_after<F>(
        &self,
        skipped: u64,
        act: impl FnOnce(MemoryStore) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let act: Act = Box::new(|store| Box::pin(act(store)));
        *self.act.lock() = Some((skipped, act));
    }

    /// The next `times` attempts to write activity or to prune fail.
    pub(crate) fn fail_upkeep(&self, times: u64) {
        self.writes_fail.store(times, Ordering::SeqCst);
    }

    async fn read(&self) {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let act = {
            let mut waiting = self.act.lock();
            match waiting.take() {
                Some((0, act)) => Some(act),
                Some((skipped, act)) => {
                    *waiting = Some((skipped - 1, act));
                    None
                }
                None => None,
            }
        };
        if let Some(act) = act {
            act(self.inner.clone()).await;
        }
    }

    fn upkeep(&self) -> Result<(), StoreError> {
        let left = self
            .writes_fail
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        match left {
            Ok(_) => Err(StoreError::new(StoreErrorKind::Unavailable, "do as told")),
            Err(_) => Ok(()),
        }
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
        self.read().await;
        self.inner.read_window(request).await
    }

    async fn scan_rows(&self, scan: RowScan) -> Result<RowPage, StoreError> {
        self.read().await;
        self.inner.scan_rows(scan).await
    }

    async fn stream_rows(&self, request: RowStreamRequest) -> Result<RowStream, StoreError> {
        self.streams.fetch_add(1, Ordering::SeqCst);
        let stream = self.inner.stream_rows(request).await;
        // The snapshot is taken; what the caller does with it waits.
        let gate = self.stream_gate.lock().clone();
        if let Some(gate) = gate {
            gate.acquire()
                .await
                .expect("a test keeps its gate")
                .forget();
        }
        let failing = &self.streams_fail;
        let fails = failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        });
        match fails {
            Ok(_) => Err(StoreError::new(StoreErrorKind::Unavailable, "do as told")),
            Err(_) => stream,
        }
    }

    async fn scope_size(&self, request: ScopeSizeRequest) -> Result<ScopeSize, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
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
        self.upkeep()?;
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
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner
            .newest_change(partition, table, variable, values)
            .await
    }

    async fn find_rows(&self, keys: Vec<RowKey>) -> Result<Vec<Option<StoredRow>>, StoreError> {
        self.read().await;
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
        self.activity_writes.fetch_add(1, Ordering::SeqCst);
        self.upkeep()?;
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
        self.upkeep()?;
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
        self.inner.begin_write(wanted).await
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
        Ok(!self.jobs_taken.load(Ordering::SeqCst) && self.inner.holds(job).await?)
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.inner.check().await
    }
}
