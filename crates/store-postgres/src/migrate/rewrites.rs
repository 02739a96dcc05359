//! Rewriting the rows and the log of a table that got columns, in bounded pieces (§9).
//!
//! Several nodes may start while it lasts. Every piece takes the lock of migrations, which ends
//! with its transaction, and reads under it how far the others came: they share the pieces, and
//! each is ready when nothing is noted any more. No session has to be kept, so a pooler between
//! is no trouble. To older servers the database is too new already.

use tidewater_schema::{Schema, Table, WidenedTable};
use tidewater_store::{
    StorageCode, StoreError,
    rewrite::{PIECE_ROWS, REPORTED_ROWS, Rewrite, Widening, undecodable},
};
use tokio_postgres::{Row, types::Type};

use super::{DURING, begin_snapshot, lock};
use crate::{
    error::{corrupt, get},
    link::{Link, Mode},
    params::{Param, Step},
    rewrite::{log_batch, report_left, row_batch, write_log, write_rows},
    successor,
};

const SELECT: &str = "SELECT tbl, stored_columns, columns, in_log, partition, row_id, commit_seq, \
    idx, done, (SELECT schema_version::int8 FROM sync_schema_meta WHERE id = 1) \
    FROM sync_row_rewrites";

const PUT: &str = "INSERT INTO sync_row_rewrites AS r (tbl, stored_columns, columns, in_log, \
    partition, row_id, commit_seq, idx, done) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
    ON CONFLICT (tbl) DO UPDATE SET stored_columns = excluded.stored_columns, \
    columns = excluded.columns, in_log = excluded.in_log, partition = excluded.partition, \
    row_id = excluded.row_id, commit_seq = excluded.commit_seq, idx = excluded.idx, \
    done = excluded.done";

/// What is left to be rewritten, if anything is. The table that says so is there.
pub(crate) async fn pending(link: &mut Link) -> Result<Vec<Rewrite>, StoreError> {
    let steps = [Step::once(format!("{SELECT} ORDER BY tbl"), Vec::new())];
    let answers = link.fly(&steps, DURING).await?.rows(DURING)?;
    answers[0].iter().map(rewrite).collect()
}

fn rewrite(row: &Row) -> Result<Rewrite, StoreError> {
    let count = |index| {
        let count: i32 = get(row, index, DURING)?;
        u32::try_from(count).map_err(|_| corrupt(DURING, "a count of columns is below zero"))
    };
    let idx: i32 = get(row, 7, DURING)?;
    Ok(Rewrite {
        table: get(row, 0, DURING)?,
        stored_columns: count(1)?,
        columns: count(2)?,
        in_log: get(row, 3, DURING)?,
        partition: get(row, 4, DURING)?,
        row_id: get(row, 5, DURING)?,
        commit_seq: get(row, 6, DURING)?,
        idx: i64::from(idx),
        done: get(row, 8, DURING)?,
    })
}

fn put(left: &Rewrite) -> Step<'_> {
    let int4 = |value: i64| Param::new(i32::try_from(value).unwrap_or(i32::MAX), Type::INT4);
    let params = vec![
        Param::text(&left.table),
        int4(i64::from(left.stored_columns)),
        int4(i64::from(left.columns)),
        Param::new(left.in_log, Type::BOOL),
        Param::text(&left.partition),
        Param::text(&left.row_id),
        Param::integer(left.commit_seq),
        int4(left.idx),
        Param::integer(left.done),
    ];
    Step::once(PUT, params)
}

/// Notes what is to be rewritten, if every row of it can be read.
pub(crate) async fn begin(link: &mut Link, widened: &WidenedTable) -> Result<(), StoreError> {
    let (table, widening) = (&widened.table.name, Widening::of(widened));
    let mut from = (String::new(), String::new());
    loop {
        let batch = row_batch(link, table, &from, PIECE_ROWS).await?;
        let Some((partition, row_id, _)) = batch.last() else {
            break;
        };
        from = (partition.clone(), successor(Some(row_id)));
        if batch.iter().any(|(_, _, row)| !widening.can_read(row)) {
            return Err(undecodable(table, DURING));
        }
    }
    let whole = Rewrite::whole(widened);
    let steps = [put(&whole)];
    link.fly(&steps, DURING).await?.rows(DURING).map(drop)
}

