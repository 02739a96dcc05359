//! What a reader saw, as plain values that compare and print.

use tidewater_model::StoredScopes;

use crate::{Gate, RowPage, Window};

/// A window, unpacked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SeenWindow {
    /// The gate.
    pub gate: Gate,
    /// Whether the span was read to its end.
    pub exhausted: bool,
    /// The commits.
    pub commits: Vec<SeenCommit>,
}

/// A commit of a window, unpacked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SeenCommit {
    /// Its place.
    pub seq: u64,
    /// When it was written.
    pub created_at_ms: i64,
    /// By whom.
    pub actor: String,
    /// Its matching changes.
    pub changes: Vec<SeenChange>,
}

/// A change of a commit, unpacked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SeenChange {
    /// The row.
    pub row_id: String,
    /// Version and payload of an upsert.
    pub row: Option<(i64, Vec<u8>)>,
    /// The scopes.
    pub scopes: StoredScopes,
}

/// A page, unpacked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SeenPage {
    /// The gate.
    pub gate: Gate,
    /// Whether a matching row follows.
    pub has_more: bool,
    /// Row id, version and payload.
    pub rows: Vec<(String, i64, Vec<u8>)>,
}

impl SeenWindow {
    /// The places of its commits.
    pub fn seqs(&self) -> Vec<u64> {
        self.commits.iter().map(|commit| commit.seq).collect()
    }

    /// The rows its changes are about, commit by commit.
    pub fn row_ids(&self) -> Vec<Vec<&str>> {
        self.commits
            .iter()
            .map(|commit| {
                let changes = commit.changes.iter();
                changes.map(|change| change.row_id.as_str()).collect()
            })
            .collect()
    }
}

impl SeenPage {
    /// The row ids.
    pub fn ids(&self) -> Vec<&str> {
        self.rows.iter().map(|(id, ..)| id.as_str()).collect()
    }
}

impl From<&Window> for SeenWindow {
    fn from(window: &Window) -> Self {
        let commits = window.commits().map(|commit| SeenCommit {
            seq: commit.commit_seq().get(),
            created_at_ms: commit.created_at_ms(),
            actor: commit.actor().to_owned(),
            changes: commit
                .changes()
                .map(|change| SeenChange {
                    row_id: change.row_id.to_owned(),
                    row: change.row.map(|(version, row)| (version, row.to_vec())),
                    scopes: change.scopes.clone(),
                })
                .collect(),
        });
        Self {
            gate: window.gate.clone(),
            exhausted: window.exhausted,
            commits: commits.collect(),
        }
    }
}

impl From<&RowPage> for SeenPage {
    fn from(page: &RowPage) -> Self {
        let rows = page
            .rows()
            .map(|row| (row.row_id.to_owned(), row.row_version, row.payload.to_vec()));
        Self {
            gate: page.gate.clone(),
            has_more: page.has_more,
            rows: rows.collect(),
        }
    }
}
