//! Write transactions.

use std::sync::Arc;

use async_trait::async_trait;
use bytestring::ByteString;
use tidewater_model::PartitionId;

use crate::{
    ChangeWrite, Child, ChildQuestion, ClientKey, ClientRecord, CommitWrite, Gate, IndexScan,
    PushKey, RowKey, RowPage, RowScan, SqlQuery, SqlValue, StoreError, StoredResult, StoredRow,
    Tombstone,
};

/// What to read inside a write transaction, all at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadRequest {
    /// Partitions to lock and to read the gate of.
    pub partitions: Vec<PartitionId>,
    /// Rows, each with its tombstone. Of locked partitions only.
    pub rows: Vec<RowKey>,
    /// Recorded outcomes.
    pub push_results: Vec<PushKey>,
    /// Client records.
    pub clients: Vec<ClientKey>,
}

/// The answers to a [`LoadRequest`], each list in the order of its question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Gates of the partitions.
    pub gates: Vec<Gate>,
    /// Rows, where they exist.
    pub rows: Vec<Option<StoredRow>>,
    /// Tombstones above the horizon, where they exist.
    pub tombstones: Vec<Option<Tombstone>>,
    /// Recorded outcomes, where they exist.
    pub push_results: Vec<Option<StoredResult>>,
    /// Client records, where they exist.
    pub clients: Vec<Option<ClientRecord>>,
}

/// A commit that breaks a constraint of the database.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Violation {
    /// Which of the commits given.
    pub commit: usize,
    /// The operation that broke it.
    pub op_index: i32,
}

/// How [`WriteTxn::finish`] ended without an error.
pub enum Finished {
    /// All of it is durable and visible.
    Committed,
    /// A commit broke a constraint. Those before it are applied, it and those after it are not,
    /// and the transaction is open.
    Violated(Box<dyn WriteTxn>, Violation),
}

/// One write transaction. It sees its own writes; nobody else does until it commits.
///
/// Dropping it abandons it: nothing it wrote is ever visible, and the connection it used serves
/// the next caller as if it had been new. That holds when the drop is a canceled future too.
#[async_trait]
pub trait WriteTxn: Send {
    /// Reads, in one go, and locks the partitions named until the transaction ends.
    async fn load(&mut self, wanted: LoadRequest) -> Result<Loaded, StoreError>;

    /// Applies commits in order, each as one atomic piece inside the transaction.
    ///
    /// An applied commit is refused when the fence of its partition requires a newer writer than
    /// this one; the transaction is then good for nothing but being dropped.
    ///
    /// Stops at the first that breaks a constraint of the database: those before it stay
    /// applied, it and those after it leave no trace. Any other failure poisons the
    /// transaction: it can only be dropped.
    ///
    /// # Panics
    ///
    /// When an applied commit's place is not one above the head of its partition.
    async fn apply(
        &mut self,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Option<Violation>, StoreError>;

    /// Writes candidate rows on top of what the transaction holds, so that the reads below see
    /// them: rows, indexes and typed columns, but no log. Further calls add to them.
    ///
    /// Returns the operation that breaks a constraint of the database, if one does; nothing of
    /// that call is then kept.
    async fn stage(
        &mut self,
        partition: &PartitionId,
        changes: Vec<ChangeWrite>,
    ) -> Result<Option<i32>, StoreError>;

    /// Takes back everything staged. Without anything staged it does nothing. Applying and
    /// finishing take it back as well.
    async fn unstage(&mut self) -> Result<(), StoreError>;

    /// A page of rows as [`Store::scan_rows`](crate::Store::scan_rows) reads it, from this
    /// transaction's own state.
    async fn scan_rows(&mut self, scan: RowScan) -> Result<RowPage, StoreError>;

    /// Rows with exactly the given values in a declared index, by bytewise row id.
    async fn scan_index(
        &mut self,
        scan: IndexScan,
    ) -> Result<Vec<(ByteString, StoredRow)>, StoreError>;

    /// Rows that name one of these parents in one reference column, per question: by parent in
    /// the order asked, then by bytewise row id, at most so many over all parents.
    async fn load_children(
        &mut self,
        questions: Vec<ChildQuestion>,
    ) -> Result<Vec<Vec<Child>>, StoreError>;

    /// The rows of a query. Its text is the caller's responsibility: it names tables and binds
    /// values as [`SqlQuery`] says. Fails with `query_unsupported` on a store without SQL.
    async fn query(&mut self, query: SqlQuery) -> Result<Vec<Vec<SqlValue>>, StoreError>;

    /// Applies commits as [`WriteTxn::apply`] does and, if all of them were applied, makes
    /// everything written so far durable and visible, at once. With no commits it only does
    /// the latter.
    ///
    /// An error leaves the outcome unknown: the caller must find out by the commits' keys and
    /// must not write again on a guess.
    async fn finish(
        self: Box<Self>,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Finished, StoreError>;
}
