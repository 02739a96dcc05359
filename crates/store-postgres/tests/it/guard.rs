//! Databases that went back in time are noticed, and databases that do not agree with themselves.

use tidewater_pgtest::Server;
use tidewater_store::{
    StorageCode, Store, StoreErrorKind,
    conformance::fixtures::{Draft, Item, NOTES, all_rows, lock, page, schema, team_one, touch},
};
use tidewater_store_postgres::{PostgresConfig, PostgresStore};

use crate::support::{TestDatabase, write};

async fn refusal(store: &PostgresStore) -> String {
    let error = store.prepare(&schema()).await.unwrap_err();
    let refused = StoreErrorKind::Refused(StorageCode::DatabaseRestored);
    assert_eq!(error.kind, refused, "{error}");
    error.to_string()
}

async fn filled(database: &TestDatabase) {
    let store = database.ready().await;
    write(&store, [Draft::new("p", 1).insert(&Item::note("a"))]).await;
    store.close();
}

/// What an operator does who knows that nothing was lost.
async fn keep(database: &TestDatabase) {
    let store = database.open_with(|config| config.accept_restored = true);
    store.prepare(&schema()).await.unwrap();
    store.adopt().await.unwrap();
    store.close();
    let store = database.open();
    store.prepare(&schema()).await.unwrap();
    write(&store, [Draft::new("p", 2).insert(&Item::note("b"))]).await;
}

#[tokio::test]
async fn a_database_that_was_never_moved_is_served_again_and_again() {
    let database = TestDatabase::new();
    filled(&database).await;
    for accept in [false, true, true, false] {
        let store = database.open_with(|config| config.accept_new_timelines = accept);
        store.prepare(&schema()).await.unwrap();
        store.close();
    }
    let count = "SELECT count(*) FROM sync_restore_guard WHERE cluster_id IS NOT NULL";
    assert_eq!(database.number(count), 1);
}

#[tokio::test]
async fn a_dump_that_was_put_back_is_refused_until_an_operator_vouches_for_it() {
    let database = TestDatabase::new();
    filled(&database).await;
    // What a dump and its restore do to every row: another transaction writes it.
    database.run(
        "CREATE TABLE dump AS SELECT * FROM sync_restore_guard; DELETE FROM sync_restore_guard; \
         INSERT INTO sync_restore_guard SELECT * FROM dump; DROP TABLE dump",
    );
    let why = refusal(&database.open()).await;
    assert!(
        why.contains("dump") && why.contains("epoch rotate"),
        "{why}"
    );
    let synchronous = database.open_with(|config| config.accept_new_timelines = true);
    refusal(&synchronous).await;
    keep(&database).await;
}

#[tokio::test]
async fn a_copy_of_a_database_is_refused() {
    let database = TestDatabase::new();
    filled(&database).await;
    let copy = database.0.copy();
    let store = PostgresStore::new(PostgresConfig::from_url(&copy.url()).unwrap()).unwrap();
    let why = refusal(&store).await;
    assert!(why.contains("copy"), "{why}");
    store.close();
    let store = database.open();
    store.prepare(&schema()).await.unwrap();
}

#[tokio::test]
async fn an_empty_database_may_come_from_anywhere() {
    let database = TestDatabase::new();
    database.ready().await.close();
    let copy = database.0.copy();
    let store = PostgresStore::new(PostgresConfig::from_url(&copy.url()).unwrap()).unwrap();
    store.prepare(&schema()).await.unwrap();
    touch(&store, "p").await;
    write(&store, [Draft::new("p", 1).insert(&Item::note("a"))]).await;
    store.close();
    let store = PostgresStore::new(PostgresConfig::from_url(&copy.url()).unwrap()).unwrap();
    store.prepare(&schema()).await.unwrap();
}

