//! What goes wrong around a database, and that it passes.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use tidewater_model::HorizonSeq;
use tidewater_pgtest::Server;
use tidewater_store::{
    ActivityBatch, Finished, LoadRequest, RowStreamRequest, ScopesTest, SqlQuery, StorageCode,
    Store, StoreErrorKind,
    conformance::fixtures::{
        Draft, Item, NOTES, all_rows, epoch, filter, lock, page, partition, push_key, schema, seq,
        team_one, touch, whole_log, window,
    },
};
use tidewater_store_postgres::{PostgresConfig, PostgresStore};

use crate::support::{TestDatabase, commit, write};

fn note(number: u64) -> Item {
    Item::note(&format!("n{number:04}"))
}

/// Runs a future up to its n-th `Pending`; whether it ended before.
async fn poll_times(future: impl Future, times: usize) -> bool {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(|context| {
        if future.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        left -= 1;
        if left == 0 {
            return Poll::Ready(false);
        }
        Poll::Pending
    })
    .await
}

/// One connection: what a dropped future left on it would be found by the next one.
#[tokio::test]
async fn dropped_futures_leave_the_only_connection_usable() {
    let database = TestDatabase::new();
    let store = database
        .ready_with(|config| config.connections_max = 1)
        .await;
    let mut head = 0;
    for times in 1..40 {
        let place = head + 1;
        let draft = || Draft::new("p", place).insert(&note(place).code(&format!("{place}")));
        let ended = poll_times(commit(&store, [draft()]), times).await;
        poll_times(store.read_window(whole_log("p", NOTES, team_one())), times).await;
        poll_times(store.scan_rows(all_rows("p", NOTES, team_one())), times).await;
        poll_times(store.put_activity(ActivityBatch::default()), times).await;
        poll_times(
            store.rotate_epoch(&partition("other"), &epoch("e"), 1),
            times,
        )
        .await;
        poll_times(
            store.prune(&partition("p"), &epoch("e1"), HorizonSeq::at(seq(0))),
            times,
        )
        .await;
        store.check().await.unwrap();
        let gate = page(&store, all_rows("p", NOTES, team_one())).await.gate;
        assert!(!ended || gate.head.get() == place);
        head = gate.head.get();
    }
    assert!(head > 0, "some of them came to their end");
    store.check().await.unwrap();
    // The last read ends its snapshot beside us.
    while database.open_transactions() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Streams that are given up at every point of their lives leave no transaction open.
#[tokio::test]
async fn dropped_streams_leave_no_transaction_open() {
    let database = TestDatabase::new();
    let store = database
        .ready_with(|config| {
            config.connections_max = 1;
            config.streams_max = 1;
        })
        .await;
    let draft = (0..200).fold(Draft::new("p", 1), |draft, row| draft.insert(&note(row)));
    write(&store, [draft]).await;
    let asked = RowStreamRequest {
        partition: partition("p"),
        table: NOTES,
        filter: team_one(),
        rows_max: 10,
        bytes_max: 1 << 20,
    };
    let mut begun = 0;
    for times in 1..12 {
        let opened = store.stream_rows(asked.clone());
        begun += u32::from(poll_times(opened, times).await);
        let mut stream = store.stream_rows(asked.clone()).await.unwrap();
        poll_times(stream.next(), times).await;
        drop(stream);
        let mut stream = store.stream_rows(asked.clone()).await.unwrap();
        for _ in 0..times {
            stream.next().await.unwrap();
        }
        drop(stream);
        store.check().await.unwrap();
    }
    assert!(begun > 0, "some of them began");
    // The last one ends its snapshot beside us.
    while database.open_transactions() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_stream_whose_connection_was_cut_is_not_taken_for_complete() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    let draft = (0..200).fold(Draft::new("p", 1), |draft, row| draft.insert(&note(row)));
    write(&store, [draft]).await;
    let asked = RowStreamRequest {
        partition: partition("p"),
        table: NOTES,
        filter: team_one(),
        rows_max: 10,
        bytes_max: 1 << 20,
    };
    let mut stream = store.stream_rows(asked.clone()).await.unwrap();
    stream.next().await.unwrap().unwrap();
    database.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    let error = loop {
        match stream.next().await {
            Ok(piece) => assert!(piece.is_some_and(|piece| piece.has_more)),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    let mut stream = store.stream_rows(asked).await.unwrap();
    let mut rows = 0;
    while let Some(piece) = stream.next().await.unwrap() {
        rows += piece.rows().count();
    }
    assert_eq!(rows, 200);
}

/// More than a cursor gives at a time, and the wanted one among the last.
#[tokio::test]
async fn a_blob_that_many_rows_reference_is_found_by_the_one_that_is_wanted() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    let draft = (0..1_200).fold(Draft::new("p", 1), |draft, row| {
        let team = if row == 1_150 { "t2" } else { "t1" };
        draft.insert(&note(row).team(team).blobs(&["shared"]))
    });
    write(&store, [draft]).await;
    let find = async |team: &'static str| {
        let wanted = ScopesTest::new(move |_, scopes| scopes.value("team") == Some(team));
        store
            .find_blob_row(&partition("p"), "shared", wanted)
            .await
            .unwrap()
    };
    assert_eq!(&*find("t2").await.unwrap().row_id, "n1150");
    assert_eq!(find("t3").await, None);
    let nul = ["shared\0".to_owned(), "shared".to_owned()];
    let referenced = store.are_referenced(&partition("p"), nul.to_vec()).await;
    assert_eq!(referenced.unwrap(), [false, true]);
}

#[tokio::test]
async fn the_pool_never_has_more_connections_than_it_may() {
    let database = TestDatabase::new();
    let store = database
        .ready_with(|config| {
            config.connections_max = 3;
            config.streams_max = 1;
        })
        .await;
    write(&store, [Draft::new("p", 1).insert(&note(1))]).await;
    let mut reads = Vec::new();
    for _ in 0..40 {
        reads.push(page(&store, all_rows("p", NOTES, team_one())));
    }
    futures_util::future::join_all(reads).await;
    let connections = database.number(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
         AND application_name = 'tidewater'",
    );
    // The one for streams is beside them.
    assert!((1..=4).contains(&connections), "{connections}");
}

/// A server for few, of whose connections the store takes a part, with callers that give up.
#[tokio::test]
async fn a_pool_of_eight_lives_on_a_server_of_twenty_connections() {
    let server = Server::start().unwrap_or_else(|why| panic!("{why}"));
    server.run("postgres", "ALTER SYSTEM SET max_connections = 20");
    server.crash_and_restart();
    let database = server.database();
    let mut config = PostgresConfig::from_url(&database.url()).unwrap();
    config.connections_max = 8;
    let store = PostgresStore::new(config).unwrap();
    store.prepare(&schema()).await.unwrap();
    for round in 1..=5_u64 {
        let work = (0..40_usize).map(|caller| {
            let store = &store;
            async move {
                let name = format!("p{caller}");
                touch(store, &name).await;
                let wanted = LoadRequest {
                    partitions: vec![partition(&name)],
                    ..LoadRequest::default()
                };
                // Every other caller gives up somewhere on the way.
                let times = if caller % 2 == 0 {
                    usize::MAX
                } else {
                    1 + caller / 4
                };
                let draft = Draft::new(&name, round).insert(&note(round));
                let written = async {
                    let (txn, _) = store.begin_write(wanted).await.unwrap();
                    txn.finish(vec![draft.build()]).await.unwrap();
                };
                if caller % 2 == 0 {
                    written.await;
                } else {
                    poll_times(store.scan_rows(all_rows(&name, NOTES, team_one())), times).await;
                }
                page(store, all_rows(&name, NOTES, team_one())).await;
            }
        });
        futures_util::future::join_all(work).await;
    }
    let rows = page(&store, all_rows("p0", NOTES, team_one())).await;
    assert_eq!(rows.rows.len(), 5);
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidewater'";
    assert!(database.number(connections) <= 10);
}

#[tokio::test]
async fn a_pool_that_is_exhausted_is_unavailable_and_recovers() {
    let database = TestDatabase::new();
    let store = database
        .ready_with(|config| {
            config.connections_max = 1;
            config.checkout_timeout = Duration::from_millis(50);
        })
        .await;
    let (txn, _) = store.begin_write(lock(&["p"])).await.unwrap();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    drop(txn);
    store.check().await.unwrap();
}

#[tokio::test]
async fn a_lock_of_another_node_is_unavailable_until_it_is_gone() {
    let database = TestDatabase::new();
    let first = database.ready().await;
    let second = database
        .ready_with(|config| config.lock_timeout = Duration::from_millis(50))
        .await;
    let (txn, _) = first.begin_write(lock(&["p"])).await.unwrap();
    let error = second.begin_write(lock(&["p"])).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    page(&second, all_rows("p", NOTES, team_one())).await;
    drop(txn);
    write(&second, [Draft::new("p", 1).insert(&note(1))]).await;
}

#[tokio::test]
async fn two_nodes_that_lock_each_other_are_told_to_run_again() {
    let database = TestDatabase::new();
    let (one, two) = (database.ready().await, database.ready().await);
    touch(&one, "q").await;
    let (mut first, _) = one.begin_write(lock(&["p"])).await.unwrap();
    let (mut second, _) = two.begin_write(lock(&["q"])).await.unwrap();
    let (first, second) = tokio::join!(first.load(lock(&["q"])), second.load(lock(&["p"])));
    let (lost, won) = if first.is_err() {
        (first, second)
    } else {
        (second, first)
    };
    assert_eq!(lost.unwrap_err().kind, StoreErrorKind::Contention);
    won.unwrap();
}

#[tokio::test]
async fn connections_that_were_cut_are_replaced_unnoticed() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    write(&store, [Draft::new("p", 1).insert(&note(1))]).await;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    for place in 2..6 {
        database.run(cut);
        let rows = page(&store, all_rows("p", NOTES, team_one())).await;
        assert_eq!(rows.rows.len() + 1, usize::try_from(place).unwrap());
        database.run(cut);
        write(&store, [Draft::new("p", place).insert(&note(place))]).await;
    }
}

