//! The open transaction under a commit that is being decided.
//!
//! Commits decided earlier in the group are applied late, all at once. Whoever needs to read the
//! database as it would be (children of a deleted row, a validator's scan) asks here: the
//! earlier commits are then applied, and the current one's writes are staged on top.
//!
//! **Invariant:** what is staged is taken back before the next commit is decided. A write that was
//! given up halfway (the host's code was stopped while it read) leaves a transaction of unknown
//! content, and that is used no more.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use tidewater_model::{ErrorCode, PartitionId};
use tidewater_store::{
    ChangeWrite, CommitWrite, ResultRecord, StoreError, StoreErrorKind, WriteTxn,
};

use super::commit::error_record;
use crate::RoundError;

/// Why the decision of a commit ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The commit is rejected with this record.
    Reject(Box<ResultRecord>),
    /// The request fails; nothing of this commit is recorded.
    Fail(RoundError),
    /// The database failed; so does the group.
    Store(StoreError),
    /// The database panicked; what the transaction holds is unknown, and so the group fails.
    Panicked,
    /// The earlier write at this place broke a constraint: it is to be rejected, and everything
    /// after it decided again.
    Earlier { write: usize, op_index: i32 },
}

impl From<RoundError> for Stop {
    fn from(error: RoundError) -> Self {
        Self::Fail(error)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Stop {
    /// Rejects with a code of the catalogue.
    pub(super) fn reject(op_index: i32, code: ErrorCode, message: &str) -> Self {
        Self::Reject(Box::new(error_record(op_index, code, message)))
    }

    /// The rejection of a write that breaks a constraint of the database (§6.3).
    pub(super) fn constraint(op_index: i32) -> Self {
        Self::reject(
            op_index,
            ErrorCode::ConstraintViolation,
            "write violates a relational constraint",
        )
    }
}

/// Calls the database. Its panic must not be taken for one of the host's code that reads through
/// it: that would reject the commit for good.
pub(super) async fn walled<T>(
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, Stop> {
    match AssertUnwindSafe(call).catch_unwind().await {
        Ok(called) => called.map_err(Stop::Store),
        Err(_) => Err(Stop::Panicked),
    }
}

/// The transaction, with what was decided and not yet applied.
pub(super) struct Ground<'g> {
    txn: &'g mut dyn WriteTxn,
    writes: &'g [Arc<CommitWrite>],
    /// How many of `writes` the transaction holds.
    applied: &'g mut usize,
    /// How many changes of the current commit are staged.
    staged: usize,
    /// Whether a write has begun and not ended.
    is_torn: bool,
}

impl<'g> Ground<'g> {
    pub(super) fn new(
        txn: &'g mut dyn WriteTxn,
        writes: &'g [Arc<CommitWrite>],
        applied: &'g mut usize,
    ) -> Self {
        Self {
            txn,
            writes,
            applied,
            staged: 0,
            is_torn: false,
        }
    }

    /// The transaction for reads of rows that no commit of the group has touched.
    pub(super) fn txn(&mut self) -> &mut dyn WriteTxn {
        self.txn
    }

    /// The transaction for reads of the candidate state: everything decided earlier is applied
    /// and these writes of the current commit are visible.
    pub(super) async fn show(
        &mut self,
        partition: &PartitionId,
        changes: &[ChangeWrite],
    ) -> Result<&mut dyn WriteTxn, Stop> {
        self.check_torn()?;
        let waiting = self.writes[*self.applied..].to_vec();
        if !waiting.is_empty() {
            let count = waiting.len();
            self.is_torn = true;
            let applied = walled(self.txn.apply(waiting)).await;
            self.is_torn = false;
            if let Some(violation) = applied? {
                *self.applied += violation.commit;
                let write = *self.applied;
                return Err(Stop::Earlier {
                    write,
                    op_index: violation.op_index,
                });
            }
            *self.applied += count;
        }
        let new = changes[self.staged..].to_vec();
        if !new.is_empty() {
            self.staged = changes.len();
            self.is_torn = true;
            let staged = walled(self.txn.stage(partition, new)).await;
            self.is_torn = false;
            if let Some(op_index) = staged? {
                return Err(Stop::constraint(op_index));
            }
        }
        Ok(self.txn)
    }

    /// Takes back what was shown of the current commit.
    pub(super) async fn hide(&mut self) -> Result<(), StoreError> {
        self.check_torn()?;
        if std::mem::take(&mut self.staged) > 0 {
            self.txn.unstage().await?;
        }
        Ok(())
    }

    fn check_torn(&self) -> Result<(), StoreError> {
        if self.is_torn {
            let during = "go on after a read that was given up while it wrote";
            return Err(StoreError::new(StoreErrorKind::Unavailable, during));
        }
        Ok(())
    }
}
