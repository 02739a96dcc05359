//! The rows a batch of commits sees: as loaded, with the writes of the commits before.
//!
//! Each commit's writes are journaled, so that a refused commit leaves its neighbors in the
//! batch exactly what they would have seen without it.

use std::collections::BTreeMap;

use bytestring::ByteString;
use tidewater_model::{CommitSeq, StoredScopes};
use tidewater_schema::TableIndex;
use tidewater_store::{RowKey, StoredRow, Tombstone};

/// One row as this batch sees it.
#[derive(Clone, Debug, Default)]
pub(super) struct RowSlot {
    pub(super) row: Option<StoredRow>,
    /// Of a commit before the current one; an insert clears it, also for the rest of its commit.
    pub(super) tombstone: Option<Tombstone>,
}

/// The state of all rows that the commits of a batch name.
#[derive(Debug, Default)]
pub(super) struct Candidate {
    rows: BTreeMap<RowKey, RowSlot>,
    journal: Vec<(RowKey, RowSlot)>,
}

impl Candidate {
    /// Takes what was loaded, in the order of the keys.
    pub(super) fn new(
        keys: Vec<RowKey>,
        rows: Vec<Option<StoredRow>>,
        tombstones: Vec<Option<Tombstone>>,
    ) -> Self {
        assert!(keys.len() == rows.len() && keys.len() == tombstones.len());
        let slots = rows
            .into_iter()
            .zip(tombstones)
            .map(|(row, tombstone)| RowSlot { row, tombstone });
        Self {
            rows: keys.into_iter().zip(slots).collect(),
            journal: Vec::new(),
        }
    }

    /// The row as the current commit sees it.
    ///
    /// # Panics
    ///
    /// When the row was not loaded.
    pub(super) fn row(&self, key: &RowKey) -> &RowSlot {
        self.rows
            .get(key)
            .expect("every row that a commit names was loaded")
    }

    /// Whether the row was loaded.
    pub(super) fn knows(&self, key: &RowKey) -> bool {
        self.rows.contains_key(key)
    }

    /// Takes rows that were loaded later, because a decision came upon them.
    pub(super) fn learn(
        &mut self,
        keys: Vec<RowKey>,
        rows: Vec<Option<StoredRow>>,
        tombstones: Vec<Option<Tombstone>>,
    ) {
        let more = Self::new(keys, rows, tombstones);
        self.rows.extend(more.rows);
    }

    /// Replaces a row, for this commit and those after it.
    pub(super) fn write(&mut self, key: &RowKey, row: Option<StoredRow>) {
        let slot = self
            .rows
            .get_mut(key)
            .expect("every row that a commit names was loaded");
        self.journal.push((key.clone(), slot.clone()));
        if row.is_some() {
            slot.tombstone = None;
        }
        slot.row = row;
    }

    /// Undoes the current commit.
    pub(super) fn roll_back(&mut self) {
        while let Some((key, before)) = self.journal.pop() {
            self.rows.insert(key, before);
        }
    }

    /// Ends the current commit: what it deleted leaves tombstones, what it inserted clears them.
    pub(super) fn settle(&mut self, commit_seq: CommitSeq) -> Settled {
        // Per row: the tombstone before the commit, and the row before the last write to it.
        let mut written: BTreeMap<RowKey, (Option<Tombstone>, Option<StoredRow>)> = BTreeMap::new();
        for (key, slot) in std::mem::take(&mut self.journal) {
            written
                .entry(key)
                .and_modify(|(_, last)| last.clone_from(&slot.row))
                .or_insert((slot.tombstone, slot.row));
        }
        let mut settled = Settled::default();
        for (key, (tombstone, last)) in written {
            let slot = self
                .rows
                .get_mut(&key)
                .expect("it was written by this commit");
            match (&slot.row, last) {
                // Also when the commit itself had inserted it: whoever saw the log saw it go.
                (None, Some(deleted)) => {
                    let scopes = deleted.scopes;
                    slot.tombstone = Some(Tombstone {
                        commit_seq,
                        scopes: Some(scopes.clone()),
                    });
                    settled.tombstones.push((key.table, key.row_id, scopes));
                }
                (Some(_), _) if tombstone.is_some() => {
                    slot.tombstone = None;
                    settled.cleared.push((key.table, key.row_id));
                }
                _ => {}
            }
        }
        settled
    }
}

/// What a finished commit does to tombstones.
#[derive(Debug, Default)]
pub(super) struct Settled {
    pub(super) tombstones: Vec<(TableIndex, ByteString, StoredScopes)>,
    pub(super) cleared: Vec<(TableIndex, ByteString)>,
}