/// Carries out what is noted about tables of the schema.
pub(crate) async fn finish(link: &mut Link, schema: &Schema) -> Result<(), StoreError> {
    begin_snapshot(link).await?;
    let noted = pending(link).await?;
    link.commit(Vec::new(), DURING).await?;
    for noted in noted {
        let Some(index) = schema.find(&noted.table) else {
            continue;
        };
        let mut reported = noted.done;
        while let Some(left) = advance(link, schema, schema.table(index)).await? {
            if left.done - reported >= REPORTED_ROWS {
                reported = left.done;
                tracing::info!(table = %left.table, rows = left.done, "rewriting");
            }
        }
        tracing::info!(table = %noted.table, "rewritten");
    }
    Ok(())
}

/// Rewrites one more piece of a table, in a transaction of its own. `None` when there is none.
async fn advance(
    link: &mut Link,
    schema: &Schema,
    table: &Table,
) -> Result<Option<Rewrite>, StoreError> {
    let named = vec![Param::text(&table.name)];
    let beginning = [
        link.begin(Mode::Migrate),
        lock(),
        Step::once(format!("{SELECT} WHERE tbl = $1"), named),
    ];
    let answers = link.fly(&beginning, DURING).await?.rows(DURING)?;
    drop(beginning);
    let Some(row) = answers[2].first() else {
        link.commit(Vec::new(), DURING).await?;
        return Ok(None);
    };
    let version: i64 = get(row, 9, DURING)?;
    if version > i64::from(schema.version()) {
        return Err(StoreError::refused(
            StorageCode::SchemaNewer,
            DURING,
            format!("another server has brought the database to schema version {version}"),
        ));
    }
    let mut left = rewrite(row)?;
    let widening = left.widening(table, DURING)?;
    let is_over = if left.in_log {
        log_piece(link, widening, &mut left).await?
    } else {
        if row_piece(link, table, widening, &mut left).await? {
            left.begin_log();
        }
        false
    };
    let noted = if is_over {
        let named = vec![Param::text(&left.table)];
        Step::once("DELETE FROM sync_row_rewrites WHERE tbl = $1", named)
    } else {
        put(&left)
    };
    link.commit(vec![noted], DURING).await?;
    Ok(Some(left))
}

/// Rows, up to the bound; whether these were the last. Typed columns of what was appended are
/// NULL by themselves.
async fn row_piece(
    link: &mut Link,
    table: &Table,
    widening: Widening<'_>,
    left: &mut Rewrite,
) -> Result<bool, StoreError> {
    let mut room = PIECE_ROWS;
    while room > 0 {
        let from = (left.partition.clone(), left.row_id.clone());
        let batch = row_batch(link, &left.table, &from, room).await?;
        let Some((partition, row_id, _)) = batch.last() else {
            return Ok(true);
        };
        (left.partition, left.row_id) = (partition.clone(), successor(Some(row_id)));
        left.count(batch.len());
        room -= batch.len();
        write_rows(link, table, &[], &batch, |payload| {
            widening.append_nulls(payload)
        })
        .await?;
    }
    Ok(false)
}

/// Changes of the log, up to the bound; whether these were the last.
async fn log_piece(
    link: &mut Link,
    widening: Widening<'_>,
    left: &mut Rewrite,
) -> Result<bool, StoreError> {
    let (mut room, mut unread) = (PIECE_ROWS, 0);
    let is_over = loop {
        if room == 0 {
            break false;
        }
        let idx = i32::try_from(left.idx).unwrap_or(i32::MAX);
        let from = (left.partition.clone(), left.commit_seq, idx);
        let batch = log_batch(link, &left.table, &from, room).await?;
        let Some((partition, seq, index, _)) = batch.last() else {
            break true;
        };
        (left.partition, left.commit_seq) = (partition.clone(), *seq);
        left.idx = i64::from(*index);
        left.count(batch.len());
        room -= batch.len();
        unread += write_log(link, widening, &batch).await?;
    };
    report_left(&left.table, unread);
    Ok(is_over)
}
