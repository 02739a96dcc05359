//! What waits for one connection, bounded in bytes.
//!
//! Deltas are refused when they do not fit; whoever offered one turns it into a wake-up. There is
//! at most one wake-up waiting, and it grows with the news. Texts are never refused, but a mailbox
//! that holds twice its bound closes its connection: what a client knows of its peers must not
//! have holes. What a newcomer is told of its peers comes at once and has a bound of its own.
//!
//! Deltas are shared by their receivers, so each is charged to the process once, as long as
//! anybody holds it (`Gauges::frame`).
//!
//! **Invariant:** once closed, nothing else comes out. No clock and no task: time is an
//! argument, and waiting is a waker kept here.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tidewater_model::CommitSeq;
use tidewater_wire::control::{ServerControl, WakeReason, WakeUp};

/// A message for the socket.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outgoing {
    /// A text message, UTF-8.
    Text(Bytes),
    /// A delta: a complete response, without the tag.
    Delta(Bytes),
    /// The end: nothing comes after it.
    Close(CloseReason),
}

/// Why the server ends a connection.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CloseReason {
    /// The client broke the protocol.
    ProtocolViolation,
    /// A fault of the server.
    Internal,
    /// The client does not take what waits for it.
    Overloaded,
    /// The credentials have expired.
    CredentialsExpired,
}

impl CloseReason {
    /// The close code. 3000 is registered as "unauthorized".
    pub fn code(self) -> u16 {
        match self {
            Self::ProtocolViolation => 1008,
            Self::Internal => 1011,
            Self::Overloaded => 1013,
            Self::CredentialsExpired => 3000,
        }
    }

    /// The reason as it travels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ProtocolViolation => "protocol violation",
            Self::Internal => "internal server error",
            Self::Overloaded => "connection takes nothing",
            Self::CredentialsExpired => "credentials expired",
        }
    }
}

/// Counters that all mailboxes of a process share.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) queued_bytes: AtomicUsize,
    pub(crate) deltas: AtomicU64,
    pub(crate) wake_ups: AtomicU64,
}

impl Gauges {
    /// Charges a frame until its last holder lets it go.
    pub(crate) fn frame(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.queued_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        let gauges = Arc::clone(self);
        Bytes::from_owner(Charged { bytes, gauges })
    }

    /// Whether so much more may wait.
    pub(crate) fn has_room(&self, bytes: usize, bytes_max: usize) -> bool {
        let queued = self.queued_bytes.load(Ordering::Relaxed);
        queued == 0 || queued.saturating_add(bytes) <= bytes_max
    }
}

struct Charged {
    bytes: Bytes,
    gauges: Arc<Gauges>,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        let bytes = self.bytes.len();
        self.gauges.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The waiting messages of one connection.
#[derive(Debug)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    gauges: Arc<Gauges>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Item>,
    /// Of the texts and deltas in the queue.
    bytes: usize,
    /// Of the snapshots in the queue.
    snapshot_bytes: usize,
    /// What the wake-up in the queue says.
    wake_up: Option<WakeUp>,
    closed: Option<CloseReason>,
    waker: Option<Waker>,
}

#[derive(Debug)]
enum Item {
    Text(Bytes),
    /// A text about a peer who was there before.
    Snapshot(Bytes),
    Delta(Bytes),
    WakeUp,
}

/// Bytes of snapshots that may wait, as a multiple of the bound for everything else.
const SNAPSHOT_FACTOR: usize = 16;

/// More room than this is given back when a mailbox is empty.
const IDLE_CAPACITY_MAX: usize = 8;

