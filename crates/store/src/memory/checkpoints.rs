//! Fences and checkpoints (§2.4).

use std::{collections::BTreeSet, sync::Arc};

use super::state::{Partition, State};
use crate::{
    Checkpoint, CheckpointChange, CheckpointGround, CheckpointKey, CheckpointOutcome,
    CheckpointState, SchemaState, StoreError, transition,
};

impl State {
    pub(super) fn schema_state(&self) -> SchemaState {
        let pending = self.partitions.iter();
        let pending: BTreeSet<String> = pending
            .flat_map(|(_, partition)| partition.pending())
            .collect();
        SchemaState {
            schema_version: self.schema().version(),
            pending_checkpoints: pending.into_iter().collect(),
        }
    }

    pub(super) fn change_checkpoint(
        &mut self,
        key: &CheckpointKey,
        change: CheckpointChange,
    ) -> Result<(CheckpointOutcome, Checkpoint), StoreError> {
        let partition = self.partition_mut(&key.partition);
        let ground = CheckpointGround {
            head: partition.head,
            horizon: partition.horizon,
            writer_fence: partition.writer_fence,
        };
        let stored = partition.checkpoints.get(&key.name);
        let (outcome, next) = transition(key, stored.map(|stored| &**stored), ground, change)?;
        let entry = Arc::new(next.clone());
        partition.checkpoints.insert(key.name.clone(), entry);
        Ok((outcome, next))
    }

    pub(super) fn list_checkpoints(
        &self,
        after: Option<&CheckpointKey>,
        limit: usize,
    ) -> Vec<Checkpoint> {
        self.partitions
            .iter()
            .flat_map(|(_, partition)| partition.checkpoints.iter())
            .map(|(_, checkpoint)| Checkpoint::clone(checkpoint))
            .filter(|checkpoint| after.is_none_or(|after| checkpoint.key > *after))
            .take(limit)
            .collect()
    }
}

impl Partition {
    /// Names of the checkpoints that are not activated.
    pub(super) fn pending(&self) -> impl Iterator<Item = String> + '_ {
        self.checkpoints
            .iter()
            .filter(|(_, checkpoint)| checkpoint.state != CheckpointState::Activated)
            .map(|(name, _)| name.clone())
    }

    /// Requires at least this version, and says what is required then.
    pub(super) fn raise_fence(&mut self, version: i32) -> i32 {
        let required = self
            .writer_fence
            .map_or(version, |before| before.max(version));
        self.writer_fence = Some(required);
        required
    }
}
