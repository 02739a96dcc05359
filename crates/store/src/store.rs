//! The database as a whole.

use std::{pin::Pin, sync::Arc};

use async_trait::async_trait;
use tidewater_model::{ClientId, CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_schema::{Schema, TableIndex};

use crate::{
    ActivityBatch, Checkpoint, CheckpointChange, CheckpointKey, CheckpointOutcome, ClientRecord,
    Gate, LoadRequest, Loaded, PartitionRecord, PartitionTouch, Pruned, PushKey, ReactionRecord,
    ReactionStatus, RetentionInputs, RowKey, RowPage, RowScan, RowStream, RowStreamRequest,
    SchemaState, ScopeSize, ScopeSizeRequest, ScopesTest, StoreError, StoredResult, StoredRow,
    TableScan, Window, WindowRequest, WriteTxn,
};

/// Whose writers wait for one another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WriteLanes {
    /// All partitions share one writer: a transaction should span those that wait.
    One,
    /// Each partition has its own: a transaction should not span partitions.
    PerPartition,
}

/// A task that decides and writes in turn, over and over.
pub type Lane = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Work that one process at a time does for all that share a database.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Job {
    /// Prunes the logs.
    PruneLogs,
    /// Forgets recorded outcomes.
    PruneOutcomes,
    /// Removes segments that have expired.
    ExpireSegments,
    /// Removes blobs without a reference.
    SweepBlobs,
}

impl Job {
    /// Its number, the same in every version: a lock is named by it.
    pub fn number(self) -> u16 {
        match self {
            Self::PruneLogs => 1,
            Self::PruneOutcomes => 2,
            Self::ExpireSegments => 3,
            Self::SweepBlobs => 4,
        }
    }
}

