//! Client records and last-seen times, gathered in memory and written behind.
//!
//! Reading writes nothing: a round that only pulls changes its client's record here, and all
//! records changed within a second are written in one transaction. A crash loses at most that
//! second, which is safe in each direction: an older cursor holds back pruning for longer, and a
//! missing subscription costs the client one pull after it reconnects.
//!
//! Whom a client belongs to must not be lost: the first record of a client is written before its
//! round ends, in one transaction with those of others who wait, and until then its commits bind
//! it themselves (OQ-29).
//!
//! **Invariant:** whoever asks here sees the newest record, written or not.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
};

use lru::LruCache;
use parking_lot::Mutex;
use tidewater_model::{ActorId, CommitSeq, Cursor, LogEpoch, PartitionId};
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
    /// Of clients whose records are not remembered.
    acks: BTreeMap<ClientKey, Ack>,
    /// Taken out of `pending` and not yet written.
    in_flight: BTreeMap<ClientKey, ClientRecord>,
    /// Those of `pending` and `in_flight` that the database has no record of at all.
    unbound: BTreeSet<ClientKey>,
}

impl Default for Activity {
    fn default() -> Self {
        let state = State {
            known: LruCache::new(CLIENTS_MAX),
            touches: BTreeMap::new(),
            pending: BTreeMap::new(),
            acks: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            unbound: BTreeSet::new(),
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

    /// Reads a client's record anew the next time, unless something of it waits to be written.
    pub(crate) fn unremember(&self, key: &ClientKey) {
        self.state.lock().known.pop(key);
    }

    /// Replaces a client's record; it is written with the next batch. `is_new` says that there was
    /// none when the round began. Returns whether the caller must write the batch now: the client
    /// would not be bound otherwise, or too many wait.
    #[must_use]
    pub(crate) fn put_client(
        &self,
        key: ClientKey,
        epoch: LogEpoch,
        record: ClientRecord,
        is_new: bool,
    ) -> bool {
        let mut state = self.state.lock();
        if is_new && state.find(&key).flatten().is_none() {
            state.unbound.insert(key.clone());
        }
        let must_bind = state.unbound.contains(&key);
        state.known.pop(&key);
        state.pending.insert(key, (epoch, record));
        must_bind || state.pending.len() >= PENDING_MAX
    }

    /// Whether the database knows whom the client belongs to, given that there is a record.
    pub(crate) fn is_bound(&self, key: &ClientKey) -> bool {
        !self.state.lock().unbound.contains(key)
    }

    /// Raises the cursor of a client's record, if it has one that belongs to this actor; it is
    /// written with the next batch. A record that is not remembered is read then. With too much
    /// waiting it stays lower, which only keeps history for longer.
    pub(crate) fn ack_client(
        &self,
        key: ClientKey,
        epoch: LogEpoch,
        actor: &ActorId,
        seq: CommitSeq,
        now_ms: i64,
    ) {
        let ack = Ack {
            epoch,
            actor: actor.clone(),
            seq,
            at_ms: now_ms,
        };
        let mut state = self.state.lock();
        let is_new = !state.pending.contains_key(&key) && !state.acks.contains_key(&key);
        if is_new && state.pending.len() + state.acks.len() >= PENDING_MAX {
            return;
        }
        state.ack(key, ack);
    }

    /// Lowers the cursor of a client's record to what the client has for certain, if the record
    /// is remembered: it is, when it was written because of a round just now.
    pub(crate) fn doubt_client(
        &self,
        key: ClientKey,
        epoch: LogEpoch,
        actor: &ActorId,
        confirmed: Cursor,
    ) {
        let mut state = self.state.lock();
        let Some(Some(mut record)) = state.find(&key) else {
            return;
        };
        let is_same_log = state.pending.get(&key).is_none_or(|(of, _)| *of == epoch);
        if is_same_log && record.actor == *actor && record.cursor > confirmed {
            record.cursor = confirmed;
            state.known.pop(&key);
            state.pending.insert(key, (epoch, record));
        }
    }

    /// Learns that a commit has bound a client that had no record. Its round may fail all the
    /// same and then puts none, and nobody may take the client for a new one.
    pub(crate) fn learn_bound(&self, key: &ClientKey, actor: &ActorId, at_ms: i64) {
        let mut state = self.state.lock();
        state.unbound.remove(key);
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
        state.acks.retain(|key, _| key.partition != *partition);
        state.in_flight.retain(|key, _| key.partition != *partition);
        state.unbound.retain(|key| key.partition != *partition);
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
        self.place_acks(store).await?;
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

    /// Reads the records that were acknowledged for and are not remembered.
    async fn place_acks(&self, store: &dyn Store) -> Result<(), StoreError> {
        let acks = std::mem::take(&mut self.state.lock().acks);
        let mut acks = acks.into_iter();
        while let Some((key, ack)) = acks.next() {
            let read = store.find_client(&key.partition, &key.client).await;
            let mut state = self.state.lock();
            match read {
                Ok(read) => {
                    if state.find(&key).is_none() {
                        // Whether or not it is small: it is written now, and let go after.
                        state.known.put(key.clone(), read);
                    }
                    state.ack(key, ack);
                }
                Err(error) => {
                    for (key, ack) in std::iter::once((key, ack)).chain(acks) {
                        state.ack(key, ack);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Somebody has applied everything up to a place.
#[derive(Clone, Debug)]
struct Ack {
    epoch: LogEpoch,
    actor: ActorId,
    seq: CommitSeq,
    at_ms: i64,
}

impl Ack {
    /// Whether the record changes by it.
    fn raise(&self, record: &mut ClientRecord) -> bool {
        let is_news = record.actor == self.actor && record.cursor < Cursor::At(self.seq);
        if is_news {
            record.cursor = Cursor::At(self.seq);
            record.updated_at_ms = record.updated_at_ms.max(self.at_ms);
        }
        is_news
    }
}

impl State {
    fn ack(&mut self, key: ClientKey, ack: Ack) {
        if let Some((epoch, record)) = self.pending.get_mut(&key) {
            if *epoch == ack.epoch {
                ack.raise(record);
            }
            return;
        }
        let known = match self.in_flight.get(&key) {
            Some(record) => Some(Some(record)),
            None => self.known.peek(&key).map(Option::as_ref),
        };
        match known {
            Some(Some(record)) => {
                let mut record = record.clone();
                if ack.raise(&mut record) {
                    self.known.pop(&key);
                    self.pending.insert(key, (ack.epoch, record));
                }
            }
            Some(None) => {}
            None => {
                let waiting = self.acks.entry(key).or_insert_with(|| ack.clone());
                if waiting.epoch != ack.epoch || waiting.seq < ack.seq {
                    *waiting = ack;
                }
            }
        }
    }

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
            self.unbound.remove(&key);
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
