//! What the engine needs from a database, and what a database must promise in return.
//!
//! [`Store`] reads consistent snapshots and opens write transactions; [`WriteTxn`] is one of
//! those. Methods name rows and places in the log, in bulk; none of them decides anything.
//! Whether a push conflicts, which scopes a row has and when history may be pruned are questions
//! for the engine, so the implementations have no policy of their own to disagree about.
//!
//! Every promise in these doc comments has a test in `conformance`, and every implementation
//! runs all of them. A promise that is not tested there is not a promise.

#![warn(missing_docs)]

mod blob;
mod candidate;
mod checkpoint;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
pub mod json;
pub mod memory;
pub mod outcome;
mod records;
pub mod rewrite;
pub mod signals;
mod store;
mod stream;
mod txn;
mod window;

pub use blob::ScopesTest;
pub use candidate::{Child, ChildQuestion, IndexScan, SqlQuery, SqlValue};
pub use checkpoint::{
    Checkpoint, CheckpointChange, CheckpointGround, CheckpointKey, CheckpointOutcome,
    CheckpointState, below_fence, transition,
};
pub use error::{StorageCode, StoreError, StoreErrorKind};
pub use memory::MemoryStore;
pub use records::{
    ActivityBatch, AppliedCommit, ChangeKind, ChangeWrite, ClientKey, ClientRecord,
    ClientSubscription, CommitWrite, FailureReport, Gate, PartitionRecord, PartitionTouch, Pruned,
    PushKey, PushResultRecord, PushStatus, ReactionRecord, ReactionStatus, ReactionWrite,
    ResultRecord, RetentionInputs, RowKey, RowState, SchemaState, StoredResult, StoredRow,
    Tombstone,
};
pub use store::{Job, Lane, Store, WriteLanes};
pub use stream::{RowPieces, RowStream, RowStreamRequest, ScopeSize, ScopeSizeRequest};
pub use txn::{Finished, LoadRequest, Loaded, Violation, WriteTxn};
pub use window::{
    ChangeRef, CommitRef, RowPage, RowPageBuilder, RowRef, RowScan, TableScan, Window,
    WindowBuilder, WindowRequest,
};
