//! Opens the database that the configuration names: for a server, or for an operator.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, bail, ensure};
use tidewater_schema::Schema;
use tidewater_store::{Store, memory::MemoryStore, signals::Signals};
use tidewater_store_postgres::PostgresStore;
use tidewater_store_sqlite::{SqliteConfig, SqliteStore};

use crate::config::{Config, store::StoreKind};

/// The database of a server, and what connects it with the other nodes.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) signals: Option<Arc<dyn Signals>>,
}

/// Opens the database of a server.
pub(crate) async fn open_for_nodes(config: &Config) -> anyhow::Result<Opened> {
    if config.store.kind() != StoreKind::Postgres || !config.store.has_other_nodes() {
        let store = open(config)?;
        return Ok(Opened {
            store,
            signals: None,
        });
    }
    let postgres = open_postgres(config)?;
    let signals = match &config.nats {
        Some(nats) => nats.to_nats()?.open().await.context("nats")?,
        None => postgres.signals()?,
    };
    Ok(Opened {
        store: Arc::new(postgres),
        signals: Some(signals),
    })
}

fn open_postgres(config: &Config) -> anyhow::Result<PostgresStore> {
    let streams_max = config.segments.image_builds_max;
    let mut postgres = config.store.to_postgres(streams_max)?;
    // They go one way or the other.
    postgres.announces &= config.nats.is_none();
    Ok(PostgresStore::new(postgres)?)
}

/// The database alone.
pub(crate) fn open(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    Ok(match config.store.kind() {
        StoreKind::Memory => Arc::new(MemoryStore::new()),
        StoreKind::Sqlite => {
            let store = SqliteStore::open(sqlite_config(config));
            let path: &Path = &config.store.path;
            Arc::new(store.with_context(|| format!("open {}", path.display()))?)
        }
        StoreKind::Postgres => Arc::new(open_postgres(config)?),
    })
}

/// A database under the hands of an operator: what no server does to it.
pub(crate) enum OperatedDatabase {
    Sqlite(SqliteStore),
    Postgres(Box<PostgresStore>),
}

impl OperatedDatabase {
    /// Opens it, and accepts one that shows signs of a restore if it is asked to.
    pub(crate) fn open(config: &Config, accept_restored: bool) -> anyhow::Result<Self> {
        Ok(match config.store.kind() {
            StoreKind::Memory => bail!("store.kind is memory: there is no database"),
            StoreKind::Sqlite => {
                let path = &config.store.path;
                let mut sqlite = sqlite_config(config);
                sqlite.accept_restored = accept_restored;
                let store = SqliteStore::open(sqlite);
                Self::Sqlite(store.with_context(|| format!("open {}", path.display()))?)
            }
            StoreKind::Postgres => {
                let mut postgres = config.store.to_postgres(1)?;
                postgres.accept_restored = accept_restored;
                // An operator may wait for longer than a client.
                postgres.lock_timeout = postgres.lock_timeout.max(OPERATOR_LOCK_TIMEOUT);
                Self::Postgres(Box::new(PostgresStore::new(postgres)?))
            }
        })
    }

    /// Opens it, or an empty one where there is none, and leaves none behind: for looking.
    pub(crate) fn open_or_imagine(config: &Config) -> anyhow::Result<Self> {
        if config.store.kind() == StoreKind::Sqlite && !config.store.path.exists() {
            return Ok(Self::Sqlite(SqliteStore::open(SqliteConfig::in_memory())?));
        }
        Self::open(config, false)
    }

    pub(crate) fn store(&self) -> &dyn Store {
        match self {
            Self::Sqlite(store) => store,
            Self::Postgres(store) => &**store,
        }
    }

    /// What it takes to bring it to a schema.
    pub(crate) async fn plan_migration(&self, schema: &Arc<Schema>) -> anyhow::Result<Vec<String>> {
        Ok(match self {
            Self::Sqlite(store) => store.plan_migration(schema).await?,
            Self::Postgres(store) => store.plan_migration(schema).await?,
        })
    }

    /// Takes it for the one that is served from here on.
    pub(crate) async fn adopt(&self) -> anyhow::Result<()> {
        match self {
            Self::Sqlite(store) => store.adopt().await?,
            Self::Postgres(store) => store.adopt().await?,
        }
        Ok(())
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Sqlite(store) => store.close(),
            Self::Postgres(store) => store.close(),
        }
    }
}

/// How long an operator's command waits for writes that are under way.
const OPERATOR_LOCK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Whether there is a database at all.
pub(crate) fn check_exists(config: &Config) -> anyhow::Result<()> {
    ensure!(
        config.store.kind() != StoreKind::Memory,
        "store.kind is memory: there is no database"
    );
    Ok(())
}

fn sqlite_config(config: &Config) -> SqliteConfig {
    let mut sqlite = SqliteConfig::file(&config.store.path);
    sqlite.size_limit = config.store.size_limit.map(|limit| limit.as_u64());
    sqlite
}
