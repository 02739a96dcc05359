//! Loads what a write transaction decides from, in one job.
//!
//! Partitions need no lock of their own: the writer is the only one.

use bytes::Bytes;
use rusqlite::Row;
use tidewater_store::{
    LoadRequest, Loaded, PushKey, RowKey, StoreError, StoredResult, StoredRow, Tombstone, outcome,
};

use crate::{
    clients::find_client,
    error::failed,
    scopes::ScopesReader,
    session::{Session, place},
    statements::{Queries, bytes, bytes_or_null},
};

const DURING: &str = "load rows";

/// Answers a request from the state of the open transaction.
pub(crate) fn load(session: &mut Session<'_>, wanted: &LoadRequest) -> Result<Loaded, StoreError> {
    let mut loaded = Loaded::default();
    for partition in &wanted.partitions {
        loaded.gates.push(session.gate(partition, DURING)?);
    }
    load_rows(session, &wanted.rows, &mut loaded)?;
    for key in &wanted.push_results {
        let result = find_push_result(&mut session.queries, key, DURING)?;
        loaded.push_results.push(result);
    }
    for key in &wanted.clients {
        let client = find_client(&mut session.queries, &key.partition, &key.client, DURING)?;
        loaded.clients.push(client);
    }
    Ok(loaded)
}

/// Current rows, in the order of their keys.
pub(crate) fn find_rows(
    session: &mut Session<'_>,
    keys: &[RowKey],
) -> Result<Vec<Option<StoredRow>>, StoreError> {
    let mut loaded = Loaded::default();
    load_rows(session, keys, &mut loaded)?;
    Ok(loaded.rows)
}

fn load_rows(
    session: &mut Session<'_>,
    keys: &[RowKey],
    loaded: &mut Loaded,
) -> Result<(), StoreError> {
    if keys.is_empty() {
        return Ok(());
    }
    let layout = session.layout();
    let mut reader = ScopesReader::default();
    loaded.rows.reserve(keys.len());
    loaded.tombstones.reserve(keys.len());
    for key in keys {
        let partition = key.partition.as_str();
        let row_id: &str = &key.row_id;
        let query = &mut session.tables[key.table.0].load;
        let mut rows = query.rows(&[&partition, &row_id]).map_err(failed(DURING))?;
        let row = match rows.next().map_err(failed(DURING))? {
            Some(row) => Some(stored_row(row, 0, &mut reader)?),
            None => None,
        };
        drop(rows);
        loaded.rows.push(row);
        let table = layout.table(key.table).table.name.as_str();
        let tombstone = session
            .queries
            .tombstone
            .find(&[&partition, &table, &row_id], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .map_err(failed(DURING))?;
        loaded.tombstones.push(match tombstone {
            Some((commit_seq, scopes)) => Some(read_tombstone(commit_seq, scopes, &mut reader)?),
            None => None,
        });
    }
    Ok(())
}

/// A row whose version, scopes, payload and column versions are in the columns from `at` on.
pub(crate) fn stored_row(
    row: &Row<'_>,
    at: usize,
    reader: &mut ScopesReader,
) -> Result<StoredRow, StoreError> {
    let scopes = bytes(row, at + 1, DURING)?;
    let payload = bytes(row, at + 2, DURING)?;
    let column_versions = bytes_or_null(row, at + 3, DURING)?;
    Ok(StoredRow {
        row_version: row.get(at).map_err(failed(DURING))?,
        scopes: reader.read(scopes, DURING)?.scopes.clone(),
        payload: Bytes::copy_from_slice(payload),
        column_versions: column_versions.map(Bytes::copy_from_slice),
    })
}

fn read_tombstone(
    commit_seq: i64,
    scopes: Option<String>,
    reader: &mut ScopesReader,
) -> Result<Tombstone, StoreError> {
    Ok(Tombstone {
        commit_seq: place(commit_seq, DURING)?,
        scopes: match scopes {
            Some(text) => Some(reader.read(text.as_bytes(), DURING)?.scopes.clone()),
            None => None,
        },
    })
}

/// The recorded outcome of a pushed commit.
pub(crate) fn find_push_result(
    queries: &mut Queries<'_>,
    key: &PushKey,
    during: &'static str,
) -> Result<Option<StoredResult>, StoreError> {
    let commit: &str = &key.client_commit_id;
    queries
        .push_result
        .find(
            &[&key.partition.as_str(), &key.client.as_str(), &commit],
            |row| {
                // What is not text is no outcome either, and must not be taken for none.
                let text = row.get_ref(0)?.as_str();
                Ok(text.map_or(StoredResult::Unreadable, outcome::decode))
            },
        )
        .map_err(failed(during))
}
