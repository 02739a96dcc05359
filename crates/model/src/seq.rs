//! Positions in a partition's log.
//!
//! Three positions look alike (all are 53-bit counts) and mean different things, so each has a
//! type. A *commit sequence* is a place in the log. A *cursor* says how far one subscription has
//! read. The *horizon* says how much history may already be gone. Mixing them up loses data
//! without an error, which is why there is no conversion between them: compare them with the
//! named predicates below.

use std::fmt;

/// A place in a partition's log: that of one commit, or [`CommitSeq::START`], before the first.
///
/// Commits are numbered 1, 2, 3 … without gaps. The number is assigned while the partition's
/// write lock is held, so numbers become visible to readers in the order they were given out
/// and a reader that has seen `n` will never later be shown anything new below `n`. A database
/// sequence does not give that guarantee.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CommitSeq(u64);

impl CommitSeq {
    /// The place before the first commit; the head of an empty log.
    pub const START: Self = Self(0);

    /// The largest place the wire can carry, 2^53 − 1.
    pub const MAX: Self = Self(9_007_199_254_740_991);

    /// Accepts a place in 0 … 2^53 − 1.
    pub fn new(raw: u64) -> Option<Self> {
        (raw <= Self::MAX.0).then_some(Self(raw))
    }

    /// Accepts a wire or database integer in 0 … 2^53 − 1.
    pub fn from_i64(raw: i64) -> Option<Self> {
        u64::try_from(raw).ok().and_then(Self::new)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number as the wire and the databases carry it.
    pub fn to_i64(self) -> i64 {
        i64::try_from(self.0).expect("a commit sequence is below 2^53")
    }

    /// The place after this one.
    ///
    /// # Panics
    ///
    /// At 2^53 − 1 commits, which no partition reaches.
    #[must_use]
    pub fn next(self) -> Self {
        assert!(self < Self::MAX, "the log is full");
        Self(self.0 + 1)
    }
}

impl fmt::Display for CommitSeq {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// How much of the log one subscription has applied.
///
/// `Never` is not zero: a subscription that has read an empty log has a position, one that has
/// never synced has none and must bootstrap.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Cursor {
    /// The subscription has never synced.
    Never,
    /// Every commit up to and including this one is applied.
    At(CommitSeq),
}

impl Cursor {
    /// Reads the wire form, in which every negative number means "never".
    ///
    /// `None` above 2^53 − 1, which the wire cannot carry.
    pub fn from_i64(raw: i64) -> Option<Self> {
        if raw < 0 {
            return Some(Self::Never);
        }
        CommitSeq::from_i64(raw).map(Self::At)
    }

    /// The wire form: the place, or −1.
    pub fn to_i64(self) -> i64 {
        match self {
            Self::Never => -1,
            Self::At(seq) => seq.to_i64(),
        }
    }

    /// Whether commits this subscription still needs may have been pruned.
    pub fn is_behind(self, horizon: HorizonSeq) -> bool {
        match self {
            Self::Never => false,
            Self::At(seq) => seq < horizon.0,
        }
    }
}

/// Commits at or below this point may have been pruned. Starts at 0 and never moves back.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct HorizonSeq(CommitSeq);

impl HorizonSeq {
    /// Nothing was ever pruned.
    pub const START: Self = Self(CommitSeq::START);

    /// A horizon at `seq`.
    pub fn at(seq: CommitSeq) -> Self {
        Self(seq)
    }

    /// The newest commit that may be gone, as a place in the log.
    pub fn seq(self) -> CommitSeq {
        self.0
    }

    /// The number as the databases carry it.
    pub fn to_i64(self) -> i64 {
        self.0.to_i64()
    }

    /// Whether the commit at `seq` may have been pruned.
    pub fn covers(self, seq: CommitSeq) -> bool {
        seq <= self.0
    }
}

impl fmt::Display for HorizonSeq {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(raw: u64) -> CommitSeq {
        CommitSeq::new(raw).unwrap()
    }

    #[track_caller]
    fn check(cursor: Cursor, horizon: u64, behind: bool) {
        assert_eq!(cursor.is_behind(HorizonSeq::at(seq(horizon))), behind);
    }

    #[test]
    fn a_cursor_at_the_horizon_still_has_its_history() {
        check(Cursor::At(seq(9)), 10, true);
        check(Cursor::At(seq(10)), 10, false);
        check(Cursor::At(seq(11)), 10, false);
    }

    #[test]
    fn a_subscription_that_never_synced_is_not_behind() {
        check(Cursor::Never, 10, false);
    }

    #[test]
    fn every_negative_wire_cursor_means_never() {
        assert_eq!(Cursor::from_i64(-1), Some(Cursor::Never));
        assert_eq!(Cursor::from_i64(i64::MIN), Some(Cursor::Never));
        assert_eq!(Cursor::from_i64(0), Some(Cursor::At(CommitSeq::START)));
        assert_eq!(Cursor::from_i64(1 << 53), None);
    }

    #[test]
    fn a_place_beyond_the_safe_integers_is_refused() {
        assert_eq!(CommitSeq::new((1 << 53) - 1), Some(CommitSeq::MAX));
        assert_eq!(CommitSeq::new(1 << 53), None);
        assert_eq!(CommitSeq::from_i64(-1), None);
    }
}
