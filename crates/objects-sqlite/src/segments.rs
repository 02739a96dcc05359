//! Segments in the reference's table `sync_segments`, with publications beside it.
//!
//! **Invariant:** the bytes of all segments stay within the bound. Room is made by dropping the
//! segments whose last publication ends first: expired ones, then the oldest.

use std::{
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use rusqlite::{Connection, OptionalExtension, params};
use tidewater_objects::{
    FoundSegment, NewSegment, ObjectError, ObjectErrorKind, ObjectStream, PageSize, Prune,
    Publication, Removed, SegmentBody, SegmentId, SegmentKey, SegmentRecord, SegmentStats,
    SegmentStore, SignedUrl,
};
use tidewater_wire::ContentHasher;

use crate::{
    blobs::folder_of,
    database::{Cell, Database, Durability, blocking, failed, fill, io_failed, to_i64},
    publications,
    spool::{Spooled, check, spool},
};

const PUBLISH: &str = "publish a segment";
const FIND: &str = "find a segment";
const READ: &str = "read a segment";
const CLEAN: &str = "remove segments";
const LIST: &str = "list segments";

/// Bounds of segments in a SQLite file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SegmentsConfig {
    /// How long a publication lives, in milliseconds.
    pub lifetime_ms: i64,
    /// Most bytes of all segments together.
    pub bytes_max: u64,
}

/// Segments in a SQLite file. Clones share it.
#[derive(Clone)]
pub struct SqliteSegments {
    database: Database,
    folder: PathBuf,
    config: SegmentsConfig,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Counters {
    published: AtomicU64,
    renewed: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    evicted: AtomicU64,
    expired: AtomicU64,
}

impl SqliteSegments {
    /// Opens or makes a file; this blocks.
    pub fn open(path: &Path, config: SegmentsConfig) -> Result<Self, ObjectError> {
        Ok(Self {
            database: Database::open(path, Durability::Cache, publications::prepare)?,
            folder: folder_of(path),
            config,
            counters: Arc::default(),
        })
    }

    fn count_search(&self, is_hit: bool) {
        let counters = &self.counters;
        let counter = if is_hit {
            &counters.hits
        } else {
            &counters.misses
        };
        counter.fetch_add(1, Relaxed);
    }

    async fn search(
        &self,
        key: &SegmentKey,
        row_cursor: Option<&str>,
        now_ms: i64,
        is_usable: impl Fn(&SegmentRecord, &Publication) -> bool + Send + 'static,
    ) -> Result<Option<FoundSegment>, ObjectError> {
        let (key, row_cursor) = (key.clone(), row_cursor.map(str::to_owned));
        let read = move |connection: &Connection| {
            let search = || {
                let row_cursor = row_cursor.as_deref();
                let candidates = publications::find(connection, &key, row_cursor, now_ms)?;
                let mut best: Option<FoundSegment> = None;
                for (id, publication) in candidates {
                    let Some((record, _)) = find_record(connection, &id)? else {
                        continue;
                    };
                    let is_better = best
                        .as_ref()
                        .is_none_or(|best| best.record.row_count < record.row_count);
                    if is_better && is_usable(&record, &publication) {
                        best = Some(FoundSegment {
                            record: Arc::new(record),
                            context: publication.context,
                        });
                    }
                }
                Ok(best)
            };
            search().map_err(failed(FIND))
        };
        let found = self.database.read(FIND, read).await?;
        self.count_search(found.is_some());
        Ok(found)
    }

    /// The content as a file at its beginning, checked.
    async fn content(
        &self,
        id: &SegmentId,
        byte_length: u64,
        body: SegmentBody,
    ) -> Result<Spooled, ObjectError> {
        match body {
            SegmentBody::Bytes(bytes) => {
                let body = stream::iter([Ok(bytes)]).boxed();
                spool(PUBLISH, self.folder.clone(), id.as_str(), byte_length, body).await
            }
            SegmentBody::File(path) => {
                let id = id.clone();
                blocking(PUBLISH, move || {
                    let file = verified(&path, &id, byte_length)?;
                    Ok(Spooled {
                        file,
                        length: byte_length,
                    })
                })
                .await
            }
        }
    }

