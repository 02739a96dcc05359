//! Asks PostgreSQL for its plan of what the store sends: an index answers each, at any size.
//!
//! The server counts how often it walked a table from end to end. Those that are large here must
//! not be among them; one with a few rows is walked for good reason.

use tidewater_store::{
    LoadRequest, SqlQuery, SqlValue, Store,
    conformance::fixtures::{
        Draft, Item, NOTES, all_rows, lock, page, partition, push_key, team_one, whole_log, window,
    },
};

use crate::support::{TestDatabase, write};

/// Tables that are large in this test.
const LARGE: [&str; 4] = [
    "sync_row_scopes",
    "sync_change_scopes",
    "sync_changes",
    "notes",
];

#[tokio::test]
async fn an_index_answers_what_clients_ask() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    for batch in 0..10 {
        let items = (0..400).map(|n| {
            let team = if n % 20 == 0 { "t1" } else { "other" };
            Item::note(&format!("{batch}-{n}"))
                .team(team)
                .owner(&format!("o{n}"))
        });
        let draft = items.fold(Draft::new("p", batch + 1), |draft, item| {
            draft.insert(&item)
        });
        write(&store, [draft]).await;
    }
    database.run("ANALYZE");
    let scans = || {
        let counts = "SELECT relname || ' ' || seq_scan FROM pg_stat_user_tables ORDER BY relname";
        database.texts(counts)
    };
    store.close();
    drop(store);
    let before = settled(&database, &scans).await;
    // A new store: its connections plan with what is known now.
    let store = database.ready().await;
    for _ in 0..8 {
        page(&store, all_rows("p", NOTES, team_one())).await;
    }
    // Often enough for plans that do not look at values.
    for round in 0..8 {
        let mut scan = all_rows("p", NOTES, team_one());
        scan.rows_max = 20;
        page(&store, scan).await;
        let mut log = whole_log("p", NOTES, team_one());
        log.changes_max = 20;
        window(&store, log).await;
        let wanted = LoadRequest {
            rows: vec![Item::note("1-1").key("p"), Item::note("none").key("p")],
            ..lock(&["p"])
        };
        drop(store.begin_write(wanted).await.unwrap());
        let item = Item::note(&format!("new{round}"));
        let draft = Draft::new("p", 11 + round).insert(&item);
        write(&store, [draft]).await;
    }
    store.close();
    drop(store);
    let after = settled(&database, &scans).await;
    for (before, after) in before.iter().zip(&after) {
        let table = before.split(' ').next().unwrap();
        assert!(
            !LARGE.contains(&table) || before == after,
            "a table was walked: {before}, then {after}"
        );
    }
}

/// The counts, once every connection of the store is gone and has reported its own.
async fn settled(database: &TestDatabase, counts: &dyn Fn() -> Vec<String>) -> Vec<String> {
    const OTHERS: &str = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    while database.number(OTHERS) > 0 {
        tokio::task::yield_now().await;
    }
    counts()
}

#[tokio::test]
async fn what_is_asked_for_is_fetched_once_also_where_statistics_are_old() {
    const COMMITS: u64 = 300;
    let database = TestDatabase::new();
    let store = database.ready().await;
    let notes = || (1..=COMMITS).map(|number| Item::note(&format!("n{number}")));
    for (number, item) in (1..).zip(notes()) {
        write(&store, [Draft::new("p", number).insert(&item)]).await;
        if number == 1 {
            let tables = "SELECT format('ALTER TABLE %I SET (autovacuum_enabled = false)', relname) \
                FROM pg_stat_user_tables";
            for statement in database.texts(tables) {
                database.run(&statement);
            }
            database.run("ANALYZE");
        }
    }
    store.close();
    drop(store);
    let fetched = || {
        let counts = "SELECT relname || ' ' || (seq_tup_read + idx_tup_fetch) \
            FROM pg_stat_user_tables ORDER BY relname";
        database.texts(counts)
    };
    let before = settled(&database, &fetched).await;
    let store = database.ready().await;
    let log = window(&store, whole_log("p", NOTES, team_one())).await;
    let rows = page(&store, all_rows("p", NOTES, team_one())).await;
    let wanted = LoadRequest {
        rows: notes().map(|item| item.key("p")).collect(),
        push_results: (1..=COMMITS)
            .map(|number| push_key("p", "c1", &format!("m{number}")))
            .collect(),
        ..lock(&["p"])
    };
    let (txn, loaded) = store.begin_write(wanted).await.unwrap();
    drop(txn);
    let asked = usize::try_from(COMMITS).unwrap();
    let loaded = loaded.rows.iter().flatten().count();
    assert_eq!([log.seqs().len(), rows.rows.len(), loaded], [asked; 3]);
    let delete = notes().fold(Draft::new("p", COMMITS + 1), |draft, item| {
        draft.delete(&item)
    });
    write(&store, [delete]).await;
    let insert = notes().fold(Draft::new("p", COMMITS + 2), |draft, item| {
        draft.insert(&item)
    });
    write(&store, [insert]).await;
    store.close();
    drop(store);
    let after = settled(&database, &fetched).await;
    let count = |text: &str| text.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    for (before, after) in before.iter().zip(&after) {
        let fetched = count(after) - count(before);
        assert!(
            fetched <= 3 * COMMITS,
            "{after}, of them {fetched} for {COMMITS} commits"
        );
    }
}

#[tokio::test]
async fn no_statement_is_compiled() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    let (mut txn, _) = store.begin_write(lock(&["p"])).await.unwrap();
    let setting = SqlQuery {
        sql: "SELECT current_setting('jit')".to_owned(),
        params: Vec::new(),
        partition: partition("p"),
        rows_max: 1,
    };
    let answer = txn.query(setting).await.unwrap();
    assert_eq!(answer, [[SqlValue::Text("off".to_owned())]]);
}
