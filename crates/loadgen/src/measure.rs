//! Counts and latencies of a phase, by kind of operation.
//!
//! Latency is kept in histograms with three significant digits, in microseconds. The current
//! second has its own, which is merged into the total when it is over.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::error::RoundError;

/// What one operation was.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// A request that pushed.
    Push,
    /// A request that only pulled.
    Pull,
    /// All requests of a whole bootstrap.
    Bootstrap,
    /// From the push of a commit to its arrival at one socket.
    Delta,
    /// From the loss of a socket to being caught up on a new one.
    Reconnect,
}

/// One operation that succeeded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Done {
    pub(crate) kind: OperationKind,
    /// Commits acknowledged or received.
    pub(crate) commits: u64,
    /// Row writes acknowledged, or rows received.
    pub(crate) rows: u64,
    /// Bytes of response bodies, as they travelled.
    pub(crate) bytes: u64,
    /// When the last byte was there. What the generator does with it is not the server's time.
    pub(crate) received: Instant,
}

/// Everything about the operations of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) latency_us: Histogram<u64>,
    pub(crate) commits: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            latency_us: Histogram::new_with_bounds(1, LATENCY_US_MAX, 3)
                .expect("the bounds are constants that the histogram takes"),
            commits: 0,
            rows: 0,
            bytes: 0,
        }
    }

    pub(crate) fn operations(&self) -> u64 {
        self.latency_us.len()
    }

    pub(crate) fn record(&mut self, done: Done, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(LATENCY_US_MAX);
        self.latency_us.saturating_record(us.max(1));
        self.commits += done.commits;
        self.rows += done.rows;
        self.bytes += done.bytes;
    }

    fn merge(&mut self, other: &Self) {
        self.latency_us
            .add(&other.latency_us)
            .expect("all histograms have the same bounds");
        self.commits += other.commits;
        self.rows += other.rows;
        self.bytes += other.bytes;
    }

    fn reset(&mut self) {
        self.latency_us.reset();
        self.commits = 0;
        self.rows = 0;
        self.bytes = 0;
    }
}

/// Ten minutes; what takes longer has timed out.
const LATENCY_US_MAX: u64 = 600_000_000;

/// What happened in a phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    total: BTreeMap<OperationKind, Tally>,
    second: BTreeMap<OperationKind, Tally>,
    errors: BTreeMap<String, u64>,
}

impl Recorder {
    pub(crate) fn record(&mut self, done: Done, latency: Duration) {
        self.second
            .entry(done.kind)
            .or_insert_with(Tally::new)
            .record(done, latency);
    }

    pub(crate) fn error(&mut self, error: &RoundError) {
        *self.errors.entry(error.label()).or_default() += 1;
    }

    /// Ends the current second and describes it in a line.
    pub(crate) fn turn_second(&mut self) -> String {
        let mut line = String::new();
        for (kind, second) in &mut self.second {
            let latency = &second.latency_us;
            if second.operations() > 0 {
                line.push_str(&format!(
                    "{kind:?} {}/s {} rows/s p50 {} p99 {} us  ",
                    second.operations(),
                    second.rows,
                    latency.value_at_quantile(0.5),
                    latency.value_at_quantile(0.99),
                ));
            }
            self.total
                .entry(*kind)
                .or_insert_with(Tally::new)
                .merge(second);
            second.reset();
        }
        let errors: u64 = self.errors.values().sum();
        if errors > 0 {
            line.push_str(&format!("errors {errors}"));
        }
        line
    }

    /// Everything, at the end.
    pub(crate) fn finish(mut self) -> (BTreeMap<OperationKind, Tally>, BTreeMap<String, u64>) {
        self.turn_second();
        (self.total, self.errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(rows: u64) -> Done {
        Done {
            kind: OperationKind::Push,
            commits: 1,
            rows,
            bytes: 100,
            received: Instant::now(),
        }
    }

    #[test]
    fn seconds_are_merged_into_the_total() {
        let mut recorder = Recorder::default();
        for ms in 1..=100 {
            recorder.record(done(2), Duration::from_millis(ms));
            if ms % 7 == 0 {
                recorder.turn_second();
            }
        }
        let (total, errors) = recorder.finish();
        let push = &total[&OperationKind::Push];
        assert_eq!(push.operations(), 100);
        assert_eq!((push.commits, push.rows, push.bytes), (100, 200, 10_000));
        let near = |quantile, ms: u64| {
            let us = push.latency_us.value_at_quantile(quantile);
            assert!(us.abs_diff(ms * 1000) <= ms, "{quantile}: {us}");
        };
        near(0.5, 50);
        near(0.99, 99);
        near(1.0, 100);
        assert!(errors.is_empty());
    }

    #[test]
    fn latencies_beyond_the_bounds_are_kept_at_the_bounds() {
        let mut recorder = Recorder::default();
        recorder.record(done(1), Duration::ZERO);
        recorder.record(done(1), Duration::from_secs(100_000));
        let (total, _) = recorder.finish();
        assert_eq!(total[&OperationKind::Push].operations(), 2);
    }

    #[test]
    fn errors_are_counted_by_what_they_are() {
        let mut recorder = Recorder::default();
        recorder.error(&RoundError::Timeout);
        recorder.error(&RoundError::Timeout);
        recorder.error(&RoundError::unexpected("x"));
        assert!(recorder.turn_second().contains("errors 3"));
        let (_, errors) = recorder.finish();
        assert_eq!(errors["no answer in time"], 2);
        assert_eq!(errors["x"], 1);
    }
}
