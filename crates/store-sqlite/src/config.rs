//! What an operator can choose about the database.
//!
//! Durability is not among it: an acknowledged commit of a database file survives power loss.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

/// Where the database is and how much of the machine it may use.
#[derive(Clone, Debug)]
pub struct SqliteConfig {
    /// Where it is.
    pub location: Location,
    /// Threads that read, each with a connection of its own.
    pub readers: NonZeroUsize,
    /// How long to wait for a lock that another process holds.
    pub busy_timeout: Duration,
    /// Page cache of the writer, in bytes. It fills as it is used.
    pub writer_cache_bytes: usize,
    /// Page cache of each reader, in bytes. It fills as it is used.
    pub reader_cache_bytes: usize,
    /// Pages in the write-ahead log after which a commit moves them into the database.
    pub checkpoint_pages: u32,
    /// What the file of the write-ahead log keeps of its size when it starts over, in bytes.
    pub log_bytes_kept: u64,
    /// Whether a database that seems to have been restored is opened all the same: for those who
    /// rotate its epochs, and then call [`SqliteStore::adopt`].
    ///
    /// [`SqliteStore::adopt`]: crate::SqliteStore::adopt
    pub accept_restored: bool,
    /// How far the database may grow, in bytes. Beyond it, writes fail as on a full disk.
    pub size_limit: Option<u64>,
}

/// Where a database is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Location {
    /// In this file, with `-wal`, `-shm`, `.lock` and `.mark` files beside it.
    File(PathBuf),
    /// Nowhere that lasts: it is gone when the store is.
    ///
    /// It has the same snapshots and the same isolation as a file, which memory databases of
    /// SQLite do not have, and so it is a file without a name in the system's temporary
    /// directory. Nothing waits for a disk.
    InMemory,
}

impl SqliteConfig {
    /// A database file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::at(Location::File(path.into()))
    }

    /// A database that does not outlive its store.
    pub fn in_memory() -> Self {
        Self::at(Location::InMemory)
    }

    fn at(location: Location) -> Self {
        Self {
            location,
            readers: READERS_DEFAULT,
            busy_timeout: Duration::from_secs(5),
            // The pages that writes to 100,000 rows go through, more or less.
            writer_cache_bytes: 32 * 1024 * 1024,
            reader_cache_bytes: 2 * 1024 * 1024,
            // Pages that every commit writes again are moved once for many commits.
            checkpoint_pages: 4_000,
            log_bytes_kept: 32 * 1024 * 1024,
            accept_restored: false,
            size_limit: None,
        }
    }
}

/// A read is mostly CPU time on cached pages; a few threads keep the machine busy.
const READERS_DEFAULT: NonZeroUsize = NonZeroUsize::new(4).expect("four is not zero");
