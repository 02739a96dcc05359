//! The records that cross the storage boundary. Plain values, no behavior of their own.

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::{
    ActorId, ClientId, CommitSeq, Cursor, HorizonSeq, LogEpoch, PartitionId, ScopeFilter,
    StoredScopes,
};
use tidewater_schema::TableIndex;

/// A partition's entry in the registry, with the state of its log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PartitionRecord {
    /// The partition.
    pub partition: PartitionId,
    /// The current epoch (§2.1).
    pub log_epoch: LogEpoch,
    /// Whether the epoch was ever rotated: wire version 1 is then refused for good.
    pub epoch_required: bool,
    /// When authentication last named the partition, Unix milliseconds.
    pub last_authenticated_at_ms: i64,
    /// The newest commit.
    pub head: CommitSeq,
    /// Commits at or below it may be gone.
    pub horizon: HorizonSeq,
}

/// Names a partition that authentication has just named.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PartitionTouch {
    /// The partition.
    pub partition: PartitionId,
    /// The epoch it gets if it is new; an existing epoch is kept.
    pub initial_epoch: LogEpoch,
    /// Now, Unix milliseconds.
    pub at_ms: i64,
}

/// What guards a read (§2.4): taken from the same snapshot as the data it guards.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Gate {
    /// The epoch in the registry; `None` when the partition was never touched.
    pub log_epoch: Option<LogEpoch>,
    /// The schema version the database was last migrated to.
    pub schema_version: i32,
    /// The newest commit of the snapshot.
    pub head: CommitSeq,
    /// The horizon of the snapshot.
    pub horizon: HorizonSeq,
    /// The least writer version whose commits the partition takes; `None` is no barrier.
    pub writer_fence: Option<i32>,
    /// Checkpoints of the partition that are not activated, by bytewise name.
    pub pending_checkpoints: Vec<String>,
}

/// What a database says about itself as a whole.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SchemaState {
    /// The schema version it was last migrated to.
    pub schema_version: i32,
    /// Names of checkpoints that are not activated in some partition, by bytewise order.
    pub pending_checkpoints: Vec<String>,
}

/// Names one row.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RowKey {
    /// The partition.
    pub partition: PartitionId,
    /// The table, in the schema the store was prepared with.
    pub table: TableIndex,
    /// The primary key as text.
    pub row_id: ByteString,
}

/// A row as stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredRow {
    /// 1 on insert, one more on each update.
    pub row_version: i64,
    /// One value per scope variable of the table.
    pub scopes: StoredScopes,
    /// The full row in codec bytes: the truth, from which everything is served.
    pub payload: Bytes,
    /// Column versions as encoded by §2.2; `None` for a row from before that feature.
    pub column_versions: Option<Bytes>,
}

/// What is left of a deleted row until the horizon passes it (§2.2).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tombstone {
    /// The commit that deleted the row.
    pub commit_seq: CommitSeq,
    /// The row's scopes before removal; `None` in databases that did not record them (OQ-2).
    pub scopes: Option<StoredScopes>,
}

/// Names one pushed commit: the idempotency key (§2.3).
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PushKey {
    /// The partition.
    pub partition: PartitionId,
    /// The client.
    pub client: ClientId,
    /// The client's own id for the commit.
    pub client_commit_id: ByteString,
}

/// The recorded outcome of a pushed commit, or the fact that it cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredResult {
    /// The outcome.
    Readable(Box<PushResultRecord>),
    /// A record exists but is not readable: the commit must not be applied again (§2.3).
    Unreadable,
}

/// The terminal outcome of a pushed commit (§6.3).
#[derive(Clone, Debug, PartialEq)]
pub struct PushResultRecord {
    /// Applied at a place in the log, or rejected.
    pub status: PushStatus,
    /// One record per operation, or only that of the terminating one.
    pub results: Vec<ResultRecord>,
    /// When it was recorded, Unix milliseconds; `None` in older databases.
    pub recorded_at_ms: Option<i64>,
    /// Who pushed it; `None` in databases of the reference (OQ-29).
    pub actor: Option<ActorId>,
    /// The schema version that `server_row` and `conflict_columns` are encoded for.
    pub schema_version: Option<i32>,
    /// SHA-256 of the operations, so that another content under the same id is noticed.
    pub content_digest: Option<String>,
}

