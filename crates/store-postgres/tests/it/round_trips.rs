//! How often a batch waits for the database: a number, whatever its size.

use tidewater_store::{
    Finished, LoadRequest, Store, WriteTxn,
    conformance::fixtures::{
        Draft, Item, NOTES, NOW_MS, all_rows, lock, page, partition, push_key, team_one, whole_log,
        window,
    },
};
use tidewater_store_postgres::PostgresStore;

use crate::support::{TestDatabase, write};

/// A store with one connection, whose statements are prepared.
async fn warm(database: &TestDatabase) -> PostgresStore {
    let store = database
        .ready_with(|config| config.connections_max = 1)
        .await;
    let (a, b) = (Item::note("warm").blobs(&["b"]), Item::task("warm"));
    let first = Draft::new("p", 1).bind(NOW_MS).insert(&a).insert(&b);
    let moved = a.next().team("t2").blobs(&["c"]);
    let second = Draft::new("p", 2).update(&a, &moved).delete(&b);
    let again = b.clone();
    let third = Draft::new("p", 3).insert(&again).clear(&again);
    for draft in [first, second, third] {
        batch(&store, vec![draft]).await;
    }
    reads(&store).await;
    store
}

async fn reads(store: &PostgresStore) {
    page(store, all_rows("p", NOTES, team_one())).await;
    window(store, whole_log("p", NOTES, team_one())).await;
}

/// What the engine does with a group of commits.
async fn batch(store: &PostgresStore, drafts: Vec<Draft>) {
    let wanted = LoadRequest {
        rows: vec![Item::note("warm").key("p"), Item::task("warm").key("p")],
        push_results: vec![push_key("p", "c1", "m1")],
        ..lock(&["p"])
    };
    let (txn, _) = store.begin_write(wanted).await.unwrap();
    let commits = drafts.into_iter().map(Draft::build).collect();
    let finished = txn.finish(commits).await.unwrap();
    assert!(matches!(finished, Finished::Committed));
}

async fn count(store: &PostgresStore, work: impl Future<Output = ()>) -> u64 {
    let before = store.round_trips();
    work.await;
    store.round_trips() - before
}

/// Commits from one place on, each with so many rows.
fn commits(from: u64, commits: u64, rows: u64) -> Vec<Draft> {
    let draft = |place: u64| {
        (0..rows).fold(Draft::new("p", place), |draft, row| {
            let item = Item::new(
                tidewater_schema::TableIndex(usize::from(row % 2 == 0)),
                &format!("{place}-{row}"),
            );
            draft.insert(&item.owner(&format!("o{}", row % 7)))
        })
    };
    (from..from + commits).map(draft).collect()
}

#[tokio::test]
async fn a_batch_costs_three_round_trips_whatever_its_size() {
    let database = TestDatabase::new();
    let store = warm(&database).await;
    for (from, amount, rows) in [(4, 1, 1), (5, 1, 500), (6, 50, 1), (56, 20, 40)] {
        let drafts = commits(from, amount, rows);
        let trips = count(&store, batch(&store, drafts)).await;
        assert_eq!(trips, 3, "begin and load, apply, commit: {amount} x {rows}");
    }
}

#[tokio::test]
async fn a_batch_that_breaks_a_constraint_costs_two_more() {
    let database = TestDatabase::new();
    let store = warm(&database).await;
    write(
        &store,
        [Draft::new("p", 4).insert(&Item::note("a").code("x"))],
    )
    .await;
    let mut drafts = commits(5, 20, 10);
    drafts.push(Draft::new("p", 25).insert(&Item::note("b").code("x")));
    drafts.extend(commits(26, 5, 1));
    let trips = count(&store, async {
        let (txn, _) = store.begin_write(lock(&["p"])).await.unwrap();
        let commits = drafts.into_iter().map(Draft::build).collect();
        let Finished::Violated(txn, violation) = txn.finish(commits).await.unwrap() else {
            panic!("the value is taken");
        };
        assert_eq!((violation.commit, violation.op_index), (20, 0));
        txn.finish(Vec::new()).await.unwrap();
    })
    .await;
    assert_eq!(trips, 5, "begin, apply, again, undo, commit");
}

#[tokio::test]
async fn staging_costs_one_and_unstaging_nothing() {
    let database = TestDatabase::new();
    let store = warm(&database).await;
    let (mut txn, _) = store.begin_write(lock(&["p"])).await.unwrap();
    let changes = |id: &str| {
        let draft = Draft::new("p", 4).insert(&Item::note(id));
        draft.build().applied.clone().unwrap().changes
    };
    txn.stage(&partition("p"), changes("s")).await.unwrap();
    let trips = count(&store, async {
        let txn: &mut dyn WriteTxn = &mut *txn;
        txn.unstage().await.unwrap();
        txn.stage(&partition("p"), changes("t")).await.unwrap();
        txn.unstage().await.unwrap();
    })
    .await;
    assert_eq!(trips, 1);
    let draft = Draft::new("p", 4).insert(&Item::note("s"));
    let trips = count(&store, async {
        txn.finish(vec![draft.build()]).await.unwrap();
    })
    .await;
    assert_eq!(trips, 2);
    assert_eq!(
        database.number("SELECT count(*) FROM notes WHERE id = 't'"),
        0
    );
}

#[tokio::test]
async fn a_read_with_one_scope_costs_one_round_trip() {
    let database = TestDatabase::new();
    let store = warm(&database).await;
    write(&store, commits(4, 20, 20)).await;
    let trips = count(&store, reads(&store)).await;
    assert_eq!(trips, 2, "two reads");
    let trips = count(&store, async { store.check().await.unwrap() }).await;
    assert!(trips <= 2, "once more where it is prepared");
}
