//! Amounts of which only so much may be in use at once: connections, rounds, buffered bytes.
//!
//! **Invariant:** what was taken is given back when the [`Share`] is dropped, on every path, a
//! canceled future included. The amount in use is also the gauge that an operator watches.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// An amount with a bound.
#[derive(Debug)]
pub(crate) struct Quota {
    used: AtomicUsize,
    max: usize,
}

/// A part of a quota in use.
#[derive(Debug)]
pub(crate) struct Share {
    quota: Arc<Quota>,
    amount: usize,
}

impl Quota {
    /// Nothing of `max` in use.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            max,
        })
    }

    /// Takes `amount`, unless that is more than is left.
    pub(crate) fn take(self: &Arc<Self>, amount: usize) -> Option<Share> {
        self.add(amount).then(|| Share {
            quota: Arc::clone(self),
            amount,
        })
    }

    /// How much is in use.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn add(&self, amount: usize) -> bool {
        let before = self.used.fetch_add(amount, Ordering::Relaxed);
        let fits = before
            .checked_add(amount)
            .is_some_and(|after| after <= self.max);
        if !fits {
            self.used.fetch_sub(amount, Ordering::Relaxed);
        }
        fits
    }
}

impl Share {
    /// Takes `amount` more, unless that is more than is left.
    pub(crate) fn grow(&mut self, amount: usize) -> bool {
        let fits = self.quota.add(amount);
        if fits {
            self.amount += amount;
        }
        fits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.quota.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_given_back_once() {
        let quota = Quota::new(10);
        let mut share = quota.take(4).unwrap();
        assert!(share.grow(6));
        assert!(!share.grow(1));
        assert!(quota.take(1).is_none());
        drop(share);
        assert_eq!(quota.used(), 0);
        assert!(quota.take(10).is_some());
    }

    #[test]
    fn an_absurd_amount_is_refused_and_leaves_no_trace() {
        let quota = Quota::new(10);
        let share = quota.take(1).unwrap();
        assert!(quota.take(usize::MAX).is_none());
        assert_eq!(quota.used(), 1);
        drop(share);
    }
}
