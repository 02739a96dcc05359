//! What goes wrong around a database, and that it passes.

use std::{fs, time::Duration};

use tidewater_model::HorizonSeq;
use tidewater_store::{
    Finished, StorageCode, Store, StoreErrorKind,
    conformance::fixtures::{
        Draft, Item, NOTES, all_rows, epoch, lock, page, partition, schema, seq, team_one, touch,
        whole_log, window,
    },
};
use tidewater_store_sqlite::{SqliteConfig, SqliteStore};

use crate::support::{Files, commit, write};

async fn ready(files: &Files) -> SqliteStore {
    ready_with(files.config()).await
}

async fn ready_with(config: SqliteConfig) -> SqliteStore {
    let store = SqliteStore::open(config).unwrap();
    store.prepare(&schema()).await.unwrap();
    touch(&store, "p").await;
    store
}

fn note(number: u64) -> Item {
    Item::note(&format!("n{number:04}"))
}

#[tokio::test]
async fn a_second_store_is_refused_with_a_sentence() {
    let files = Files::new();
    let first = ready(&files).await;
    let error = SqliteStore::open(files.config()).unwrap_err();
    let refused = StoreErrorKind::Refused(StorageCode::DatabaseInUse);
    assert_eq!(error.kind, refused);
    let sentence = error.to_string();
    assert!(sentence.contains("stop the other server"), "{sentence}");
    drop(first);
    files.open();
}

#[tokio::test]
async fn a_full_disk_is_unavailable_until_there_is_space_again() {
    let files = Files::new();
    let store = ready_with(SqliteConfig {
        size_limit: Some(512 * 1024),
        ..files.config()
    })
    .await;
    let body = "x".repeat(8_000);
    let mut head = 0;
    let error = loop {
        let item = note(head + 1).body(&body);
        match commit(&store, [Draft::new("p", head + 1).insert(&item)]).await {
            Ok(_) => head += 1,
            Err(error) => break error,
        }
        assert!(head < 1_000, "the limit holds");
    };
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    store.check().await.unwrap();
    let rows = page(&store, all_rows("p", NOTES, team_one())).await.rows;
    assert_eq!(rows.len(), usize::try_from(head).unwrap());
    // The log makes room.
    let horizon = HorizonSeq::at(seq(head));
    store
        .prune(&partition("p"), &epoch("e1"), horizon)
        .await
        .unwrap();
    let item = note(head + 1).body(&body);
    write(&store, [Draft::new("p", head + 1).insert(&item)]).await;
    drop(store);
    // The operator does.
    let store = ready(&files).await;
    let more = (1..100).map(|more| {
        let item = note(head + 1 + more).body(&body);
        Draft::new("p", head + 1 + more).insert(&item)
    });
    write(&store, more).await;
}

#[tokio::test]
async fn a_large_transaction_that_does_not_fit_leaves_no_trace() {
    let files = Files::new();
    let store = ready_with(SqliteConfig {
        size_limit: Some(1024 * 1024),
        // Pages go to the log before the transaction ends.
        writer_cache_bytes: 64 * 1024,
        ..files.config()
    })
    .await;
    write(&store, [Draft::new("p", 1).insert(&note(1))]).await;
    let before = page(&store, all_rows("p", NOTES, team_one())).await;
    let body = "x".repeat(8_000);
    let draft = (2..200).fold(Draft::new("p", 2), |draft, number| {
        draft.insert(&note(number).body(&body))
    });
    let error = commit(&store, [draft]).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    assert_eq!(page(&store, all_rows("p", NOTES, team_one())).await, before);
    write(&store, [Draft::new("p", 2).insert(&note(2))]).await;
}

#[tokio::test]
async fn a_lock_of_another_process_is_unavailable_until_it_is_gone() {
    let files = Files::new();
    let store = ready_with(SqliteConfig {
        busy_timeout: Duration::from_millis(20),
        ..files.config()
    })
    .await;
    let outside = files.outside();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store.begin_write(lock(&["p"])).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    let draft = || Draft::new("p", 1).insert(&note(1));
    assert!(commit(&store, [draft()]).await.is_err());
    page(&store, all_rows("p", NOTES, team_one())).await;
    outside.execute_batch("ROLLBACK").unwrap();
    write(&store, [draft()]).await;
}