impl Mailbox {
    pub(crate) fn new(gauges: Arc<Gauges>, bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            gauges,
            bytes_max,
        }
    }

    /// Takes a delta, or refuses it: too much waits. Something larger than the bound gets in
    /// when nothing else waits.
    #[must_use]
    pub(crate) fn offer_delta(&self, frame: Bytes) -> bool {
        let mut state = self.state.lock();
        let is_full = state.bytes > 0 && state.bytes + frame.len() > self.bytes_max;
        if state.closed.is_some() || is_full {
            return false;
        }
        self.gauges.deltas.fetch_add(1, Ordering::Relaxed);
        state.bytes += frame.len();
        state.push(Item::Delta(frame));
        true
    }

    /// Takes a text. A client that leaves too many of them is cut off.
    pub(crate) fn post_text(&self, text: Bytes) {
        let mut state = self.state.lock();
        if state.closed.is_some() {
            return;
        }
        self.charge(text.len());
        state.bytes += text.len();
        state.push(Item::Text(text));
        if state.bytes > self.bytes_max.saturating_mul(2) {
            self.close_with(&mut state, CloseReason::Overloaded);
        }
    }

    /// Takes a text about a peer who was there before.
    pub(crate) fn post_snapshot(&self, text: Bytes) {
        let mut state = self.state.lock();
        if state.closed.is_some() {
            return;
        }
        self.charge(text.len());
        state.snapshot_bytes += text.len();
        state.push(Item::Snapshot(text));
        if state.snapshot_bytes > self.bytes_max.saturating_mul(SNAPSHOT_FACTOR) {
            self.close_with(&mut state, CloseReason::Overloaded);
        }
    }

    /// Takes a wake-up, or makes the one that waits say this too.
    pub(crate) fn post_wake_up(&self, cursor: CommitSeq, reason: WakeReason, now_ms: i64) {
        let mut state = self.state.lock();
        if state.closed.is_some() || state.amend(cursor, reason) {
            return;
        }
        state.wake_up = Some(WakeUp {
            cursor: cursor.to_i64(),
            reason,
            timestamp: now_ms,
        });
        self.gauges.wake_ups.fetch_add(1, Ordering::Relaxed);
        state.push(Item::WakeUp);
    }

    /// Makes the wake-up that waits say this too, if there is one.
    #[must_use]
    pub(crate) fn amend_wake_up(&self, cursor: CommitSeq, reason: WakeReason) -> bool {
        self.state.lock().amend(cursor, reason)
    }

    /// Takes the deltas back. Returns whether there were any.
    pub(crate) fn drop_deltas(&self) -> bool {
        let mut state = self.state.lock();
        let before = state.queue.len();
        let mut bytes = 0;
        state.queue.retain(|item| match item {
            Item::Delta(frame) => {
                bytes += frame.len();
                false
            }
            _ => true,
        });
        state.bytes -= bytes;
        state.queue.len() < before
    }

    /// The next message.
    pub(crate) fn poll_next(&self, context: &Context<'_>) -> Poll<Outgoing> {
        let mut state = self.state.lock();
        match self.take(&mut state) {
            Some(message) => Poll::Ready(message),
            None => {
                if !state
                    .waker
                    .as_ref()
                    .is_some_and(|waker| waker.will_wake(context.waker()))
                {
                    state.waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// The next message, if there is one.
    pub(crate) fn try_next(&self) -> Option<Outgoing> {
        self.take(&mut self.state.lock())
    }

    fn take(&self, state: &mut State) -> Option<Outgoing> {
        if let Some(reason) = state.closed {
            return Some(Outgoing::Close(reason));
        }
        let item = state.queue.pop_front()?;
        if state.queue.is_empty() && state.queue.capacity() > IDLE_CAPACITY_MAX {
            state.queue = VecDeque::new();
        }
        Some(match item {
            Item::Text(text) => {
                state.bytes -= text.len();
                self.release(text.len());
                Outgoing::Text(text)
            }
            Item::Snapshot(text) => {
                state.snapshot_bytes -= text.len();
                self.release(text.len());
                Outgoing::Text(text)
            }
            Item::Delta(frame) => {
                state.bytes -= frame.len();
                Outgoing::Delta(frame)
            }
            Item::WakeUp => {
                let wake_up = state.wake_up.take().expect("a queued wake-up has its text");
                Outgoing::Text(ServerControl::WakeUp(wake_up).to_text().into())
            }
        })
    }

    fn close_with(&self, state: &mut State, reason: CloseReason) {
        state.closed = Some(reason);
        self.empty(state);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    fn empty(&self, state: &mut State) {
        for item in std::mem::take(&mut state.queue) {
            if let Item::Text(text) | Item::Snapshot(text) = item {
                self.release(text.len());
            }
        }
        state.wake_up = None;
        (state.bytes, state.snapshot_bytes) = (0, 0);
    }

    fn charge(&self, bytes: usize) {
        self.gauges.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn release(&self, bytes: usize) {
        self.gauges.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl State {
    fn push(&mut self, item: Item) {
        self.queue.push_back(item);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn amend(&mut self, cursor: CommitSeq, reason: WakeReason) -> bool {
        let Some(waiting) = &mut self.wake_up else {
            return false;
        };
        waiting.cursor = waiting.cursor.max(cursor.to_i64());
        waiting.reason = graver(waiting.reason, reason);
        true
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        self.empty(&mut state);
    }
}

/// A client that is told two things is told the one that asks more of it.
fn graver(left: WakeReason, right: WakeReason) -> WakeReason {
    let rank = |reason| match reason {
        WakeReason::CatchupRequired => 0,
        WakeReason::DeltaTooLarge => 1,
        WakeReason::ResetRequired => 2,
    };
    if rank(right) > rank(left) {
        right
    } else {
        left
    }
}

#[cfg(test)]
mod tests;
