//! A store that can be told to fail, to wait and to say how often it was called.
//!
//! Only what belongs to write transactions is watched: each of those calls has a number, from 0,
//! and fails or not by it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use async_trait::async_trait;
use bytestring::ByteString;
use parking_lot::Mutex;
use tidewater_model::{ClientId, CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_schema::{Schema, TableIndex};
use tidewater_store::{
    ActivityBatch, ChangeWrite, Checkpoint, CheckpointChange, CheckpointKey, CheckpointOutcome,
    Child, ChildQuestion, ClientRecord, CommitWrite, Finished, Gate, IndexScan, Job, Lane,
    LoadRequest, Loaded, PartitionRecord, PartitionTouch, Pruned, PushKey, ReactionRecord,
    ReactionStatus, RetentionInputs, RowKey, RowPage, RowScan, RowStream, RowStreamRequest,
    SchemaState, ScopeSize, ScopeSizeRequest, ScopesTest, SqlQuery, SqlValue, Store, StoreError,
    StoreErrorKind, StoredResult, StoredRow, TableScan, Violation, Window, WindowRequest,
    WriteLanes, WriteTxn,
};
use tokio::sync::Notify;

/// When a call fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum When {
    /// Nothing of it happened.
    Before,
    /// All of it happened, and nobody was told.
    After,
    /// The store panics before anything of it happened.
    Panics,
    /// The store panics after all of it happened.
    PanicsAfter,
}

/// These calls fail like this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) from: u64,
    pub(crate) times: u64,
    pub(crate) kind: StoreErrorKind,
    pub(crate) when: When,
}

/// Any store, watched.
pub(crate) struct WatchedStore {
    inner: Arc<dyn Store>,
    adopts_lanes: bool,
    watch: Arc<Watch>,
}

#[derive(Default)]
struct Watch {
    /// Calls since the last fault was set.
    calls: Mutex<Vec<&'static str>>,
    fault: Mutex<Option<Fault>>,
    /// The call that panics when it is about this row, each time.
    poison: Mutex<Option<(&'static str, &'static str)>>,
    held: AtomicBool,
    waiting: AtomicU64,
    changed: Notify,
    /// Applying takes for ever to answer.
    apply_hangs: AtomicBool,
}

impl Watch {
    fn call(&self, name: &'static str, when: When) -> Result<(), StoreError> {
        let mut calls = self.calls.lock();
        if when == When::Before {
            calls.push(name);
        }
        let number = u64::try_from(calls.len()).expect("few calls") - 1;
        let Some(fault) = *self.fault.lock() else {
            return Ok(());
        };
        if !(fault.from..fault.from + fault.times).contains(&number) {
            return Ok(());
        }
        drop(calls);
        match (fault.when, when) {
            (When::Panics, When::Before) | (When::PanicsAfter, When::After) => panic!("as told"),
            _ => {}
        }
        if fault.when == when {
            return Err(StoreError::new(fault.kind, "do as told"));
        }
        Ok(())
    }

