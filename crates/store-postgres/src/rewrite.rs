//! Rewrites stored rows for a schema that appended columns to them.
//!
//! Rows are read a batch at a time by their keys, so that a large table is never held whole. The
//! log is rewritten too: everything stored is encoded for the schema in force, and a client that
//! continues from its cursor is served from the log.

use tidewater_schema::{Table, WidenedTable};
use tidewater_store::{
    StoreError,
    rewrite::{Widening, undecodable},
};
use tidewater_wire::row::decode_row;
use tokio_postgres::types::Type;

use crate::{
    error::get,
    link::Link,
    params::{Param, Step},
    statements::quoted,
    successor,
    typed::{self, conversion, sent_type},
};

const DURING: &str = "rewrite stored rows";

/// Rows read at a time.
const BATCH_ROWS: usize = 500;

/// Bytes of payloads before the last row that is read at a time.
const BATCH_BYTES: i64 = 4 * 1024 * 1024;

/// Appends NULLs to the rows of a table and fills its typed columns.
pub(crate) async fn widen_rows(
    link: &mut Link,
    widened: &WidenedTable,
    typed: &[usize],
) -> Result<(), StoreError> {
    let append = |payload: &[u8]| Widening::of(widened).append_nulls(payload);
    rewrite(link, &widened.table, typed, append).await
}

/// Fills the typed columns of a table from its payloads.
pub(crate) async fn fill_typed(
    link: &mut Link,
    table: &Table,
    typed: &[usize],
) -> Result<(), StoreError> {
    rewrite(link, table, typed, |payload| Some(payload.to_vec())).await
}

