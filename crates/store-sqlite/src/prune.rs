//! Pruning (§4.6): the horizon rises at once, and what it covers goes piece by piece.
//!
//! Nothing at or below the horizon is ever shown, so when it goes is nobody's business but the
//! disk's. The first transaction raises the horizon; each of the following deletes a bounded
//! number of changes and lets other writers in between. A pass that is cut short is finished by
//! the next.

use tidewater_model::{CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_store::{RetentionInputs, StorageCode, StoreError};

use crate::{
    error::failed,
    partitions,
    scopes::ScopesReader,
    session::{Session, place},
    statements::Queries,
};

const DURING: &str = "prune the log";

/// What pruning is decided from.
pub(crate) fn retention_inputs(
    session: &mut Session<'_>,
    partition: &PartitionId,
    seen_since_ms: i64,
    aged_before_ms: i64,
) -> Result<RetentionInputs, StoreError> {
    const DURING: &str = "read retention inputs";
    session.snapshot(DURING, |session| {
        let gate = session.gate(partition, DURING)?;
        let name = partition.as_str();
        let queries = &mut session.queries;
        let oldest_cursor = queries
            .oldest_cursor
            .find(&[&name, &seen_since_ms], |row| row.get(0))
            .map_err(failed(DURING))?
            .flatten();
        let newest_before = queries
            .newest_before
            .find(&[&name, &aged_before_ms, &gate.horizon.to_i64()], |row| {
                row.get(0)
            })
            .map_err(failed(DURING))?
            .flatten();
        Ok(RetentionInputs {
            oldest_cursor: match oldest_cursor {
                Some(cursor) => Some(place(cursor, DURING)?),
                None => None,
            },
            newest_before: place(newest_before.unwrap_or(0), DURING)?,
            gate,
        })
    })
}

/// Raises the horizon, if the partition is still in this epoch: the horizon before and now.
pub(crate) fn raise_horizon(
    session: &mut Session<'_>,
    partition: &PartitionId,
    epoch: &LogEpoch,
    horizon: HorizonSeq,
) -> Result<(HorizonSeq, HorizonSeq), StoreError> {
    let record = partitions::find(&mut session.queries, partition, DURING)?.ok_or_else(|| {
        StoreError::refused(
            StorageCode::PartitionUnregistered,
            DURING,
            "the partition was never touched",
        )
    })?;
    if record.log_epoch != *epoch {
        return Err(StoreError::refused(
            StorageCode::PruneEpochMismatch,
            DURING,
            "the epoch changed after the pruning inputs were read",
        ));
    }
    let raised = record.horizon.max(horizon);
    if raised > record.horizon {
        session
            .queries
            .set_horizon
            .execute(&[&partition.as_str(), &raised.to_i64()])
            .map_err(failed(DURING))?;
    }
    Ok((record.horizon, raised))
}

/// What one piece of deleting did.
pub(crate) struct Piece {
    /// Commits removed.
    pub(crate) commits: u64,
    /// Whether nothing is left at or below the horizon.
    pub(crate) is_last: bool,
}

/// Deletes the oldest part of what the horizon covers.
pub(crate) fn delete_piece(
    session: &mut Session<'_>,
    partition: &PartitionId,
    horizon: HorizonSeq,
) -> Result<Piece, StoreError> {
    let name = partition.as_str();
    let queries = &mut session.queries;
    let through = unlink_changes(queries, name, horizon)?;
    let is_last = through == horizon.seq();
    let through = through.to_i64();
    let commits = queries
        .prune_changes
        .execute(&[&name, &through])
        .and_then(|_| queries.prune_tombstones.execute(&[&name, &through]))
        .and_then(|_| queries.prune_commits.execute(&[&name, &through]))
        .map_err(failed(DURING))?;
    Ok(Piece {
        commits: u64::try_from(commits).unwrap_or(u64::MAX),
        is_last,
    })
}

/// Deletes the index entries of the oldest changes; the last commit they belong to.
///
/// The index is by value and not by place: its entries are found through the changes.
fn unlink_changes(
    queries: &mut Queries<'_>,
    partition: &str,
    horizon: HorizonSeq,
) -> Result<CommitSeq, StoreError> {
    let mut reader = ScopesReader::default();
    let mut before = None;
    let mut before_table = String::new();
    let mut count = 0;
    let mut rows = queries
        .pruned_changes
        .rows(&[&partition, &horizon.to_i64()])
        .map_err(failed(DURING))?;
    while let Some(row) = rows.next().map_err(failed(DURING))? {
        let seq: i64 = row.get(0).map_err(failed(DURING))?;
        if let Some(before) = before
            && before != seq
            && count >= PIECE_CHANGES
        {
            return place(before, DURING);
        }
        count += 1;
        let text = |index| -> rusqlite::Result<&str> { Ok(row.get_ref(index)?.as_str()?) };
        let table = text(1).map_err(failed(DURING))?;
        let scopes = text(2).map_err(failed(DURING))?;
        // Unreadable scopes have no entries to find them by. What is left shows nothing.
        if let Ok(read) = reader.read(scopes.as_bytes(), DURING)
            && (read.is_new || before != Some(seq) || before_table != table)
        {
            for (variable, value) in read.scopes.iter() {
                queries
                    .prune_change_scope
                    .execute(&[&partition, &table, &variable, &value, &seq])
                    .map_err(failed(DURING))?;
            }
        }
        before = Some(seq);
        table.clone_into(&mut before_table);
    }
    Ok(horizon.seq())
}

/// Changes deleted before other writers get their turn: some tens of milliseconds.
const PIECE_CHANGES: usize = 5_000;
