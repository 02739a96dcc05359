//! What operators read and forget: whole tables, reactions, old outcomes.
//!
//! No client is answered from here, and nothing here may hold up those who answer clients:
//! every call looks at a bounded piece, and the next one may be another writer's turn.

use bytestring::ByteString;
use rusqlite::Row;
use tidewater_model::{ClientId, PartitionId};
use tidewater_store::{
    PushKey, ReactionRecord, ReactionStatus, ReactionWrite, RowPage, RowPageBuilder, StoreError,
    StoredResult, TableScan, outcome,
};

use crate::{
    error::{corrupt, failed},
    session::{Session, place},
    statements::{bytes, text},
    successor,
};

/// Reads a page of a table, whatever the scopes of its rows.
pub(crate) fn scan_table(
    session: &mut Session<'_>,
    scan: &TableScan,
    during: &'static str,
) -> Result<RowPage, StoreError> {
    let gate = session.gate(&scan.partition, during)?;
    let partition = scan.partition.as_str();
    let from = successor(scan.after.as_deref());
    let mut page = RowPageBuilder::default();
    let mut has_more = false;
    let mut rows = session.tables[scan.table.0]
        .walk
        .rows(&[&partition, &from])
        .map_err(failed(during))?;
    while let Some(row) = rows.next().map_err(failed(during))? {
        let payload = bytes(row, 3, during)?;
        let is_full =
            page.row_count() >= scan.rows_max || page.byte_count() + payload.len() > scan.bytes_max;
        if page.row_count() > 0 && is_full {
            has_more = true;
            break;
        }
        let row_version = row.get(1).map_err(failed(during))?;
        page.row(text(row, 0, during)?, row_version, payload);
    }
    drop(rows);
    Ok(page.finish(gate, has_more))
}

/// Up to `limit` reactions after the given key, of one status or of all.
pub(crate) fn list_reactions(
    session: &mut Session<'_>,
    partition: &PartitionId,
    status: Option<ReactionStatus>,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<ReactionRecord>, StoreError> {
    const DURING: &str = "list reactions";
    let name = partition.as_str();
    let from = successor(after);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let queries = &mut session.queries;
    let rows = match status {
        Some(status) => {
            let query = &mut queries.reactions_of_status;
            query.rows(&[&name, &from, &limit, &status.as_str()])
        }
        None => queries.reactions.rows(&[&name, &from, &limit]),
    };
    let mut rows = rows.map_err(failed(DURING))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed(DURING))? {
        found.push(reaction(row, DURING)?);
    }
    Ok(found)
}

fn reaction(row: &Row<'_>, during: &'static str) -> Result<ReactionRecord, StoreError> {
    let owned = |index| text(row, index, during).map(str::to_owned);
    let integer = |index| row.get::<_, i64>(index).map_err(failed(during));
    let status = text(row, 9, during)?;
    let status = ReactionStatus::from_text(status)
        .ok_or_else(|| corrupt(during, format!("`{status}` is no status of a reaction")))?;
    Ok(ReactionRecord {
        write: ReactionWrite {
            idempotency_key: owned(0)?,
            kind: owned(1)?,
            version: row.get(2).map_err(failed(during))?,
            payload: owned(3)?,
            max_attempts: row.get(11).map_err(failed(during))?,
        },
        client: ClientId::new(text(row, 4, during)?),
        client_commit_id: ByteString::from(text(row, 5, during)?),
        commit_seq: place(integer(6)?, during)?,
        created_at_ms: integer(7)?,
        available_at_ms: integer(8)?,
        status,
        attempts: row.get(10).map_err(failed(during))?,
    })
}

/// Deletes old outcomes among the next ones: the last looked at if there may be more, and how
/// many were deleted.
pub(crate) fn prune_push_results(
    session: &mut Session<'_>,
    partition: &PartitionId,
    after: Option<&PushKey>,
    recorded_before_ms: i64,
    limit: usize,
) -> Result<(Option<PushKey>, u64), StoreError> {
    const DURING: &str = "prune outcomes";
    let name = partition.as_str();
    let client = after.map_or("", |key| key.client.as_str());
    let from = successor(after.map(|key| &*key.client_commit_id));
    let queries = &mut session.queries;
    let mut old: Vec<(String, String)> = Vec::new();
    let mut last = None;
    let (mut looked_at, mut bytes_seen) = (0, 0);
    let mut rows = queries
        .push_results
        .rows(&[&name, &client, &from])
        .map_err(failed(DURING))?;
    while looked_at < limit && bytes_seen < LOOKED_AT_BYTES_MAX {
        let Some(row) = rows.next().map_err(failed(DURING))? else {
            last = None;
            break;
        };
        let (client, commit) = (text(row, 0, DURING)?, text(row, 1, DURING)?);
        // What is not text is an outcome nobody can read, and stays like one.
        let result = row.get_ref(2).map_err(failed(DURING))?;
        let result = result.as_str().unwrap_or_default();
        if is_recorded_before(result, recorded_before_ms) {
            old.push((client.to_owned(), commit.to_owned()));
        }
        looked_at += 1;
        bytes_seen += result.len();
        last = Some(PushKey {
            partition: partition.clone(),
            client: ClientId::new(client),
            client_commit_id: ByteString::from(commit),
        });
    }
    drop(rows);
    let mut deleted = 0;
    for (client, commit) in &old {
        let count = queries.prune_push_result.execute(&[&name, client, commit]);
        deleted += u64::try_from(count.map_err(failed(DURING))?).unwrap_or(u64::MAX);
    }
    Ok((last, deleted))
}

fn is_recorded_before(result: &str, at_ms: i64) -> bool {
    match outcome::decode(result) {
        StoredResult::Readable(record) => record.recorded_at_ms.is_some_and(|at| at < at_ms),
        StoredResult::Unreadable => false,
    }
}

/// Bytes of outcomes read before other writers get their turn: some milliseconds.
const LOOKED_AT_BYTES_MAX: usize = 1024 * 1024;
