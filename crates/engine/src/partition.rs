//! What is known in memory about each partition: epoch, head, horizon.
//!
//! A pull with nothing new is answered from here and touches no table. **Invariant:** a state
//! never claims less than what was acknowledged: the write lane raises the head before it
//! answers the client, and pruning raises the horizon before it returns.

use std::{collections::BTreeSet, num::NonZeroUsize};

use lru::LruCache;
use parking_lot::Mutex;
use tidewater_model::{CommitSeq, ErrorCode, HorizonSeq, LogEpoch, PartitionId};
use tidewater_store::{Gate, PartitionRecord, PartitionTouch, StoreError};

use crate::{Engine, RoundError};

/// Partitions remembered; others cost one read when they come back.
const PARTITIONS_MAX: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// A partition's registry entry and log, as of the last write or read.
#[derive(Clone, Debug)]
pub(crate) struct PartitionState {
    pub(crate) partition: PartitionId,
    pub(crate) log_epoch: LogEpoch,
    pub(crate) epoch_required: bool,
    pub(crate) head: CommitSeq,
    pub(crate) horizon: HorizonSeq,
}

impl From<&PartitionRecord> for PartitionState {
    fn from(record: &PartitionRecord) -> Self {
        Self {
            partition: record.partition.clone(),
            log_epoch: record.log_epoch.clone(),
            epoch_required: record.epoch_required,
            head: record.head,
            horizon: record.horizon,
        }
    }
}

/// The states of the partitions that were asked for lately.
pub(crate) struct Partitions(Mutex<LruCache<PartitionId, PartitionState>>);

impl Default for Partitions {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(PARTITIONS_MAX)))
    }
}

impl Partitions {
    /// The state of a partition that authentication has named, registering it if it is new.
    pub(crate) async fn touch(
        &self,
        engine: &Engine,
        partition: &PartitionId,
    ) -> Result<PartitionState, StoreError> {
        let now_ms = engine.parts.clock.now_ms();
        if let Some(state) = self.find(partition) {
            engine.activity.touch(partition, now_ms);
            return Ok(state);
        }
        let touch = PartitionTouch {
            partition: partition.clone(),
            initial_epoch: LogEpoch::new(engine.parts.ids.fresh()),
            at_ms: now_ms,
        };
        let record = engine.parts.store.touch_partition(touch).await?;
        Ok(self.learn(PartitionState::from(&record)))
    }

    /// The state as it is known now.
    pub(crate) fn find(&self, partition: &PartitionId) -> Option<PartitionState> {
        self.0.lock().get(partition).cloned()
    }

    /// Replaces the state: after a rotation.
    pub(crate) fn set(&self, state: PartitionState) {
        self.0.lock().put(state.partition.clone(), state);
    }

    /// Raises the head after a commit became durable.
    pub(crate) fn advance_head(&self, partition: &PartitionId, head: CommitSeq) {
        if let Some(state) = self.0.lock().get_mut(partition) {
            state.head = state.head.max(head);
        }
    }

    /// Raises the horizon after pruning.
    pub(crate) fn advance_horizon(&self, partition: &PartitionId, horizon: HorizonSeq) {
        if let Some(state) = self.0.lock().get_mut(partition) {
            state.horizon = state.horizon.max(horizon);
        }
    }

    /// Takes what was read from the database, unless someone learned more meanwhile.
    fn learn(&self, read: PartitionState) -> PartitionState {
        let mut states = self.0.lock();
        let state = states.get_or_insert_mut(read.partition.clone(), || read.clone());
        if state.log_epoch == read.log_epoch {
            state.head = state.head.max(read.head);
            state.horizon = state.horizon.max(read.horizon);
        }
        state.clone()
    }
}

/// The first checkpoint of a gate that this process does not complete.
pub(crate) fn pending<'g>(gate: &'g Gate, declared: &BTreeSet<String>) -> Option<&'g str> {
    let mut names = gate.pending_checkpoints.iter().map(String::as_str);
    names.find(|name| !declared.contains(*name))
}

/// Refuses to write under another epoch or schema than the request is answered for, below the
/// fence of the partition, or where a projection is not complete (§2.4).
pub(crate) fn check_gate(
    engine: &Engine,
    gate: &Gate,
    partition: &PartitionId,
    log_epoch: &LogEpoch,
) -> Result<(), RoundError> {
    let running = engine.schema().version();
    let required = gate.writer_fence.filter(|required| *required > running);
    let details = if gate.schema_version != running || required.is_some() {
        serde_json::json!({
            "storedSchemaVersion": required.unwrap_or(gate.schema_version),
            "runningSchemaVersion": running,
        })
    } else if let Some(name) = pending(gate, &engine.parts.config.declared_checkpoints) {
        serde_json::json!({ "partition": partition.as_str(), "projection": name })
    } else if gate.log_epoch.as_ref() != Some(log_epoch) {
        serde_json::json!({ "logEpochChanged": true })
    } else {
        return Ok(());
    };
    let message = "server schema is not ready for this request";
    Err(RoundError::new(ErrorCode::SchemaNotReady, message).with_details(details))
}