    async fn remove(
        &self,
        is_covered: impl Fn(&Publication) -> bool + Send + Sync + 'static,
    ) -> Result<Removed, ObjectError> {
        let mut removed = Removed::default();
        let is_covered = Arc::new(is_covered);
        let mut after = String::new();
        // Piece by piece, so that publishing need not wait for all of it.
        loop {
            let is_covered = Arc::clone(&is_covered);
            let work = move |connection: &Connection| {
                let remove = || remove_some(connection, &after, &*is_covered);
                remove().map_err(failed(CLEAN))
            };
            let piece = self.database.write(CLEAN, work).await?;
            removed.segments += piece.removed.segments;
            removed.publications += piece.removed.publications;
            removed.bytes += piece.removed.bytes;
            match piece.last {
                Some(last) => after = last,
                None => return Ok(removed),
            }
        }
    }
}

#[async_trait]
impl SegmentStore for SqliteSegments {
    async fn publish(
        &self,
        segment: NewSegment,
        now_ms: i64,
    ) -> Result<Arc<SegmentRecord>, ObjectError> {
        let (context, row_count, id, byte_length, body) = segment.into_parts();
        let bytes_max = self.config.bytes_max;
        if byte_length > bytes_max {
            return Err(
                ObjectError::new(ObjectErrorKind::TooLarge, PUBLISH).with_detail(format!(
                    "a segment of {byte_length} bytes does not fit {bytes_max} bytes: raise the \
                     bound"
                )),
            );
        }
        let mut content = self.content(&id, byte_length, body).await?;
        if content.length != byte_length {
            return Err(other_content(&id));
        }
        let publication = Publication {
            context: Arc::new(context),
            created_at_ms: now_ms,
            expires_at_ms: now_ms.saturating_add(self.config.lifetime_ms),
        };
        let write = move |connection: &Connection| {
            match find_record(connection, id.as_str()).map_err(failed(PUBLISH))? {
                Some((stored, _)) => {
                    if (stored.byte_length, stored.row_count) != (byte_length, row_count) {
                        return Err(other_content(&id));
                    }
                }
                None => insert(connection, &id, row_count, &publication, &mut content)?,
            }
            let is_renewed = publications::merge(connection, id.as_str(), &publication)
                .map_err(failed(PUBLISH))?;
            let evicted = make_room(connection, &id, bytes_max).map_err(failed(PUBLISH))?;
            let record = find_record(connection, id.as_str()).map_err(failed(PUBLISH))?;
            let (record, _) = record.expect("it was just stored");
            Ok((Arc::new(record), is_renewed, evicted))
        };
        let (record, is_renewed, evicted) = self.database.write(PUBLISH, write).await?;
        let counters = &self.counters;
        let counter = if is_renewed {
            &counters.renewed
        } else {
            &counters.published
        };
        counter.fetch_add(1, Relaxed);
        counters.evicted.fetch_add(evicted, Relaxed);
        Ok(record)
    }

    async fn find(
        &self,
        key: &SegmentKey,
        now_ms: i64,
    ) -> Result<Option<FoundSegment>, ObjectError> {
        let is_whole =
            |_: &SegmentRecord, publication: &Publication| publication.context.is_whole_table();
        self.search(key, None, now_ms, is_whole).await
    }

    async fn find_page(
        &self,
        key: &SegmentKey,
        row_cursor: Option<&str>,
        size: PageSize,
        now_ms: i64,
    ) -> Result<Option<FoundSegment>, ObjectError> {
        let fits = move |record: &SegmentRecord, publication: &Publication| {
            let is_last = publication.context.next_row_cursor.is_none();
            size.admits(record.row_count, record.byte_length, is_last)
        };
        self.search(key, row_cursor, now_ms, fits).await
    }

    async fn record(&self, id: &str) -> Result<Option<Arc<SegmentRecord>>, ObjectError> {
        let id = id.to_owned();
        let read =
            move |connection: &Connection| find_record(connection, &id).map_err(failed(READ));
        let found = self.database.read(READ, read).await?;
        Ok(found.map(|(record, _)| Arc::new(record)))
    }

