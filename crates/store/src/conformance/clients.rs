//! Client records and the activity that is written in batches (§2.3, §4.5).

use tidewater_model::{ClientId, CommitSeq, Cursor, ScopeFilter};

use super::{
    Database,
    fixtures::{
        Draft, Item, NOW_MS, actor, client, epoch, filter, lock, partition, push_key, seq, touch,
    },
    support::{at_every_moment, begin, cancel, finished, ready, serves, write},
};
use crate::{
    ActivityBatch, ClientKey, ClientRecord, ClientSubscription, FailureReport, LoadRequest, Store,
    WriteLanes,
};

fn record() -> ClientRecord {
    ClientRecord {
        actor: actor("a1"),
        cursor: Cursor::At(seq(4)),
        subscriptions: vec![
            ClientSubscription {
                id: "s1".to_owned(),
                table: "notes".to_owned(),
                scopes: filter(&[("team", &["t2", "t1", "t2"]), ("owner", &["\"o\""])]),
                complete: Some(true),
                schema_version: Some(1),
            },
            ClientSubscription {
                id: "\u{1F600}".to_owned(),
                table: "a table of an older schema".to_owned(),
                scopes: ScopeFilter::default(),
                complete: None,
                schema_version: None,
            },
        ],
        wire_version: 3,
        updated_at_ms: NOW_MS,
        failure: Some(FailureReport {
            code: "transport.timeout".to_owned(),
            at_ms: NOW_MS - 5,
            streak: 2,
        }),
    }
}

fn key(name: &str, client_name: &str) -> ClientKey {
    ClientKey {
        partition: partition(name),
        client: client(client_name),
    }
}

async fn put(store: &dyn Store, name: &str, client_name: &str, record: &ClientRecord) {
    let batch = ActivityBatch {
        touches: Vec::new(),
        clients: vec![(key(name, client_name), epoch("e1"), record.clone())],
    };
    store.put_activity(batch).await.unwrap();
}

async fn find(store: &dyn Store, name: &str, client_name: &str) -> Option<ClientRecord> {
    store
        .find_client(&partition(name), &client(client_name))
        .await
        .unwrap()
}

async fn last_seen(store: &dyn Store, name: &str) -> Option<i64> {
    let record = store.find_partition(&partition(name)).await.unwrap()?;
    Some(record.last_authenticated_at_ms)
}

pub(super) async fn a_client_record_reads_back_as_written(database: &dyn Database) {
    let store = ready(database).await;
    assert_eq!(find(&*store, "p", "c1").await, None);
    put(&*store, "p", "c1", &record()).await;
    assert_eq!(find(&*store, "p", "c1").await, Some(record()));
    let wanted = LoadRequest {
        clients: vec![key("p", "c2"), key("p", "c1")],
        ..lock(&["p"])
    };
    let (_, loaded) = store.begin_write(wanted).await.unwrap();
    assert_eq!(loaded.clients, [None, Some(record())]);
}

pub(super) async fn a_client_record_is_replaced_whole(database: &dyn Database) {
    let store = ready(database).await;
    put(&*store, "p", "c1", &record()).await;
    for cursor in [
        Cursor::At(seq(9)),
        Cursor::At(CommitSeq::START),
        Cursor::Never,
    ] {
        let next = ClientRecord {
            actor: actor("a1"),
            cursor,
            subscriptions: Vec::new(),
            wire_version: 77,
            updated_at_ms: NOW_MS + 1,
            failure: None,
        };
        put(&*store, "p", "c1", &next).await;
        assert_eq!(
            find(&*store, "p", "c1").await,
            Some(next),
            "a cursor may go down"
        );
    }
}

pub(super) async fn clients_of_two_partitions_are_two_clients(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    put(&*store, "p", "c1", &record()).await;
    assert_eq!(find(&*store, "q", "c1").await, None);
    let other = ClientRecord {
        actor: actor("a9"),
        ..record()
    };
    put(&*store, "q", "c1", &other).await;
    assert_eq!(find(&*store, "p", "c1").await, Some(record()));
    assert_eq!(find(&*store, "q", "c1").await, Some(other));
}

pub(super) async fn a_client_record_of_another_epoch_is_skipped(database: &dyn Database) {
    let store = ready(database).await;
    let batch = ActivityBatch {
        touches: vec![(partition("p"), NOW_MS + 10)],
        clients: vec![
            (key("p", "old"), epoch("e0"), record()),
            (key("p", "new"), epoch("e1"), record()),
        ],
    };
    store.put_activity(batch).await.unwrap();
    assert_eq!(find(&*store, "p", "old").await, None);
    assert_eq!(
        find(&*store, "p", "new").await,
        Some(record()),
        "the others are written"
    );
    assert_eq!(last_seen(&*store, "p").await, Some(NOW_MS + 10));
}

pub(super) async fn a_client_record_of_another_actor_is_skipped(database: &dyn Database) {
    let store = ready(database).await;
    put(&*store, "p", "c1", &record()).await;
    let foreign = ClientRecord {
        actor: actor("a2"),
        cursor: Cursor::At(seq(100)),
        ..record()
    };
    put(&*store, "p", "c1", &foreign).await;
    assert_eq!(find(&*store, "p", "c1").await, Some(record()));
}