#[tokio::test]
async fn a_transaction_whose_connection_was_cut_is_unavailable_and_left_no_trace() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    let (txn, _) = store.begin_write(lock(&["p"])).await.unwrap();
    database.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    let draft = Draft::new("p", 1).insert(&note(1));
    let error = txn.finish(vec![draft.build()]).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    // The caller finds out by the key.
    let wanted = LoadRequest {
        push_results: vec![push_key("p", "c1", "m1")],
        ..lock(&["p"])
    };
    let (_, loaded) = store.begin_write(wanted).await.unwrap();
    assert_eq!(loaded.push_results, [None]);
}

#[tokio::test]
async fn a_server_that_crashed_and_came_back_has_what_was_acknowledged() {
    let server = Server::start().unwrap_or_else(|why| panic!("{why}"));
    let database = server.database();
    let store = PostgresStore::new(PostgresConfig::from_url(&database.url()).unwrap()).unwrap();
    store.prepare(&schema()).await.unwrap();
    touch(&store, "p").await;
    write(&store, [Draft::new("p", 1).insert(&note(1))]).await;
    let (txn, _) = store.begin_write(lock(&["p"])).await.unwrap();
    server.crash();
    let draft = || Draft::new("p", 2).insert(&note(2));
    let error = txn.finish(vec![draft().build()]).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    server.crash_and_restart();
    let rows = page(&store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.ids(), ["n0001"]);
    write(&store, [draft()]).await;
}

