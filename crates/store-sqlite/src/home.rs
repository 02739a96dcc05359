//! The files of a database and the right to them.
//!
//! **Invariant:** while a store is open, no other store has the same file open, in this process
//! or another: the engine knows heads and epochs by heart. An advisory lock on a file beside the
//! database says so. SQLite's own locks come and go with transactions and cannot.
//!
//! The lock file stays when the store is closed: deleting it could take it from under someone
//! who is about to lock it.

use std::{
    ffi::OsString,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use rusqlite::Connection;
use tidewater_store::{StorageCode, StoreError, StoreErrorKind};

use crate::{config::Location, guard};

const DURING: &str = "open the database";

/// Where the database is, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    _lock: Option<File>,
    temporary: Option<TemporaryDirectory>,
    /// Whether the database was found to be the one that lives here. Until then no mark is made.
    adopted: AtomicBool,
}

impl Home {
    /// Takes the place for this store alone.
    pub(crate) fn claim(location: &Location) -> Result<Self, StoreError> {
        match location {
            Location::File(path) => {
                let path = absolute(path)?;
                Ok(Self {
                    _lock: Some(lock(&path)?),
                    path,
                    temporary: None,
                    adopted: AtomicBool::new(false),
                })
            }
            Location::InMemory => {
                let directory = TemporaryDirectory::create()
                    .map_err(|error| unavailable("no temporary directory can be created", error))?;
                Ok(Self {
                    path: directory.0.join("database"),
                    _lock: None,
                    temporary: Some(directory),
                    adopted: AtomicBool::new(false),
                })
            }
        }
    }

    /// The database file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The database is the one that lives here from now on.
    pub(crate) fn adopt(&self) {
        self.adopted.store(true, Ordering::Release);
    }

    /// Makes a mark of how far the database has come, if it is the one that lives here.
    pub(crate) fn mark(&self, connection: &Connection) {
        if self.adopted.load(Ordering::Acquire) && !self.is_temporary() {
            guard::write_mark(connection, &self.path);
        }
    }

    /// Whether the database is gone when the store is.
    pub(crate) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }
}

/// One file has one lock, whatever name it was opened by.
fn absolute(path: &Path) -> Result<PathBuf, StoreError> {
    let found = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(unavailable("the path names no file", error));
            };
            let parent = if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            };
            fs::canonicalize(parent).map(|parent| parent.join(name))
        }
        found => found,
    };
    found.map_err(|error| unavailable("the directory of the database cannot be read", error))
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let mut name = OsString::from(path);
    name.push(".lock");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&name)
        .map_err(|error| unavailable("the lock file cannot be written", error))?;
    let patience = Instant::now() + CLAIM_TIMEOUT;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if Instant::now() < patience => {
                thread::sleep(CLAIM_INTERVAL);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::refused(
                    StorageCode::DatabaseInUse,
                    DURING,
                    format!(
                        "{} is open already: stop the other server, or give this one a file of its own",
                        path.display()
                    ),
                ));
            }
            Err(TryLockError::Error(error)) => {
                return Err(unavailable("the lock file cannot be locked", error));
            }
        }
    }
}

/// A server that takes over from one that just ended may find the last of its threads, or a
/// program it was about to start, still holding the lock.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(1);

const CLAIM_INTERVAL: Duration = Duration::from_millis(5);

fn unavailable(detail: &str, error: io::Error) -> StoreError {
    let mut unavailable = StoreError::new(StoreErrorKind::Unavailable, DURING).with_source(error);
    unavailable.detail = Some(detail.to_owned());
    unavailable
}

/// A directory that is removed when it is dropped.
#[derive(Debug)]
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn create() -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let parent = std::env::temp_dir();
        // A name may be left over from a process with this id that was killed.
        for _ in 0..NAMES_TRIED_MAX {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("tidewater-{}-{number}", process::id()));
            match create_private(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(Self(path)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

#[cfg(unix)]
fn create_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;

    fs::DirBuilder::new().mode(0o700).create(path)
}

#[cfg(not(unix))]
fn create_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().create(path)
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, "a temporary database could not be removed");
        }
    }
}

const NAMES_TRIED_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_database_file_is_open_once_whatever_it_is_called() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db");
        let first = Home::claim(&Location::File(path.clone())).unwrap();
        let other = directory.path().join(".").join("a.db");
        for again in [path.clone(), other] {
            let error = Home::claim(&Location::File(again)).unwrap_err();
            let refused = StoreErrorKind::Refused(StorageCode::DatabaseInUse);
            assert_eq!(error.kind, refused);
            assert!(error.to_string().contains("is open already"), "{error}");
        }
        drop(first);
        Home::claim(&Location::File(path)).unwrap();
    }

    #[test]
    fn a_store_that_is_about_to_close_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let location = Location::File(directory.path().join("a.db"));
        let first = Home::claim(&location).unwrap();
        let (begin, begun) = mpsc::channel();
        let second = thread::spawn(move || {
            begin.send(()).unwrap();
            Home::claim(&location).map(drop)
        });
        begun.recv().unwrap();
        drop(first);
        second.join().unwrap().unwrap();
    }

    #[test]
    fn a_temporary_database_leaves_nothing_behind() {
        let home = Home::claim(&Location::InMemory).unwrap();
        let directory = home.path().parent().unwrap().to_owned();
        assert!(home.is_temporary());
        fs::write(home.path(), "something").unwrap();
        drop(home);
        assert!(!directory.exists());
    }

    #[test]
    fn a_directory_that_does_not_exist_is_unavailable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("none").join("a.db");
        let error = Home::claim(&Location::File(path)).unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unavailable);
    }
}