    fn taste<'a>(&self, name: &'static str, rows: impl IntoIterator<Item = &'a ByteString>) {
        let Some((call, row)) = *self.poison.lock() else {
            return;
        };
        let is_poisoned = call == name && rows.into_iter().any(|found| found == row);
        assert!(!is_poisoned, "as told");
    }

    async fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_waiters();
        loop {
            let changed = self.changed.notified();
            if !self.held.load(Ordering::SeqCst) {
                break;
            }
            changed.await;
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl WatchedStore {
    pub(crate) fn new(inner: Arc<dyn Store>, adopts_lanes: bool) -> Self {
        Self {
            inner,
            adopts_lanes,
            watch: Arc::default(),
        }
    }

    /// The store behind this one.
    pub(crate) fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    /// Forgets the calls so far and lets those that the fault names fail.
    pub(crate) fn fail(&self, fault: Option<Fault>) {
        self.watch.calls.lock().clear();
        *self.watch.fault.lock() = fault;
    }

    /// Lets calls of this name panic when they are about this row.
    pub(crate) fn poison(&self, call: &'static str, row: &'static str) {
        *self.watch.poison.lock() = Some((call, row));
    }

    /// The calls since the last fault was set.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        self.watch.calls.lock().clone()
    }

    /// Write transactions wait at their beginning from now on.
    pub(crate) fn hold(&self) {
        self.watch.held.store(true, Ordering::SeqCst);
    }

    /// Waits until a write transaction waits.
    pub(crate) async fn someone_waits(&self) {
        loop {
            let changed = self.watch.changed.notified();
            if self.watch.waiting.load(Ordering::SeqCst) > 0 {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn release(&self) {
        self.watch.held.store(false, Ordering::SeqCst);
        self.watch.changed.notify_waiters();
    }

    /// Lets transactions apply without ever saying so, or no longer.
    pub(crate) fn hang_after_apply(&self, hangs: bool) {
        self.watch.apply_hangs.store(hangs, Ordering::SeqCst);
    }

    fn watched(&self, txn: Box<dyn WriteTxn>) -> Box<dyn WriteTxn> {
        let watch = Arc::clone(&self.watch);
        Box::new(WatchedTxn { inner: txn, watch })
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for WatchedStore {
    async fn prepare(&self, schema: &Arc<Schema>) -> Result<(), StoreError> {
        self.inner.prepare(schema).await
    }

    /// The suite makes groups over several partitions, which every store can write at once.
    fn write_lanes(&self) -> WriteLanes {
        WriteLanes::One
    }

    fn adopt_lane(&self, lane: Lane) -> Option<Lane> {
        if self.adopts_lanes {
            self.inner.adopt_lane(lane)
        } else {
            Some(lane)
        }
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
        self.watch.pass().await;
        self.watch.call("begin", When::Before)?;
        self.watch
            .taste("begin", wanted.rows.iter().map(|key| &key.row_id));
        let (txn, loaded) = self.inner.begin_write(wanted).await?;
        self.watch.call("begin", When::After)?;
        Ok((self.watched(txn), loaded))
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

fn rows(commits: &[Arc<CommitWrite>]) -> impl Iterator<Item = &ByteString> {
    commits
        .iter()
        .filter_map(|commit| commit.applied.as_ref())
        .flat_map(|applied| &applied.changes)
        .map(|change| &change.row_id)
}

struct WatchedTxn {
    inner: Box<dyn WriteTxn>,
    watch: Arc<Watch>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl WriteTxn for WatchedTxn {
    async fn load(&mut self, wanted: LoadRequest) -> Result<Loaded, StoreError> {
        self.watch.call("load", When::Before)?;
        self.watch
            .taste("load", wanted.rows.iter().map(|key| &key.row_id));
        let loaded = self.inner.load(wanted).await?;
        self.watch.call("load", When::After)?;
        Ok(loaded)
    }

    async fn apply(
        &mut self,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Option<Violation>, StoreError> {
        self.watch.call("apply", When::Before)?;
        self.watch.taste("apply", rows(&commits));
        let violation = self.inner.apply(commits).await?;
        if self.watch.apply_hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.watch.call("apply", When::After)?;
        Ok(violation)
    }

    async fn stage(
        &mut self,
        partition: &PartitionId,
        changes: Vec<ChangeWrite>,
    ) -> Result<Option<i32>, StoreError> {
        self.watch.call("stage", When::Before)?;
        self.watch
            .taste("stage", changes.iter().map(|change| &change.row_id));
        let violation = self.inner.stage(partition, changes).await?;
        self.watch.call("stage", When::After)?;
        Ok(violation)
    }

    async fn unstage(&mut self) -> Result<(), StoreError> {
        self.watch.call("unstage", When::Before)?;
        self.inner.unstage().await?;
        self.watch.call("unstage", When::After)
    }

    async fn scan_rows(&mut self, scan: RowScan) -> Result<RowPage, StoreError> {
        self.watch.call("scan rows", When::Before)?;
        let page = self.inner.scan_rows(scan).await?;
        self.watch.call("scan rows", When::After)?;
        Ok(page)
    }

    async fn scan_index(
        &mut self,
        scan: IndexScan,
    ) -> Result<Vec<(ByteString, StoredRow)>, StoreError> {
        self.watch.call("scan index", When::Before)?;
        let rows = self.inner.scan_index(scan).await?;
        self.watch.call("scan index", When::After)?;
        Ok(rows)
    }

    async fn load_children(
        &mut self,
        questions: Vec<ChildQuestion>,
    ) -> Result<Vec<Vec<Child>>, StoreError> {
        self.watch.call("children", When::Before)?;
        let children = self.inner.load_children(questions).await?;
        self.watch.call("children", When::After)?;
        Ok(children)
    }

    async fn query(&mut self, query: SqlQuery) -> Result<Vec<Vec<SqlValue>>, StoreError> {
        self.watch.call("query", When::Before)?;
        let rows = self.inner.query(query).await?;
        self.watch.call("query", When::After)?;
        Ok(rows)
    }

    async fn finish(
        self: Box<Self>,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Finished, StoreError> {
        let Self { inner, watch } = *self;
        watch.call("finish", When::Before)?;
        watch.taste("finish", rows(&commits));
        let finished = inner.finish(commits).await?;
        watch.call("finish", When::After)?;
        Ok(match finished {
            Finished::Committed => Finished::Committed,
            Finished::Violated(inner, violation) => {
                let txn = Self { inner, watch };
                Finished::Violated(Box::new(txn), violation)
            }
        })
    }
}