/// A cluster recovers to a point in time, and so begins a new timeline, under a store that knows
/// the old one.
#[tokio::test]
async fn nothing_is_written_on_a_timeline_that_a_server_did_not_begin_on() {
    let server = Server::start().unwrap_or_else(|why| panic!("{why}"));
    let database = server.database();
    let open = |accept| {
        let mut config = PostgresConfig::from_url(&database.url()).unwrap();
        config.accept_new_timelines = accept;
        PostgresStore::new(config).unwrap()
    };
    let store = open(false);
    store.prepare(&schema()).await.unwrap();
    touch(&store, "p").await;
    write(&store, [Draft::new("p", 1).insert(&Item::note("a"))]).await;
    server.recover();
    let error = store.begin_write(lock(&["p"])).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("timeline"), "{error}");
    let rows = page(&store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.ids(), ["a"], "reads go on");
    let why = refusal(&open(false)).await;
    assert!(why.contains("timeline 00000002"), "{why}");
    // Where standbys are synchronous, a new timeline lost nothing.
    let store = open(true);
    store.prepare(&schema()).await.unwrap();
    write(&store, [Draft::new("p", 2).insert(&Item::note("b"))]).await;
    store.close();
    let store = open(false);
    store.prepare(&schema()).await.unwrap();
}

/// An application's role has no rights over the cluster.
#[tokio::test]
async fn a_role_without_rights_may_look() {
    let database = TestDatabase::new();
    let name = database.0.name().to_owned();
    database.run(&format!(
        "CREATE ROLE plain_{name} LOGIN; GRANT ALL ON SCHEMA public TO plain_{name}"
    ));
    let url = database
        .0
        .url()
        .replace("user=postgres", &format!("user=plain_{name}"));
    let store = PostgresStore::new(PostgresConfig::from_url(&url).unwrap()).unwrap();
    store.prepare(&schema()).await.unwrap();
    touch(&store, "p").await;
    write(&store, [Draft::new("p", 1).insert(&Item::note("a"))]).await;
    store.close();
    database.run(&format!(
        "DROP OWNED BY plain_{name} CASCADE; DROP ROLE plain_{name}"
    ));
}

#[tokio::test]
async fn a_database_that_does_not_agree_with_itself_says_where() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    for place in 1..=5 {
        let item = Item::note(&format!("n{place}")).blobs(&["b"]);
        write(&store, [Draft::new("p", place).insert(&item)]).await;
    }
    let gone = Item::note("n5").blobs(&["b"]);
    write(&store, [Draft::new("p", 6).delete(&gone)]).await;
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
    for (damage, expected) in [
        (
            "DELETE FROM sync_commits WHERE commit_seq = 3",
            &["gaps", "without their commit"][..],
        ),
        (
            "UPDATE sync_partitions SET max_commit_seq = 5",
            &["commits beyond the end"],
        ),
        ("DELETE FROM sync_partition_registry", &["without an epoch"]),
        (
            "DELETE FROM sync_change_scopes WHERE commit_seq = 2",
            &["changes that are not in"],
        ),
        (
            "DELETE FROM sync_row_scopes WHERE row_id = 'n1'",
            &["rows that are not in"],
        ),
        (
            "DELETE FROM notes WHERE _sync_row_id = 'n2'",
            &[
                "without their row of table `notes`",
                "references to blobs",
                "last change",
            ],
        ),
        (
            "UPDATE notes SET _sync_server_version = 9 WHERE _sync_row_id = 'n1'",
            &["last change"],
        ),
    ] {
        let copy = database.0.copy();
        copy.run(damage);
        let mut config = PostgresConfig::from_url(&copy.url()).unwrap();
        config.accept_restored = true;
        let store = PostgresStore::new(config).unwrap();
        store.prepare(&schema()).await.unwrap();
        let faults = store.verify().await.unwrap();
        for part in expected {
            let is_named = faults.iter().any(|fault| fault.contains(part));
            assert!(is_named, "{damage}: {faults:?} has no {part}");
        }
        store.close();
    }
}