    async fn open(
        &self,
        id: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError> {
        let id = id.to_owned();
        let read = move |connection: &Connection| find_cell(connection, &id).map_err(failed(READ));
        let found = self.database.read(READ, read).await?;
        Ok(found.map(|(cell, _)| self.database.stream(READ, cell, range)))
    }

    async fn presign(
        &self,
        _id: &str,
        _lifetime: Duration,
        _now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        Ok(None)
    }

    async fn expire(&self, ended_by_ms: i64) -> Result<Removed, ObjectError> {
        let is_ended = move |publication: &Publication| publication.is_expired(ended_by_ms);
        let removed = self.remove(is_ended).await?;
        self.counters.expired.fetch_add(removed.segments, Relaxed);
        Ok(removed)
    }

    async fn prune(&self, what: &Prune) -> Result<Removed, ObjectError> {
        let what = what.clone();
        self.remove(move |publication| what.covers(&publication.context))
            .await
    }

    async fn list(
        &self,
        after: Option<&SegmentId>,
        limit: usize,
    ) -> Result<Vec<Arc<SegmentRecord>>, ObjectError> {
        let after = after.map(|id| id.as_str().to_owned()).unwrap_or_default();
        let read = move |connection: &Connection| {
            let list = || {
                let mut records = Vec::new();
                for id in ids_after(connection, &after, limit)? {
                    if let Some((record, _)) = find_record(connection, &id)? {
                        records.push(Arc::new(record));
                    }
                }
                Ok(records)
            };
            list().map_err(failed(LIST))
        };
        self.database.read(LIST, read).await
    }

    async fn stats(&self) -> Result<SegmentStats, ObjectError> {
        let read = |connection: &Connection| {
            connection
                .query_row(
                    "SELECT (SELECT count(*) FROM sync_segments),
                       (SELECT count(*) FROM sync_segment_publications),
                       (SELECT coalesce(sum(byte_length), 0) FROM sync_segments)",
                    [],
                    |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
                )
                .map_err(failed(READ))
        };
        let (segments, publications, bytes) = self.database.read(READ, read).await?;
        let counters = &self.counters;
        Ok(SegmentStats {
            segments,
            publications,
            bytes,
            published: counters.published.load(Relaxed),
            renewed: counters.renewed.load(Relaxed),
            hits: counters.hits.load(Relaxed),
            misses: counters.misses.load(Relaxed),
            evicted: counters.evicted.load(Relaxed),
            expired: counters.expired.load(Relaxed),
        })
    }
}

/// Opens a file that is what it is said to be.
fn verified(path: &Path, id: &SegmentId, byte_length: u64) -> Result<File, ObjectError> {
    use std::io::{Read, Seek};

    let mut file = File::open(path).map_err(io_failed(PUBLISH))?;
    let length = file.metadata().map_err(io_failed(PUBLISH))?.len();
    if length != byte_length {
        return Err(other_content(id));
    }
    let mut hasher = ContentHasher::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let read = file.read(&mut buffer).map_err(io_failed(PUBLISH))?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    check(PUBLISH, hasher, id.as_str())?;
    file.rewind().map_err(io_failed(PUBLISH))?;
    Ok(file)
}

fn insert(
    connection: &Connection,
    id: &SegmentId,
    row_count: u64,
    publication: &Publication,
    content: &mut Spooled,
) -> Result<(), ObjectError> {
    let context = &*publication.context;
    let values = params![
        id.as_str(),
        context.key.partition.as_str(),
        context.key.log_epoch.as_str(),
        context.key.table,
        context.key.schema_version,
        context.key.media_type.name(),
        context.key.scope_digest,
        context.key.as_of.to_i64(),
        to_i64(row_count),
        context.row_cursor,
        context.next_row_cursor,
        to_i64(content.length),
        publication.created_at_ms,
        publication.expires_at_ms,
    ];
    connection
        .prepare_cached(
            "INSERT INTO sync_segments(segment_id, partition, log_epoch, tbl, schema_version,
               media_type, scope_digest, as_of_commit_seq, row_count, row_cursor,
               next_row_cursor, byte_length, created_at_ms, expires_at_ms, bytes)
             VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, zeroblob(?12))",
        )
        .and_then(|mut insert| insert.execute(values))
        .map_err(failed(PUBLISH))?;
    let cell = Cell {
        table: "sync_segments",
        rowid: connection.last_insert_rowid(),
        length: content.length,
    };
    fill(PUBLISH, connection, cell, &mut content.file)
}

