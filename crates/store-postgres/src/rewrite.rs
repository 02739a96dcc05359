//! Rewrites stored rows for a schema that appended columns to them.
//!
//! Rows are read a batch at a time by their keys, so that a large table is never held whole. The
//! log is rewritten too: everything stored is encoded for the schema in force, and a client that
//! continues from its cursor is served from the log.

use tidewater_schema::{Table, WidenedTable};
use tidewater_store::{StoreError, StoreErrorKind};
use tidewater_wire::row::{Column, decode_row, encode_row};
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
const BATCH_ROWS: i64 = 500;

/// Appends NULLs to the rows of a table and fills its typed columns.
pub(crate) async fn widen_rows(
    link: &mut Link,
    widened: &WidenedTable,
    typed: &[usize],
) -> Result<(), StoreError> {
    let append = |payload: &[u8]| append_nulls(widened, payload);
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
    let name = quoted(&table.name);
    let select = format!(
        "SELECT _sync_partition, _sync_row_id, _sync_payload FROM {name} \
         WHERE (_sync_partition, _sync_row_id) >= ($1, $2) \
         ORDER BY _sync_partition, _sync_row_id LIMIT $3"
    );
    let update = update_sql(table, &name, typed);
    let mut from = (String::new(), String::new());
    loop {
        let params = vec![
            Param::text(&from.0),
            Param::text(&from.1),
            Param::integer(BATCH_ROWS),
        ];
        let steps = [Step::once(select.as_str(), params)];
        let rows = link.fly(&steps, DURING).await?.rows(DURING)?;
        drop(steps);
        let Some(last) = rows[0].last() else {
            return Ok(());
        };
        let (mut partitions, mut ids, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
        for row in &rows[0] {
            partitions.push(get::<&str>(row, 0, DURING)?);
            ids.push(get::<&str>(row, 1, DURING)?);
            let payload = change(get(row, 2, DURING)?);
            payloads.push(payload.ok_or_else(|| undecodable(&table.name))?);
        }
        let mut columns = typed::columns(&table.columns, typed);
        for payload in &payloads {
            let fields =
                decode_row(&table.columns, payload).map_err(|_| undecodable(&table.name))?;
            for (column, at) in columns.iter_mut().zip(typed) {
                column.push(fields[*at].as_ref());
            }
        }
        let mut params = vec![
            Param::texts(partitions),
            Param::texts(ids),
            Param::bytes(payloads.iter().map(|payload| Some(&payload[..])).collect()),
        ];
        params.extend(columns.into_iter().map(typed::TypedColumn::into_param));
        let steps = [Step::once(update.as_str(), params)];
        link.fly(&steps, DURING).await?.rows(DURING)?;
        let id: &str = get(last, 1, DURING)?;
        from = (get(last, 0, DURING)?, successor(Some(id)));
    }
}

fn update_sql(table: &Table, name: &str, typed: &[usize]) -> String {
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

const LOG: &str = "SELECT partition, commit_seq, idx, payload FROM sync_changes \
    WHERE (partition, commit_seq, idx) > ($1, $2, $3) AND tbl = $4 AND payload IS NOT NULL \
    ORDER BY partition, commit_seq, idx LIMIT $5";

const UPDATE_LOG: &str = "UPDATE sync_changes h SET payload = q.payload \
    FROM unnest($1::text[], $2::int8[], $3::int4[], $4::bytea[]) \
    AS q (partition, commit_seq, idx, payload) WHERE h.partition = q.partition \
    AND h.commit_seq = q.commit_seq AND h.idx = q.idx";

/// Appends NULLs to the log's rows of a table.
///
/// The reference does not, so a log may hold rows of older layouts still. Nobody could read those
/// before, and they stay as they are until they are pruned.
pub(crate) async fn widen_log(link: &mut Link, widened: &WidenedTable) -> Result<(), StoreError> {
    let mut from = (String::new(), -1_i64, -1_i32);
    let mut left = 0_u64;
    loop {
        let params = vec![
            Param::text(&from.0),
            Param::integer(from.1),
            Param::new(from.2, Type::INT4),
            Param::text(&widened.table.name),
            Param::integer(BATCH_ROWS),
        ];
        let steps = [Step::once(LOG, params)];
        let rows = link.fly(&steps, DURING).await?.rows(DURING)?;
        drop(steps);
        let Some(last) = rows[0].last() else {
            break;
        };
        let (mut partitions, mut seqs) = (Vec::new(), Vec::new());
        let (mut indexes, mut payloads) = (Vec::new(), Vec::new());
        for row in &rows[0] {
            let Some(payload) = append_nulls(widened, get(row, 3, DURING)?) else {
                left += 1;
                continue;
            };
            partitions.push(get::<&str>(row, 0, DURING)?);
            seqs.push(get::<i64>(row, 1, DURING)?);
            indexes.push(get::<i32>(row, 2, DURING)?);
            payloads.push(payload);
        }
        let params = vec![
            Param::texts(partitions),
            Param::integers(seqs),
            Param::new(indexes, Type::INT4_ARRAY),
            Param::bytes(payloads.iter().map(|payload| Some(&payload[..])).collect()),
        ];
        let steps = [Step::once(UPDATE_LOG, params)];
        link.fly(&steps, DURING).await?.rows(DURING)?;
        from = (
            get(last, 0, DURING)?,
            get(last, 1, DURING)?,
            get(last, 2, DURING)?,
        );
    }
    if left > 0 {
        tracing::warn!(
            table = %widened.table.name,
            changes = left,
            "changes of the log have an older layout than the database says and were left alone"
        );
    }
    Ok(())
}

fn append_nulls(widened: &WidenedTable, payload: &[u8]) -> Option<Vec<u8>> {
    let before: &[Column] = widened.before();
    let fields = decode_row(before, payload).ok()?;
    let values: Vec<Option<&[u8]>> = fields
        .iter()
        .map(|field| field.as_ref().map(|field| field.encoded))
        .chain(widened.appended().iter().map(|_| None))
        .collect();
    Some(encode_row(&values))
}

fn undecodable(table: &str) -> StoreError {
    let mut error = StoreError::new(StoreErrorKind::Corrupt, DURING);
    error.detail = Some(format!(
        "a row of table `{table}` is not encoded as the database says: restore a backup"
    ));
    error
}