/// A file format that may be read and not written, as permissions may say for other users.
#[tokio::test]
async fn a_database_that_cannot_be_written_is_unavailable_and_can_be_read() {
    let files = Files::new();
    let store = ready(&files).await;
    write(&store, [Draft::new("p", 1).insert(&note(1))]).await;
    drop(store);
    let mut bytes = fs::read(files.path()).unwrap();
    bytes[18] = 3;
    fs::write(files.path(), bytes).unwrap();
    let store = files.open();
    store.prepare(&schema()).await.unwrap();
    let rows = page(&store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.ids(), ["n0001"]);
    let error = store.begin_write(lock(&["p"])).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_corrupt() {
    let files = Files::new();
    fs::write(
        files.path(),
        "not a database, but long enough to look".repeat(100),
    )
    .unwrap();
    let error = SqliteStore::open(files.config()).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
}

#[tokio::test]
async fn scopes_that_cannot_be_read_are_corrupt_and_hurt_nobody_else() {
    let files = Files::new();
    let store = ready(&files).await;
    let items = [note(1), note(2).team("t2")];
    let draft = Draft::new("p", 1).insert(&items[0]).insert(&items[1]);
    write(&store, [draft]).await;
    files.execute("UPDATE notes SET _sync_scopes = '[]' WHERE _sync_row_id = 'n0002'");
    let two = tidewater_store::conformance::fixtures::filter(&[("team", &["t2"])]);
    let error = store.scan_rows(all_rows("p", NOTES, two)).await;
    assert_eq!(error.unwrap_err().kind, StoreErrorKind::Corrupt);
    page(&store, all_rows("p", NOTES, team_one())).await;
    window(&store, whole_log("p", NOTES, team_one())).await;
}

#[tokio::test]
async fn closing_leaves_one_file_with_everything_in_it() {
    let files = Files::new();
    let store = ready(&files).await;
    write(&store, [Draft::new("p", 1).insert(&note(1))]).await;
    let log = files.path().with_extension("-wal");
    let log = log.with_file_name("database-wal");
    assert!(fs::metadata(&log).unwrap().len() > 0);
    store.close();
    assert!(!log.exists(), "the log is in the file");
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "closed is closed");
    assert_eq!(files.number("SELECT count(*) FROM notes"), 1);
}

#[tokio::test]
async fn a_transaction_that_outlives_its_store_holds_the_database_and_nobody_up() {
    let files = Files::new();
    let store = ready(&files).await;
    let (txn, _) = store.begin_write(lock(&["p"])).await.unwrap();
    drop(store);
    assert!(SqliteStore::open(files.config()).is_err());
    let draft = Draft::new("p", 1).insert(&note(1));
    let finished = txn.finish(vec![draft.build()]).await.unwrap();
    assert!(matches!(finished, Finished::Committed));
    // The thread ends in its own time.
    let mut opened = SqliteStore::open(files.config());
    while opened.is_err() {
        tokio::task::yield_now().await;
        opened = SqliteStore::open(files.config());
    }
    let store = opened.unwrap();
    store.prepare(&schema()).await.unwrap();
    let rows = page(&store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.ids(), ["n0001"]);
}

/// Its tables had no constraint when the store looked: a commit had no savepoint.
#[tokio::test]
async fn a_constraint_added_under_an_open_store_costs_one_transaction() {
    let files = Files::new();
    let store = ready(&files).await;
    let samples = tidewater_schema::TableIndex(2);
    let sample = |place: u64, id: &str| {
        use tidewater_wire::row::{RowWriter, Value};
        let mut row = RowWriter::new(9);
        row.value(&Value::Integer(id.parse().unwrap()));
        row.value(&Value::String("t1"));
        row.value(&Value::Integer(7));
        (0..6).for_each(|_| row.null());
        let state = tidewater_store::RowState {
            payload: row.finish().into(),
            scopes: tidewater_store::conformance::fixtures::scopes(&[("team", "t1")]),
            ..Item::note("any").state()
        };
        Draft::new("p", place).upsert(samples, id.into(), state, None)
    };
    write(&store, [sample(1, "1")]).await;
    files.execute("CREATE UNIQUE INDEX operators_own ON samples (count)");
    let error = commit(&store, [sample(2, "2")]).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Contention, "run it again");
    let before = Draft::new("p", 2).insert(&note(1));
    let finished = commit(&store, [before, sample(3, "2")]).await.unwrap();
    let Finished::Violated(txn, violation) = finished else {
        panic!("the value is taken");
    };
    assert_eq!((violation.commit, violation.op_index), (1, 0));
    txn.finish(Vec::new()).await.unwrap();
    let rows = page(&store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.ids(), ["n0001"]);
}

#[tokio::test]
async fn an_in_memory_database_ends_with_its_store() {
    let store = ready_with(SqliteConfig::in_memory()).await;
    write(&store, [Draft::new("p", 1).insert(&note(1))]).await;
    let other = ready_with(SqliteConfig::in_memory()).await;
    let rows = page(&other, all_rows("p", NOTES, team_one())).await;
    assert!(rows.rows.is_empty(), "each has its own");
}

#[tokio::test]
async fn a_query_that_writes_or_never_ends_is_refused_and_its_transaction_goes_on() {
    let files = Files::new();
    let store = ready(&files).await;
    let (mut txn, _) = store.begin_write(lock(&["p"])).await.unwrap();
    for sql in [
        "DELETE FROM notes",
        "COMMIT",
        "ROLLBACK",
        "SELECT nothing FROM notes",
        "SELECT",
        "SELECT abs(-9223372036854775808)",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
        "",
    ] {
        let query = tidewater_store::SqlQuery {
            sql: sql.to_owned(),
            params: Vec::new(),
            partition: partition("p"),
            rows_max: 10,
        };
        let error = txn.query(query).await.unwrap_err();
        let refused = StoreErrorKind::Refused(StorageCode::QueryUnsupported);
        assert_eq!(error.kind, refused, "{sql}");
    }
    let draft = Draft::new("p", 1).insert(&note(1));
    let finished = txn.finish(vec![draft.build()]).await.unwrap();
    assert!(matches!(finished, Finished::Committed));
    assert_eq!(files.number("SELECT count(*) FROM notes"), 1);
}
