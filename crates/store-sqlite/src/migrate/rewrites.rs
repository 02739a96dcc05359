//! Rewriting the rows and the log of a table that got columns, in bounded pieces (§9).
//!
//! Nobody serves the database meanwhile: to older servers it is too new, and this one is ready
//! when nothing is noted any more. Rows that cannot be read are found before anything is written.

use rusqlite::{Connection, OptionalExtension as _, Row};
use tidewater_schema::{Schema, Table, WidenedTable};
use tidewater_store::{
    StoreError,
    rewrite::{PIECE_ROWS, REPORTED_ROWS, Rewrite, Widening, undecodable},
};

use super::DURING;
use crate::{
    error::failed,
    rewrite::{log_batch, row_batch},
    session::Session,
    statements::{Query, quoted},
    successor,
};

/// What is left to be rewritten, if anything is.
pub(crate) fn pending(connection: &Connection) -> Result<Vec<Rewrite>, StoreError> {
    let read = || -> rusqlite::Result<Vec<Rewrite>> {
        let known = connection
            .query_row(
                "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'sync_row_rewrites'",
                [],
                |_| Ok(()),
            )
            .optional()?;
        if known.is_none() {
            return Ok(Vec::new());
        }
        connection
            .prepare(
                "SELECT tbl, stored_columns, columns, in_log, partition, row_id, commit_seq, idx, \
                 done FROM sync_row_rewrites ORDER BY tbl",
            )?
            .query_map([], rewrite)?
            .collect()
    };
    read().map_err(failed(DURING))
}

fn rewrite(row: &Row<'_>) -> rusqlite::Result<Rewrite> {
    Ok(Rewrite {
        table: row.get(0)?,
        stored_columns: row.get(1)?,
        columns: row.get(2)?,
        in_log: row.get(3)?,
        partition: row.get(4)?,
        row_id: row.get(5)?,
        commit_seq: row.get(6)?,
        idx: row.get(7)?,
        done: row.get(8)?,
    })
}

/// Notes what is to be rewritten, if every row of it can be read.
pub(crate) fn begin(connection: &Connection, widened: &WidenedTable) -> Result<(), StoreError> {
    check(connection, widened)?;
    put(connection, &Rewrite::whole(widened)).map_err(failed(DURING))
}

fn check(connection: &Connection, widened: &WidenedTable) -> Result<(), StoreError> {
    let widening = Widening::of(widened);
    let mut select = Query::new(connection, select_rows(&widened.table.name));
    let mut from = (String::new(), String::new());
    loop {
        let batch = row_batch(&mut select, &from).map_err(failed(DURING))?;
        let Some((partition, row_id, _)) = batch.last() else {
            return Ok(());
        };
        from = (partition.clone(), successor(Some(row_id)));
        if batch.iter().any(|(_, _, row)| !widening.can_read(row)) {
            return Err(undecodable(&widened.table.name, DURING));
        }
    }
}

/// Carries out what is noted about tables of the schema.
pub(crate) fn finish(session: &mut Session<'_>, schema: &Schema) -> Result<(), StoreError> {
    for mut left in pending(session.connection)? {
        let Some(index) = schema.find(&left.table) else {
            continue;
        };
        let mut reported = left.done;
        while advance(session, schema.table(index), &mut left, PIECE_ROWS)? {
            if left.done - reported >= REPORTED_ROWS {
                reported = left.done;
                tracing::info!(table = %left.table, rows = left.done, "rewriting");
            }
        }
        tracing::info!(table = %left.table, rows = left.done, "rewritten");
    }
    Ok(())
}

/// Rewrites one more piece; whether there may be another.
pub(crate) fn advance(
    session: &mut Session<'_>,
    table: &Table,
    left: &mut Rewrite,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let before = left.clone();
    let advanced = session.transact(DURING, |session| {
        let connection = session.connection;
        let widening = left.widening(table, DURING)?;
        let more = if left.in_log {
            log_piece(connection, &widening, left, rows_max).map_err(failed(DURING))?
        } else {
            if !row_piece(connection, &widening, left, rows_max)? {
                left.begin_log();
            }
            true
        };
        if more {
            put(connection, left)
        } else {
            let remove = "DELETE FROM sync_row_rewrites WHERE tbl = ?1";
            connection.execute(remove, [&left.table]).map(drop)
        }
        .map_err(failed(DURING))?;
        Ok(more)
    });
    if advanced.is_err() {
        *left = before;
    }
    advanced
}

fn put(connection: &Connection, left: &Rewrite) -> rusqlite::Result<()> {
    connection
        .execute(
            "INSERT OR REPLACE INTO sync_row_rewrites (tbl, stored_columns, columns, in_log, \
             partition, row_id, commit_seq, idx, done) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            (
                &left.table,
                left.stored_columns,
                left.columns,
                left.in_log,
                &left.partition,
                &left.row_id,
                left.commit_seq,
                left.idx,
                left.done,
            ),
        )
        .map(drop)
}

