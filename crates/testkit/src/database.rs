//! The databases an instance can live on, and how each is backed up.
//!
//! A backup is a whole database at one moment. Restoring one makes a new database of it and
//! leaves the backup as it was, so it can be restored again. The functions here block.

use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use rusqlite::{Connection, OpenFlags, backup};
use serde::Deserialize;
use tidewater_objects::{Backend, BackendLimits, BlobStore, MemoryBlobs, RemoteBlobs};
use tidewater_pgtest::Server;
use tidewater_store::{MemoryStore, Store};
use tidewater_store_postgres::{PostgresConfig, PostgresStore};
use tidewater_store_sqlite::{SqliteConfig, SqliteStore};

/// Which database an instance lives on.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// In memory, gone with the process.
    #[default]
    Memory,
    /// A SQLite file.
    Sqlite,
    /// A database of a PostgreSQL server that this process starts when it first needs it.
    Postgres,
}

/// One open database.
pub(crate) enum Database {
    Memory(MemoryStore),
    Sqlite(SqliteFile),
    Postgres(PostgresDatabase),
}

/// A database on PostgreSQL, dropped with this.
pub(crate) struct PostgresDatabase {
    store: Arc<PostgresStore>,
    database: tidewater_pgtest::Database<'static>,
}

/// A SQLite database in a folder of its own.
pub(crate) struct SqliteFile {
    store: Arc<SqliteStore>,
    folder: Arc<Folder>,
}

/// A database as it was.
pub(crate) enum Backup {
    Memory(MemoryStore),
    Sqlite(PathBuf),
    Postgres(tidewater_pgtest::Database<'static>),
}

/// Where the files of an instance are.
pub(crate) enum Folder {
    /// Gone with the instance.
    Temporary(tempfile::TempDir),
    /// Left where it is.
    Kept(PathBuf),
}

impl Folder {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Temporary(directory) => directory.path(),
            Self::Kept(path) => path,
        }
    }

    fn database(&self) -> PathBuf {
        self.path().join("database")
    }
}

impl Database {
    /// Opens or creates the database of this kind in `folder`.
    pub(crate) fn open(kind: StoreKind, folder: Option<PathBuf>) -> Result<Self> {
        match kind {
            StoreKind::Memory => Ok(Self::Memory(MemoryStore::new())),
            StoreKind::Sqlite => {
                let folder = match folder {
                    Some(path) => Folder::Kept(path),
                    None => Folder::Temporary(tempfile::tempdir().context("make a folder")?),
                };
                Ok(Self::Sqlite(SqliteFile::open(Arc::new(folder))?))
            }
            StoreKind::Postgres => {
                let database = Server::shared().database();
                Ok(Self::Postgres(PostgresDatabase {
                    store: open_postgres(&database)?,
                    database,
                }))
            }
        }
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::new(store.clone()),
            Self::Sqlite(file) => Arc::<SqliteStore>::clone(&file.store),
            Self::Postgres(postgres) => Arc::<PostgresStore>::clone(&postgres.store),
        }
    }

    /// Blobs beside the database.
    pub(crate) fn open_blobs(&self, bytes_max: u64) -> Result<Arc<dyn BlobStore>> {
        Ok(match self {
            // Memory here outlives a restart of the server, as a bucket does.
            Self::Memory(_) | Self::Postgres(_) => Arc::new(MemoryBlobs::new(bytes_max)),
            Self::Sqlite(file) => {
                let folder = file.folder.path().join("blobs");
                let backend = Backend::directory(&folder, true, BackendLimits::default())?;
                Arc::new(RemoteBlobs::new(backend))
            }
        })
    }

    /// Copies the database while it is in use.
    pub(crate) fn back_up(&self) -> Result<Backup> {
        match self {
            Self::Memory(store) => Ok(Backup::Memory(store.fork())),
            Self::Sqlite(file) => {
                let path = file.folder.path().join("backup");
                copy(&file.folder.database(), &path).context("back the database up")?;
                Ok(Backup::Sqlite(path))
            }
            Self::Postgres(postgres) => Ok(Backup::Postgres(postgres.database.copy())),
        }
    }

    /// Closes the database and opens it as the backup says it was.
    pub(crate) fn restore(&mut self, backup: &Backup) -> Result<()> {
        match (&mut *self, backup) {
            (Self::Memory(store), Backup::Memory(backup)) => *store = backup.fork(),
            (Self::Sqlite(file), Backup::Sqlite(backup)) => {
                file.store.close();
                copy(backup, &file.folder.database()).context("put the database back")?;
                *file = SqliteFile::open(Arc::clone(&file.folder))?;
            }
            (Self::Postgres(postgres), Backup::Postgres(backup)) => {
                postgres.store.close();
                postgres.database.replace_with(backup);
                postgres.store = open_postgres(&postgres.database)?;
            }
            _ => unreachable!("an instance keeps its kind of database"),
        }
        Ok(())
    }

    /// Closes the database and opens it again, as a restart of the server does.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        match self {
            Self::Memory(_) => {}
            Self::Sqlite(file) => {
                file.store.close();
                *file = SqliteFile::open(Arc::clone(&file.folder))?;
            }
            Self::Postgres(postgres) => {
                postgres.store.close();
                postgres.store = open_postgres(&postgres.database)?;
            }
        }
        Ok(())
    }
}

impl SqliteFile {
    fn open(folder: Arc<Folder>) -> Result<Self> {
        let mut config = SqliteConfig::file(folder.database());
        config.readers = READERS;
        // The tests restore, and rotate when they mean to.
        config.accept_restored = true;
        let store = SqliteStore::open(config)?;
        Ok(Self {
            store: Arc::new(store),
            folder,
        })
    }
}

fn open_postgres(database: &tidewater_pgtest::Database<'_>) -> Result<Arc<PostgresStore>> {
    let mut config = PostgresConfig::from_url(&database.url())?;
    config.connections_max = CONNECTIONS;
    config.announces = false;
    // The tests restore, and rotate when they mean to.
    config.accept_restored = true;
    Ok(Arc::new(PostgresStore::new(config)?))
}

/// Connections of an instance: there can be many of them on one server.
const CONNECTIONS: usize = 3;

/// Threads that read: there can be hundreds of instances.
const READERS: NonZeroUsize = NonZeroUsize::new(2).expect("two is not zero");

/// A second connection beside that of a store, for reading.
fn open_beside(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(path, flags).context("open the database beside its store")
}

/// Copies one database over another, its log included.
fn copy(from: &Path, to: &Path) -> Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let mut file = to.as_os_str().to_owned();
        file.push(suffix);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context("remove the database that was there");
            }
            _ => {}
        }
    }
    let from = open_beside(from)?;
    let mut to = Connection::open(to)?;
    let copying = backup::Backup::new(&from, &mut to)?;
    // All pages in one step: nothing can come between.
    copying.step(-1)?;
    Ok(())
}
