//! When something is due on a socket, though nothing happens.
//!
//! One timer for all of it: the earliest deadline is armed, and what is due is found out when it
//! fires. Late by a little is fine for each of them.

use std::time::Duration;

use tokio::time::Instant;

use crate::{PROGRESS_BYTES_MIN, RealtimeConfig};

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
    /// Begins now, which is `now_ms` by the engine's clock.
    pub(crate) fn new(
        config: &RealtimeConfig,
        body_timeout: Duration,
        expires_at_ms: Option<i64>,
        now_ms: i64,
    ) -> Self {
        let now = Instant::now();
        let left = expires_at_ms.map(|expires_at_ms| {
            let left_ms = expires_at_ms.saturating_sub(now_ms);
            Duration::from_millis(u64::try_from(left_ms).unwrap_or_default())
        });
        Self {
            heartbeat: config.heartbeat,
            idle_timeout: config.idle_timeout,
            write_timeout: config.write_timeout,
            body_timeout,
            next_beat: now + config.heartbeat,
            heard: now,
            // Sockets that were opened together must not come back together.
            aged: later(now, config.age_max.mul_f64(0.9 + 0.1 * fastrand::f64())),
            drained: None,
            expires_at_ms,
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

    /// The server goes away: everybody of so many gets a turn, in a time that grows with their
    /// number up to `spread_max`.
    pub(crate) fn drain(&mut self, sockets: usize, spread_max: Duration) {
        let sockets = u32::try_from(sockets).unwrap_or(u32::MAX);
        let spread = DRAIN_PER_SOCKET.saturating_mul(sockets).min(spread_max);
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn deadlines(expires_at_ms: Option<i64>) -> Deadlines {
        let config = RealtimeConfig {
            heartbeat: 30 * SECOND,
            idle_timeout: 75 * SECOND,
            write_timeout: 20 * SECOND,
            age_max: 1_000 * SECOND,
            ..RealtimeConfig::default()
        };
        Deadlines::new(&config, 10 * SECOND, expires_at_ms, 0)
    }

    /// What becomes due, and when, while nothing happens for so long.
    async fn wait(deadlines: &mut Deadlines, seconds: u32) -> Vec<(u64, Due)> {
        let begun = Instant::now();
        let mut due = Vec::new();
        loop {
            let next = deadlines.next();
            if next > begun + seconds * SECOND {
                tokio::time::sleep_until(begun + seconds * SECOND).await;
                return due;
            }
            tokio::time::sleep_until(next).await;
            while let Some(what) = deadlines.due(0) {
                due.push((begun.elapsed().as_secs(), what));
                if matches!(what, Due::Dead | Due::Stuck | Due::Closed) {
                    return due;
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_asked_twice_and_given_up() {
        let mut deadlines = deadlines(None);
        let expected = [(30, Due::Heartbeat), (60, Due::Heartbeat), (90, Due::Dead)];
        assert_eq!(wait(&mut deadlines, 200).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_answers_stays() {
        let mut deadlines = deadlines(None);
        for _ in 0..10 {
            assert_eq!(wait(&mut deadlines, 30).await, [(30, Due::Heartbeat)]);
            deadlines.read(6, false);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_now_and_then_is_no_progress() {
        let mut deadlines = deadlines(None);
        deadlines.waiting();
        for _ in 0..4 {
            deadlines.written(1, false);
            wait(&mut deadlines, 4).await;
        }
        assert_eq!(wait(&mut deadlines, 10).await, [(4, Due::Stuck)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_that_takes_a_decent_amount_stays_and_counts_as_there() {
        let mut deadlines = deadlines(None);
        deadlines.waiting();
        for _ in 0..10 {
            deadlines.written(PROGRESS_BYTES_MIN, false);
            let due = wait(&mut deadlines, 20).await;
            assert!(due.iter().all(|(_, due)| *due == Due::Heartbeat), "{due:?}");
        }
        deadlines.written(1, true);
        deadlines.waiting();
        assert_eq!(
            wait(&mut deadlines, 25).await.last(),
            Some(&(20, Due::Stuck))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_says_every_ten_seconds_that_it_goes_on() {
        let mut deadlines = deadlines(None);
        deadlines.round_begun();
        let expected = [(10, Due::RoundSilent), (20, Due::RoundSilent)];
        assert_eq!(wait(&mut deadlines, 25).await, expected);
        deadlines.round_moved();
        assert_eq!(wait(&mut deadlines, 4).await, []);
        deadlines.round_ended();
        assert_eq!(wait(&mut deadlines, 20).await, [(1, Due::Heartbeat)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_begun_must_go_on() {
        let mut deadlines = deadlines(None);
        deadlines.read(PROGRESS_BYTES_MIN, true);
        assert_eq!(wait(&mut deadlines, 15).await, []);
        assert_eq!(wait(&mut deadlines, 6).await, [(5, Due::Unfinished)]);
        deadlines.read(10, true);
        deadlines.read(10, false);
        assert_eq!(wait(&mut deadlines, 11).await, [(9, Due::Heartbeat)]);
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_expire_by_the_engines_clock() {
        let mut deadlines = deadlines(Some(5_000));
        // That clock stands still.
        let due = wait(&mut deadlines, 60).await;
        assert!(due.iter().all(|(_, due)| *due == Due::Heartbeat), "{due:?}");
        assert_eq!(deadlines.due(4_999), None);
        assert_eq!(deadlines.due(5_000), Some(Due::Expired));
        deadlines.closing();
        assert_eq!(wait(&mut deadlines, 10).await, [(5, Due::Closed)]);
    }

    #[tokio::test(start_paused = true)]
    async fn few_sockets_leave_at_once_and_many_over_the_whole_time() {
        let mut longest = Duration::ZERO;
        for _ in 0..200 {
            let begun = Instant::now();
            let mut few = deadlines(None);
            few.drain(10, 5 * SECOND);
            assert!(few.next() <= begun + Duration::from_millis(10));
            let mut many = deadlines(None);
            many.drain(100_000, 5 * SECOND);
            longest = longest.max(many.next() - begun);
            assert!(longest <= 5 * SECOND);
        }
        assert!(longest > 4 * SECOND);
    }
}
