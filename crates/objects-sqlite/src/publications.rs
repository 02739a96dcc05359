//! What segments were published as, in a table of our own.
//!
//! The reference's table has room for one context per segment. Here every publication is a row;
//! the columns of the segment's own row are those of its first publication and are read only when
//! a segment has none here, which is so for segments that the reference stored.

use std::sync::Arc;

use rusqlite::{Connection, Row, ToSql, params, params_from_iter};
use tidewater_model::{CommitSeq, LogEpoch, PartitionId, limits::PUBLICATIONS_PER_SEGMENT_MAX};
use tidewater_objects::{Publication, PublicationContext, SegmentKey};
use tidewater_wire::MediaType;

pub(crate) const TABLES: &str = "
CREATE TABLE IF NOT EXISTS sync_segments(
  segment_id TEXT PRIMARY KEY, partition TEXT NOT NULL, log_epoch TEXT NOT NULL DEFAULT '',
  tbl TEXT NOT NULL, schema_version INTEGER NOT NULL, media_type TEXT NOT NULL,
  scope_digest TEXT NOT NULL, as_of_commit_seq INTEGER NOT NULL, row_count INTEGER NOT NULL,
  row_cursor TEXT, next_row_cursor TEXT, byte_length INTEGER NOT NULL,
  created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL, bytes BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS sync_segment_publications(
  segment_id TEXT NOT NULL, partition TEXT NOT NULL, log_epoch TEXT NOT NULL,
  tbl TEXT NOT NULL, schema_version INTEGER NOT NULL, media_type TEXT NOT NULL,
  scope_digest TEXT NOT NULL, as_of_commit_seq INTEGER NOT NULL,
  row_cursor TEXT, next_row_cursor TEXT,
  created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS sync_segment_publications_by_segment
  ON sync_segment_publications(segment_id);
CREATE INDEX IF NOT EXISTS sync_segment_publications_by_key
  ON sync_segment_publications(partition, scope_digest, tbl, as_of_commit_seq, row_cursor);
CREATE INDEX IF NOT EXISTS sync_segment_publications_by_end
  ON sync_segment_publications(expires_at_ms);
";

const COLUMNS: &str = "partition, log_epoch, tbl, schema_version, media_type, scope_digest,
  as_of_commit_seq, row_cursor, next_row_cursor, created_at_ms, expires_at_ms";

const SAME_CONTEXT: &str = "segment_id = ?1 AND partition = ?2 AND log_epoch = ?3 AND tbl = ?4
  AND schema_version = ?5 AND media_type = ?6 AND scope_digest = ?7
  AND as_of_commit_seq = ?8 AND row_cursor IS ?9 AND next_row_cursor IS ?10";

/// Makes the tables, and publications of what the reference stored.
pub(crate) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(TABLES)?;
    let has_epoch: bool = connection.query_row(
        "SELECT count(*) FROM pragma_table_info('sync_segments') WHERE name = 'log_epoch'",
        [],
        |row| row.get(0),
    )?;
    if !has_epoch {
        connection.execute_batch(
            "ALTER TABLE sync_segments ADD COLUMN log_epoch TEXT NOT NULL DEFAULT ''",
        )?;
    }
    connection.execute(
        &format!(
            "INSERT INTO sync_segment_publications(segment_id, {COLUMNS})
             SELECT segment_id, {COLUMNS} FROM sync_segments
             WHERE segment_id NOT IN (SELECT segment_id FROM sync_segment_publications)"
        ),
        [],
    )?;
    Ok(())
}

/// Every publication of a segment, the oldest first.
pub(crate) fn of_segment(connection: &Connection, id: &str) -> rusqlite::Result<Vec<Publication>> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM sync_segment_publications WHERE segment_id = ?1 ORDER BY rowid"
    ))?;
    let rows = select.query_map([id], read)?;
    rows.collect()
}