/// What became of a pushed commit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PushStatus {
    /// Written at this place.
    Applied(CommitSeq),
    /// Not written.
    Rejected,
}

/// One record of a stored outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum ResultRecord {
    /// The operation was applied.
    Applied {
        /// Which operation.
        op_index: i32,
    },
    /// The row had moved on.
    Conflict {
        /// Which operation.
        op_index: i32,
        /// A catalogue code.
        code: String,
        /// Text for people.
        message: String,
        /// The row's version at the decision.
        server_version: i64,
        /// The full row at the decision.
        server_row: Bytes,
        /// The conflicting columns as a bitmap; `None` in databases of the reference.
        conflict_columns: Option<Bytes>,
    },
    /// The operation was refused.
    Error {
        /// Which operation.
        op_index: i32,
        /// A catalogue code or one of the host's.
        code: String,
        /// Text for people.
        message: String,
        /// Whether the same commit may succeed later.
        retryable: bool,
        /// Rejection details as JSON text (§6.3.1).
        details: Option<String>,
    },
}

/// Everything one pushed commit writes, applied or rejected, as one atomic piece.
#[derive(Clone, Debug, PartialEq)]
pub struct CommitWrite {
    /// The idempotency key.
    pub key: PushKey,
    /// Who pushed it.
    pub actor: ActorId,
    /// The outcome to record. The first one recorded for a key stays.
    pub result: PushResultRecord,
    /// The log entry; `None` for a rejected commit.
    pub applied: Option<AppliedCommit>,
    /// Creates the client's record, bound to `actor`, if there is none (OQ-29): last seen at
    /// this time, without cursor and subscriptions, at wire version 0 until a round sets one.
    pub bind_client_at_ms: Option<i64>,
}

/// An applied commit.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedCommit {
    /// Exactly one above the partition's head.
    pub commit_seq: CommitSeq,
    /// Server clock, Unix milliseconds.
    pub created_at_ms: i64,
    /// The writes, which are also the log's changes, in order.
    pub changes: Vec<ChangeWrite>,
    /// Rows whose final state in this commit is deleted, with their scopes before.
    pub tombstones: Vec<(TableIndex, ByteString, StoredScopes)>,
    /// Rows whose tombstone of an earlier commit ends with this one.
    pub tombstones_cleared: Vec<(TableIndex, ByteString)>,
    /// What follows from the commit, pending from its creation on.
    pub reactions: Vec<ReactionWrite>,
}

/// A reaction to record with its commit (§6.9).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReactionWrite {
    /// Names it within the partition, for good.
    pub idempotency_key: String,
    /// What kind of work it is.
    pub kind: String,
    /// Of the payload's form.
    pub version: i32,
    /// JSON text.
    pub payload: String,
    /// Deliveries before it is given up.
    pub max_attempts: i32,
}

/// One write to one row, and the change the log keeps of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeWrite {
    /// The table.
    pub table: TableIndex,
    /// The primary key as text.
    pub row_id: ByteString,
    /// The operation a constraint failure is attributed to.
    pub op_index: i32,
    /// What is written.
    pub kind: ChangeKind,
}

/// What a change does to its row.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangeKind {
    /// Inserts the row or replaces it whole.
    Upsert {
        /// The row after the write.
        row: RowState,
        /// The scopes it had before, `None` for an insert.
        scopes_before: Option<StoredScopes>,
    },
    /// Removes the row with its index entries.
    Delete {
        /// Its scopes before removal.
        scopes: StoredScopes,
    },
}

