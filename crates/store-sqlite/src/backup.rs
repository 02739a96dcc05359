//! Backups of a database that is in use, and putting one back.
//!
//! A backup is one file with the database as it was at one moment. It says of itself that it is
//! a backup, so that nobody serves it without rotating its epochs first, however it got back
//! (see `guard`). Both functions block, and leave nothing under the final name until it is whole
//! and on the disk.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags};
use tidewater_store::{StoreError, StoreErrorKind};

use crate::{
    config::Location,
    error::{corrupt, failed},
    guard,
    home::Home,
};

const BACK_UP: &str = "back the database up";
const RESTORE: &str = "restore the database";

/// Files that SQLite and this server keep beside a database, and the database itself.
const FILES: [&str; 4] = ["", "-wal", "-shm", ".mark"];

/// How long to wait for a lock of the server that uses the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// Writes the database as it is now to a file, beside a server that goes on reading and writing.
///
/// The server's write-ahead log grows until the backup is done.
///
/// # Errors
///
/// When the file exists, when it cannot be written, and when the database is damaged.
pub fn back_up(database: &Path, to: &Path) -> Result<(), StoreError> {
    refuse_existing(to, BACK_UP)?;
    let partial = guard::beside(to, ".partial");
    remove(&partial, BACK_UP)?;
    let source = open(database, OpenFlags::SQLITE_OPEN_READ_ONLY, BACK_UP)?;
    if guard::read_identity(&source)?.is_none() {
        return Err(corrupt(
            BACK_UP,
            format!(
                "{} was never served by this version: start the server on it once",
                database.display()
            ),
        ));
    }
    let name = partial.to_str().ok_or_else(|| {
        unavailable(
            BACK_UP,
            "the name of the file is not UTF-8",
            io::ErrorKind::InvalidInput.into(),
        )
    })?;
    source
        .execute("VACUUM INTO ?1", [name])
        .map_err(failed(BACK_UP))?;
    let copy = open(&partial, OpenFlags::SQLITE_OPEN_READ_WRITE, BACK_UP)?;
    check_integrity(&copy, &partial, BACK_UP)?;
    copy.execute("UPDATE sync_restore_guard SET is_backup = 1", [])
        .map_err(failed(BACK_UP))?;
    copy.close().map_err(|(_, error)| failed(BACK_UP)(error))?;
    publish(&partial, to, BACK_UP)
}

/// Puts a backup where a database belongs. Its epochs are still those of the backup, and it is
/// refused by [`prepare`](tidewater_store::Store::prepare) until they are rotated.
///
/// A database that is there already, with what is beside it, is moved to the same name with
/// `.old` added, if `replace` allows it.
///
/// # Errors
///
/// When a server uses the database, when there is one that may not be replaced, and when the
/// backup is damaged.
pub fn restore(backup: &Path, database: &Path, replace: bool) -> Result<(), StoreError> {
    let home = Home::claim(&Location::File(database.to_owned()))?;
    let database = home.path();
    let source = open(backup, OpenFlags::SQLITE_OPEN_READ_ONLY, RESTORE)?;
    check_integrity(&source, backup, RESTORE)?;
    drop(source);
    let partial = guard::beside(database, ".partial");
    remove(&partial, RESTORE)?;
    fs::copy(backup, &partial)
        .map_err(|error| unavailable(RESTORE, "the backup cannot be copied", error))?;
    if replace {
        move_aside(database)?;
    }
    refuse_existing(database, RESTORE)?;
    publish(&partial, database, RESTORE)
}

fn open(path: &Path, flags: OpenFlags, during: &'static str) -> Result<Connection, StoreError> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed(during))?;
    connection
        .busy_timeout(BUSY_TIMEOUT)
        .map_err(failed(during))?;
    Ok(connection)
}

fn check_integrity(
    connection: &Connection,
    path: &Path,
    during: &'static str,
) -> Result<(), StoreError> {
    let answer: String = connection
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(failed(during))?;
    if answer == "ok" {
        return Ok(());
    }
    Err(corrupt(
        during,
        format!("{} is damaged: {answer}", path.display()),
    ))
}

fn move_aside(database: &Path) -> Result<(), StoreError> {
    let old = guard::beside(database, ".old");
    for suffix in FILES {
        refuse_existing(&guard::beside(&old, suffix), RESTORE)?;
    }
    // The log goes first: a database without its log is older, one with another's is broken.
    for suffix in FILES.iter().rev() {
        let from = guard::beside(database, suffix);
        match fs::rename(&from, guard::beside(&old, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(unavailable(
                    RESTORE,
                    "the old database cannot be moved",
                    error,
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

fn refuse_existing(path: &Path, during: &'static str) -> Result<(), StoreError> {
    match path.try_exists() {
        Ok(false) => Ok(()),
        Ok(true) => Err(unavailable(
            during,
            &format!("{} exists", path.display()),
            io::ErrorKind::AlreadyExists.into(),
        )),
        Err(error) => Err(unavailable(during, "the folder cannot be read", error)),
    }
}

fn remove(path: &Path, during: &'static str) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unavailable(
            during,
            "an unfinished file cannot be removed",
            error,
        )),
        _ => Ok(()),
    }
}

/// Gives a finished file its name, on the disk.
fn publish(partial: &Path, name: &Path, during: &'static str) -> Result<(), StoreError> {
    let publish = || {
        File::open(partial)?.sync_all()?;
        fs::rename(partial, name)?;
        File::open(folder(name))?.sync_all()
    };
    publish().map_err(|error| unavailable(during, "the file cannot be written", error))
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn unavailable(during: &'static str, detail: &str, error: io::Error) -> StoreError {
    let mut unavailable = StoreError::new(StoreErrorKind::Unavailable, during).with_source(error);
    unavailable.detail = Some(detail.to_owned());
    unavailable
}