pub(super) async fn activity_never_creates_a_partition(database: &dyn Database) {
    let store = ready(database).await;
    let batch = ActivityBatch {
        touches: vec![(partition("q"), NOW_MS), (partition("p"), NOW_MS + 7)],
        clients: vec![(key("q", "c1"), epoch("e1"), record())],
    };
    store.put_activity(batch).await.unwrap();
    assert_eq!(last_seen(&*store, "q").await, None);
    assert_eq!(find(&*store, "q", "c1").await, None);
    let listed = store.list_partitions(None, 10).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(last_seen(&*store, "p").await, Some(NOW_MS + 7));
    // A log alone does not register a partition either.
    write(&*store, [Draft::new("r", 1).insert(&Item::note("n"))]).await;
    let batch = ActivityBatch {
        touches: vec![(partition("r"), NOW_MS)],
        clients: vec![(key("r", "c1"), epoch("e1"), record())],
    };
    store.put_activity(batch).await.unwrap();
    assert_eq!(last_seen(&*store, "r").await, None);
    assert_eq!(find(&*store, "r", "c1").await, None);
}

pub(super) async fn an_empty_batch_of_activity_is_nothing(database: &dyn Database) {
    let store = ready(database).await;
    store.put_activity(ActivityBatch::default()).await.unwrap();
    serves(&*store, "p").await;
}

pub(super) async fn activity_is_written_all_or_not_at_all(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let mut at_ms = NOW_MS;
    at_every_moment(async |moment| {
        at_ms += 1;
        // Clients of its own: what was dropped may still be done later.
        let names = [format!("c{at_ms}"), format!("d{at_ms}")];
        let next = ClientRecord {
            updated_at_ms: at_ms,
            ..record()
        };
        let batch = ActivityBatch {
            touches: vec![(partition("p"), at_ms), (partition("q"), at_ms)],
            clients: vec![
                (key("p", &names[0]), epoch("e1"), next.clone()),
                (key("q", &names[1]), epoch("e1"), next),
            ],
        };
        let ended = cancel(moment, store.put_activity(batch)).await;
        serves(&*store, "p").await;
        let seen = [
            last_seen(&*store, "p").await == Some(at_ms),
            last_seen(&*store, "q").await == Some(at_ms),
            find(&*store, "p", &names[0]).await.is_some(),
            find(&*store, "q", &names[1]).await.is_some(),
        ];
        match &ended {
            Some(result) => {
                result.as_ref().unwrap();
                assert_eq!(seen, [true; 4]);
            }
            // With one lane the writer of `serves` came after it, so it is over.
            None if store.write_lanes() == WriteLanes::One => {
                assert!(
                    seen == [true; 4] || seen == [false; 4],
                    "half written: {seen:?}"
                );
            }
            None => {}
        }
        ended.is_some()
    })
    .await;
}

pub(super) async fn a_commit_binds_a_client_that_is_new(database: &dyn Database) {
    let store = ready(database).await;
    let drafts = [
        Draft::new("p", 1)
            .client("new")
            .actor("a5")
            .bind(NOW_MS + 3),
        Draft::rejected("p", "no")
            .client("refused")
            .actor("a6")
            .bind(NOW_MS),
        Draft::new("p", 2).client("unbound"),
    ];
    write(&*store, drafts).await;
    let bound = ClientRecord {
        actor: actor("a5"),
        cursor: Cursor::Never,
        subscriptions: Vec::new(),
        wire_version: 0,
        updated_at_ms: NOW_MS + 3,
        failure: None,
    };
    assert_eq!(find(&*store, "p", "new").await, Some(bound));
    let refused = find(&*store, "p", "refused").await.unwrap();
    assert_eq!(refused.actor, actor("a6"));
    assert_eq!(find(&*store, "p", "unbound").await, None);
}

pub(super) async fn a_commit_leaves_a_client_that_is_known(database: &dyn Database) {
    let store = ready(database).await;
    put(&*store, "p", "c1", &record()).await;
    write(&*store, [Draft::new("p", 1).actor("a2").bind(NOW_MS + 9)]).await;
    assert_eq!(find(&*store, "p", "c1").await, Some(record()));
}

pub(super) async fn a_transaction_sees_the_client_it_binds(database: &dyn Database) {
    let store = ready(database).await;
    let (mut txn, _) = begin(&*store, "p").await;
    txn.apply(vec![Draft::new("p", 1).bind(NOW_MS).build()])
        .await
        .unwrap();
    let wanted = LoadRequest {
        clients: vec![key("p", "c1")],
        push_results: vec![push_key("p", "c1", "m1")],
        ..LoadRequest::default()
    };
    let loaded = txn.load(wanted).await.unwrap();
    assert_eq!(loaded.clients[0].as_ref().unwrap().actor, actor("a1"));
    assert!(loaded.push_results[0].is_some());
    finished(txn.finish(Vec::new()).await.unwrap());
}

pub(super) async fn clients_are_listed_by_bytewise_id(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let names = ["Z", "a", "aa", "b", "\u{E9}", "\u{FF21}", "\u{1F600}"];
    for name in names.iter().rev() {
        put(&*store, "p", name, &record()).await;
    }
    put(&*store, "q", "other", &record()).await;
    let list = async |after: Option<&str>, limit: usize| {
        let after = after.map(ClientId::new);
        let listed = store
            .list_clients(&partition("p"), after.as_ref(), limit)
            .await
            .unwrap();
        assert!(listed.iter().all(|(_, listed)| *listed == record()));
        listed
            .into_iter()
            .map(|(client, _)| client.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(list(None, 100).await, names);
    assert_eq!(list(None, 3).await, names[..3]);
    assert_eq!(list(Some("a"), 2).await, names[2..4]);
    assert_eq!(
        list(Some("a "), 1).await,
        names[2..3],
        "the id need not exist"
    );
    assert_eq!(list(Some("\u{FF21}"), 9).await, names[6..]);
    assert!(list(Some("\u{1F600}"), 9).await.is_empty());
    assert!(list(None, 0).await.is_empty());
}
