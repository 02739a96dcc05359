//! Client records and last-seen times, gathered in memory and written behind.
//!
//! Reading writes nothing: a round that only pulls changes its client's record here, and all
//! records changed within a second are written in one transaction. A crash loses at most that
//! second, which is safe in each direction: an older cursor holds back pruning for longer, and a
//! missing subscription costs the client one pull after it reconnects.
//!
//! **Invariant:** whoever asks here sees the newest record, written or not.

use std::{collections::BTreeMap, num::NonZeroUsize};

use lru::LruCache;
use parking_lot::Mutex;
use tidewater_model::{ActorId, Cursor, LogEpoch, PartitionId};
use tidewater_store::{ActivityBatch, ClientKey, ClientRecord, Store, StoreError};

/// Client records remembered; others cost one read when they come back.
const CLIENTS_MAX: NonZeroUsize = NonZeroUsize::new(16_384).expect("not zero");

/// A record with more subscriptions than this is not kept after it was written.
const REMEMBERED_SUBSCRIPTIONS_MAX: usize = 64;

/// Records waiting to be written; at this many, the round that adds one writes them.
const PENDING_MAX: usize = 8_192;

/// Gathered activity and the client records it belongs to.
pub(crate) struct Activity {
    state: Mutex<State>,
    /// Held while a batch is written, so that a newer batch never overtakes an older one.
    flushing: tokio::sync::Mutex<()>,
}

struct State {
    known: LruCache<ClientKey, Option<ClientRecord>>,
    touches: BTreeMap<PartitionId, i64>,
    pending: BTreeMap<ClientKey, (LogEpoch, ClientRecord)>,
    /// Taken out of `pending` and not yet written.
    in_flight: BTreeMap<ClientKey, ClientRecord>,
}

impl Default for Activity {
    fn default() -> Self {
        let state = State {
            known: LruCache::new(CLIENTS_MAX),
            touches: BTreeMap::new(),
            pending: BTreeMap::new(),
            in_flight: BTreeMap::new(),
        };
        Self {
            state: Mutex::new(state),
            flushing: tokio::sync::Mutex::default(),
        }
    }
}

impl Activity {
    /// Notes that authentication named the partition.
    pub(crate) fn touch(&self, partition: &PartitionId, now_ms: i64) {
        let mut state = self.state.lock();
        match state.touches.get_mut(partition) {
            Some(at_ms) => *at_ms = now_ms.max(*at_ms),
            None => {
                state.touches.insert(partition.clone(), now_ms);
            }
        }
    }

    /// A client's record, newest state.
    pub(crate) async fn find_client(
        &self,
        store: &dyn Store,
        key: &ClientKey,
    ) -> Result<Option<ClientRecord>, StoreError> {
        if let Some(known) = self.state.lock().find(key) {
            return Ok(known);
        }
        let read = store.find_client(&key.partition, &key.client).await?;
        let mut state = self.state.lock();
        // Someone may have put a newer record while this one was read.
        if let Some(known) = state.find(key) {
            return Ok(known);
        }
        // That there is none is not remembered: another node may bind the client meanwhile.
        if read.is_some() {
            state.remember(key, read.clone());
        }
        Ok(read)
    }

    /// Replaces a client's record; it is written with the next batch. Returns whether so many
    /// wait that the caller should write them now.
    #[must_use]
    pub(crate) fn put_client(&self, key: ClientKey, epoch: LogEpoch, record: ClientRecord) -> bool {
        let mut state = self.state.lock();
        state.known.pop(&key);
        state.pending.insert(key, (epoch, record));
        state.pending.len() >= PENDING_MAX
    }

    /// Learns that a commit has bound a client that had no record. Its round may fail all the
    /// same and then puts none, and nobody may take the client for a new one.
    pub(crate) fn learn_bound(&self, key: &ClientKey, actor: &ActorId, at_ms: i64) {
        let mut state = self.state.lock();
        if state.find(key).flatten().is_none() {
            let record = ClientRecord {
                actor: actor.clone(),
                cursor: Cursor::Never,
                subscriptions: Vec::new(),
                wire_version: 0,
                updated_at_ms: at_ms,
                failure: None,
            };
            state.known.put(key.clone(), Some(record));
        }
    }

    /// Drops what is known and gathered about a partition's clients: its epoch was rotated.
    pub(crate) fn forget(&self, partition: &PartitionId) {
        let mut state = self.state.lock();
        state.pending.retain(|key, _| key.partition != *partition);
        state.in_flight.retain(|key, _| key.partition != *partition);
        let known: Vec<ClientKey> = state
            .known
            .iter()
            .filter(|(key, _)| key.partition == *partition)
            .map(|(key, _)| key.clone())
            .collect();
        for key in known {
            state.known.pop(&key);
        }
    }

    /// Writes everything gathered so far. After a failure it stays gathered.
    pub(crate) async fn flush(&self, store: &dyn Store) -> Result<(), StoreError> {
        let _flushing = self.flushing.lock().await;
        let Some(batch) = self.state.lock().take() else {
            return Ok(());
        };
        let written = store.put_activity(batch.clone()).await;
        let mut state = self.state.lock();
        match &written {
            Ok(()) => state.settle(),
            Err(_) => state.give_back(batch),
        }
        written
    }
}

impl State {
    fn find(&mut self, key: &ClientKey) -> Option<Option<ClientRecord>> {
        if let Some((_, record)) = self.pending.get(key) {
            return Some(Some(record.clone()));
        }
        if let Some(record) = self.in_flight.get(key) {
            return Some(Some(record.clone()));
        }
        self.known.get(key).cloned()
    }

    fn remember(&mut self, key: &ClientKey, record: Option<ClientRecord>) {
        let small = record
            .as_ref()
            .is_none_or(|record| record.subscriptions.len() <= REMEMBERED_SUBSCRIPTIONS_MAX);
        if small {
            self.known.put(key.clone(), record);
        }
    }

    fn take(&mut self) -> Option<ActivityBatch> {
        if self.touches.is_empty() && self.pending.is_empty() {
            return None;
        }
        let touches = std::mem::take(&mut self.touches).into_iter().collect();
        let pending = std::mem::take(&mut self.pending);
        self.in_flight = pending
            .iter()
            .map(|(key, (_, record))| (key.clone(), record.clone()))
            .collect();
        let clients = pending
            .into_iter()
            .map(|(key, (epoch, record))| (key, epoch, record))
            .collect();
        Some(ActivityBatch { touches, clients })
    }

    fn settle(&mut self) {
        for (key, record) in std::mem::take(&mut self.in_flight) {
            if !self.pending.contains_key(&key) {
                self.remember(&key, Some(record));
            }
        }
    }

    fn give_back(&mut self, batch: ActivityBatch) {
        for (partition, at_ms) in batch.touches {
            let newest = self.touches.entry(partition).or_insert(at_ms);
            *newest = at_ms.max(*newest);
        }
        for (key, epoch, record) in batch.clients {
            // What `forget` dropped meanwhile stays dropped.
            if self.in_flight.remove(&key).is_some() {
                self.pending.entry(key).or_insert((epoch, record));
            }
        }
    }
}
