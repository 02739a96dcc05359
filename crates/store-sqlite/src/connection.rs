//! Connections: how they are opened and what is set on them.

use rusqlite::{Connection, OpenFlags};
use tidewater_store::{StoreError, StoreErrorKind};

use crate::{
    config::SqliteConfig,
    error::{corrupt, failed},
    home::Home,
};

const DURING: &str = "open the database";

/// What a connection is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    /// The only one that writes.
    Writer,
    /// One of those that only read.
    Reader,
}

/// Opens a connection.
pub(crate) fn open(
    home: &Home,
    config: &SqliteConfig,
    role: Role,
) -> Result<Connection, StoreError> {
    // Without mutexes of SQLite's own: a connection never leaves its thread.
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if role == Role::Writer {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let connection = Connection::open_with_flags(home.path(), flags).map_err(failed(DURING))?;
    connection
        .busy_timeout(config.busy_timeout)
        .map_err(failed(DURING))?;
    for (name, value) in [
        ("foreign_keys", 0),
        ("trusted_schema", 0),
        // Scratch space of a statement is not worth a file.
        ("temp_store", 2),
    ] {
        set(&connection, name, value)?;
    }
    match role {
        Role::Writer => prepare_writer(&connection, home, config)?,
        Role::Reader => {
            set(&connection, "query_only", 1)?;
            set_cache(&connection, config.reader_cache_bytes)?;
        }
    }
    Ok(connection)
}

fn prepare_writer(
    connection: &Connection,
    home: &Home,
    config: &SqliteConfig,
) -> Result<(), StoreError> {
    set_cache(connection, config.writer_cache_bytes)?;
    turn_log_on(connection)?;
    // FULL: a commit is in the log on the disk before it is acknowledged.
    let synchronous = if home.is_temporary() { 0 } else { 2 };
    set(connection, "synchronous", synchronous)?;
    set(
        connection,
        "wal_autocheckpoint",
        i64::from(config.checkpoint_pages),
    )?;
    set(
        connection,
        "journal_size_limit",
        to_i64(config.log_bytes_kept),
    )?;
    if let Some(limit) = config.size_limit {
        let page_bytes: i64 = connection
            .pragma_query_value(None, "page_size", |row| row.get(0))
            .map_err(failed(DURING))?;
        let pages = (to_i64(limit) / page_bytes).max(1);
        set(connection, "max_page_count", pages)?;
    }
    // Row ids are compared by their bytes, and those must be UTF-8.
    let encoding: String = connection
        .pragma_query_value(None, "encoding", |row| row.get(0))
        .map_err(failed(DURING))?;
    if encoding != "UTF-8" {
        return Err(corrupt(
            DURING,
            format!("the database is encoded as {encoding}: copy it into one encoded as UTF-8"),
        ));
    }
    Ok(())
}

/// The journal mode lies in the file. It is not set again: a file that may only be read is served.
fn turn_log_on(connection: &Connection) -> Result<(), StoreError> {
    let mut mode: String = connection
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .map_err(failed(DURING))?;
    if mode != "wal" {
        mode = connection
            .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
            .map_err(failed(DURING))?;
    }
    if mode == "wal" {
        return Ok(());
    }
    let mut error = StoreError::new(StoreErrorKind::Unavailable, DURING);
    error.detail = Some(format!(
        "the journal mode stays `{mode}`: the file system must allow shared memory for a \
         write-ahead log"
    ));
    Err(error)
}

/// A cache in KiB, which is a negative number to SQLite.
fn set_cache(connection: &Connection, bytes: usize) -> Result<(), StoreError> {
    let kibibytes = i64::try_from(bytes / 1024).unwrap_or(i64::MAX);
    set(connection, "cache_size", -kibibytes.max(1))
}

fn set(connection: &Connection, name: &str, value: i64) -> Result<(), StoreError> {
    // Some pragmas answer with the new value, and some with nothing.
    let mut statement = connection
        .prepare(&format!("PRAGMA {name} = {value}"))
        .map_err(failed(DURING))?;
    let mut rows = statement.query([]).map_err(failed(DURING))?;
    while rows.next().map_err(failed(DURING))?.is_some() {}
    Ok(())
}

fn to_i64(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