/// `synchronous_commit` is off in the test server.
#[tokio::test]
async fn commits_wait_for_the_disk_though_the_server_would_not() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    assert_eq!(database.texts("SHOW synchronous_commit"), ["off"]);
    let (mut txn, _) = store.begin_write(lock(&["p"])).await.unwrap();
    let query = SqlQuery {
        sql: "SELECT current_setting('synchronous_commit')".to_owned(),
        params: Vec::new(),
        partition: partition("p"),
        rows_max: 1,
    };
    let rows = txn.query(query).await.unwrap();
    assert_eq!(rows, [[tidewater_store::SqlValue::Text("on".to_owned())]]);
}

#[tokio::test]
async fn scopes_that_cannot_be_read_are_corrupt_and_hurt_nobody_else() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    let items = [note(1), note(2).team("t2")];
    let draft = Draft::new("p", 1).insert(&items[0]).insert(&items[1]);
    write(&store, [draft]).await;
    database.run("UPDATE notes SET _sync_scopes = '[]' WHERE _sync_row_id = 'n0002'");
    let two = filter(&[("team", &["t2"])]);
    let error = store.scan_rows(all_rows("p", NOTES, two)).await;
    assert_eq!(error.unwrap_err().kind, StoreErrorKind::Corrupt);
    page(&store, all_rows("p", NOTES, team_one())).await;
    window(&store, whole_log("p", NOTES, team_one())).await;
}

