//! When each arrival is meant to start, and the thread that lets it.
//!
//! Open loop: arrivals come at a fixed rate whether the server keeps up or not, and latency is
//! measured from the moment an arrival was *meant* to start. A generator that waits for the
//! server before it sends the next request hides exactly the delays that users see.
//!
//! The thread exists because timers of the async runtime have a resolution of one millisecond,
//! which would be the largest part of a latency of 100 microseconds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;

/// Arrivals at a fixed rate from a start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Schedule {
    start: Instant,
    interval: Duration,
    /// How many arrivals there are.
    total: u64,
}

impl Schedule {
    /// `rate` arrivals per second for `duration`; `None` when that is not possible.
    pub(crate) fn new(start: Instant, rate: f64, duration: Duration) -> Option<Self> {
        let interval = Duration::try_from_secs_f64(rate.recip()).ok()?;
        let total = duration.as_nanos().checked_div(interval.as_nanos())?;
        Some(Self {
            start,
            interval,
            total: u64::try_from(total).ok()?,
        })
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// When the `number`th arrival, from 0, is meant to start.
    pub(crate) fn intended(&self, number: u64) -> Instant {
        // Whole nanoseconds: a run of a day at a million per second stays below 2^64 of them.
        let nanos = u128::from(number) * self.interval.as_nanos();
        self.start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How many arrivals are meant to have started by `now`.
    fn due(&self, now: Instant) -> u64 {
        let Some(elapsed) = now.checked_duration_since(self.start) else {
            return 0;
        };
        let passed = elapsed.as_nanos() / self.interval.as_nanos();
        u64::try_from(passed + 1)
            .unwrap_or(u64::MAX)
            .min(self.total)
    }
}

/// Gives out a permit for each arrival when it is due.
#[derive(Debug)]
pub(crate) struct Pacer {
    permits: Arc<Semaphore>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// So that a pacer that is no longer needed ends soon.
const NAP_MAX: Duration = Duration::from_millis(50);

impl Pacer {
    /// Starts the thread. After the last arrival it gives out `waiters` permits more, so that
    /// nobody waits for ever.
    pub(crate) fn start(schedule: Schedule, waiters: usize) -> std::io::Result<Self> {
        let permits = Arc::new(Semaphore::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name("pacer".to_owned())
            .spawn({
                let permits = Arc::clone(&permits);
                let stop = Arc::clone(&stop);
                move || release(schedule, waiters, &permits, &stop)
            })?;
        Ok(Self {
            permits,
            stop,
            thread: Some(thread),
        })
    }

    /// Waits until one more arrival is due.
    pub(crate) async fn next(&self) {
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to give.
            drop(thread.join());
        }
    }
}

fn release(schedule: Schedule, waiters: usize, permits: &Semaphore, stop: &AtomicBool) {
    let mut released = 0;
    while released < schedule.total() && !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let due = schedule.due(now);
        if due > released {
            permits.add_permits(usize::try_from(due - released).unwrap_or(usize::MAX));
            released = due;
        }
        let next = schedule.intended(released);
        std::thread::sleep(next.saturating_duration_since(now).min(NAP_MAX));
    }
    permits.add_permits(waiters);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_meant_to_start_at_even_distances() {
        let start = Instant::now();
        let schedule = Schedule::new(start, 1000.0, Duration::from_secs(2)).unwrap();
        assert_eq!(schedule.total(), 2000);
        assert_eq!(schedule.intended(0), start);
        assert_eq!(schedule.intended(1), start + Duration::from_millis(1));
        assert_eq!(schedule.intended(1999), start + Duration::from_millis(1999));
    }

    #[test]
    fn an_arrival_is_due_from_its_intended_start_on() {
        let start = Instant::now();
        let schedule = Schedule::new(start, 10.0, Duration::from_secs(1)).unwrap();
        let after = |ms| schedule.due(start + Duration::from_millis(ms));
        assert_eq!(after(0), 1);
        assert_eq!(after(99), 1);
        assert_eq!(after(100), 2);
        assert_eq!(after(900), 10);
        assert_eq!(after(100_000), 10);
        let before = start.checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(schedule.due(before), 0);
    }

    #[test]
    fn a_rate_that_is_none_is_refused() {
        let second = Duration::from_secs(1);
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e12] {
            assert_eq!(Schedule::new(Instant::now(), rate, second), None, "{rate}");
        }
    }

    #[tokio::test]
    async fn every_arrival_gets_a_permit_and_then_every_waiter() {
        let start = Instant::now();
        let schedule = Schedule::new(start, 10_000.0, Duration::from_millis(10)).unwrap();
        let pacer = Pacer::start(schedule, 3).unwrap();
        for number in 0..schedule.total() {
            pacer.next().await;
            assert!(Instant::now() >= schedule.intended(number));
        }
        for _ in 0..3 {
            pacer.next().await;
        }
    }
}
