//! A database that is seen by the store and from outside.

use std::sync::Arc;

use tidewater_pgtest::{Database, Server};
use tidewater_store::{
    CommitWrite, Finished, LoadRequest, Store, StoreError,
    conformance::fixtures::{Draft, partition, schema, touch},
};
use tidewater_store_postgres::{PostgresConfig, PostgresStore};

/// An empty database of the server that all tests share.
pub(crate) struct TestDatabase(pub(crate) Database<'static>);

impl TestDatabase {
    pub(crate) fn new() -> Self {
        Self(Server::shared().database())
    }

    pub(crate) fn config(&self) -> PostgresConfig {
        let mut config = PostgresConfig::from_url(&self.0.url()).unwrap();
        config.connections_max = 4;
        config
    }

    pub(crate) fn open(&self) -> PostgresStore {
        self.open_with(|_| {})
    }

    pub(crate) fn open_with(&self, change: impl FnOnce(&mut PostgresConfig)) -> PostgresStore {
        let mut config = self.config();
        change(&mut config);
        PostgresStore::new(config).unwrap()
    }

    /// A store that is ready, with the partition `p`.
    pub(crate) async fn ready(&self) -> PostgresStore {
        self.ready_with(|_| {}).await
    }

    pub(crate) async fn ready_with(
        &self,
        change: impl FnOnce(&mut PostgresConfig),
    ) -> PostgresStore {
        let store = self.open_with(change);
        store.prepare(&schema()).await.unwrap();
        touch(&store, "p").await;
        store
    }

    pub(crate) fn run(&self, sql: &str) {
        self.0.run(sql);
    }

    pub(crate) fn texts(&self, sql: &str) -> Vec<String> {
        self.0.texts(sql)
    }

    pub(crate) fn number(&self, sql: &str) -> i64 {
        self.0.number(sql)
    }

    /// Transactions that are open in this database, apart from the one that asks.
    pub(crate) fn open_transactions(&self) -> i64 {
        self.number(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
             AND pid <> pg_backend_pid() AND xact_start IS NOT NULL \
             AND backend_type = 'client backend'",
        )
    }
}

/// Commits drafts of the partition `p` in one transaction.
pub(crate) async fn commit(
    store: &dyn Store,
    drafts: impl IntoIterator<Item = Draft>,
) -> Result<Finished, StoreError> {
    let commits: Vec<Arc<CommitWrite>> = drafts.into_iter().map(Draft::build).collect();
    let wanted = LoadRequest {
        partitions: vec![partition("p")],
        ..LoadRequest::default()
    };
    let (txn, _) = store.begin_write(wanted).await?;
    txn.finish(commits).await
}

/// Commits drafts that break nothing.
pub(crate) async fn write(store: &dyn Store, drafts: impl IntoIterator<Item = Draft>) {
    let finished = commit(store, drafts).await.unwrap();
    assert!(matches!(finished, Finished::Committed));
}