#[tokio::test]
async fn a_constraint_added_under_an_open_store_names_its_operation() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    write(&store, [Draft::new("p", 1).insert(&note(1).body("x"))]).await;
    database.run("ALTER TABLE notes ADD CHECK (body <> 'forbidden')");
    let draft = Draft::new("p", 2)
        .insert(&note(2).body("y"))
        .insert(&note(3).body("forbidden"));
    let finished = commit(&store, [draft]).await.unwrap();
    let Finished::Violated(txn, violation) = finished else {
        panic!("the check fails");
    };
    assert_eq!((violation.commit, violation.op_index), (0, 1));
    txn.finish(Vec::new()).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM notes"), 1);
}

#[tokio::test]
async fn text_that_cannot_be_held_is_a_violation_of_its_operation() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    // Without a pattern that could be compressed.
    let mut dice = 1_u32;
    let long: String = (0..9_000)
        .map(|_| {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            char::from(b'!' + u8::try_from((dice >> 16) % 90).unwrap())
        })
        .collect();
    let items = [
        Item::note("nul\0id"),
        note(5).body("nul\0body"),
        note(5).team("nul\0team"),
        note(5).blobs(&["nul\0blob"]),
        // Longer than an entry of an index may be.
        note(5).code(&long),
        note(5).team(&long),
    ];
    for item in items {
        let draft = Draft::new("p", 1)
            .insert(&note(1))
            .insert(&item)
            .insert(&note(2));
        let finished = commit(&store, [draft]).await.unwrap();
        let Finished::Violated(mut txn, violation) = finished else {
            panic!("it cannot be held: {item:?}");
        };
        assert_eq!(violation.commit, 0);
        // An entry is written for several rows at once: the commit's first operation is blamed.
        assert!(
            violation.op_index == 1 || violation.op_index == 0,
            "{item:?}"
        );
        // As the engine goes on.
        let rejected = Draft::rejected("p", "m1").build();
        assert_eq!(txn.apply(vec![rejected]).await.unwrap(), None);
        let changes = Draft::new("p", 1).insert(&note(1)).insert(&item);
        let changes = changes.build().applied.clone().unwrap().changes;
        let staged = txn.stage(&partition("p"), changes).await.unwrap();
        assert!(staged.is_some(), "{item:?}");
        drop(txn);
    }
    write(&store, [Draft::new("p", 1).insert(&note(1))]).await;
}

#[tokio::test]
async fn text_that_cannot_be_held_is_never_found() {
    let database = TestDatabase::new();
    let store = database.ready().await;
    write(
        &store,
        [Draft::new("p", 1).insert(&note(1)).insert(&note(2))],
    )
    .await;
    let nul = filter(&[("team", &["t1\0", "t1"])]);
    assert_eq!(
        page(&store, all_rows("p", NOTES, nul.clone()))
            .await
            .rows
            .len(),
        2
    );
    assert_eq!(
        window(&store, whole_log("p", NOTES, nul))
            .await
            .commits
            .len(),
        1
    );
    let none = filter(&[("team", &["\0"])]);
    assert!(
        page(&store, all_rows("p", NOTES, none))
            .await
            .rows
            .is_empty()
    );
    let mut scan = all_rows("p", NOTES, team_one());
    scan.after = Some("n0001\0zzz".to_owned());
    assert_eq!(page(&store, scan).await.ids(), ["n0002"]);
    let keys = vec![Item::note("n0001\0").key("p"), note(2).key("p")];
    let rows = store.find_rows(keys.clone()).await.unwrap();
    assert!(rows[0].is_none() && rows[1].is_some());
    let wanted = LoadRequest {
        rows: keys,
        ..lock(&["p"])
    };
    let (_, loaded) = store.begin_write(wanted).await.unwrap();
    assert!(loaded.rows[0].is_none() && loaded.rows[1].is_some());
    let error = store.find_partition(&partition("p\0")).await.unwrap_err();
    let refused = StoreErrorKind::Refused(StorageCode::TextUnsupported);
    assert_eq!(error.kind, refused);
}

