//! Backfill checkpoints (§2.4): a projection of stored rows that must be complete before others
//! may rely on it.
//!
//! A checkpoint is declared, claimed by one owner at a time, advanced and at last activated. While
//! it is not activated, only a process that declares it serves the partition.
//!
//! **Invariant:** what a change comes to is decided by [`transition`] alone, from what the store
//! read under the partition's lock. A store reads, asks and writes back, so every store agrees.

use tidewater_model::{CommitSeq, HorizonSeq, PartitionId};

use crate::{StorageCode, StoreError};

/// Names one checkpoint.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CheckpointKey {
    /// The partition.
    pub partition: PartitionId,
    /// The projection.
    pub name: String,
}

/// A checkpoint as stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Checkpoint {
    /// Which one.
    pub key: CheckpointKey,
    /// The writer version that keeps the projection true: what the fence must require before it
    /// is activated.
    pub schema_version: i32,
    /// How far it is.
    pub state: CheckpointState,
    /// The backfill has seen every commit up to this one.
    pub watermark: CommitSeq,
    /// Raised by every claim: an owner that was superseded has a lower one.
    pub owner_epoch: i64,
    /// Rows that the backfill has seen.
    pub observed_rows: i64,
    /// Until when nobody else may claim it, Unix milliseconds.
    pub lease_expires_at_ms: Option<i64>,
}

/// How far a checkpoint is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CheckpointState {
    /// Nobody has begun.
    Declared,
    /// Somebody has begun.
    Backfilling,
    /// The projection is complete.
    Activated,
}

impl CheckpointState {
    /// The state as it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Backfilling => "backfilling",
            Self::Activated => "activated",
        }
    }

    /// Reads what [`Self::as_str`] wrote.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Declared, Self::Backfilling, Self::Activated]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}

/// What is to become of a checkpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CheckpointChange {
    /// It must be complete from this writer version on. Declared again for a newer version, it
    /// begins anew.
    Declare {
        /// The version.
        schema_version: i32,
    },
    /// Somebody begins, or takes over from an owner whose lease has ended.
    Claim {
        /// Now, Unix milliseconds.
        at_ms: i64,
        /// How long others wait for the next sign of life.
        lease_ms: i64,
        /// Takes over from an owner whose lease has not ended, who is known to be gone.
        force: bool,
    },
    /// The owner got this far. Its lease begins anew.
    Advance {
        /// What the claim gave.
        owner_epoch: i64,
        /// Every commit up to this one was seen; never lowers it.
        watermark: CommitSeq,
        /// Rows seen so far.
        observed_rows: i64,
        /// Now, Unix milliseconds.
        at_ms: i64,
        /// How long others wait for the next sign of life.
        lease_ms: i64,
    },
    /// The owner is done: the projection is complete.
    Activate {
        /// What the claim gave.
        owner_epoch: i64,
    },
}

/// What a change came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CheckpointOutcome {
    /// It is as it was asked for.
    Done,
    /// Another owner has it, and its lease has not ended. Nothing was changed.
    Held,
    /// Another owner took over, or it is activated already. Nothing was changed.
    Stale,
    /// The log above the watermark was pruned: what was written there since can not be seen any
    /// more. It stays as it was; claim it again and begin anew.
    Unverifiable,
}

/// What a transition is decided from, beside the checkpoint itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CheckpointGround {
    /// The newest commit of the partition.
    pub head: CommitSeq,
    /// Its horizon.
    pub horizon: HorizonSeq,
    /// The writer version that its fence requires.
    pub writer_fence: Option<i32>,
}

const DURING: &str = "change a checkpoint";

