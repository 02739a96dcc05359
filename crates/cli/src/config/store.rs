//! `[store]`: which database, and how much of it may be used.
//!
//! A URL is a PostgreSQL database and a path is a SQLite file, so that going from one to the other
//! is one line. The URL may hold a password: it is a secret, and can come from the environment
//! (`TIDEWATER_STORE__URL`) or from a file.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tidewater_server::Secret;
use tidewater_store_postgres::PostgresConfig;

/// `[store]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<StoreKind>,
    pub(crate) path: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size_limit: Option<ByteSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<Secret>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) postgres: Option<PostgresSection>,
}

/// Which database.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoreKind {
    /// A SQLite file.
    Sqlite,
    /// A PostgreSQL database, for several nodes.
    Postgres,
    /// Nothing that survives the process.
    Memory,
}

/// `[store.postgres]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PostgresSection {
    /// Whether no other node uses the database.
    pub(crate) single_node: bool,
    /// The database without a pooler in between, for signals between nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) direct_url: Option<Secret>,
    pub(crate) connections_max: usize,
    #[serde(with = "humantime_serde")]
    pub(crate) connect_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) checkout_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) statement_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) lock_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) idle_in_transaction_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) query_timeout: Duration,
    pub(crate) prepared_statements: bool,
    pub(crate) accept_new_timelines: bool,
}

impl Default for StoreSection {
    fn default() -> Self {
        Self {
            kind: None,
            path: PathBuf::from("tidewater.db"),
            size_limit: None,
            url: None,
            url_file: None,
            postgres: None,
        }
    }
}

impl Default for PostgresSection {
    fn default() -> Self {
        Self {
            single_node: false,
            direct_url: None,
            connections_max: 10,
            connect_timeout: Duration::from_secs(10),
            checkout_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(10),
            idle_in_transaction_timeout: Duration::from_secs(60),
            query_timeout: Duration::from_secs(3),
            prepared_statements: true,
            accept_new_timelines: false,
        }
    }
}

impl StoreSection {
    /// Which database: what is not said follows from the address.
    pub(crate) fn kind(&self) -> StoreKind {
        let has_url = self.url.is_some() || self.url_file.is_some();
        self.kind.unwrap_or(if has_url {
            StoreKind::Postgres
        } else {
            StoreKind::Sqlite
        })
    }

    /// Whether other nodes may use the same database.
    pub(crate) fn has_other_nodes(&self) -> bool {
        let is_single = self.postgres.as_ref().is_some_and(|it| it.single_node);
        self.kind() == StoreKind::Postgres && !is_single
    }

    /// Makes paths those of the file's folder, and fills in what follows from other settings.
    pub(super) fn resolve(&mut self, folder: &Path) {
        let kind = self.kind();
        self.kind = Some(kind);
        self.path = folder.join(&self.path);
        self.url_file = self.url_file.take().map(|path| folder.join(path));
        if kind == StoreKind::Postgres {
            self.postgres.get_or_insert_default();
        }
    }

    /// Whether the section can be meant.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.kind() == StoreKind::Postgres {
            ensure!(
                self.size_limit.is_none(),
                "store.size_limit bounds a SQLite file, and store.kind is postgres"
            );
            return self.to_postgres(0).map(drop);
        }
        ensure!(
            self.url.is_none() && self.url_file.is_none(),
            "store.url is a PostgreSQL database, and store.kind is another: remove one of them"
        );
        ensure!(
            self.postgres.is_none(),
            "store.postgres is set, and store.kind is not postgres"
        );
        Ok(())
    }

    /// The database as its store takes it, for a server with so many streams of rows at once.
    pub(crate) fn to_postgres(&self, streams_max: usize) -> anyhow::Result<PostgresConfig> {
        let section = self.postgres.clone().unwrap_or_default();
        ensure!(
            section.connections_max > 0,
            "store.postgres.connections_max is 0: nothing would ever be stored"
        );
        for (key, timeout) in [
            ("connect_timeout", section.connect_timeout),
            ("checkout_timeout", section.checkout_timeout),
            ("statement_timeout", section.statement_timeout),
            ("lock_timeout", section.lock_timeout),
            (
                "idle_in_transaction_timeout",
                section.idle_in_transaction_timeout,
            ),
            ("query_timeout", section.query_timeout),
        ] {
            ensure!(!timeout.is_zero(), "store.postgres.{key} is 0");
        }
        let url = self.address()?;
        let mut config = PostgresConfig::from_url(url.expose()).context("store.url")?;
        if let Some(direct) = &section.direct_url {
            let direct = config.listen_at(direct.expose());
            direct.context("store.postgres.direct_url")?;
        }
        config.connect_timeout(section.connect_timeout);
        config.connections_max = section.connections_max;
        config.streams_max = streams_max.max(1);
        config.checkout_timeout = section.checkout_timeout;
        config.statement_timeout = section.statement_timeout;
        config.lock_timeout = section.lock_timeout;
        config.idle_in_transaction_timeout = section.idle_in_transaction_timeout;
        config.query_timeout = section.query_timeout;
        config.prepared_statements = section.prepared_statements;
        config.announces = !section.single_node;
        config.accept_new_timelines = section.accept_new_timelines;
        Ok(config)
    }

    /// The URL of the section, or of its file.
    fn address(&self) -> anyhow::Result<Secret> {
        ensure!(
            self.url.is_none() || self.url_file.is_none(),
            "store.url and store.url_file are both set: remove one of them"
        );
        if let Some(file) = &self.url_file {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("read {}", file.display()))?;
            return Ok(Secret::new(text.trim()));
        }
        let url = self.url.clone().filter(|url| !url.is_empty());
        url.context(
            "store.kind is postgres and store.url is not set; it can be in the environment, as \
             TIDEWATER_STORE__URL",
        )
    }
}
