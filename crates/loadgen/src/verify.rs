//! Checks what a server answered, so that no figure comes from a server that loses data.
//!
//! Pure: frames and pages go in, [`Problems`] come out. Each checker looks at one thing: [`log`]
//! at the commits of a partition, [`rows`] at the pages of a bootstrap, [`image`] at a download as it
//! streams by, [`section`] at one incremental pull. Fetching what they check is the business of `observer`.

pub(crate) mod image;
pub(crate) mod log;
pub(crate) mod rows;
pub(crate) mod section;

use std::{collections::BTreeMap, fmt::Display};

use serde::Serialize;

/// What a server did that it must not do.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// An acknowledged commit is not in the log at its place.
    LostCommit,
    /// A place in the log between two commits is empty.
    Gap,
    /// Commits come in another order than that of their places, or one comes twice.
    OutOfOrder,
    /// A row that the subscription did not ask for.
    ForeignRow,
    /// A row that is not what was written.
    WrongContent,
    /// A row version that did not grow by one with each write.
    WrongVersion,
    /// A commit pushed again was not answered with its stored result.
    NotCached,
    /// A row that was written and is not there.
    MissingRow,
    /// A row that comes twice in one bootstrap, or pages that are not in the order of row ids.
    RowOrder,
    /// A segment whose bytes are not those that its reference names.
    BadSegment,
    /// A reply to a pull that is not what the log says it must be.
    WrongReply,
    /// A health check that was not answered as it must be.
    Unhealthy,
    /// The check could not be finished.
    Unfinished,
}

/// Everything that was found, counted, and the first few in words.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Problems {
    counts: BTreeMap<ProblemKind, u64>,
    examples: Vec<String>,
}

const EXAMPLES_MAX: usize = 10;

impl Problems {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// How many of each kind.
    pub fn counts(&self) -> impl Iterator<Item = (ProblemKind, u64)> {
        self.counts.iter().map(|(&kind, &count)| (kind, count))
    }

    /// The first few, in words.
    pub fn examples(&self) -> &[String] {
        &self.examples
    }

    pub(crate) fn add(&mut self, kind: ProblemKind, text: impl Display) {
        *self.counts.entry(kind).or_default() += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(format!("{kind:?}: {text}"));
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (&kind, count) in &other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
        let room = EXAMPLES_MAX - self.examples.len();
        let examples = other.examples.iter().take(room).cloned();
        self.examples.extend(examples);
    }
}
