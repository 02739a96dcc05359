//! Jobs that one node does at a time.

use std::time::Duration;

use tidewater_store::{Job, Store, StoreErrorKind};
use tidewater_store_postgres::{PostgresConfig, PostgresStore};

use crate::support::TestDatabase;

fn open(database: &TestDatabase) -> PostgresStore {
    database.open_with(|config| config.keepalive = Duration::from_secs(1))
}

async fn has(store: &PostgresStore, job: Job) -> bool {
    store.holds(job).await.unwrap()
}

/// The sessions with locks of jobs.
const HOLDERS: &str = "FROM pg_locks WHERE locktype = 'advisory' AND granted \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

#[tokio::test]
async fn a_job_has_one_node_until_that_ends() {
    let database = TestDatabase::new();
    let [a, b] = [open(&database), open(&database)];
    assert!(has(&a, Job::PruneLogs).await && has(&a, Job::PruneLogs).await);
    assert!(!has(&b, Job::PruneLogs).await);
    // Each job has a lock of its own.
    assert!(has(&b, Job::SweepBlobs).await && !has(&a, Job::SweepBlobs).await);
    drop(a);
    while !has(&b, Job::PruneLogs).await {}
    let c = open(&database);
    assert!(!has(&c, Job::PruneLogs).await && !has(&c, Job::SweepBlobs).await);
    b.close();
    while !has(&c, Job::SweepBlobs).await {}
}

#[tokio::test]
async fn a_job_goes_to_another_node_when_its_holder_loses_the_database() {
    let database = TestDatabase::new();
    let [a, b] = [open(&database), open(&database)];
    assert!(has(&a, Job::PruneLogs).await && !has(&b, Job::PruneLogs).await);
    database.run(&format!("SELECT pg_terminate_backend(pid) {HOLDERS}"));
    while !has(&b, Job::PruneLogs).await {}
    assert!(!has(&a, Job::PruneLogs).await);
}

/// A process that was stopped keeps its socket: only the server can end its session.
#[tokio::test]
async fn the_server_ends_the_session_of_a_node_that_is_silent() {
    let database = TestDatabase::new();
    let a = open(&database);
    assert!(has(&a, Job::PruneLogs).await);
    // A node in a runtime that does not run is as silent as one that was stopped.
    let url = database.0.url();
    let stopped = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut config = PostgresConfig::from_url(&url).unwrap();
        config.keepalive = Duration::from_millis(100);
        let store = PostgresStore::new(config).unwrap();
        let held = runtime.block_on(store.holds(Job::SweepBlobs)).unwrap();
        (held, store, runtime)
    });
    let (held, store, runtime) = stopped.join().unwrap();
    assert!(held);
    while !has(&a, Job::SweepBlobs).await {}
    drop(store);
    runtime.shutdown_background();
}

#[tokio::test]
async fn without_the_database_nobody_knows() {
    let mut config = PostgresConfig::from_url("postgresql:///none?host=%2Fnowhere&user=u").unwrap();
    config.checkout_timeout = Duration::from_millis(100);
    let store = PostgresStore::new(config).unwrap();
    let error = store.holds(Job::PruneLogs).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
}