async fn rewrite(
    link: &mut Link,
    table: &Table,
    typed: &[usize],
    change: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<(), StoreError> {
    let mut from = (String::new(), String::new());
    loop {
        let batch = row_batch(link, &table.name, &from, BATCH_ROWS).await?;
        let Some((partition, row_id, _)) = batch.last() else {
            return Ok(());
        };
        from = (partition.clone(), successor(Some(row_id)));
        write_rows(link, table, typed, &batch, &change).await?;
    }
}

/// A stored row: partition, row id, payload.
pub(crate) type StoredPayload = (String, String, Vec<u8>);

/// The next rows from a place on, bounded in number and bytes; none at the end.
pub(crate) async fn row_batch(
    link: &mut Link,
    table: &str,
    from: &(String, String),
    rows_max: usize,
) -> Result<Vec<StoredPayload>, StoreError> {
    let sql = format!(
        "SELECT p, i, payload FROM (SELECT b.*, sum(octet_length(payload)) OVER (ORDER BY p, i) \
         - octet_length(payload) AS before FROM (SELECT _sync_partition AS p, _sync_row_id AS i, \
         _sync_payload AS payload FROM {} WHERE (_sync_partition, _sync_row_id) >= ($1, $2) \
         ORDER BY _sync_partition, _sync_row_id LIMIT $3) b) f WHERE before <= $4 ORDER BY p, i",
        quoted(table)
    );
    let params = vec![
        Param::text(&from.0),
        Param::text(&from.1),
        Param::count(rows_max.min(BATCH_ROWS)),
        Param::integer(BATCH_BYTES),
    ];
    let steps = [Step::new(sql, params)];
    let answers = link.fly(&steps, DURING).await?.rows(DURING)?;
    let rows = answers[0].iter();
    rows.map(|row| {
        Ok((
            get(row, 0, DURING)?,
            get(row, 1, DURING)?,
            get(row, 2, DURING)?,
        ))
    })
    .collect()
}

/// Writes rows as `change` makes them, with typed columns from their payloads.
pub(crate) async fn write_rows(
    link: &mut Link,
    table: &Table,
    typed: &[usize],
    batch: &[StoredPayload],
    change: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<(), StoreError> {
    let (mut partitions, mut ids, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
    for (partition, id, payload) in batch {
        partitions.push(partition.as_str());
        ids.push(id.as_str());
        let payload = change(payload);
        payloads.push(payload.ok_or_else(|| undecodable(&table.name, DURING))?);
    }
    let mut columns = typed::columns(&table.columns, typed);
    if !typed.is_empty() {
        for payload in &payloads {
            let fields = decode_row(&table.columns, payload)
                .map_err(|_| undecodable(&table.name, DURING))?;
            for (column, at) in columns.iter_mut().zip(typed) {
                column.push(fields[*at].as_ref());
            }
        }
    }
    let mut params = vec![
        Param::texts(partitions),
        Param::texts(ids),
        Param::bytes(payloads.iter().map(|payload| Some(&payload[..])).collect()),
    ];
    params.extend(columns.into_iter().map(typed::TypedColumn::into_param));
    let steps = [Step::new(update_sql(table, typed), params)];
    link.fly(&steps, DURING).await?.rows(DURING).map(drop)
}

fn update_sql(table: &Table, typed: &[usize]) -> String {
    let name = quoted(&table.name);
    let columns = || typed.iter().enumerate();
    let arrays: String = columns()
        .map(|(index, at)| format!(", ${}::{}[]", index + 4, sent_type(table.columns[*at].kind)))
        .collect();
    let names: String = columns().map(|(index, _)| format!(", v{index}")).collect();
    let values: String = columns()
        .map(|(index, at)| {
            let column = &table.columns[*at];
            let name = quoted(&column.name);
            format!(", {name} = q.v{index}{}", conversion(column.kind))
        })
        .collect();
    format!(
        "UPDATE {name} t SET _sync_payload = q.payload{values} \
         FROM unnest($1::text[], $2::text[], $3::bytea[]{arrays}) \
         AS q (partition, row_id, payload{names}) \
         WHERE t._sync_partition = q.partition AND t._sync_row_id = q.row_id"
    )
}

const LOG: &str = "SELECT partition, commit_seq, idx, payload FROM (\
    SELECT b.*, sum(octet_length(payload)) OVER (ORDER BY partition, commit_seq, idx) \
    - octet_length(payload) AS before FROM (\
    SELECT partition, commit_seq, idx, payload FROM sync_changes \
    WHERE (partition, commit_seq, idx) > ($1, $2, $3) AND tbl = $4 AND payload IS NOT NULL \
    ORDER BY partition, commit_seq, idx LIMIT $5) b) f WHERE before <= $6 \
    ORDER BY partition, commit_seq, idx";

const UPDATE_LOG: &str = "UPDATE sync_changes h SET payload = q.payload \
    FROM unnest($1::text[], $2::int8[], $3::int4[], $4::bytea[]) \
    AS q (partition, commit_seq, idx, payload) WHERE h.partition = q.partition \
    AND h.commit_seq = q.commit_seq AND h.idx = q.idx";

/// A change of the log: where it is, and its payload.
pub(crate) type LogEntry = (String, i64, i32, Vec<u8>);

/// The next changes of a table after a place, bounded in number and bytes; none at the end.
pub(crate) async fn log_batch(
    link: &mut Link,
    table: &str,
    from: &(String, i64, i32),
    rows_max: usize,
) -> Result<Vec<LogEntry>, StoreError> {
    let params = vec![
        Param::text(&from.0),
        Param::integer(from.1),
        Param::new(from.2, Type::INT4),
        Param::text(table),
        Param::count(rows_max.min(BATCH_ROWS)),
        Param::integer(BATCH_BYTES),
    ];
    let steps = [Step::new(LOG, params)];
    let answers = link.fly(&steps, DURING).await?.rows(DURING)?;
    let entry = |row| {
        let place = (
            get(row, 0, DURING)?,
            get(row, 1, DURING)?,
            get(row, 2, DURING)?,
        );
        Ok((place.0, place.1, place.2, get(row, 3, DURING)?))
    };
    answers[0].iter().map(entry).collect()
}

/// Appends NULLs to changes of the log. Returns how many were left alone.
///
/// The reference does not rewrite them, so a log may hold rows of older layouts still. Nobody
/// could read those before, and they stay as they are until they are pruned.
pub(crate) async fn write_log(
    link: &mut Link,
    widening: Widening<'_>,
    batch: &[LogEntry],
) -> Result<u64, StoreError> {
    let (mut partitions, mut seqs) = (Vec::new(), Vec::new());
    let (mut indexes, mut payloads) = (Vec::new(), Vec::new());
    let mut left = 0;
    for (partition, seq, index, payload) in batch {
        let Some(payload) = widening.append_nulls(payload) else {
            left += 1;
            continue;
        };
        partitions.push(partition.as_str());
        seqs.push(*seq);
        indexes.push(*index);
        payloads.push(payload);
    }
    let params = vec![
        Param::texts(partitions),
        Param::integers(seqs),
        Param::new(indexes, Type::INT4_ARRAY),
        Param::bytes(payloads.iter().map(|payload| Some(&payload[..])).collect()),
    ];
    let steps = [Step::new(UPDATE_LOG, params)];
    link.fly(&steps, DURING).await?.rows(DURING)?;
    Ok(left)
}

/// Appends NULLs to the log's rows of a table, at once.
pub(crate) async fn widen_log(link: &mut Link, widened: &WidenedTable) -> Result<(), StoreError> {
    let mut from = (String::new(), -1, -1);
    let mut left = 0;
    loop {
        let batch = log_batch(link, &widened.table.name, &from, BATCH_ROWS).await?;
        let Some((partition, seq, index, _)) = batch.last() else {
            break;
        };
        from = (partition.clone(), *seq, *index);
        left += write_log(link, Widening::of(widened), &batch).await?;
    }
    report_left(&widened.table.name, left);
    Ok(())
}

/// Says what stays as it is.
pub(crate) fn report_left(table: &str, changes: u64) {
    if changes > 0 {
        tracing::warn!(
            table,
            changes,
            "changes of the log have an older layout than the database says and were left alone"
        );
    }
}
