//! What is known in memory about each partition: epoch, head, horizon.
//!
//! A pull with nothing new is answered from here and touches no table. **Invariant:** a state
//! never claims less than what was acknowledged here: the write lane raises the head before it
//! answers the client, and pruning raises the horizon before it returns.
//!
//! Other nodes write to the same log. What they did arrives as a signal (`nodes`), a moment after
//! it was acknowledged; while signals do not arrive, every request asks the database instead.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
};

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
pub(crate) struct Partitions(Mutex<States>);

struct States {
    known: LruCache<PartitionId, Known>,
    /// Grows when everything that is known may not be true any more.
    age: u64,
    /// The partitions that are being read from the database.
    reading: BTreeMap<PartitionId, Reading>,
    /// Whether we would hear of it if another node changed something.
    is_told: bool,
}

struct Known {
    state: PartitionState,
    /// When it was known to be true; from an earlier age it is only good for comparison.
    age: u64,
}

/// What happens to a partition while its state is being read.
#[derive(Default)]
struct Reading {
    readers: usize,
    /// The newest commit that was announced.
    head: CommitSeq,
    /// Whether what is read may be old when it arrives.
    is_spoiled: bool,
}

impl Default for Partitions {
    fn default() -> Self {
        Self(Mutex::new(States {
            known: LruCache::new(PARTITIONS_MAX),
            age: 1,
            reading: BTreeMap::new(),
            is_told: true,
        }))
    }
}

impl Partitions {
    /// The state of a partition that authentication has named, registering it if it is new.
    pub(crate) async fn touch(
        &self,
        engine: &Engine,
        partition: &PartitionId,
    ) -> Result<PartitionState, StoreError> {
        let (is_known, current) = {
            let mut states = self.0.lock();
            let current = states.current(partition).filter(|_| states.is_told);
            (states.known.contains(partition), current)
        };
        if !is_known {
            let read = register(engine, partition);
            return self.read(engine, partition, read).await;
        }
        engine
            .activity
            .touch(partition, engine.parts.clock.now_ms());
        match current {
            Some(state) => Ok(state),
            None => self.look_again(engine, partition).await,
        }
    }

    /// The state as the database has it now: for whoever has seen more than this node has.
    pub(crate) async fn look_again(
        &self,
        engine: &Engine,
        partition: &PartitionId,
    ) -> Result<PartitionState, StoreError> {
        let read = async {
            match engine.parts.store.find_partition(partition).await? {
                Some(record) => Ok(record),
                None => register(engine, partition).await,
            }
        };
        self.read(engine, partition, read).await
    }

    /// The state as it is known now.
    pub(crate) fn find(&self, partition: &PartitionId) -> Option<PartitionState> {
        self.0.lock().current(partition)
    }

    /// Replaces the state: after a rotation.
    pub(crate) fn set(&self, state: PartitionState) {
        let mut states = self.0.lock();
        states.spoil(&state.partition);
        states.put(state);
    }

    /// Raises the head after a commit became durable, here or elsewhere.
    pub(crate) fn advance_head(&self, partition: &PartitionId, head: CommitSeq) {
        let mut states = self.0.lock();
        if let Some(known) = states.known.get_mut(partition) {
            known.state.head = known.state.head.max(head);
        }
        if let Some(reading) = states.reading.get_mut(partition) {
            reading.head = reading.head.max(head);
        }
    }

    /// Raises the horizon after pruning.
    pub(crate) fn advance_horizon(&self, partition: &PartitionId, horizon: HorizonSeq) {
        if let Some(known) = self.0.lock().known.get_mut(partition) {
            known.state.horizon = known.state.horizon.max(horizon);
        }
    }

    /// Forgets a partition: what is known of it may not be true any more.
    pub(crate) fn forget(&self, partition: &PartitionId) {
        let mut states = self.0.lock();
        states.spoil(partition);
        if let Some(known) = states.known.peek_mut(partition) {
            known.age = 0;
        }
    }

    /// Forgets every partition. From here on we are told of what other nodes do.
    pub(crate) fn forget_all(&self) {
        let mut states = self.0.lock();
        states.is_told = true;
        states.age += 1;
        for reading in states.reading.values_mut() {
            reading.is_spoiled = true;
        }
    }

    /// From here on we are not told of what other nodes do, and ask the database every time.
    pub(crate) fn distrust(&self) {
        self.0.lock().is_told = false;
    }

    /// Keeps what is read from the database, unless it may be old.
    pub(crate) async fn read(
        &self,
        engine: &Engine,
        partition: &PartitionId,
        read: impl Future<Output = Result<PartitionRecord, StoreError>>,
    ) -> Result<PartitionState, StoreError> {
        let _reader = Reader::begin(self, partition);
        let mut read = PartitionState::from(&read.await?);
        let mut is_rotated = false;
        {
            let mut states = self.0.lock();
            let reading = &states.reading[partition];
            if reading.is_spoiled {
                return Ok(read);
            }
            read.head = read.head.max(reading.head);
            if let Some(Known { state, .. }) = states.known.peek(partition) {
                is_rotated = state.log_epoch != read.log_epoch;
                if !is_rotated {
                    read.head = read.head.max(state.head);
                    read.horizon = read.horizon.max(state.horizon);
                }
            }
            states.put(read.clone());
        }
        if is_rotated {
            // Another node did that, and with the epoch everything starts anew.
            engine.activity.forget(partition);
        }
        Ok(read)
    }
}

async fn register(engine: &Engine, partition: &PartitionId) -> Result<PartitionRecord, StoreError> {
    let touch = PartitionTouch {
        partition: partition.clone(),
        initial_epoch: LogEpoch::new(engine.parts.ids.fresh()),
        at_ms: engine.parts.clock.now_ms(),
    };
    engine.parts.store.touch_partition(touch).await
}

impl States {
    fn current(&mut self, partition: &PartitionId) -> Option<PartitionState> {
        let known = self.known.get(partition)?;
        (known.age == self.age).then(|| known.state.clone())
    }

    fn put(&mut self, state: PartitionState) {
        let age = self.age;
        let partition = state.partition.clone();
        self.known.put(partition, Known { state, age });
    }

    fn spoil(&mut self, partition: &PartitionId) {
        if let Some(reading) = self.reading.get_mut(partition) {
            reading.is_spoiled = true;
        }
    }
}

/// Somebody who reads the state of a partition, or has given up.
struct Reader<'a> {
    partitions: &'a Partitions,
    partition: &'a PartitionId,
}

impl<'a> Reader<'a> {
    fn begin(partitions: &'a Partitions, partition: &'a PartitionId) -> Self {
        let mut states = partitions.0.lock();
        let reading = states.reading.entry(partition.clone()).or_default();
        reading.readers += 1;
        Self {
            partitions,
            partition,
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut states = self.partitions.0.lock();
        if let Some(reading) = states.reading.get_mut(self.partition) {
            reading.readers -= 1;
            if reading.readers == 0 {
                states.reading.remove(self.partition);
            }
        }
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
