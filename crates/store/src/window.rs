//! Bulk reads: a span of the log, a page of rows.
//!
//! Both come back as one block of bytes with the places of each piece in it, not as thousands
//! of small strings: serving them is copying slices.

use std::ops::Range;

use tidewater_model::{CommitSeq, Op, PartitionId, ScopeFilter, StoredScopes};
use tidewater_schema::TableIndex;

use crate::Gate;

/// Asks for the commits of a span with the changes that a filter selects (§4.5).
///
/// Whole commits, oldest first; each with its matching changes in commit order; commits without
/// any are left out. It ends before the commit that would exceed `changes_max` or `bytes_max`,
/// but always holds at least one commit if one matches.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowRequest {
    /// The partition.
    pub partition: PartitionId,
    /// Only changes to this table.
    pub table: TableIndex,
    /// Only changes whose scopes match; an empty filter selects nothing.
    pub filter: ScopeFilter,
    /// Exclusive start.
    pub after: CommitSeq,
    /// Inclusive end.
    pub through: CommitSeq,
    /// Most changes over all commits.
    pub changes_max: usize,
    /// Most payload bytes over all commits.
    pub bytes_max: usize,
}

/// The answer to a [`WindowRequest`].
#[derive(Debug)]
pub struct Window {
    /// From the same snapshot.
    pub gate: Gate,
    /// Whether every matching commit of the span is here.
    pub exhausted: bool,
    bytes: Vec<u8>,
    commits: Vec<CommitSpan>,
    changes: Vec<ChangeSpan>,
    scopes: Vec<StoredScopes>,
}

#[derive(Debug)]
struct CommitSpan {
    commit_seq: CommitSeq,
    created_at_ms: i64,
    actor: Range<usize>,
    changes: Range<usize>,
}

#[derive(Debug)]
struct ChangeSpan {
    row_id: Range<usize>,
    row: Option<(i64, Range<usize>)>,
    scopes: usize,
}

/// A commit of a window.
#[derive(Clone, Copy, Debug)]
pub struct CommitRef<'a> {
    window: &'a Window,
    span: &'a CommitSpan,
}

/// A change of a commit: an upsert has a row, a delete has none.
#[derive(Clone, Copy, Debug)]
pub struct ChangeRef<'a> {
    /// The primary key as text.
    pub row_id: &'a str,
    /// Row version and full row of an upsert.
    pub row: Option<(i64, &'a [u8])>,
    /// The scopes recorded with the change.
    pub scopes: &'a StoredScopes,
}

impl ChangeRef<'_> {
    /// What the change did.
    pub fn op(&self) -> Op {
        if self.row.is_some() {
            Op::Upsert
        } else {
            Op::Delete
        }
    }
}

impl Window {
    /// The commits, oldest first.
    pub fn commits(&self) -> impl ExactSizeIterator<Item = CommitRef<'_>> {
        self.commits
            .iter()
            .map(|span| CommitRef { window: self, span })
    }

    /// Changes over all commits.
    pub fn change_count(&self) -> usize {
        self.changes.len()
    }

    /// The place of the last commit in the window.
    pub fn last_commit_seq(&self) -> Option<CommitSeq> {
        self.commits.last().map(|span| span.commit_seq)
    }
}

impl<'a> CommitRef<'a> {
    /// The commit's place.
    pub fn commit_seq(&self) -> CommitSeq {
        self.span.commit_seq
    }

    /// Server clock at the commit, Unix milliseconds.
    pub fn created_at_ms(&self) -> i64 {
        self.span.created_at_ms
    }

    /// Who pushed it.
    pub fn actor(&self) -> &'a str {
        text(&self.window.bytes, &self.span.actor)
    }

    /// Its matching changes, in order. Never empty.
    pub fn changes(&self) -> impl ExactSizeIterator<Item = ChangeRef<'a>> + use<'a> {
        let window = self.window;
        window.changes[self.span.changes.clone()]
            .iter()
            .map(|span| ChangeRef {
                row_id: text(&window.bytes, &span.row_id),
                row: span
                    .row
                    .as_ref()
                    .map(|(version, at)| (*version, &window.bytes[at.clone()])),
                scopes: &window.scopes[span.scopes],
            })
    }
}

/// Collects a [`Window`]. An implementation calls `commit`, then `change` for each of its
/// matching changes.
#[derive(Debug, Default)]
pub struct WindowBuilder {
    bytes: Vec<u8>,
    payload_bytes: usize,
    commits: Vec<CommitSpan>,
    changes: Vec<ChangeSpan>,
    scopes: Vec<StoredScopes>,
}

impl WindowBuilder {
    /// Starts the next commit.
    pub fn commit(&mut self, commit_seq: CommitSeq, created_at_ms: i64, actor: &str) {
        let actor = append(&mut self.bytes, actor.as_bytes());
        let start = self.changes.len();
        self.commits.push(CommitSpan {
            commit_seq,
            created_at_ms,
            actor,
            changes: start..start,
        });
    }

