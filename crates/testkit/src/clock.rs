//! A clock that moves when it is told to.

use std::sync::atomic::{AtomicI64, Ordering};

use tidewater_engine::Clock;

/// Time as a value that only its owner changes, so that a test never waits for it.
#[derive(Debug)]
pub struct VirtualClock(AtomicI64);

impl VirtualClock {
    /// Stands still at `now_ms`, Unix milliseconds.
    pub fn new(now_ms: i64) -> Self {
        Self(AtomicI64::new(now_ms))
    }

    /// Moves by `by_ms`, backwards too: clocks of real machines jump. Returns the new time.
    pub fn advance(&self, by_ms: i64) -> i64 {
        let moved = |now_ms: i64| Some(now_ms.saturating_add(by_ms));
        let before = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, moved)
            .unwrap_or_else(|now_ms| now_ms);
        before.saturating_add(by_ms)
    }
}

impl Clock for VirtualClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_moves_only_when_it_is_told_to_and_stops_at_its_ends() {
        let clock = VirtualClock::new(1_000);
        assert_eq!(clock.now_ms(), 1_000);
        assert_eq!(clock.advance(500), 1_500);
        assert_eq!(clock.advance(-2_000), -500);
        assert_eq!(clock.advance(i64::MIN), i64::MIN);
        assert_eq!(clock.now_ms(), i64::MIN);
    }
}
