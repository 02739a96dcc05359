//! The rooms of this process, and what brings commits to them.
//!
//! Each room has at most one task that delivers, and only while there is something to deliver:
//! the write lane leaves its commits in the room's inbox and goes on, whoever has the room. The
//! task reads the log where announcements left a gap, and never holds a room while it waits for
//! the database.
//!
//! **Invariant:** a room is found by whoever comes after it was made: it is made before the
//! partition's head is read, and forgotten only when nobody is in it.

mod inbox;
mod tasks;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tidewater_model::{CommitSeq, LogEpoch, PartitionId, ScopeFilter, ScopeValues};
use tidewater_schema::Schema;
use tidewater_store::{CommitWrite, Store, StoreError, Window, WindowRequest};

use self::{inbox::Inbox, tasks::Tasks};
use super::{
    HubConfig, RealtimeStats,
    mailbox::{Gauges, Mailbox},
    registrations::Interest,
    room::{Doubt, Gap, Room, SessionId, Step, Ticket, Who},
    views::Views,
};
use crate::Clock;

/// Told of every local change of presence, for other nodes. Must not block.
pub(crate) type PresenceHook = Box<dyn Fn(&PartitionId, Bytes) + Send + Sync>;

/// All rooms.
pub(crate) struct Hub {
    store: Arc<dyn Store>,
    schema: Arc<Schema>,
    clock: Arc<dyn Clock>,
    config: Arc<HubConfig>,
    gauges: Arc<Gauges>,
    rooms: Mutex<BTreeMap<PartitionId, Arc<SharedRoom>>>,
    /// Names sessions and orders tickets.
    count: AtomicU64,
    presence_hook: OnceLock<PresenceHook>,
    tasks: Tasks,
    pub(crate) views: Views,
}

/// A room and whether somebody works for it.
pub(crate) struct SharedRoom {
    pub(crate) partition: PartitionId,
    inner: Mutex<Inner>,
    /// Locked last, and never for long.
    inbox: Mutex<Inbox>,
}

struct Inner {
    room: Room,
    is_timed: bool,
    /// Nobody may enter any more.
    is_forgotten: bool,
}

/// A seat in a room. Dropping it gives it back.
pub(crate) struct Seat {
    pub(crate) hub: Arc<Hub>,
    pub(crate) room: Arc<SharedRoom>,
    pub(crate) session: SessionId,
    pub(crate) mailbox: Arc<Mailbox>,
}

/// Commits delivered before others get their turn with the room.
const TURNS_MAX: usize = 16;

/// Times a gap is read again because somebody new looked for something else.
const GAP_READS_MAX: usize = 3;