/// Adds a publication, or renews the one with an equal context; whether it was renewed.
pub(crate) fn merge(
    connection: &Connection,
    id: &str,
    publication: &Publication,
) -> rusqlite::Result<bool> {
    let context = &*publication.context;
    let media_type = context.key.media_type.name();
    let values: [&dyn ToSql; 12] = [
        &id,
        &context.key.partition.as_str(),
        &context.key.log_epoch.as_str(),
        &context.key.table,
        &context.key.schema_version,
        &media_type,
        &context.key.scope_digest,
        &context.key.as_of.to_i64(),
        &context.row_cursor,
        &context.next_row_cursor,
        &publication.created_at_ms,
        &publication.expires_at_ms,
    ];
    // A clock that was set back must not shorten a lifetime that was promised.
    let renewed = connection
        .prepare_cached(&format!(
            "UPDATE sync_segment_publications SET expires_at_ms = max(expires_at_ms, ?11)
             WHERE {SAME_CONTEXT}"
        ))?
        .execute(params_from_iter(
            values[..10].iter().chain([&values[11]]).copied(),
        ))?;
    if renewed > 0 {
        return Ok(true);
    }
    let most = i64::try_from(PUBLICATIONS_PER_SEGMENT_MAX).expect("a small number");
    connection
        .prepare_cached(
            "DELETE FROM sync_segment_publications WHERE rowid IN (
               SELECT rowid FROM sync_segment_publications WHERE segment_id = ?1
               ORDER BY expires_at_ms DESC LIMIT -1 OFFSET ?2)",
        )?
        .execute(params![id, most - 1])?;
    connection
        .prepare_cached(&format!(
            "INSERT INTO sync_segment_publications(segment_id, {COLUMNS})
             VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
        ))?
        .execute(params_from_iter(values))?;
    Ok(false)
}

/// Removes one publication.
pub(crate) fn remove(
    connection: &Connection,
    id: &str,
    publication: &Publication,
) -> rusqlite::Result<()> {
    let context = &*publication.context;
    connection
        .prepare_cached(&format!(
            "DELETE FROM sync_segment_publications WHERE {SAME_CONTEXT}"
        ))?
        .execute(params![
            id,
            context.key.partition.as_str(),
            context.key.log_epoch.as_str(),
            context.key.table,
            context.key.schema_version,
            context.key.media_type.name(),
            context.key.scope_digest,
            context.key.as_of.to_i64(),
            context.row_cursor,
            context.next_row_cursor,
        ])?;
    Ok(())
}

/// A publication that was found, and the segment's address.
pub(crate) type Candidate = (String, Publication);

/// Every unexpired publication of a key that starts at one place.
pub(crate) fn find(
    connection: &Connection,
    key: &SegmentKey,
    row_cursor: Option<&str>,
    now_ms: i64,
) -> rusqlite::Result<Vec<Candidate>> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT {COLUMNS}, segment_id FROM sync_segment_publications
         WHERE partition = ?1 AND log_epoch = ?2 AND tbl = ?3 AND schema_version = ?4
           AND media_type = ?5 AND scope_digest = ?6 AND as_of_commit_seq = ?7
           AND row_cursor IS ?8 AND expires_at_ms > ?9"
    ))?;
    let values = params![
        key.partition.as_str(),
        key.log_epoch.as_str(),
        key.table,
        key.schema_version,
        key.media_type.name(),
        key.scope_digest,
        key.as_of.to_i64(),
        row_cursor,
        now_ms,
    ];
    let rows = select.query_map(values, |row| Ok((row.get(11)?, read(row)?)))?;
    rows.collect()
}

fn read(row: &Row<'_>) -> rusqlite::Result<Publication> {
    let media_name: String = row.get(4)?;
    let media_type = [MediaType::Rows, MediaType::Sqlite]
        .into_iter()
        .find(|media_type| media_type.name() == media_name)
        .ok_or_else(|| {
            let kind = rusqlite::types::Type::Text;
            rusqlite::Error::InvalidColumnType(4, "media_type".to_owned(), kind)
        })?;
    let as_of: i64 = row.get(6)?;
    let as_of =
        CommitSeq::from_i64(as_of).ok_or(rusqlite::Error::IntegralValueOutOfRange(6, as_of))?;
    let partition: String = row.get(0)?;
    let log_epoch: String = row.get(1)?;
    let key = SegmentKey {
        partition: PartitionId::new(partition),
        log_epoch: LogEpoch::new(log_epoch),
        table: row.get(2)?,
        schema_version: row.get(3)?,
        media_type,
        scope_digest: row.get(5)?,
        as_of,
    };
    Ok(Publication {
        context: Arc::new(PublicationContext {
            key,
            row_cursor: row.get(7)?,
            next_row_cursor: row.get(8)?,
        }),
        created_at_ms: row.get(9)?,
        expires_at_ms: row.get(10)?,
    })
}