    /// Adds a change to the commit begun last.
    ///
    /// # Panics
    ///
    /// Before the first commit.
    pub fn change(&mut self, row_id: &str, row: Option<(i64, &[u8])>, scopes: &StoredScopes) {
        // Neighbors mostly share their scopes: one copy serves the run.
        if self.scopes.last() != Some(scopes) {
            self.scopes.push(scopes.clone());
        }
        let row_id = append(&mut self.bytes, row_id.as_bytes());
        let row = row.map(|(version, row)| {
            self.payload_bytes += row.len();
            (version, append(&mut self.bytes, row))
        });
        self.changes.push(ChangeSpan {
            row_id,
            row,
            scopes: self.scopes.len() - 1,
        });
        let commit = self
            .commits
            .last_mut()
            .expect("a change belongs to a commit");
        commit.changes.end = self.changes.len();
    }

    /// Takes back the commit begun last with its changes: an implementation that reads changes
    /// one by one knows only then that it does not fit.
    pub fn drop_last_commit(&mut self) {
        let Some(commit) = self.commits.pop() else {
            return;
        };
        let changes = self.changes.drain(commit.changes);
        self.payload_bytes -= changes
            .filter_map(|change| change.row)
            .map(|(_, payload)| payload.len())
            .sum::<usize>();
        self.bytes.truncate(commit.actor.start);
    }

    /// Changes so far.
    pub fn change_count(&self) -> usize {
        self.changes.len()
    }

    /// Payload bytes so far: what [`WindowRequest::bytes_max`] counts.
    pub fn byte_count(&self) -> usize {
        self.payload_bytes
    }

    /// The window.
    pub fn finish(self, gate: Gate, exhausted: bool) -> Window {
        Window {
            gate,
            exhausted,
            bytes: self.bytes,
            commits: self.commits,
            changes: self.changes,
            scopes: self.scopes,
        }
    }
}

/// Asks for a page of current rows (§4.7): those the filter selects, by bytewise row id.
///
/// It ends at `rows_max` rows or before the row that would exceed `bytes_max`, but always holds
/// at least one row if one matches.
#[derive(Clone, Debug, PartialEq)]
pub struct RowScan {
    /// The partition.
    pub partition: PartitionId,
    /// The table.
    pub table: TableIndex,
    /// Only rows whose scopes match; an empty filter selects nothing.
    pub filter: ScopeFilter,
    /// Exclusive start.
    pub after: Option<String>,
    /// Most rows.
    pub rows_max: usize,
    /// Most payload bytes.
    pub bytes_max: usize,
}

/// Asks for a page of all current rows of a table, whatever their scopes, by bytewise row id.
///
/// For operators only: no client is ever answered from it. It ends like a [`RowScan`].
#[derive(Clone, Debug, PartialEq)]
pub struct TableScan {
    /// The partition.
    pub partition: PartitionId,
    /// The table.
    pub table: TableIndex,
    /// Exclusive start.
    pub after: Option<String>,
    /// Most rows.
    pub rows_max: usize,
    /// Most payload bytes.
    pub bytes_max: usize,
}

/// The answer to a [`RowScan`] or a [`TableScan`].
#[derive(Debug)]
pub struct RowPage {
    /// From the same snapshot.
    pub gate: Gate,
    /// Whether a matching row comes after this page.
    pub has_more: bool,
    bytes: Vec<u8>,
    rows: Vec<RowSpan>,
}

#[derive(Debug)]
struct RowSpan {
    row_id: Range<usize>,
    row_version: i64,
    payload: Range<usize>,
}

/// A row of a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RowRef<'a> {
    /// The primary key as text.
    pub row_id: &'a str,
    /// The row's version.
    pub row_version: i64,
    /// The full row.
    pub payload: &'a [u8],
}

impl RowPage {
    /// The rows, by bytewise row id.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = RowRef<'_>> + DoubleEndedIterator {
        self.rows.iter().map(|span| RowRef {
            row_id: text(&self.bytes, &span.row_id),
            row_version: span.row_version,
            payload: &self.bytes[span.payload.clone()],
        })
    }

    /// Bytes of row ids and payloads.
    pub fn byte_count(&self) -> usize {
        self.bytes.len()
    }
}

/// Collects a [`RowPage`].
#[derive(Debug, Default)]
pub struct RowPageBuilder {
    bytes: Vec<u8>,
    payload_bytes: usize,
    rows: Vec<RowSpan>,
}

impl RowPageBuilder {
    /// Adds the next row.
    pub fn row(&mut self, row_id: &str, row_version: i64, payload: &[u8]) {
        let row_id = append(&mut self.bytes, row_id.as_bytes());
        self.payload_bytes += payload.len();
        let payload = append(&mut self.bytes, payload);
        self.rows.push(RowSpan {
            row_id,
            row_version,
            payload,
        });
    }

    /// Rows so far.
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// Payload bytes so far: what [`RowScan::bytes_max`] counts.
    pub fn byte_count(&self) -> usize {
        self.payload_bytes
    }

    /// The page.
    pub fn finish(self, gate: Gate, has_more: bool) -> RowPage {
        RowPage {
            gate,
            has_more,
            bytes: self.bytes,
            rows: self.rows,
        }
    }
}

fn append(bytes: &mut Vec<u8>, piece: &[u8]) -> Range<usize> {
    let start = bytes.len();
    bytes.extend_from_slice(piece);
    start..bytes.len()
}

fn text<'a>(bytes: &'a [u8], at: &Range<usize>) -> &'a str {
    str::from_utf8(&bytes[at.clone()]).expect("the builder appended it from a str")
}
