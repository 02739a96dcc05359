//! The registry of partitions and their epochs (§2.1).

use tidewater_model::{CommitSeq, Cursor, HorizonSeq, LogEpoch, PartitionId};

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, NOW_MS, actor, all_rows, client, epoch, page, partition, push_key, seq,
        team_one, touch, whole_log, window,
    },
    support::{at_every_moment, begin, cancel, ready, serves, write},
};
use crate::{
    ActivityBatch, ClientKey, ClientRecord, PartitionRecord, PartitionTouch, Store, StoredResult,
};

fn touch_of(name: &str, epoch_name: &str, at_ms: i64) -> PartitionTouch {
    PartitionTouch {
        partition: partition(name),
        initial_epoch: epoch(epoch_name),
        at_ms,
    }
}

fn fresh(name: &str, epoch_name: &str, at_ms: i64) -> PartitionRecord {
    PartitionRecord {
        partition: partition(name),
        log_epoch: epoch(epoch_name),
        epoch_required: false,
        last_authenticated_at_ms: at_ms,
        head: CommitSeq::START,
        horizon: HorizonSeq::START,
    }
}

async fn find(store: &dyn Store, name: &str) -> Option<PartitionRecord> {
    store.find_partition(&partition(name)).await.unwrap()
}

async fn put_client(store: &dyn Store, name: &str, epoch_name: &str) {
    let record = ClientRecord {
        actor: actor("a1"),
        cursor: Cursor::Never,
        subscriptions: Vec::new(),
        wire_version: 3,
        updated_at_ms: NOW_MS,
        failure: None,
    };
    let key = ClientKey {
        partition: partition(name),
        client: client("c1"),
    };
    let batch = ActivityBatch {
        touches: Vec::new(),
        clients: vec![(key, epoch(epoch_name), record)],
    };
    store.put_activity(batch).await.unwrap();
}

async fn has_client(store: &dyn Store, name: &str) -> bool {
    store
        .find_client(&partition(name), &client("c1"))
        .await
        .unwrap()
        .is_some()
}

pub(super) async fn a_store_answers_a_check(database: &dyn Database) {
    let store = ready(database).await;
    store.check().await.unwrap();
}

pub(super) async fn touching_registers_a_partition_that_is_new(database: &dyn Database) {
    let store = ready(database).await;
    assert_eq!(find(&*store, "q").await, None);
    let record = store.touch_partition(touch_of("q", "x", 5)).await.unwrap();
    assert_eq!(record, fresh("q", "x", 5));
    assert_eq!(find(&*store, "q").await, Some(fresh("q", "x", 5)));
    assert_eq!(find(&*store, "Q").await, None);
}

pub(super) async fn touching_again_keeps_the_epoch_and_refreshes_the_time(database: &dyn Database) {
    let store = ready(database).await;
    store.touch_partition(touch_of("q", "x", 5)).await.unwrap();
    let record = store.touch_partition(touch_of("q", "y", 8)).await.unwrap();
    assert_eq!(record, fresh("q", "x", 8));
    assert_eq!(find(&*store, "q").await, Some(fresh("q", "x", 8)));
}

pub(super) async fn a_partition_record_shows_head_and_horizon(database: &dyn Database) {
    let store = ready(database).await;
    for place in 1..=3 {
        write(&*store, [Draft::new("p", place)]).await;
    }
    store
        .prune(&partition("p"), &epoch("e1"), HorizonSeq::at(seq(2)))
        .await
        .unwrap();
    let expected = PartitionRecord {
        head: seq(3),
        horizon: HorizonSeq::at(seq(2)),
        ..fresh("p", "e1", NOW_MS)
    };
    assert_eq!(find(&*store, "p").await, Some(expected.clone()));
    let listed = store.list_partitions(None, 9).await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&expected));
    let touched = store
        .touch_partition(touch_of("p", "x", NOW_MS))
        .await
        .unwrap();
    assert_eq!(touched, expected);
}

pub(super) async fn a_log_does_not_register_its_partition(database: &dyn Database) {
    let store = ready(database).await;
    write(&*store, [Draft::new("q", 1).insert(&Item::note("n"))]).await;
    assert_eq!(find(&*store, "q").await, None);
    assert_eq!(store.list_partitions(None, 9).await.unwrap().len(), 1);
    let seen = window(&*store, whole_log("q", NOTES, team_one())).await;
    assert_eq!(seen.gate.log_epoch, None);
    assert_eq!(seen.gate.head, seq(1));
    touch(&*store, "q").await;
    let record = find(&*store, "q").await.unwrap();
    assert_eq!(record.head, seq(1), "registering keeps the log");
}