impl Hub {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        schema: Arc<Schema>,
        clock: Arc<dyn Clock>,
        config: HubConfig,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            schema,
            clock,
            config: Arc::new(config),
            gauges: Arc::default(),
            rooms: Mutex::default(),
            count: AtomicU64::new(0),
            presence_hook: OnceLock::new(),
            tasks: Tasks::default(),
            views: Views::default(),
        })
    }

    /// A ticket that is later than all before it.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.next())
    }

    fn next(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    pub(crate) fn config(&self) -> &HubConfig {
        &self.config
    }

    /// Takes a seat for a connection that is about to be admitted.
    pub(crate) fn enter(
        self: &Arc<Self>,
        identity: crate::Identity,
        client: tidewater_model::ClientId,
    ) -> Seat {
        let session = SessionId(self.next());
        let mailbox = Mailbox::new(Arc::clone(&self.gauges), self.config.mailbox_bytes_max);
        let mailbox = Arc::new(mailbox);
        let partition = identity.partition.clone();
        let who = Who {
            session,
            identity,
            client,
        };
        loop {
            let room = self.obtain(&partition);
            let mut inner = room.inner.lock();
            if inner.is_forgotten {
                continue;
            }
            inner.room.enter(who, Arc::clone(&mailbox));
            drop(inner);
            return Seat {
                hub: Arc::clone(self),
                room,
                session,
                mailbox,
            };
        }
    }

    /// A commit of this process is durable.
    pub(crate) fn announce(self: &Arc<Self>, commit: &Arc<CommitWrite>) {
        if let Some(applied) = &commit.applied
            && let Some(room) = self.find(&commit.key.partition)
        {
            let mut inbox = room.inbox.lock();
            inbox.put(applied.commit_seq, Some(commit), &self.config);
            self.begin_delivery(&room, &mut inbox);
        }
    }

    /// The log has at least this place, whoever wrote it.
    pub(crate) fn announce_head(self: &Arc<Self>, partition: &PartitionId, head: CommitSeq) {
        if let Some(room) = self.find(partition) {
            let mut inbox = room.inbox.lock();
            inbox.put(head, None, &self.config);
            self.begin_delivery(&room, &mut inbox);
        }
    }

    /// The partition has another log.
    pub(crate) fn restart(&self, partition: &PartitionId, epoch: &LogEpoch, head: CommitSeq) {
        if let Some(room) = self.find(partition) {
            self.with(&room, |room| room.restart(epoch, head, self.now_ms()));
        }
    }

    /// Does something with a room and sends what other nodes are to be told of it.
    pub(crate) fn with<T>(&self, shared: &SharedRoom, act: impl FnOnce(&mut Room) -> T) -> T {
        let mut inner = shared.inner.lock();
        let outcome = act(&mut inner.room);
        self.tell(shared, &mut inner);
        outcome
    }

    /// Does something with a room that may give it something to deliver.
    pub(crate) fn work(
        self: &Arc<Self>,
        shared: &Arc<SharedRoom>,
        act: impl FnOnce(&mut Room) -> bool,
    ) {
        let mut inner = shared.inner.lock();
        let has_work = act(&mut inner.room);
        self.tell(shared, &mut inner);
        if has_work {
            self.begin_delivery(shared, &mut shared.inbox.lock());
        }
    }

    fn begin_delivery(self: &Arc<Self>, shared: &Arc<SharedRoom>, inbox: &mut Inbox) {
        if std::mem::replace(&mut inbox.is_delivering, true) {
            return;
        }
        let (hub, shared) = (Arc::clone(self), Arc::clone(shared));
        let task = self.tasks.begin();
        tokio::spawn(async move {
            hub.deliver(&shared).await;
            drop(task);
        });
    }

    /// Does something with presence. What is held back is sent when it is due.
    pub(crate) fn with_presence(
        self: &Arc<Self>,
        shared: &Arc<SharedRoom>,
        act: impl FnOnce(&mut Room),
    ) {
        let mut inner = shared.inner.lock();
        act(&mut inner.room);
        self.tell(shared, &mut inner);
        if let Some(due_ms) = inner.room.next_due_ms()
            && !inner.is_timed
        {
            inner.is_timed = true;
            let (hub, shared) = (Arc::clone(self), Arc::clone(shared));
            tokio::spawn(async move { hub.send_due(&shared, due_ms).await });
        }
    }

    /// The room of a partition, if somebody is in it.
    pub(crate) fn find(&self, partition: &PartitionId) -> Option<Arc<SharedRoom>> {
        self.rooms.lock().get(partition).cloned()
    }

    /// Every room there is.
    pub(crate) fn rooms(&self) -> Vec<Arc<SharedRoom>> {
        self.rooms.lock().values().cloned().collect()
    }

    /// Follows local changes of presence from now on. Only the first hook counts.
    pub(crate) fn on_presence(&self, hook: PresenceHook) {
        if self.presence_hook.set(hook).is_ok() {
            for room in self.rooms() {
                room.inner.lock().room.share_presence();
            }
        }
    }

    /// Takes what another node says about presence in a partition.
    pub(crate) fn hear(&self, node: &Arc<str>, partition: &PartitionId, notice: &[u8]) {
        loop {
            let room = self.obtain(partition);
            let mut inner = room.inner.lock();
            if inner.is_forgotten {
                continue;
            }
            inner.room.hear(node, notice, self.now_ms());
            drop(inner);
            return self.forget_if_empty(&room);
        }
    }

    /// The documents of another node leave.
    pub(crate) fn lose_node(&self, node: &Arc<str>) {
        for room in self.rooms() {
            self.with(&room, |room| room.lose_node(node, self.now_ms()));
            self.forget_if_empty(&room);
        }
    }

    pub(crate) fn stats(&self) -> RealtimeStats {
        let mut stats = RealtimeStats {
            queued_bytes: self.gauges.queued_bytes.load(Ordering::Relaxed),
            deltas: self.gauges.deltas.load(Ordering::Relaxed),
            wake_ups: self.gauges.wake_ups.load(Ordering::Relaxed),
            ..RealtimeStats::default()
        };
        for room in self.rooms() {
            let room = room.inner.lock().room.stats();
            stats.sessions += room.sessions;
            stats.suppressed_sessions += room.suppressed;
            stats.rounds_in_flight += room.in_round;
            stats.presence_documents += room.documents;
        }
        stats
    }

    /// Waits until everything that was announced is delivered.
    pub(crate) async fn settled(&self) {
        self.tasks.ended().await;
    }

    fn obtain(&self, partition: &PartitionId) -> Arc<SharedRoom> {
        let mut rooms = self.rooms.lock();
        if let Some(room) = rooms.get(partition) {
            return Arc::clone(room);
        }
        let (config, schema) = (Arc::clone(&self.config), Arc::clone(&self.schema));
        let mut room = Room::new(config, schema, Arc::clone(&self.gauges));
        if self.presence_hook.get().is_some() {
            room.share_presence();
        }
        let room = Arc::new(SharedRoom {
            partition: partition.clone(),
            inner: Mutex::new(Inner {
                room,
                is_timed: false,
                is_forgotten: false,
            }),
            inbox: Mutex::default(),
        });
        rooms.insert(partition.clone(), Arc::clone(&room));
        room
    }

    fn forget_if_empty(&self, shared: &SharedRoom) {
        if !shared.inner.lock().room.is_empty() {
            return;
        }
        let mut rooms = self.rooms.lock();
        let mut inner = shared.inner.lock();
        if inner.room.is_empty() && !inner.is_forgotten {
            inner.is_forgotten = true;
            rooms.remove(&shared.partition);
        }
    }

    /// Under the room's lock, so that other nodes hear of a document's changes in their order.
    fn tell(&self, shared: &SharedRoom, inner: &mut MutexGuard<'_, Inner>) {
        let notices = inner.room.take_notices();
        if let Some(hook) = self.presence_hook.get() {
            for notice in notices {
                hook(&shared.partition, notice);
            }
        }
    }

    /// Delivers until there is nothing left to deliver.
    async fn deliver(&self, shared: &SharedRoom) {
        loop {
            let step = {
                let mut inner = shared.inner.lock();
                shared.inbox.lock().empty_into(&mut inner.room);
                let step = inner.room.take_turns(TURNS_MAX, self.now_ms());
                let mut inbox = shared.inbox.lock();
                if step.is_none() && inbox.is_empty() {
                    // While the room is held: who gives it work afterwards begins anew.
                    inbox.is_delivering = false;
                    return;
                }
                step
            };
            match step {
                None => {}
                Some(Step::Again) => tokio::task::yield_now().await,
                Some(Step::Read(gap)) => self.cross(shared, gap).await,
            }
        }
    }

    /// Brings the room to the other side of a gap, in any case.
    async fn cross(&self, shared: &SharedRoom, mut gap: Gap) {
        for _ in 0..GAP_READS_MAX {
            let windows = match self.read(&shared.partition, &gap).await {
                Ok(windows) => windows,
                Err(error) => {
                    tracing::warn!(partition = %shared.partition, %error, "missed commits cannot be read");
                    None
                }
            };
            let Some(windows) = windows else { break };
            let mut inner = shared.inner.lock();
            if inner.room.deliver_gap(&gap, &windows, self.now_ms()) {
                return;
            }
            gap = inner.room.look_again(&gap);
        }
        let mut inner = shared.inner.lock();
        inner.room.miss_gap(&gap, self.now_ms());
    }

    /// Reads a gap, one window per interest; `None` when it is not worth it.
    async fn read(
        &self,
        partition: &PartitionId,
        gap: &Gap,
    ) -> Result<Option<Vec<Window>>, StoreError> {
        let Some(interests) = &gap.interests else {
            return Ok(None);
        };
        let mut windows = Vec::with_capacity(interests.len());
        let mut changes_left = self.config.gap_changes_max;
        for interest in interests {
            let request = window_request(partition, gap, interest, changes_left, &self.config);
            let window = self.store.read_window(request).await?;
            let is_whole = window.exhausted
                && window.gate.log_epoch.as_ref() == Some(&gap.epoch)
                && window.gate.schema_version == self.schema.version()
                && window.gate.horizon.seq() <= gap.after
                && window.gate.head >= gap.through;
            let left = changes_left.checked_sub(window.change_count());
            let (true, Some(left)) = (is_whole, left) else {
                return Ok(None);
            };
            changes_left = left;
            windows.push(window);
        }
        Ok(Some(windows))
    }

    /// Sends documents at the end of their windows, as long as there are any.
    async fn send_due(&self, shared: &SharedRoom, mut due_ms: i64) {
        loop {
            let wait_ms = u64::try_from(due_ms - self.now_ms()).unwrap_or_default();
            tokio::time::sleep(Duration::from_millis(wait_ms.max(1))).await;
            let mut inner = shared.inner.lock();
            inner.room.send_due(self.now_ms());
            self.tell(shared, &mut inner);
            match inner.room.next_due_ms() {
                Some(next) => due_ms = next,
                None => {
                    inner.is_timed = false;
                    return;
                }
            }
        }
    }
}

impl Seat {
    /// Gives the seat back.
    pub(crate) fn leave(&self) -> Option<Doubt> {
        let hub = &self.hub;
        let doubt = hub.with(&self.room, |room| room.leave(self.session, hub.now_ms()));
        hub.forget_if_empty(&self.room);
        doubt
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

fn window_request(
    partition: &PartitionId,
    gap: &Gap,
    interest: &Interest,
    changes_max: usize,
    config: &HubConfig,
) -> WindowRequest {
    let values = ScopeValues {
        variable: interest.variable.clone(),
        values: interest.values.clone(),
    };
    WindowRequest {
        partition: partition.clone(),
        table: interest.table,
        filter: ScopeFilter::new(vec![values]).expect("one variable is not named twice"),
        after: gap.after,
        through: gap.through,
        changes_max,
        bytes_max: config.pending_commits_bytes_max,
    }
}
