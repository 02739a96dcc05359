//! Backfills of projections, for hosts that keep one beside the rows (§2.4).
//!
//! A host declares a checkpoint, raises the fence so that only writers that keep the projection
//! write, claims it, reads what is there, and activates it. Who dies on the way is taken over
//! when its lease ends. Until it is activated, processes that do not declare it refuse the
//! partition.

use std::time::Duration;

use tidewater_model::{CommitSeq, PartitionId};
use tidewater_store::{Checkpoint, CheckpointChange, CheckpointKey, CheckpointOutcome, StoreError};

use crate::Engine;

/// The phases in which a server may find that it can not serve (§2.4).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReadinessPhase {
    /// The schema document does not compile.
    SchemaCompile,
    /// The database is not at the schema, and can not be brought there.
    StorageMigration,
    /// A projection is not complete, and this process does not complete it.
    BackfillCheckpoint,
}

impl ReadinessPhase {
    /// The phase as operators see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SchemaCompile => "schema_compile",
            Self::StorageMigration => "storage_migration",
            Self::BackfillCheckpoint => "backfill_checkpoint",
        }
    }
}

/// What keeps a server from serving.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Readiness {
    /// Nothing.
    Ready {
        /// Checkpoints that are pending in some partition.
        pending: Vec<String>,
    },
    /// The database is at another schema version.
    OtherSchema {
        /// Its version.
        stored: i32,
    },
}

impl Engine {
    /// Whether the database is at the schema that is served, read now.
    pub async fn readiness(&self) -> Result<Readiness, StoreError> {
        let state = self.store().schema_state().await?;
        if state.schema_version != self.schema().version() {
            return Ok(Readiness::OtherSchema {
                stored: state.schema_version,
            });
        }
        Ok(Readiness::Ready {
            pending: state.pending_checkpoints,
        })
    }

    /// Makes a partition take commits of this schema version and later only.
    pub async fn fence_writers(&self, partition: &PartitionId) -> Result<i32, StoreError> {
        let version = self.schema().version();
        self.store().raise_fence(partition, version).await
    }

    /// Declares that a projection must be complete from this schema version on. Declaring it
    /// again changes nothing.
    pub async fn declare_checkpoint(
        &self,
        partition: &PartitionId,
        name: &str,
    ) -> Result<Checkpoint, StoreError> {
        let schema_version = self.schema().version();
        let change = CheckpointChange::Declare { schema_version };
        let key = CheckpointKey {
            partition: partition.clone(),
            name: name.to_owned(),
        };
        let (_, checkpoint) = self.store().change_checkpoint(&key, change).await?;
        Ok(checkpoint)
    }

    /// Begins to complete a projection, or takes over from an owner whose lease has ended.
    /// `None` while another owner has it.
    pub async fn claim_checkpoint(
        &self,
        partition: &PartitionId,
        name: &str,
        lease: Duration,
    ) -> Result<Option<Checkpoint>, StoreError> {
        let key = CheckpointKey {
            partition: partition.clone(),
            name: name.to_owned(),
        };
        let change = CheckpointChange::Claim {
            at_ms: self.clock().now_ms(),
            lease_ms: milliseconds(lease),
            force: false,
        };
        let (outcome, checkpoint) = self.store().change_checkpoint(&key, change).await?;
        Ok((outcome == CheckpointOutcome::Done).then_some(checkpoint))
    }

    /// Says how far the owner got, and renews its lease. False when it was superseded: it must
    /// stop.
    pub async fn advance_checkpoint(
        &self,
        claimed: &Checkpoint,
        watermark: CommitSeq,
        observed_rows: i64,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let change = CheckpointChange::Advance {
            owner_epoch: claimed.owner_epoch,
            watermark,
            observed_rows,
            at_ms: self.clock().now_ms(),
            lease_ms: milliseconds(lease),
        };
        let changed = self.store().change_checkpoint(&claimed.key, change).await?;
        Ok(changed.0 == CheckpointOutcome::Done)
    }

    /// Says that the projection is complete.
    pub async fn activate_checkpoint(
        &self,
        claimed: &Checkpoint,
    ) -> Result<CheckpointOutcome, StoreError> {
        let change = CheckpointChange::Activate {
            owner_epoch: claimed.owner_epoch,
        };
        let changed = self.store().change_checkpoint(&claimed.key, change).await?;
        Ok(changed.0)
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
