//! Holds a partition's log against what was acknowledged.
//!
//! The log is read once, in order, by a subscription that covers every list. Each place must be
//! there, each acknowledged commit must stand at the place it was acknowledged for with the rows
//! it wrote, and each row's version must grow by one with every write: a server that loses,
//! reorders, merges or applies something twice cannot pass.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use bytestring::ByteString;
use tidewater_wire::{Change, ChangeRow, CommitFrame, row::decode_row};

use super::{ProblemKind, Problems};
use crate::{
    table::list_value,
    workload::{Workload, Write},
};

/// One acknowledged commit: where the server said it stands, and which one it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ack {
    pub(crate) commit_seq: i64,
    pub(crate) client: u32,
    pub(crate) number: u32,
}

/// What a row was after the last write that the log shows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RowState {
    pub(crate) row_version: i64,
    pub(crate) hash: u64,
}

/// Reads the log from one place on.
#[derive(Debug)]
pub(crate) struct LogCheck<'a> {
    workload: &'a Workload,
    pending: HashMap<i64, Ack>,
    /// The last place that was read.
    last: i64,
    rows: HashMap<ByteString, RowState>,
    /// Acknowledged commits that were found.
    found: u64,
    /// Commits in the log that nobody was told about: their acknowledgement got lost.
    unacknowledged: u64,
    problems: Problems,
}

/// What the log says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogRead {
    pub(crate) found: u64,
    pub(crate) unacknowledged: u64,
    /// The rows that were written, as they are at the end of the log.
    pub(crate) rows: HashMap<ByteString, RowState>,
    pub(crate) problems: Problems,
}

impl<'a> LogCheck<'a> {
    /// Expects `acks` in the log behind `start`.
    pub(crate) fn new(workload: &'a Workload, start: i64, acks: &[Ack]) -> Self {
        let mut problems = Problems::default();
        let mut pending = HashMap::with_capacity(acks.len());
        for &ack in acks {
            if pending.insert(ack.commit_seq, ack).is_some() {
                problems.add(
                    ProblemKind::LostCommit,
                    format!("two commits were acknowledged at {}", ack.commit_seq),
                );
            }
        }
        Self {
            workload,
            pending,
            last: start,
            rows: HashMap::new(),
            found: 0,
            unacknowledged: 0,
            problems,
        }
    }

    /// Takes the next commit of the log.
    pub(crate) fn commit(&mut self, frame: &CommitFrame) {
        let seq = frame.commit_seq;
        if seq <= self.last {
            let text = format!("{seq} comes after {}", self.last);
            self.problems.add(ProblemKind::OutOfOrder, text);
            return;
        }
        if seq > self.last + 1 {
            let text = format!("nothing between {} and {seq}", self.last);
            self.problems.add(ProblemKind::Gap, text);
        }
        self.last = seq;
        let planned = match self.pending.remove(&seq) {
            None => {
                self.unacknowledged += 1;
                Vec::new()
            }
            Some(ack) => {
                self.found += 1;
                let planned = self.workload.commit(ack.client, ack.number);
                if planned.writes.len() != frame.changes.len() {
                    let text = format!(
                        "commit {seq} has {} changes for {} writes",
                        frame.changes.len(),
                        planned.writes.len()
                    );
                    self.problems.add(ProblemKind::WrongContent, text);
                }
                planned.writes
            }
        };
        let mut writes = planned.iter();
        for change in &frame.changes {
            if let Some(write) = writes.next() {
                self.compare(seq, change, write);
            }
            self.advance_row(seq, change);
        }
    }

    /// Ends the log at `head`, which every place up to must have been read for.
    pub(crate) fn finish(mut self, head: i64) -> LogRead {
        if self.last < head {
            let text = format!("nothing between {} and the head {head}", self.last);
            self.problems.add(ProblemKind::Gap, text);
        }
        let mut lost: Vec<Ack> = self.pending.into_values().collect();
        lost.sort_by_key(|ack| ack.commit_seq);
        for ack in lost {
            let id = self.workload.commit(ack.client, ack.number).id;
            let text = format!("{id} was acknowledged at {}", ack.commit_seq);
            self.problems.add(ProblemKind::LostCommit, text);
        }
        LogRead {
            found: self.found,
            unacknowledged: self.unacknowledged,
            rows: self.rows,
            problems: self.problems,
        }
    }

    fn compare(&mut self, seq: i64, change: &Change, write: &Write) {
        let expected_list = list_value(write.list);
        let variable = self.workload.table.list_variable();
        let list = change.scopes.iter().find(|(name, _)| *name == variable);
        if list.is_none_or(|(_, value)| *value != expected_list) {
            let text = format!(
                "{} in commit {seq} is not in {expected_list}",
                change.row_id
            );
            self.problems.add(ProblemKind::ForeignRow, text);
        }
        let is_same = change.row_id == write.row_id
            && change
                .row
                .as_ref()
                .is_some_and(|row| self.has_written(&row.row, write));
        if !is_same {
            let text = format!("{} in commit {seq} for {}", change.row_id, write.row_id);
            self.problems.add(ProblemKind::WrongContent, text);
        }
    }

    /// Whether a row has the values that `write` presented.
    fn has_written(&self, row: &[u8], write: &Write) -> bool {
        let Ok(fields) = decode_row(&self.workload.table.columns, row) else {
            return false;
        };
        let has = |index: usize| {
            fields[index].map(|field| field.encoded) == write.cells[index].as_deref()
        };
        if write.patch {
            self.workload.table.patched_columns().into_iter().all(has)
        } else {
            (0..fields.len()).all(has)
        }
    }

    fn advance_row(&mut self, seq: i64, change: &Change) {
        let Some(ChangeRow { row_version, row }) = &change.row else {
            self.rows.remove(&change.row_id);
            return;
        };
        let state = RowState {
            row_version: *row_version,
            hash: row_hash(row),
        };
        let before = self.rows.insert(detach(&change.row_id), state);
        if let Some(before) = before
            && *row_version != before.row_version + 1
        {
            let text = format!(
                "{} went from {} to {row_version} in commit {seq}",
                change.row_id, before.row_version
            );
            self.problems.add(ProblemKind::WrongVersion, text);
        }
    }
}

/// A copy of its own: a slice would keep the whole response.
fn detach(text: &ByteString) -> ByteString {
    ByteString::from(text.to_string())
}

/// What a row is compared by when its bytes are not kept.
pub(crate) fn row_hash(row: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    row.hash(&mut hasher);
    hasher.finish()
}