fn select_rows(table: &str) -> String {
    format!(
        "SELECT _sync_partition, _sync_row_id, _sync_payload FROM {} \
         WHERE (_sync_partition, _sync_row_id) >= (?1, ?2) \
         ORDER BY _sync_partition, _sync_row_id LIMIT ?3",
        quoted(table)
    )
}

/// Rows, up to the bound; whether there may be more. Typed columns of what was appended are NULL
/// by themselves.
fn row_piece(
    connection: &Connection,
    widening: &Widening<'_>,
    left: &mut Rewrite,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let mut select = Query::new(connection, select_rows(&left.table));
    let mut update = Query::new(
        connection,
        format!(
            "UPDATE {} SET _sync_payload = ?3 WHERE _sync_partition = ?1 AND _sync_row_id = ?2",
            quoted(&left.table)
        ),
    );
    let mut count = 0;
    while count < rows_max {
        let from = (left.partition.clone(), left.row_id.clone());
        let mut batch = row_batch(&mut select, &from).map_err(failed(DURING))?;
        batch.truncate(rows_max - count);
        let Some((partition, row_id, _)) = batch.last() else {
            return Ok(false);
        };
        (left.partition, left.row_id) = (partition.clone(), successor(Some(row_id)));
        count += batch.len();
        left.count(batch.len());
        for (partition, row_id, payload) in batch {
            let payload = widening.append_nulls(&payload);
            let payload = payload.ok_or_else(|| undecodable(&left.table, DURING))?;
            update
                .execute(&[&partition, &row_id, &payload])
                .map_err(failed(DURING))?;
        }
    }
    Ok(true)
}

