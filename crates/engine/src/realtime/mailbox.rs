//! What waits for one connection, bounded in bytes.
//!
//! Deltas are refused when they do not fit; whoever offered one turns it into a wake-up. There is
//! at most one wake-up waiting, and it grows with the news. Texts are never refused, but a mailbox
//! that holds twice its bound closes its connection: what a client knows of its peers must not
//! have holes.
//!
//! **Invariant:** after `close` nothing else comes out. No clock and no task: time is an
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

/// The waiting messages of one connection.
#[derive(Debug)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    gauges: Arc<Gauges>,
    bytes_max: usize,
    total_bytes_max: usize,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Item>,
    /// Of the texts and deltas in the queue.
    bytes: usize,
    /// What the wake-up in the queue says.
    wake_up: Option<WakeUp>,
    closed: Option<CloseReason>,
    waker: Option<Waker>,
}

#[derive(Debug)]
enum Item {
    Text(Bytes),
    Delta(Bytes),
    WakeUp,
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Self::Text(bytes) | Self::Delta(bytes) => bytes.len(),
            Self::WakeUp => 0,
        }
    }
}

/// More room than this is given back when a mailbox is empty.
const IDLE_CAPACITY_MAX: usize = 8;

impl Mailbox {
    pub(crate) fn new(gauges: Arc<Gauges>, bytes_max: usize, total_bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            gauges,
            bytes_max,
            total_bytes_max,
        }
    }

    /// Takes a delta, or refuses it: too much waits. Something larger than the bound gets in
    /// when nothing else waits.
    #[must_use]
    pub(crate) fn offer_delta(&self, frame: Bytes) -> bool {
        let mut state = self.state.lock();
        let total = self.gauges.queued_bytes.load(Ordering::Relaxed);
        let full = state.bytes + frame.len() > self.bytes_max
            || total + frame.len() > self.total_bytes_max;
        if state.closed.is_some() || (full && state.bytes > 0) {
            return false;
        }
        self.gauges.deltas.fetch_add(1, Ordering::Relaxed);
        self.push(&mut state, Item::Delta(frame));
        true
    }

    /// Takes a text. Returns whether the mailbox is so full that its connection must end.
    #[must_use]
    pub(crate) fn post_text(&self, text: Bytes) -> bool {
        let mut state = self.state.lock();
        if state.closed.is_some() {
            return false;
        }
        self.push(&mut state, Item::Text(text));
        state.bytes > self.bytes_max.saturating_mul(2)
    }

    /// Takes a wake-up, or makes the one that waits say this too. Returns whether it is a new one.
    pub(crate) fn post_wake_up(&self, cursor: CommitSeq, reason: WakeReason, now_ms: i64) -> bool {
        let mut state = self.state.lock();
        if state.closed.is_some() {
            return false;
        }
        if let Some(waiting) = &mut state.wake_up {
            waiting.cursor = waiting.cursor.max(cursor.to_i64());
            waiting.reason = graver(waiting.reason, reason);
            return false;
        }
        state.wake_up = Some(WakeUp {
            cursor: cursor.to_i64(),
            reason,
            timestamp: now_ms,
        });
        self.gauges.wake_ups.fetch_add(1, Ordering::Relaxed);
        self.push(&mut state, Item::WakeUp);
        true
    }

    /// Takes the deltas back. Returns whether there were any.
    pub(crate) fn drop_deltas(&self) -> bool {
        let mut state = self.state.lock();
        let before = state.bytes;
        let mut dropped = false;
        let mut bytes = 0;
        state.queue.retain(|item| {
            let is_delta = matches!(item, Item::Delta(_));
            dropped |= is_delta;
            if !is_delta {
                bytes += item.len();
            }
            !is_delta
        });
        state.bytes = bytes;
        self.release(before - bytes);
        dropped
    }

    /// Ends the connection. The first reason stays.
    pub(crate) fn close(&self, reason: CloseReason) {
        let mut state = self.state.lock();
        if state.closed.is_some() {
            return;
        }
        state.closed = Some(reason);
        self.empty(&mut state);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
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
        state.bytes -= item.len();
        self.release(item.len());
        if state.queue.is_empty() && state.queue.capacity() > IDLE_CAPACITY_MAX {
            state.queue = VecDeque::new();
        }
        Some(match item {
            Item::Text(text) => Outgoing::Text(text),
            Item::Delta(frame) => Outgoing::Delta(frame),
            Item::WakeUp => {
                let wake_up = state.wake_up.take().expect("a queued wake-up has its text");
                Outgoing::Text(ServerControl::WakeUp(wake_up).to_text().into())
            }
        })
    }

    fn push(&self, state: &mut State, item: Item) {
        state.bytes += item.len();
        self.gauges
            .queued_bytes
            .fetch_add(item.len(), Ordering::Relaxed);
        state.queue.push_back(item);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    fn empty(&self, state: &mut State) {
        state.queue = VecDeque::new();
        state.wake_up = None;
        self.release(std::mem::take(&mut state.bytes));
    }

    fn release(&self, bytes: usize) {
        self.gauges.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let bytes = self.state.get_mut().bytes;
        self.release(bytes);
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
