//! One SQLite file: its connections, and what may block.
//!
//! Writers take turns on one connection and readers on another, so that a read does not wait for
//! a large write.

use std::{fs::File, io::Read, ops::Range, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use rusqlite::{Connection, Error, ErrorCode, MAIN_DB, OpenFlags, blob::Blob};
use tidewater_objects::{ObjectError, ObjectErrorKind, ObjectStream, clamp};

/// A file and its connections. Clones share them.
#[derive(Clone)]
pub(crate) struct Database {
    writer: Arc<Mutex<Connection>>,
    reader: Arc<Mutex<Connection>>,
}

/// Whether a loss of power may take the last writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Durability {
    /// It may: what is here can be made again.
    Cache,
    /// It may not.
    Data,
}

/// How long one process waits for another one's write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Pages of a new file. Large ones make long chains of them short.
const PAGE_BYTES: i64 = 65_536;

/// Bytes that are read at once: every chunk walks the chain of pages to where it starts.
const CHUNK_BYTES: u64 = 1024 * 1024;

impl Database {
    /// Opens or makes a file and runs `prepare` on it in a transaction.
    pub(crate) fn open(
        path: &Path,
        durability: Durability,
        prepare: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<Self, ObjectError> {
        const DURING: &str = "open the database of objects";
        let open = |flags| {
            let connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(BUSY_TIMEOUT)?;
            connection.pragma_update(None, "trusted_schema", 0)?;
            Ok(connection)
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut writer = open(flags | OpenFlags::SQLITE_OPEN_CREATE).map_err(failed(DURING))?;
        let set_up = |writer: &mut Connection| {
            writer.pragma_update(None, "page_size", PAGE_BYTES)?;
            writer.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
            let synchronous = match durability {
                Durability::Cache => 1,
                Durability::Data => 2,
            };
            writer.pragma_update(None, "synchronous", synchronous)?;
            let txn = writer.transaction()?;
            prepare(&txn)?;
            txn.commit()
        };
        set_up(&mut writer).map_err(failed(DURING))?;
        let reader = open(flags).map_err(failed(DURING))?;
        reader
            .pragma_update(None, "query_only", 1)
            .map_err(failed(DURING))?;
        Ok(Self {
            writer: Arc::new(Mutex::new(writer)),
            reader: Arc::new(Mutex::new(reader)),
        })
    }

    /// Runs a write, which is a transaction of its own, on a thread where it may block. It runs
    /// to its end even if the caller is gone.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        during: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, ObjectError> {
        let connection = Arc::clone(&self.writer);
        blocking(during, move || {
            let mut connection = connection.lock();
            let behavior = rusqlite::TransactionBehavior::Immediate;
            let txn = connection
                .transaction_with_behavior(behavior)
                .map_err(failed(during))?;
            let value = work(&txn)?;
            txn.commit().map_err(failed(during))?;
            Ok(value)
        })
        .await
    }

    /// Runs a read on a thread where it may block.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        during: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, ObjectError> {
        let connection = Arc::clone(&self.reader);
        blocking(during, move || work(&connection.lock())).await
    }

    /// Streams a cell of bytes, or a part of it, whose length is known.
    ///
    /// A cell that is gone when the next chunk is wanted ends the stream in an error.
    pub(crate) fn stream(
        &self,
        during: &'static str,
        cell: Cell,
        range: Option<Range<u64>>,
    ) -> ObjectStream {
        let range = clamp(range, cell.length);
        let end = range.end;
        let database = self.clone();
        let chunks = stream::try_unfold(range.start, move |start| {
            let database = database.clone();
            async move {
                if start >= end {
                    return Ok(None);
                }
                let stop = end.min(start.saturating_add(CHUNK_BYTES));
                let chunk = database
                    .read(during, move |connection| {
                        read_chunk(connection, cell, start..stop).map_err(failed(during))
                    })
                    .await?;
                Ok(Some((chunk, stop)))
            }
        });
        ObjectStream::new(cell.length, range, chunks.boxed())
    }
}

/// Where bytes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) table: &'static str,
    pub(crate) rowid: i64,
    pub(crate) length: u64,
}

fn read_chunk(connection: &Connection, cell: Cell, range: Range<u64>) -> rusqlite::Result<Bytes> {
    let blob = connection.blob_open(MAIN_DB, cell.table, "bytes", cell.rowid, true)?;
    let length = usize::try_from(range.end - range.start).expect("a chunk fits in memory");
    let start = usize::try_from(range.start).expect("SQLite has no longer blobs");
    let mut chunk = vec![0; length];
    blob.read_at_exact(&mut chunk, start)?;
    Ok(chunk.into())
}

/// Copies a file into a cell that was made long enough.
pub(crate) fn fill(
    during: &'static str,
    connection: &Connection,
    cell: Cell,
    file: &mut File,
) -> Result<(), ObjectError> {
    let mut blob: Blob<'_> = connection
        .blob_open(MAIN_DB, cell.table, "bytes", cell.rowid, false)
        .map_err(failed(during))?;
    let length = cell.length;
    let copied = std::io::copy(&mut file.take(length), &mut blob).map_err(io_failed(during))?;
    if copied != length {
        return Err(ObjectError::new(ObjectErrorKind::ContentMismatch, during)
            .with_detail("the file became shorter"));
    }
    blob.close().map_err(failed(during))
}

/// Runs what may block.
pub(crate) async fn blocking<T: Send + 'static>(
    during: &'static str,
    work: impl FnOnce() -> Result<T, ObjectError> + Send + 'static,
) -> Result<T, ObjectError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        ObjectError::new(ObjectErrorKind::Unavailable, during).with_source(error)
    })?
}

pub(crate) fn io_failed(during: &'static str) -> impl Fn(std::io::Error) -> ObjectError {
    move |error| ObjectError::new(ObjectErrorKind::Unavailable, during).with_source(error)
}

/// Which of our kinds a failure of SQLite is.
pub(crate) fn failed(during: &'static str) -> impl Fn(Error) -> ObjectError {
    move |error| {
        let kind = match &error {
            Error::SqliteFailure(failure, _) => match failure.code {
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::TypeMismatch => {
                    ObjectErrorKind::Corrupt
                }
                ErrorCode::TooBig => ObjectErrorKind::TooLarge,
                ErrorCode::PermissionDenied | ErrorCode::ReadOnly | ErrorCode::CannotOpen => {
                    ObjectErrorKind::Refused
                }
                _ => ObjectErrorKind::Unavailable,
            },
            Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::InvalidColumnType(..) => ObjectErrorKind::Corrupt,
            _ => ObjectErrorKind::Unavailable,
        };
        ObjectError::new(kind, during).with_source(error)
    }
}

/// A length as SQLite keeps it.
pub(crate) fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
