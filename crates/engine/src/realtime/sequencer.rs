//! The order in which a partition's commits are delivered: that of the log, each one once.
//!
//! Commits are announced after they are durable, mostly in order and mostly one by one; but an
//! announcement may come twice, late or not at all, and another process may commit too. Whatever
//! was announced proves that everything below it is durable, so a gap can be read from the log at
//! once, and waiting for its announcement would gain nothing.
//!
//! **Bound:** what waits is bounded in bytes; a commit beyond that is forgotten but for its place,
//! and read from the log when its turn comes.

use std::{collections::BTreeMap, sync::Arc};

use tidewater_model::CommitSeq;
use tidewater_store::{ChangeKind, CommitWrite};

/// Where the delivery of one partition stands.
#[derive(Debug)]
pub(crate) struct Sequencer {
    /// Everything up to here was delivered, or was before there was anybody.
    contiguous: CommitSeq,
    /// The newest commit that was announced.
    known: CommitSeq,
    pending: BTreeMap<CommitSeq, Arc<CommitWrite>>,
    pending_bytes: usize,
    pending_bytes_max: usize,
}

/// What is to be done next.
#[derive(Clone, Debug)]
pub(crate) enum Turn {
    /// Deliver this commit, the next one.
    Deliver(Arc<CommitWrite>),
    /// Read what comes after the delivered ones, up to and including this place.
    Read(CommitSeq),
    /// Nothing.
    Rest,
}

impl Sequencer {
    pub(crate) fn new(contiguous: CommitSeq, pending_bytes_max: usize) -> Self {
        Self {
            contiguous,
            known: contiguous,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            pending_bytes_max,
        }
    }

    pub(crate) fn contiguous(&self) -> CommitSeq {
        self.contiguous
    }

    /// The newest place that is known to exist.
    pub(crate) fn known(&self) -> CommitSeq {
        self.known
    }

    /// Takes an announcement; without a commit it says only that the place exists.
    pub(crate) fn announce(&mut self, seq: CommitSeq, commit: Option<Arc<CommitWrite>>) {
        if seq <= self.contiguous {
            return;
        }
        self.known = self.known.max(seq);
        let Some(commit) = commit else { return };
        let bytes = weight(&commit);
        let fits = self.pending_bytes + bytes <= self.pending_bytes_max;
        if (fits || self.pending.is_empty()) && !self.pending.contains_key(&seq) {
            self.pending_bytes += bytes;
            self.pending.insert(seq, commit);
        }
    }

    /// What is to be done next. A commit that is given out counts as delivered.
    pub(crate) fn take_turn(&mut self) -> Turn {
        let next = match self.pending.first_key_value() {
            Some((first, _)) if *first == self.contiguous.next() => {
                let (seq, commit) = self.pending.pop_first().expect("it was just seen");
                self.pending_bytes -= weight(&commit);
                self.contiguous = seq;
                return Turn::Deliver(commit);
            }
            first => first.map(|(first, _)| *first),
        };
        if self.known == self.contiguous {
            return Turn::Rest;
        }
        let through = next.map_or(self.known, |first| {
            CommitSeq::new(first.get() - 1).expect("below a place in the log")
        });
        Turn::Read(through)
    }

    /// Notes that everything up to here was delivered.
    pub(crate) fn advance(&mut self, through: CommitSeq) {
        self.contiguous = self.contiguous.max(through);
        self.known = self.known.max(through);
        while let Some(first) = self.pending.first_entry() {
            if *first.key() > self.contiguous {
                break;
            }
            self.pending_bytes -= weight(&first.remove());
        }
    }

    /// Starts again at the head of another log.
    pub(crate) fn restart(&mut self, head: CommitSeq) {
        *self = Self::new(head, self.pending_bytes_max);
    }
}

/// About what a commit holds in memory.
pub(crate) fn weight(commit: &CommitWrite) -> usize {
    const CHANGE_BYTES: usize = 200;
    let changes = commit.applied.iter().flat_map(|applied| &applied.changes);
    changes
        .map(|change| {
            let payload = match &change.kind {
                ChangeKind::Upsert { row, .. } => row.payload.len(),
                ChangeKind::Delete { .. } => 0,
            };
            CHANGE_BYTES + payload + change.row_id.len()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use tidewater_model::{ActorId, ClientId, PartitionId};
    use tidewater_store::{AppliedCommit, PushKey, PushResultRecord, PushStatus};

    use super::*;

    fn seq(raw: u64) -> CommitSeq {
        CommitSeq::new(raw).unwrap()
    }

    fn commit(raw: u64) -> Arc<CommitWrite> {
        Arc::new(CommitWrite {
            key: PushKey {
                partition: PartitionId::new("p"),
                client: ClientId::new("c"),
                client_commit_id: "x".into(),
            },
            actor: ActorId::new("a"),
            result: PushResultRecord {
                status: PushStatus::Applied(seq(raw)),
                results: Vec::new(),
                recorded_at_ms: None,
                actor: None,
                schema_version: None,
                content_digest: None,
            },
            applied: Some(AppliedCommit {
                commit_seq: seq(raw),
                created_at_ms: 0,
                changes: Vec::new(),
                tombstones: Vec::new(),
                tombstones_cleared: Vec::new(),
                reactions: Vec::new(),
            }),
            bind_client_at_ms: None,
        })
    }

    /// Announces, then does what there is to do; a read is written with its end.
    #[track_caller]
    fn check(announced: &[u64], expected: &[&str]) {
        let mut sequencer = Sequencer::new(seq(3), 1_000);
        for raw in announced {
            sequencer.announce(seq(*raw), Some(commit(*raw)));
        }
        let mut done = Vec::new();
        loop {
            match sequencer.take_turn() {
                Turn::Deliver(_) => done.push(format!("deliver {}", sequencer.contiguous())),
                Turn::Read(through) => {
                    done.push(format!("read {through}"));
                    sequencer.advance(through);
                }
                Turn::Rest => break,
            }
        }
        assert_eq!(done, expected);
    }

    #[test]
    fn commits_come_in_order_and_once() {
        check(&[4, 5], &["deliver 4", "deliver 5"]);
        check(&[5, 4, 5, 4, 3, 1], &["deliver 4", "deliver 5"]);
        check(&[], &[]);
    }

    #[test]
    fn a_gap_is_read_up_to_the_next_commit_that_is_there() {
        check(&[6, 8], &["read 5", "deliver 6", "read 7", "deliver 8"]);
    }

    #[test]
    fn a_place_without_its_commit_is_read() {
        let mut sequencer = Sequencer::new(seq(3), 1_000);
        sequencer.announce(seq(5), None);
        assert!(matches!(sequencer.take_turn(), Turn::Read(through) if through == seq(5)));
    }

    #[test]
    fn another_log_starts_at_its_own_head() {
        let mut sequencer = Sequencer::new(seq(9), 1_000);
        sequencer.announce(seq(11), Some(commit(11)));
        sequencer.restart(seq(2));
        assert!(matches!(sequencer.take_turn(), Turn::Rest));
        sequencer.announce(seq(3), Some(commit(3)));
        assert!(matches!(sequencer.take_turn(), Turn::Deliver(_)));
    }
}