/// Changes of the log, up to the bound; whether there may be more.
///
/// The reference does not rewrite them, so a log may hold rows of older layouts still. Nobody
/// could read those before, and they stay as they are until they are pruned.
fn log_piece(
    connection: &Connection,
    widening: &Widening<'_>,
    left: &mut Rewrite,
    rows_max: usize,
) -> rusqlite::Result<bool> {
    let mut select = Query::new(connection, crate::rewrite::SELECT_LOG);
    let mut update = Query::new(connection, crate::rewrite::UPDATE_LOG);
    let mut count = 0;
    while count < rows_max {
        let from = (left.partition.clone(), left.commit_seq, left.idx);
        let mut batch = log_batch(&mut select, &from, &left.table)?;
        batch.truncate(rows_max - count);
        let Some((partition, seq, idx, _)) = batch.last() else {
            return Ok(false);
        };
        (left.partition, left.commit_seq, left.idx) = (partition.clone(), *seq, *idx);
        count += batch.len();
        left.count(batch.len());
        for (partition, seq, idx, payload) in batch {
            match widening.append_nulls(&payload) {
                Some(payload) => drop(update.execute(&[&partition, &seq, &idx, &payload])?),
                None => tracing::warn!(
                    table = %left.table,
                    commit_seq = seq,
                    "a change of the log has an older layout than the database says and stays"
                ),
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidewater_store::{
        StorageCode, StoreErrorKind,
        conformance::fixtures::{Item, compile, schema, schema_document},
    };

    use super::*;
    use crate::migrate;

    /// Version 2: another column in `notes`.
    fn wider() -> Arc<Schema> {
        let mut document = schema_document();
        document["schemaVersion"] = serde_json::json!(2);
        let column = serde_json::json!({"name": "extra", "type": "integer", "nullable": true});
        let columns = document["tables"][0]["columns"].as_array_mut();
        columns.unwrap().push(column);
        compile(&document)
    }

    const ROWS: i64 = 7;

    /// A database at version 1 with so many rows and changes, of two partitions.
    fn database() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        migrate::prepare(&mut Session::new(&connection), &schema()).unwrap();
        for number in 0..ROWS {
            let id = format!("n{number}");
            let payload = Item::note(&id).payload();
            let partition = if number % 2 == 0 { "p" } else { "q" };
            connection
                .execute(
                    "INSERT INTO notes (_sync_partition, _sync_row_id, id, team, owner, \
                     _sync_server_version, _sync_scopes, _sync_payload) \
                     VALUES (?1, ?2, ?2, 't1', 'o1', 1, '{}', ?3)",
                    (partition, &id, &payload[..]),
                )
                .unwrap();
            connection
                .execute(
                    "INSERT INTO sync_changes (partition, commit_seq, idx, tbl, row_id, op, \
                     row_version, scopes, payload) VALUES (?1, ?2, 0, 'notes', ?3, 1, 1, '{}', ?4)",
                    (partition, number, &id, &payload[..]),
                )
                .unwrap();
        }
        connection
    }

    /// The lengths of the columns of every row and change; `None` where one cannot be read.
    fn widths(connection: &Connection, schema: &Schema) -> Vec<Option<usize>> {
        let columns = &schema.tables()[0].columns;
        [
            "SELECT _sync_payload FROM notes",
            "SELECT payload FROM sync_changes",
        ]
        .into_iter()
        .flat_map(|sql| {
            let mut select = connection.prepare(sql).unwrap();
            let rows = select
                .query_map([], |row| row.get::<_, Vec<u8>>(0))
                .unwrap();
            rows.map(Result::unwrap).collect::<Vec<_>>()
        })
        .map(|row| {
            let fields = tidewater_wire::row::decode_row(columns, &row).ok()?;
            Some(fields.len())
        })
        .collect()
    }

    /// What an upgrade does before it rewrites.
    fn begin_upgrade(connection: &Connection, schema: &Arc<Schema>) {
        let mut session = Session::new(connection);
        migrate::carry_out(&mut session, schema).unwrap();
    }

    #[test]
    fn a_rewrite_that_is_stopped_after_any_piece_goes_on_where_it_was() {
        let schema = wider();
        let table = &schema.tables()[0];
        for rows_max in [1, 2, 3, 100] {
            for pieces in 0..20 {
                let connection = database();
                begin_upgrade(&connection, &schema);
                let mut session = Session::new(&connection);
                let mut left = pending(&connection).unwrap().remove(0);
                for _ in 0..pieces {
                    if !advance(&mut session, table, &mut left, rows_max).unwrap() {
                        break;
                    }
                }
                // The process is gone; another one starts.
                drop(session);
                let mut session = Session::new(&connection);
                migrate::prepare(&mut session, &schema).unwrap();
                assert_eq!(pending(&connection).unwrap(), []);
                let widths = widths(&connection, &schema);
                assert_eq!(widths, vec![Some(6); 14], "{pieces} pieces of {rows_max}");
                assert!(migrate::plan(&mut session, &schema).unwrap().is_empty());
            }
        }
    }

    #[test]
    fn a_piece_that_fails_leaves_the_rewrite_where_it_was() {
        let (connection, schema) = (database(), wider());
        begin_upgrade(&connection, &schema);
        let mut session = Session::new(&connection);
        let mut left = pending(&connection).unwrap().remove(0);
        let table = &schema.tables()[0];
        advance(&mut session, table, &mut left, 2).unwrap();
        let noted = left.clone();
        connection
            .execute_batch(
                "CREATE TRIGGER full BEFORE UPDATE ON notes WHEN OLD._sync_row_id = 'n1' \
                 BEGIN SELECT RAISE(ABORT, 'the disk is full'); END",
            )
            .unwrap();
        advance(&mut session, table, &mut left, 100).unwrap_err();
        assert_eq!(left, noted);
        assert_eq!(pending(&connection).unwrap(), [noted]);
        connection.execute_batch("DROP TRIGGER full").unwrap();
        drop(session);
        migrate::prepare(&mut Session::new(&connection), &schema).unwrap();
        assert_eq!(widths(&connection, &schema), vec![Some(6); 14]);
    }

    #[test]
    fn an_older_server_refuses_a_database_that_is_being_rewritten() {
        let (connection, newer) = (database(), wider());
        begin_upgrade(&connection, &newer);
        let mut session = Session::new(&connection);
        let error = migrate::prepare(&mut session, &schema()).unwrap_err();
        let refused = StoreErrorKind::Refused(StorageCode::SchemaNewer);
        assert_eq!(error.kind, refused);
        let steps = migrate::plan(&mut session, &newer).unwrap();
        let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
        let step = "go on rewriting table `notes`, of which 0 rows and changes are done";
        assert_eq!(steps, [step]);
    }

    #[test]
    fn a_later_version_finishes_what_an_earlier_one_began() {
        let (connection, second) = (database(), wider());
        begin_upgrade(&connection, &second);
        let mut session = Session::new(&connection);
        let mut left = pending(&connection).unwrap().remove(0);
        advance(&mut session, &second.tables()[0], &mut left, 3).unwrap();
        let mut document = schema_document();
        document["schemaVersion"] = serde_json::json!(3);
        for name in ["extra", "more"] {
            let column = serde_json::json!({"name": name, "type": "integer", "nullable": true});
            let columns = document["tables"][0]["columns"].as_array_mut();
            columns.unwrap().push(column);
        }
        let third = compile(&document);
        migrate::prepare(&mut session, &third).unwrap();
        assert_eq!(widths(&connection, &third), vec![Some(7); 14]);
    }

    #[test]
    fn a_row_that_cannot_be_read_is_found_before_anything_is_written() {
        let (connection, newer) = (database(), wider());
        let damage = "UPDATE notes SET _sync_payload = x'ff' WHERE _sync_row_id = 'n6'";
        connection.execute(damage, []).unwrap();
        let mut session = Session::new(&connection);
        let error = migrate::prepare(&mut session, &newer).unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Corrupt);
        let version = "SELECT schema_version FROM sync_schema_meta";
        let version: i32 = connection.query_row(version, [], |row| row.get(0)).unwrap();
        assert_eq!(version, 1);
        assert_eq!(pending(&connection).unwrap(), []);
    }
}