/// One database.
///
/// Each read method is one consistent snapshot of committed state, returned with the [`Gate`]
/// that guards it; no snapshot outlives the call, but for that of a stream. Tables are those of the schema given to
/// [`Store::prepare`], which comes before everything else.
///
/// [`Gate`]: crate::Gate
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Creates or migrates what the schema needs, or refuses and changes nothing.
    ///
    /// Afterwards every stored payload, of a row or in the log, is encoded for the schema: an
    /// appended column is NULL. A retired table is gone with its history.
    ///
    /// At the stored version it compares layouts and catalogue and writes nothing. A newer
    /// stored version, a mismatch or a change other than appended nullable columns, new or
    /// retired tables and indexes is a refusal whose detail says what to do.
    ///
    /// An upgrade raises the fence of every partition to its version. It may take several
    /// transactions: from the first on the database is at the new version and serves nobody else,
    /// and one that was interrupted goes on where it was.
    async fn prepare(&self, schema: &Arc<Schema>) -> Result<(), StoreError>;

    /// Whose writers wait for one another.
    fn write_lanes(&self) -> WriteLanes;

    /// Runs a lane on the thread that writes, so that its transactions wake no other thread, or
    /// gives it back: a store without such a thread has nothing to gain.
    ///
    /// The lane runs where it was handed over, as far as timers and tasks of the runtime go. It
    /// must not block longer than it may keep all writers waiting.
    fn adopt_lane(&self, lane: Lane) -> Option<Lane> {
        Some(lane)
    }

    /// Registers a partition if it is new and refreshes its last-seen time. Keeps an existing
    /// epoch.
    async fn touch_partition(&self, touch: PartitionTouch) -> Result<PartitionRecord, StoreError>;

    /// The registry's entry for a partition.
    async fn find_partition(
        &self,
        partition: &PartitionId,
    ) -> Result<Option<PartitionRecord>, StoreError>;

    /// Up to `limit` entries of the registry after the given one, by bytewise name.
    async fn list_partitions(
        &self,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<PartitionRecord>, StoreError>;

    /// Gives the partition a new epoch, marks it as required and deletes its client records, at
    /// once. Registers the partition if it is new. Recorded outcomes stay.
    async fn rotate_epoch(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        at_ms: i64,
    ) -> Result<PartitionRecord, StoreError>;

    /// Commits of a span of the log with the changes a filter selects. See [`WindowRequest`].
    async fn read_window(&self, request: WindowRequest) -> Result<Window, StoreError>;

    /// A page of current rows that a filter selects, by bytewise row id. See [`RowScan`].
    async fn scan_rows(&self, scan: RowScan) -> Result<RowPage, StoreError>;

    /// All current rows that a filter selects, piece by piece from one snapshot. The only read
    /// whose snapshot outlives the call: it ends with the stream. See [`RowStreamRequest`].
    ///
    /// Reads other than streams do not wait for streams.
    async fn stream_rows(&self, request: RowStreamRequest) -> Result<RowStream, StoreError>;

    /// How large a scope is. See [`ScopeSizeRequest`].
    async fn scope_size(&self, request: ScopeSizeRequest) -> Result<ScopeSize, StoreError>;

    /// A page of all current rows of a table, by bytewise row id. See [`TableScan`].
    async fn scan_table(&self, scan: TableScan) -> Result<RowPage, StoreError>;

    /// Up to `limit` reactions of a partition after the given key, by bytewise idempotency key;
    /// only those with this status, if one is given.
    async fn list_reactions(
        &self,
        partition: &PartitionId,
        status: Option<ReactionStatus>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ReactionRecord>, StoreError>;

    /// Looks at up to `limit` recorded outcomes of a partition after the given key and deletes
    /// those recorded before `recorded_before_ms`. One without a time is kept, and so is one that
    /// is unreadable. Returns the last key looked at, if there may be more, and how many were
    /// deleted. May look at fewer than `limit`, but at one at least if there is one.
    async fn prune_push_results(
        &self,
        partition: &PartitionId,
        after: Option<&PushKey>,
        recorded_before_ms: i64,
        limit: usize,
    ) -> Result<(Option<PushKey>, u64), StoreError>;

    /// Current rows, in the order of their keys, where they exist.
    async fn find_rows(&self, keys: Vec<RowKey>) -> Result<Vec<Option<StoredRow>>, StoreError>;

    /// The newest commit with a change to `table` that carries one of `values` for `variable`,
    /// among those not pruned.
    async fn newest_change(
        &self,
        partition: &PartitionId,
        table: TableIndex,
        variable: &str,
        values: &[String],
    ) -> Result<Option<CommitSeq>, StoreError>;

    /// The recorded outcome of a pushed commit.
    async fn find_push_result(&self, key: &PushKey) -> Result<Option<StoredResult>, StoreError>;

    /// A client's record.
    async fn find_client(
        &self,
        partition: &PartitionId,
        client: &ClientId,
    ) -> Result<Option<ClientRecord>, StoreError>;

    /// Up to `limit` clients of a partition after the given one, by bytewise id.
    async fn list_clients(
        &self,
        partition: &PartitionId,
        after: Option<&ClientId>,
        limit: usize,
    ) -> Result<Vec<(ClientId, ClientRecord)>, StoreError>;

    /// Writes gathered activity, all or nothing. Never creates a partition.
    async fn put_activity(&self, batch: ActivityBatch) -> Result<(), StoreError>;

    /// What pruning is decided from, from one snapshot: the least cursor of clients updated at
    /// or after `seen_since_ms`, and the newest commit created strictly before `aged_before_ms`.
    async fn retention_inputs(
        &self,
        partition: &PartitionId,
        seen_since_ms: i64,
        aged_before_ms: i64,
    ) -> Result<RetentionInputs, StoreError>;

    /// Raises the horizon to `horizon` (it never falls) and deletes commits, changes and
    /// tombstones at or below it, at once. Refuses when the epoch is not `epoch` or the
    /// partition is not registered. Rows and recorded outcomes stay.
    async fn prune(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        horizon: HorizonSeq,
    ) -> Result<Pruned, StoreError>;

    /// A row that references the blob and whose scopes are wanted, if there is one: any of them.
    /// Rows of tables that are not in the schema do not count.
    async fn find_blob_row(
        &self,
        partition: &PartitionId,
        blob_id: &str,
        wanted: ScopesTest,
    ) -> Result<Option<RowKey>, StoreError>;

    /// Whether any row references a blob, in the order of the ids. A commit that is applied and
    /// not yet visible does not count.
    async fn are_referenced(
        &self,
        partition: &PartitionId,
        blob_ids: Vec<String>,
    ) -> Result<Vec<bool>, StoreError>;

    /// Opens a write transaction, waiting for the writers before it, and loads.
    ///
    /// At most one write transaction per partition is open at any time, across every process
    /// that uses the database.
    async fn begin_write(
        &self,
        wanted: LoadRequest,
    ) -> Result<(Box<dyn WriteTxn>, Loaded), StoreError>;

    /// The gate of a partition, read now.
    async fn read_gate(&self, partition: &PartitionId) -> Result<Gate, StoreError>;

    /// The schema of the database, and what is pending, read now.
    async fn schema_state(&self) -> Result<SchemaState, StoreError>;

    /// Makes a partition refuse the commits of writers below `version`, once the writer that has
    /// the partition is done. Never lowers what is required already, which it returns.
    ///
    /// A writer's version is that of the schema its store was prepared with.
    async fn raise_fence(&self, partition: &PartitionId, version: i32) -> Result<i32, StoreError>;

    /// Changes a checkpoint as [`transition`](crate::transition) says, under the partition's
    /// lock.
    async fn change_checkpoint(
        &self,
        key: &CheckpointKey,
        change: CheckpointChange,
    ) -> Result<(CheckpointOutcome, Checkpoint), StoreError>;

    /// Up to `limit` checkpoints after the given one, by bytewise partition and name.
    async fn list_checkpoints(
        &self,
        after: Option<&CheckpointKey>,
        limit: usize,
    ) -> Result<Vec<Checkpoint>, StoreError>;

    /// Whether a job is this process's to do now; if nobody has it, it takes it.
    ///
    /// It keeps it until it ends or loses the database. Others may have the job some time after
    /// that, so whoever does one asks before each pass, and no job relies on being done once.
    ///
    /// Always, where a database has one process.
    async fn holds(&self, _job: Job) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// Cheap proof that the database answers.
    async fn check(&self) -> Result<(), StoreError>;
}
