//! Rewrites stored rows for a schema that appended columns to them.
//!
//! Rows are read a batch at a time by their keys, so that a large table is never held whole. The
//! log is rewritten too: everything stored is encoded for the schema in force, and a client that
//! continues from its cursor is served from the log.

use rusqlite::{Connection, Result};
use tidewater_schema::{Table, WidenedTable};
use tidewater_store::{
    StoreError,
    rewrite::{Widening, undecodable},
};
use tidewater_wire::row::decode_row;

use crate::{
    error::failed,
    statements::{Query, quoted},
    successor,
    typed::Typed,
};

const DURING: &str = "rewrite stored rows";

/// Rows read at a time.
const BATCH_ROWS: i64 = 500;

/// Bytes of payloads after which no more rows are read at a time.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Appends NULLs to the rows of a table and fills its typed columns.
pub(crate) fn widen_rows(
    connection: &Connection,
    widened: &WidenedTable,
    typed: &[usize],
) -> std::result::Result<(), StoreError> {
    let append = |payload: &[u8]| Widening::of(widened).append_nulls(payload);
    rewrite(connection, &widened.table, typed, append)
}

/// Fills the typed columns of a table from its payloads.
pub(crate) fn fill_typed(
    connection: &Connection,
    table: &Table,
    typed: &[usize],
) -> std::result::Result<(), StoreError> {
    rewrite(connection, table, typed, |payload| Some(payload.to_vec()))
}

fn rewrite(
    connection: &Connection,
    table: &Table,
    typed: &[usize],
    change: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> std::result::Result<(), StoreError> {
    let name = quoted(&table.name);
    let mut select = Query::new(
        connection,
        format!(
            "SELECT _sync_partition, _sync_row_id, _sync_payload FROM {name} \
             WHERE (_sync_partition, _sync_row_id) >= (?1, ?2) \
             ORDER BY _sync_partition, _sync_row_id LIMIT ?3"
        ),
    );
    let mut update = Query::new(connection, update_sql(table, &name, typed));
    let mut from = (String::new(), String::new());
    loop {
        let batch = row_batch(&mut select, &from).map_err(failed(DURING))?;
        let Some((partition, row_id, _)) = batch.last() else {
            return Ok(());
        };
        from = (partition.clone(), successor(Some(row_id)));
        for (partition, row_id, payload) in batch {
            let payload = change(&payload).ok_or_else(|| undecodable(&table.name, DURING))?;
            let written = write_row(&mut update, table, typed, &partition, &row_id, &payload);
            written?;
        }
    }
}

/// The next rows, bounded in number and bytes; none at the end.
pub(crate) fn row_batch(
    select: &mut Query<'_>,
    from: &(String, String),
) -> Result<Vec<(String, String, Vec<u8>)>> {
    let mut rows = select.rows(&[&from.0, &from.1, &BATCH_ROWS])?;
    let mut batch = Vec::new();
    let mut bytes = 0;
    while bytes < BATCH_BYTES
        && let Some(row) = rows.next()?
    {
        let payload: Vec<u8> = row.get(2)?;
        bytes += payload.len();
        batch.push((row.get(0)?, row.get(1)?, payload));
    }
    Ok(batch)
}

fn update_sql(table: &Table, name: &str, typed: &[usize]) -> String {
    let typed: String = typed
        .iter()
        .enumerate()
        .map(|(index, at)| {
            let column = quoted(&table.columns[*at].name);
            format!(", {column} = ?{}", index + 4)
        })
        .collect();
    format!(
        "UPDATE {name} SET _sync_payload = ?3{typed} \
         WHERE _sync_partition = ?1 AND _sync_row_id = ?2"
    )
}

fn write_row(
    update: &mut Query<'_>,
    table: &Table,
    typed: &[usize],
    partition: &str,
    row_id: &str,
    payload: &[u8],
) -> std::result::Result<(), StoreError> {
    let fields =
        decode_row(&table.columns, payload).map_err(|_| undecodable(&table.name, DURING))?;
    let write = |update: &mut Query<'_>| -> Result<()> {
        let statement = update.compiled()?;
        statement.raw_bind_parameter(1, partition)?;
        statement.raw_bind_parameter(2, row_id)?;
        statement.raw_bind_parameter(3, payload)?;
        for (index, at) in typed.iter().enumerate() {
            let value = Typed::new(&table.columns[*at], fields[*at].as_ref());
            statement.raw_bind_parameter(index + 4, value)?;
        }
        statement.raw_execute().map(drop)
    };
    write(update).map_err(failed(DURING))
}

/// Appends NULLs to the log's rows of a table.
///
/// The reference does not, so a log may hold rows of older layouts still. Nobody could read those
/// before, and they stay as they are until they are pruned.
pub(crate) fn widen_log(
    connection: &Connection,
    widened: &WidenedTable,
) -> std::result::Result<(), StoreError> {
    let left = rewrite_log(connection, widened).map_err(failed(DURING))?;
    if left > 0 {
        tracing::warn!(
            table = %widened.table.name,
            changes = left,
            "changes of the log have an older layout than the database says and were left alone"
        );
    }
    Ok(())
}

/// Rows of a table in the log, after a place.
pub(crate) const SELECT_LOG: &str = "SELECT partition, commit_seq, idx, payload FROM sync_changes \
    WHERE (partition, commit_seq, idx) > (?1, ?2, ?3) \
    AND tbl = ?4 AND payload IS NOT NULL \
    ORDER BY partition, commit_seq, idx LIMIT ?5";

pub(crate) const UPDATE_LOG: &str = "UPDATE sync_changes SET payload = ?4 \
    WHERE partition = ?1 AND commit_seq = ?2 AND idx = ?3";

fn rewrite_log(connection: &Connection, widened: &WidenedTable) -> Result<u64> {
    let mut select = Query::new(connection, SELECT_LOG);
    let mut update = Query::new(connection, UPDATE_LOG);
    let mut from = (String::new(), -1_i64, -1_i64);
    let mut left = 0;
    loop {
        let batch = log_batch(&mut select, &from, &widened.table.name)?;
        let Some((partition, seq, index, _)) = batch.last() else {
            return Ok(left);
        };
        from = (partition.clone(), *seq, *index);
        for (partition, seq, index, payload) in batch {
            match Widening::of(widened).append_nulls(&payload) {
                Some(payload) => update.execute(&[&partition, &seq, &index, &payload])?,
                None => {
                    left += 1;
                    0
                }
            };
        }
    }
}

pub(crate) type LogEntry = (String, i64, i64, Vec<u8>);

/// The next changes, bounded in number and bytes; none at the end.
pub(crate) fn log_batch(
    select: &mut Query<'_>,
    from: &(String, i64, i64),
    table: &str,
) -> Result<Vec<LogEntry>> {
    let mut rows = select.rows(&[&from.0, &from.1, &from.2, &table, &BATCH_ROWS])?;
    let mut batch = Vec::new();
    let mut bytes = 0;
    while bytes < BATCH_BYTES
        && let Some(row) = rows.next()?
    {
        let payload: Vec<u8> = row.get(3)?;
        bytes += payload.len();
        batch.push((row.get(0)?, row.get(1)?, row.get(2)?, payload));
    }
    Ok(batch)
}