/// What a change comes to, with the checkpoint as it is then.
///
/// # Errors
///
/// Refused when there is no such checkpoint, when one that is activated is claimed, and when one
/// is activated that no fence protects.
pub fn transition(
    key: &CheckpointKey,
    stored: Option<&Checkpoint>,
    ground: CheckpointGround,
    change: CheckpointChange,
) -> Result<(CheckpointOutcome, Checkpoint), StoreError> {
    use CheckpointOutcome::{Done, Held, Stale, Unverifiable};
    let stored = match (stored, change) {
        (None, CheckpointChange::Declare { schema_version }) => {
            check_name(key)?;
            return Ok((Done, declared(key, schema_version, ground)));
        }
        (None, _) => return Err(not_declared(key, "was never declared")),
        (Some(stored), _) => stored,
    };
    let mut next = stored.clone();
    let outcome = match change {
        CheckpointChange::Declare { schema_version } => {
            if schema_version > stored.schema_version {
                next = Checkpoint {
                    // An owner of the older one must not go on with this one.
                    owner_epoch: stored.owner_epoch + 1,
                    ..declared(key, schema_version, ground)
                };
            }
            Done
        }
        CheckpointChange::Claim { .. } if stored.state == CheckpointState::Activated => {
            return Err(not_declared(key, "is activated: nothing is left to do"));
        }
        CheckpointChange::Claim {
            at_ms,
            lease_ms,
            force,
        } => {
            let held = stored.lease_expires_at_ms.is_some_and(|end| at_ms < end);
            if held && !force {
                Held
            } else {
                next = claimed(stored, ground, at_ms.saturating_add(lease_ms));
                Done
            }
        }
        CheckpointChange::Advance { owner_epoch, .. }
        | CheckpointChange::Activate { owner_epoch }
            if owner_epoch != stored.owner_epoch
                || stored.state != CheckpointState::Backfilling =>
        {
            Stale
        }
        CheckpointChange::Advance {
            watermark,
            observed_rows,
            at_ms,
            lease_ms,
            ..
        } => {
            next.watermark = stored.watermark.max(watermark.min(ground.head));
            next.observed_rows = observed_rows;
            next.lease_expires_at_ms = Some(at_ms.saturating_add(lease_ms));
            Done
        }
        CheckpointChange::Activate { .. } => {
            check_fence(stored, ground)?;
            if stored.watermark < ground.horizon.seq() {
                Unverifiable
            } else {
                next.state = CheckpointState::Activated;
                next.lease_expires_at_ms = None;
                Done
            }
        }
    };
    Ok((outcome, next))
}

/// What is below the watermark was seen by nobody, or by the owner before. Beginning anew is the way
/// out when the log that was to be looked at is gone.
fn claimed(stored: &Checkpoint, ground: CheckpointGround, lease_ends_at_ms: i64) -> Checkpoint {
    let is_lost = stored.watermark < ground.horizon.seq();
    let begins = stored.state == CheckpointState::Declared || is_lost;
    Checkpoint {
        state: CheckpointState::Backfilling,
        watermark: if begins {
            ground.head
        } else {
            stored.watermark
        },
        observed_rows: if begins { 0 } else { stored.observed_rows },
        owner_epoch: stored.owner_epoch + 1,
        lease_expires_at_ms: Some(lease_ends_at_ms),
        ..stored.clone()
    }
}

fn declared(key: &CheckpointKey, schema_version: i32, ground: CheckpointGround) -> Checkpoint {
    Checkpoint {
        key: key.clone(),
        schema_version,
        state: CheckpointState::Declared,
        watermark: ground.horizon.seq(),
        owner_epoch: 0,
        observed_rows: 0,
        lease_expires_at_ms: None,
    }
}

/// Without a fence, a writer that knows nothing of the projection makes it untrue the moment it
/// is relied on.
fn check_fence(stored: &Checkpoint, ground: CheckpointGround) -> Result<(), StoreError> {
    if ground
        .writer_fence
        .is_some_and(|required| required >= stored.schema_version)
    {
        return Ok(());
    }
    Err(StoreError::refused(
        StorageCode::CheckpointFenceMissing,
        DURING,
        format!(
            "checkpoint `{}` of partition {} is for writers of version {} and later, and older \
             ones may still write: raise the fence first",
            stored.key.name, stored.key.partition, stored.schema_version
        ),
    ))
}

fn not_declared(key: &CheckpointKey, why: &str) -> StoreError {
    StoreError::refused(
        StorageCode::CheckpointNotDeclared,
        DURING,
        format!(
            "checkpoint `{}` of partition {} {why}",
            key.name, key.partition
        ),
    )
}

/// Longest name of a checkpoint.
const NAME_BYTES_MAX: usize = 128;

fn check_name(key: &CheckpointKey) -> Result<(), StoreError> {
    let name = &key.name;
    let is_good = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
    if is_good {
        return Ok(());
    }
    Err(StoreError::refused(
        StorageCode::CheckpointNotDeclared,
        DURING,
        format!(
            "the name of a checkpoint has 1 to {NAME_BYTES_MAX} bytes and no control characters"
        ),
    ))
}

/// The refusal of a commit by a writer that is older than the fence requires.
pub fn below_fence(partition: &PartitionId, required: i32, writer: i32) -> StoreError {
    StoreError::refused(
        StorageCode::WriterFenceRejected,
        "apply commits",
        format!(
            "partition {partition} takes commits of writers of version {required} and later, and \
             this one is version {writer}: stop it, a newer server has taken over"
        ),
    )
}

#[cfg(test)]
mod tests;