#[tokio::test]
async fn a_query_that_writes_or_never_ends_is_refused_and_its_transaction_goes_on() {
    let database = TestDatabase::new();
    let store = database
        .ready_with(|config| config.query_timeout = Duration::from_millis(100))
        .await;
    let (mut txn, _) = store.begin_write(lock(&["p"])).await.unwrap();
    for sql in [
        "DELETE FROM notes",
        "COMMIT",
        "ROLLBACK",
        "SELECT nothing FROM notes",
        "SELECT 1) AS a, (SELECT",
        "SELECT 1/0",
        "SELECT set_config('transaction_read_only', 'off', true)",
        "SELECT nextval('nothing')",
        "SELECT pg_notify('a', 'b') FROM pg_sleep(100)",
        "WITH gone AS (DELETE FROM notes RETURNING 1) SELECT * FROM gone",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
        "",
    ] {
        let query = SqlQuery {
            sql: sql.to_owned(),
            params: Vec::new(),
            partition: partition("p"),
            rows_max: 10,
        };
        let Err(error) = txn.query(query).await else {
            panic!("{sql} is not refused");
        };
        let refused = StoreErrorKind::Refused(StorageCode::QueryUnsupported);
        assert_eq!(error.kind, refused, "{sql}: {error}");
    }
    let draft = Draft::new("p", 1).insert(&note(1));
    let finished = txn.finish(vec![draft.build()]).await.unwrap();
    assert!(matches!(finished, Finished::Committed));
    assert_eq!(database.number("SELECT count(*) FROM notes"), 1);
}

#[tokio::test]
async fn nothing_is_left_on_a_connection_that_a_pooler_would_hand_on() {
    let database = TestDatabase::new();
    let store = database
        .ready_with(|config| {
            config.connections_max = 1;
            config.prepared_statements = false;
        })
        .await;
    write(&store, [Draft::new("p", 1).insert(&note(1))]).await;
    page(&store, all_rows("p", NOTES, team_one())).await;
    let (mut txn, _) = store.begin_write(lock(&["p"])).await.unwrap();
    let query = |sql: &str| SqlQuery {
        sql: sql.to_owned(),
        params: Vec::new(),
        partition: partition("p"),
        rows_max: 9,
    };
    let prepared = txn.query(query("SELECT count(*) FROM pg_prepared_statements"));
    assert_eq!(
        prepared.await.unwrap(),
        [[tidewater_store::SqlValue::Integer(0)]]
    );
    let set = txn.query(query(
        "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name LIKE '%timeout' \
         AND setting <> reset_val AND name NOT IN ('statement_timeout', 'lock_timeout', \
         'idle_in_transaction_session_timeout')",
    ));
    assert_eq!(
        set.await.unwrap(),
        [[tidewater_store::SqlValue::Integer(0)]]
    );
}

#[tokio::test]
async fn an_address_where_nobody_answers_is_unavailable() {
    let store = PostgresStore::new(
        PostgresConfig::from_url("postgresql:///none?host=%2Fnowhere&user=u").unwrap(),
    )
    .unwrap();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    let database = TestDatabase::new();
    let url = database
        .0
        .url()
        .replace(database.0.name(), "no_such_database");
    let store = PostgresStore::new(PostgresConfig::from_url(&url).unwrap()).unwrap();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("no_such_database"), "{error}");
}
