//! When something is due on a socket, though nothing happens.
//!
//! One timer for all of it: the earliest deadline is armed, and what is due is found out when it
//! fires. Late by a little is fine for each of them.

use std::{sync::Arc, time::Duration};

use tidewater_engine::Identity;
use tokio::time::Instant;

use crate::{PROGRESS_BYTES_MIN, RealtimeConfig, Server};

/// What is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Due {
    /// To say that the server is there.
    Heartbeat,
    /// To say that the round is being worked on.
    RoundSilent,
    /// The credentials are not good any more.
    Expired,
    /// The credentials must be shown again.
    Aged,
    /// The server goes away, and it is this socket's turn.
    Drained,
    /// The peer began something and does not go on.
    Unfinished,
    /// Nothing came from the peer for too long.
    Dead,
    /// The peer does not take what waits for it.
    Stuck,
    /// The goodbye was not answered.
    Closed,
}

/// An amount of bytes that has to come in time.
#[derive(Debug)]
struct Progress {
    since: Instant,
    bytes: usize,
}

/// The deadlines of one socket.
#[derive(Debug)]
pub(crate) struct Deadlines {
    heartbeat: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    body_timeout: Duration,
    next_beat: Instant,
    heard: Instant,
    aged: Option<Instant>,
    drained: Option<Instant>,
    /// Unix milliseconds, by the engine's clock.
    expires_at_ms: Option<i64>,
    expires: Option<Instant>,
    writing: Option<Progress>,
    reading: Option<Progress>,
    round: Option<Instant>,
    closed: Option<Instant>,
}

impl Deadlines {
    /// Begins now.
    pub(crate) fn new(server: &Arc<Server>, identity: &Identity) -> Self {
        let config: &RealtimeConfig = &server.config.realtime;
        let now = Instant::now();
        let now_ms = server.engine.clock().now_ms();
        let left = identity.expires_at_ms.map(|expires_at_ms| {
            Duration::from_millis(u64::try_from(expires_at_ms - now_ms).unwrap_or_default())
        });
        Self {
            heartbeat: config.heartbeat,
            idle_timeout: config.idle_timeout,
            write_timeout: config.write_timeout,
            body_timeout: server.config.body_timeout,
            next_beat: now + config.heartbeat,
            heard: now,
            // Sockets that were opened together must not come back together.
            aged: later(now, config.age_max.mul_f64(0.9 + 0.1 * fastrand::f64())),
            drained: None,
            expires_at_ms: identity.expires_at_ms,
            expires: left.and_then(|left| later(now, left)),
            writing: None,
            reading: None,
            round: None,
            closed: None,
        }
    }

    /// The earliest of them.
    pub(crate) fn next(&self) -> Instant {
        let progress = |progress: &Option<Progress>, timeout| {
            progress.as_ref().map(|progress| progress.since + timeout)
        };
        [
            self.closed,
            self.expires,
            self.aged,
            self.drained,
            self.round.map(|moved| moved + ROUND_SILENCE_MAX),
            progress(&self.writing, self.write_timeout),
            progress(&self.reading, self.body_timeout),
        ]
        .into_iter()
        .flatten()
        .fold(self.next_beat, Instant::min)
    }

    /// What is due now, one thing at a time.
    pub(crate) fn due(&mut self, now_ms: i64) -> Option<Due> {
        let now = Instant::now();
        if self.closed.is_some_and(|at| at <= now) {
            return Some(Due::Closed);
        }
        if is_over(&mut self.writing, self.write_timeout, now) {
            return Some(Due::Stuck);
        }
        // By the engine's clock, which may have been set meanwhile.
        if self.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            (self.expires, self.expires_at_ms) = (None, None);
            return Some(Due::Expired);
        }
        if let Some(at) = self.expires.filter(|&at| at <= now) {
            self.expires = later(at, self.heartbeat);
        }
        if is_over(&mut self.reading, self.body_timeout, now) {
            self.reading = None;
            return Some(Due::Unfinished);
        }
        if self.drained.take_if(|at| *at <= now).is_some() {
            return Some(Due::Drained);
        }
        if self.aged.take_if(|at| *at <= now).is_some() {
            return Some(Due::Aged);
        }
        if let Some(moved) = &mut self.round
            && *moved + ROUND_SILENCE_MAX <= now
        {
            *moved = now;
            return Some(Due::RoundSilent);
        }
        if self.next_beat <= now {
            self.next_beat = now + self.heartbeat;
            return Some(if self.heard + self.idle_timeout <= now {
                Due::Dead
            } else {
                Due::Heartbeat
            });
        }
        None
    }

    /// Something was read; whether the peer has more to say of it.
    pub(crate) fn read(&mut self, bytes: usize, is_unfinished: bool) {
        self.heard = Instant::now();
        if !is_unfinished {
            self.reading = None;
            return;
        }
        let heard = self.heard;
        let reading = self.reading.get_or_insert(Progress {
            since: heard,
            bytes: 0,
        });
        reading.bytes += bytes;
    }

    /// Something waits to be written.
    pub(crate) fn waiting(&mut self) {
        self.writing.get_or_insert_with(|| Progress {
            since: Instant::now(),
            bytes: 0,
        });
    }

    /// Something was written; whether that was all there is.
    pub(crate) fn written(&mut self, bytes: usize, is_all: bool) {
        if is_all {
            self.writing = None;
        } else if let Some(writing) = &mut self.writing {
            writing.bytes += bytes;
            if writing.bytes >= PROGRESS_BYTES_MIN {
                // A peer that takes what it is sent is there.
                self.heard = Instant::now();
            }
        }
    }

    /// A round begins: its client wants to see that something happens.
    pub(crate) fn round_begun(&mut self) {
        self.round = Some(Instant::now());
    }

    /// A part of the response was made.
    pub(crate) fn round_moved(&mut self) {
        self.round_begun();
    }

    /// The round is over.
    pub(crate) fn round_ended(&mut self) {
        self.round = None;
    }

    /// The server goes away: everybody gets a turn, in a time that grows with their number.
    pub(crate) fn drain(&mut self, server: &Server) {
        let sockets = u32::try_from(server.realtime.sockets()).unwrap_or(u32::MAX);
        let spread = DRAIN_PER_SOCKET.saturating_mul(sockets);
        let spread = spread.min(server.config.realtime.drain_spread);
        self.drained = later(Instant::now(), spread.mul_f64(fastrand::f64()));
    }

    /// The goodbye was said.
    pub(crate) fn closing(&mut self) {
        self.closed = later(Instant::now(), CLOSE_TIMEOUT);
        (self.round, self.aged, self.drained, self.expires) = (None, None, None, None);
        self.expires_at_ms = None;
    }
}

/// Whether too little came in time; if enough did, the next period begins.
fn is_over(progress: &mut Option<Progress>, timeout: Duration, now: Instant) -> bool {
    let Some(running) = progress
        .as_mut()
        .filter(|running| running.since + timeout <= now)
    else {
        return false;
    };
    let is_too_little = running.bytes < PROGRESS_BYTES_MIN;
    (running.since, running.bytes) = (now, 0);
    is_too_little
}

/// A moment that may be too far away to be told.
fn later(now: Instant, after: Duration) -> Option<Instant> {
    now.checked_add(after)
}

/// Clients give a round up that brings nothing for 30 s (§1.8).
const ROUND_SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long the peer may take to say goodbye, too.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// At this pace sockets are told to come back.
const DRAIN_PER_SOCKET: Duration = Duration::from_millis(1);