/// A row to store.
#[derive(Clone, Debug, PartialEq)]
pub struct RowState {
    /// 1 on insert, one more on each update.
    pub row_version: i64,
    /// One value per scope variable of the table.
    pub scopes: StoredScopes,
    /// The full row in codec bytes.
    pub payload: Bytes,
    /// Column versions as encoded by §2.2.
    pub column_versions: Option<Bytes>,
    /// The blobs the row references now; `None` when the write does not change them.
    pub blob_ids: Option<Vec<String>>,
}

/// Names one client of a partition.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ClientKey {
    /// The partition.
    pub partition: PartitionId,
    /// The client.
    pub client: ClientId,
}

/// What is known about one replica (§2.3).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClientRecord {
    /// The only actor who may use this client id.
    pub actor: ActorId,
    /// What holds back pruning: the least cursor of its active subscriptions.
    pub cursor: Cursor,
    /// The subscriptions of its last pull.
    pub subscriptions: Vec<ClientSubscription>,
    /// Of the last accepted round. May be a number this server does not know.
    pub wire_version: i32,
    /// Last seen, Unix milliseconds.
    pub updated_at_ms: i64,
    /// Why its previous round failed where the server could not see it.
    pub failure: Option<FailureReport>,
}

/// One subscription of a client's last pull.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClientSubscription {
    /// Chosen by the client.
    pub id: String,
    /// The table's name.
    pub table: String,
    /// Requested scopes.
    pub scopes: ScopeFilter,
    /// Whether its last section ended active and complete; `None` when unknown.
    pub complete: Option<bool>,
    /// The schema version of the round; `None` when unknown.
    pub schema_version: Option<i32>,
}

/// A client's report about its previous round (OQ-34).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FailureReport {
    /// For example `transport.timeout`.
    pub code: String,
    /// When the report arrived, Unix milliseconds.
    pub at_ms: i64,
    /// Reports in a row.
    pub streak: u32,
}

/// Activity that was gathered in memory and is written together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActivityBatch {
    /// Last-seen times of registered partitions.
    pub touches: Vec<(PartitionId, i64)>,
    /// Client records to replace. Skipped when the partition's epoch is no longer the one
    /// given, or when a stored record belongs to another actor.
    pub clients: Vec<(ClientKey, LogEpoch, ClientRecord)>,
}

/// What pruning is decided from (§4.6).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RetentionInputs {
    /// Epoch, head and horizon.
    pub gate: Gate,
    /// The least cursor of the clients seen since the given time that have one.
    pub oldest_cursor: Option<CommitSeq>,
    /// The newest commit created strictly before the given time; the start when there is none.
    pub newest_before: CommitSeq,
}

/// What a pruning pass did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pruned {
    /// The horizon before.
    pub previous: HorizonSeq,
    /// The horizon now.
    pub horizon: HorizonSeq,
    /// Commits removed.
    pub removed_commits: u64,
}

/// A recorded reaction (§6.9).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReactionRecord {
    /// What was planned.
    pub write: ReactionWrite,
    /// The client whose commit it follows from.
    pub client: ClientId,
    /// That client's id of the commit.
    pub client_commit_id: ByteString,
    /// The commit's place.
    pub commit_seq: CommitSeq,
    /// When it was recorded, Unix milliseconds.
    pub created_at_ms: i64,
    /// When it is due, Unix milliseconds.
    pub available_at_ms: i64,
    /// Where it stands.
    pub status: ReactionStatus,
    /// Deliveries tried so far.
    pub attempts: i32,
}

/// Where a reaction stands.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ReactionStatus {
    /// It waits for its delivery.
    Pending,
    /// A worker delivers it.
    Leased,
    /// It was delivered.
    Completed,
    /// It was given up.
    DeadLetter,
}

impl ReactionStatus {
    /// Every status.
    pub const ALL: [Self; 4] = [
        Self::Pending,
        Self::Leased,
        Self::Completed,
        Self::DeadLetter,
    ];

    /// The status as it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Leased => "leased",
            Self::Completed => "completed",
            Self::DeadLetter => "dead-letter",
        }
    }

    /// The status stored as `text`.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}
