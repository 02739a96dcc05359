//! Names that are the same in every run.

use std::sync::atomic::{AtomicU64, Ordering};

use tidewater_engine::Ids;

/// Counts. Two runs that ask in the same order get the same names, and two seeds never the same.
#[derive(Debug)]
pub struct SeededIds {
    seed: u64,
    next: AtomicU64,
}

impl SeededIds {
    /// Starts counting.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            next: AtomicU64::new(1),
        }
    }
}

impl Ids for SeededIds {
    fn fresh(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("id-{:x}-{number}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_names_in_the_same_order() {
        let names = |seed| {
            let ids = SeededIds::new(seed);
            [ids.fresh(), ids.fresh()]
        };
        assert_eq!(names(7), names(7));
        assert_ne!(names(7), names(8));
        assert_ne!(names(7)[0], names(7)[1]);
    }
}