pub(super) async fn partitions_are_listed_by_bytewise_name(database: &dyn Database) {
    let store = ready(database).await;
    let names = ["P", "a", "aa", "p", "\u{E9}", "\u{FF21}", "\u{1F600}"];
    for name in names.iter().rev() {
        touch(&*store, name).await;
    }
    let list = async |after: Option<&str>, limit: usize| {
        let after = after.map(PartitionId::new);
        store
            .list_partitions(after.as_ref(), limit)
            .await
            .unwrap()
            .into_iter()
            .map(|record| record.partition.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(list(None, 100).await, names);
    assert_eq!(list(None, 3).await, names[..3]);
    assert_eq!(list(Some("a"), 2).await, names[2..4]);
    assert_eq!(
        list(Some("b"), 1).await,
        names[3..4],
        "the name need not exist"
    );
    assert!(list(Some("\u{1F600}"), 9).await.is_empty());
    assert!(list(None, 0).await.is_empty());
}

pub(super) async fn rotation_gives_a_new_epoch_and_requires_it(database: &dyn Database) {
    let store = ready(database).await;
    write(&*store, [Draft::new("p", 1).insert(&Item::note("n"))]).await;
    let rotated = store
        .rotate_epoch(&partition("p"), &epoch("e2"), NOW_MS + 1)
        .await
        .unwrap();
    let expected = PartitionRecord {
        epoch_required: true,
        head: seq(1),
        ..fresh("p", "e2", NOW_MS + 1)
    };
    assert_eq!(rotated, expected);
    assert_eq!(find(&*store, "p").await, Some(expected.clone()));
    let touched = store
        .touch_partition(touch_of("p", "e3", NOW_MS + 1))
        .await
        .unwrap();
    assert_eq!(touched, expected, "touching changes neither");
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(seen.gate.log_epoch, Some(LogEpoch::new("e2")));
}

pub(super) async fn rotation_registers_a_partition_that_is_new(database: &dyn Database) {
    let store = ready(database).await;
    let rotated = store
        .rotate_epoch(&partition("q"), &epoch("x"), 5)
        .await
        .unwrap();
    let expected = PartitionRecord {
        epoch_required: true,
        ..fresh("q", "x", 5)
    };
    assert_eq!(rotated, expected);
    assert_eq!(find(&*store, "q").await, Some(expected));
}

pub(super) async fn rotation_deletes_the_clients_of_its_partition_only(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    put_client(&*store, "p", "e1").await;
    put_client(&*store, "q", "e1").await;
    store
        .rotate_epoch(&partition("p"), &epoch("e2"), NOW_MS)
        .await
        .unwrap();
    assert!(!has_client(&*store, "p").await);
    assert!(has_client(&*store, "q").await);
    assert_eq!(find(&*store, "q").await, Some(fresh("q", "e1", NOW_MS)));
    put_client(&*store, "p", "e1").await;
    assert!(!has_client(&*store, "p").await, "of the old epoch");
    put_client(&*store, "p", "e2").await;
    assert!(has_client(&*store, "p").await);
}

pub(super) async fn rotation_keeps_rows_log_and_outcomes(database: &dyn Database) {
    let store = ready(database).await;
    let draft = Draft::new("p", 1).insert(&Item::note("n"));
    let expected = StoredResult::Readable(Box::new(draft.result()));
    write(&*store, [draft]).await;
    store
        .rotate_epoch(&partition("p"), &epoch("e2"), NOW_MS)
        .await
        .unwrap();
    let found = store.find_push_result(&push_key("p", "c1", "m1")).await;
    assert_eq!(found.unwrap(), Some(expected));
    let rows = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.ids(), ["n"]);
    let log = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(log.seqs(), [1]);
}

pub(super) async fn rotation_is_done_or_not_done(database: &dyn Database) {
    let store = ready(database).await;
    let mut attempt = 0;
    at_every_moment(async |moment| {
        // Of its own: what was dropped may still be done later.
        attempt += 1;
        let name = format!("rotated{attempt}");
        touch(&*store, &name).await;
        put_client(&*store, &name, "e1").await;
        let rotation = async {
            let (partition, epoch) = (partition(&name), epoch("e2"));
            store.rotate_epoch(&partition, &epoch, NOW_MS).await
        };
        let ended = cancel(moment, rotation).await.is_some();
        serves(&*store, &name).await;
        // Under the lock it is not done between the two looks.
        let (txn, _) = begin(&*store, &name).await;
        let rotated = find(&*store, &name).await.unwrap().log_epoch == epoch("e2");
        assert_eq!(rotated, !has_client(&*store, &name).await, "at once");
        drop(txn);
        assert!(rotated || !ended);
        ended
    })
    .await;
}