/// Drops other segments until the rest fits; how many.
fn make_room(connection: &Connection, newest: &SegmentId, bytes_max: u64) -> rusqlite::Result<u64> {
    let mut evicted = 0;
    loop {
        let bytes: u64 = connection
            .prepare_cached("SELECT coalesce(sum(byte_length), 0) FROM sync_segments")?
            .query_row([], |row| row.get(0))?;
        if bytes <= bytes_max {
            return Ok(evicted);
        }
        let first: String = connection
            .prepare_cached(
                "SELECT segment_id FROM sync_segment_publications WHERE segment_id <> ?1
                 GROUP BY segment_id ORDER BY max(expires_at_ms) LIMIT 1",
            )?
            .query_row([newest.as_str()], |row| row.get(0))?;
        delete(connection, &first)?;
        evicted += 1;
    }
}

fn delete(connection: &Connection, id: &str) -> rusqlite::Result<()> {
    for statement in [
        "DELETE FROM sync_segments WHERE segment_id = ?1",
        "DELETE FROM sync_segment_publications WHERE segment_id = ?1",
    ] {
        connection.prepare_cached(statement)?.execute([id])?;
    }
    Ok(())
}

fn find_cell(connection: &Connection, id: &str) -> rusqlite::Result<Option<(Cell, u64)>> {
    connection
        .prepare_cached(
            "SELECT rowid, byte_length, row_count FROM sync_segments WHERE segment_id = ?1",
        )?
        .query_row([id], |row| {
            let cell = Cell {
                table: "sync_segments",
                rowid: row.get(0)?,
                length: row.get(1)?,
            };
            Ok((cell, row.get(2)?))
        })
        .optional()
}

fn find_record(
    connection: &Connection,
    id: &str,
) -> rusqlite::Result<Option<(SegmentRecord, Cell)>> {
    let Some((cell, row_count)) = find_cell(connection, id)? else {
        return Ok(None);
    };
    let publications = publications::of_segment(connection, id)?;
    let record = SegmentRecord {
        id: SegmentId::new(id),
        byte_length: cell.length,
        row_count,
        publications,
    };
    Ok(Some((record, cell)))
}

fn ids_after(connection: &Connection, after: &str, limit: usize) -> rusqlite::Result<Vec<String>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut select = connection.prepare_cached(
        "SELECT segment_id FROM sync_segments WHERE segment_id > ?1 ORDER BY segment_id LIMIT ?2",
    )?;
    let rows = select.query_map(params![after, limit], |row| row.get(0))?;
    rows.collect()
}

/// What one step of a clean-up did.
struct Piece {
    removed: Removed,
    /// Where the next step begins; `None` at the end.
    last: Option<String>,
}

/// Segments that one transaction of a clean-up looks at.
const SEGMENTS_PER_PIECE: usize = 100;

fn remove_some(
    connection: &Connection,
    after: &str,
    is_covered: &dyn Fn(&Publication) -> bool,
) -> rusqlite::Result<Piece> {
    let ids = ids_after(connection, after, SEGMENTS_PER_PIECE)?;
    let mut removed = Removed::default();
    for id in &ids {
        let Some((record, _)) = find_record(connection, id)? else {
            continue;
        };
        let (gone, stays): (Vec<_>, Vec<_>) = record
            .publications
            .iter()
            .partition(|publication| is_covered(publication));
        removed.publications += u64::try_from(gone.len()).expect("a count fits in 64 bits");
        if stays.is_empty() {
            delete(connection, id)?;
            removed.segments += 1;
            removed.bytes += record.byte_length;
            continue;
        }
        for publication in gone {
            publications::remove(connection, id, publication)?;
        }
    }
    Ok(Piece {
        removed,
        last: ids.last().cloned(),
    })
}

fn other_content(id: &SegmentId) -> ObjectError {
    ObjectError::new(ObjectErrorKind::ContentMismatch, PUBLISH)
        .with_detail(format!("segment {id} is stored with other content"))
}
