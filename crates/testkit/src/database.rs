//! The databases an instance can live on, and how each is backed up.
//!
//! A backup is a whole database at one moment. Restoring one makes a new database of it and
//! leaves the backup as it was, so it can be restored again.

use std::sync::Arc;

use anyhow::Result;
use serde::Deserialize;
use tidewater_store::{MemoryStore, Store};

/// Which database an instance lives on.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// In memory, gone with the process.
    #[default]
    Memory,
}

/// One open database. A clone is another handle to the same one.
#[derive(Clone)]
pub(crate) enum Database {
    Memory(MemoryStore),
}

/// A database as it was.
pub(crate) enum Backup {
    Memory(MemoryStore),
}

impl Database {
    pub(crate) fn open(kind: StoreKind) -> Result<Self> {
        match kind {
            StoreKind::Memory => Ok(Self::Memory(MemoryStore::new())),
        }
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::new(store.clone()),
        }
    }

    pub(crate) async fn back_up(&self) -> Result<Backup> {
        match self {
            Self::Memory(store) => Ok(Backup::Memory(store.fork())),
        }
    }

    /// The database that `backup` was made of, as it was then.
    pub(crate) fn restored(backup: &Backup) -> Result<Self> {
        match backup {
            Backup::Memory(store) => Ok(Self::Memory(store.fork())),
        }
    }
}
