//! Asks PostgreSQL for its plan of what the store sends: an index answers each, at any size.
//!
//! The server counts how often it walked a table from end to end. Those that are large here must
//! not be among them; one with a few rows is walked for good reason.

use tidewater_store::{
    LoadRequest, Store,
    conformance::fixtures::{
        Draft, Item, NOTES, all_rows, lock, page, team_one, whole_log, window,
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
        // Counted when a transaction has ended and its connection says so.
        database.run("SELECT pg_stat_force_next_flush()");
        database.texts(counts)
    };
    store.close();
    // A new store: its connections plan with what is known now.
    let store = database.ready().await;
    for _ in 0..8 {
        page(&store, all_rows("p", NOTES, team_one())).await;
    }
    drop(scans());
    let before = settled(&database, &scans).await;
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

/// The counts, once no connection of the store has any to report.
async fn settled(database: &TestDatabase, scans: &dyn Fn() -> Vec<String>) -> Vec<String> {
    while database.open_transactions() > 0 {
        tokio::task::yield_now().await;
    }
    scans()
}
