//! Blobs in the reference's table `sync_blobs`, and beside it when each was last held.

use std::{ops::Range, path::Path, path::PathBuf, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use rusqlite::{Connection, OptionalExtension, params};
use tidewater_model::PartitionId;
use tidewater_objects::{
    BlobRecord, BlobStore, BlobUsage, HOLD_MS, NewBlob, ObjectError, ObjectErrorKind, ObjectStream,
    PutBlob, SignedUrl, check_held,
};
use tidewater_wire::is_content_address;

use crate::{
    database::{Cell, Database, Durability, failed, fill, to_i64},
    spool::spool,
};

const PUT: &str = "store a blob";
const HEAD: &str = "look a blob up";
const HOLD: &str = "hold blobs";
const READ: &str = "read a blob";
const REMOVE: &str = "remove a blob";
const LIST: &str = "list blobs";

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS sync_blobs(
  partition TEXT NOT NULL, blob_id TEXT NOT NULL,
  byte_length INTEGER NOT NULL, media_type TEXT, created_at_ms INTEGER NOT NULL,
  bytes BLOB NOT NULL,
  PRIMARY KEY(partition, blob_id)
);
CREATE TABLE IF NOT EXISTS sync_blob_uses(
  partition TEXT NOT NULL, blob_id TEXT NOT NULL, used_at_ms INTEGER NOT NULL,
  PRIMARY KEY(partition, blob_id)
) WITHOUT ROWID;
";

/// Blobs in a SQLite file. What is acknowledged survives a loss of power. Clones share the file.
#[derive(Clone)]
pub struct SqliteBlobs {
    database: Database,
    folder: PathBuf,
}

impl SqliteBlobs {
    /// Opens or makes a file; this blocks. Content waits beside it while it is checked.
    pub fn open(path: &Path) -> Result<Self, ObjectError> {
        let prepare = |connection: &Connection| connection.execute_batch(TABLES);
        Ok(Self {
            database: Database::open(path, Durability::Data, prepare)?,
            folder: folder_of(path),
        })
    }
}

/// Where a file is.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[async_trait]
impl BlobStore for SqliteBlobs {
    async fn put(&self, blob: NewBlob, now_ms: i64) -> Result<PutBlob, ObjectError> {
        let NewBlob {
            partition,
            id,
            media_type,
            bytes_max,
            body,
        } = blob;
        if !is_content_address(&id) {
            return Err(ObjectError::new(ObjectErrorKind::ContentMismatch, PUT)
                .with_detail("its name is not a content address"));
        }
        let body = body
            .map_err(|error| ObjectError::new(ObjectErrorKind::Interrupted, PUT).with_source(error))
            .boxed();
        let mut spooled = spool(PUT, self.folder.clone(), &id, bytes_max, body).await?;
        let write = move |connection: &Connection| {
            if let Some((record, _)) = find(PUT, connection, &partition, &id)? {
                touch(PUT, connection, &partition, &id, now_ms)?;
                return Ok(PutBlob {
                    record,
                    is_new: false,
                });
            }
            let length = to_i64(spooled.length);
            connection
                .prepare_cached(
                    "INSERT INTO sync_blobs(partition, blob_id, byte_length, media_type,
                       created_at_ms, bytes) VALUES(?1, ?2, ?3, ?4, ?5, zeroblob(?3))",
                )
                .and_then(|mut insert| {
                    let place = partition.as_str();
                    insert.execute(params![place, id, length, media_type, now_ms])
                })
                .map_err(failed(PUT))?;
            let cell = Cell {
                table: "sync_blobs",
                rowid: connection.last_insert_rowid(),
                length: spooled.length,
            };
            fill(PUT, connection, cell, &mut spooled.file)?;
            let record = BlobRecord {
                id,
                byte_length: spooled.length,
                media_type,
                created_at_ms: now_ms,
            };
            Ok(PutBlob {
                record,
                is_new: true,
            })
        };
        self.database.write(PUT, write).await
    }

    async fn head(
        &self,
        partition: &PartitionId,
        id: &str,
    ) -> Result<Option<BlobRecord>, ObjectError> {
        let (partition, id) = (partition.clone(), id.to_owned());
        let read = move |connection: &Connection| find(HEAD, connection, &partition, &id);
        let found = self.database.read(HEAD, read).await?;
        Ok(found.map(|(record, _)| record))
    }

    async fn hold(
        &self,
        partition: &PartitionId,
        ids: &[&str],
        _bytes_max: u64,
        now_ms: i64,
    ) -> Result<Vec<String>, ObjectError> {
        check_held(ids.len())?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let partition = partition.clone();
        let ids: Vec<String> = ids.iter().map(|&id| id.to_owned()).collect();
        let safe_since_ms = now_ms.saturating_sub(HOLD_MS);
        let look = {
            let (partition, ids) = (partition.clone(), ids.clone());
            move |connection: &Connection| {
                let mut is_safe = true;
                for id in &ids {
                    let used_at_ms = last_use(HOLD, connection, &partition, id)?;
                    is_safe &= used_at_ms >= Some(safe_since_ms);
                }
                Ok(is_safe)
            }
        };
        // Mostly everything was used lately, and nothing needs to be written.
        if self.database.read(HOLD, look).await? {
            return Ok(Vec::new());
        }
        let hold = move |connection: &Connection| {
            let mut missing = Vec::new();
            for id in ids {
                match last_use(HOLD, connection, &partition, &id)? {
                    None => missing.push(id),
                    Some(used_at_ms) if used_at_ms >= safe_since_ms => {}
                    Some(_) => touch(HOLD, connection, &partition, &id, now_ms)?,
                }
            }
            Ok(missing)
        };
        self.database.write(HOLD, hold).await
    }

    async fn open(
        &self,
        partition: &PartitionId,
        id: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError> {
        let (partition, id) = (partition.clone(), id.to_owned());
        let read = move |connection: &Connection| find(READ, connection, &partition, &id);
        let found = self.database.read(READ, read).await?;
        Ok(found.map(|(_, cell)| self.database.stream(READ, cell, range)))
    }

    async fn remove(
        &self,
        partition: &PartitionId,
        id: &str,
        unused_since_ms: i64,
        now_ms: i64,
    ) -> Result<bool, ObjectError> {
        let (partition, id) = (partition.clone(), id.to_owned());
        let before_ms = unused_since_ms.min(now_ms.saturating_sub(2 * HOLD_MS));
        let remove = move |connection: &Connection| {
            let used_at_ms = last_use(REMOVE, connection, &partition, &id)?;
            if used_at_ms.is_none_or(|used_at_ms| used_at_ms >= before_ms) {
                return Ok(false);
            }
            for statement in [
                "DELETE FROM sync_blobs WHERE partition = ?1 AND blob_id = ?2",
                "DELETE FROM sync_blob_uses WHERE partition = ?1 AND blob_id = ?2",
            ] {
                connection
                    .prepare_cached(statement)
                    .and_then(|mut delete| delete.execute(params![partition.as_str(), id]))
                    .map_err(failed(REMOVE))?;
            }
            Ok(true)
        };
        self.database.write(REMOVE, remove).await
    }

    async fn list(
        &self,
        partition: &PartitionId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobRecord>, ObjectError> {
        let partition = partition.clone();
        let after = after.unwrap_or_default().to_owned();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let read = move |connection: &Connection| {
            let list = || {
                let mut select = connection.prepare_cached(
                    "SELECT blob_id, byte_length, media_type, created_at_ms FROM sync_blobs
                     WHERE partition = ?1 AND blob_id > ?2 ORDER BY blob_id LIMIT ?3",
                )?;
                let rows = select.query_map(params![partition.as_str(), after, limit], |row| {
                    Ok(BlobRecord {
                        id: row.get(0)?,
                        byte_length: row.get(1)?,
                        media_type: row.get(2)?,
                        created_at_ms: row.get(3)?,
                    })
                })?;
                rows.collect::<rusqlite::Result<Vec<_>>>()
            };
            list().map_err(failed(LIST))
        };
        self.database.read(LIST, read).await
    }

    async fn presign_get(
        &self,
        _partition: &PartitionId,
        _id: &str,
        _lifetime: Duration,
        _now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        Ok(None)
    }

    async fn presign_put(
        &self,
        _partition: &PartitionId,
        _id: &str,
        _byte_length: u64,
        _lifetime: Duration,
        _now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        Ok(None)
    }

    async fn expire_uploads(&self, _before_ms: i64) -> Result<u64, ObjectError> {
        Ok(0)
    }

    async fn usage(&self, partition: &PartitionId) -> Result<BlobUsage, ObjectError> {
        let partition = partition.clone();
        let read = move |connection: &Connection| {
            connection
                .query_row(
                    "SELECT count(*), coalesce(sum(byte_length), 0) FROM sync_blobs
                     WHERE partition = ?1",
                    [partition.as_str()],
                    |row| {
                        Ok(BlobUsage {
                            blobs: row.get(0)?,
                            bytes: row.get(1)?,
                        })
                    },
                )
                .map_err(failed(LIST))
        };
        self.database.read(LIST, read).await
    }
}

/// A blob and where its bytes are.
fn find(
    during: &'static str,
    connection: &Connection,
    partition: &PartitionId,
    id: &str,
) -> Result<Option<(BlobRecord, Cell)>, ObjectError> {
    let find = || {
        let mut select = connection.prepare_cached(
            "SELECT rowid, byte_length, media_type, created_at_ms FROM sync_blobs
             WHERE partition = ?1 AND blob_id = ?2",
        )?;
        let row = select.query_row(params![partition.as_str(), id], |row| {
            let byte_length = row.get(1)?;
            let record = BlobRecord {
                id: id.to_owned(),
                byte_length,
                media_type: row.get(2)?,
                created_at_ms: row.get(3)?,
            };
            let cell = Cell {
                table: "sync_blobs",
                rowid: row.get(0)?,
                length: byte_length,
            };
            Ok((record, cell))
        });
        row.optional()
    };
    find().map_err(failed(during))
}

/// When a blob that is there was last used.
fn last_use(
    during: &'static str,
    connection: &Connection,
    partition: &PartitionId,
    id: &str,
) -> Result<Option<i64>, ObjectError> {
    let find = || {
        let mut select = connection.prepare_cached(
            "SELECT max(blob.created_at_ms, coalesce(used.used_at_ms, blob.created_at_ms))
             FROM sync_blobs AS blob LEFT JOIN sync_blob_uses AS used USING (partition, blob_id)
             WHERE blob.partition = ?1 AND blob.blob_id = ?2",
        )?;
        let row = select.query_row(params![partition.as_str(), id], |row| row.get(0));
        row.optional()
    };
    find().map_err(failed(during))
}

fn touch(
    during: &'static str,
    connection: &Connection,
    partition: &PartitionId,
    id: &str,
    now_ms: i64,
) -> Result<(), ObjectError> {
    connection
        .prepare_cached(
            "INSERT INTO sync_blob_uses(partition, blob_id, used_at_ms) VALUES(?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET used_at_ms = max(used_at_ms, excluded.used_at_ms)",
        )
        .and_then(|mut upsert| upsert.execute(params![partition.as_str(), id, now_ms]))
        .map(drop)
        .map_err(failed(during))
}
