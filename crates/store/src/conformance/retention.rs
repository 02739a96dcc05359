//! What pruning is decided from, and pruning (§4.6).

use tidewater_model::{CommitSeq, Cursor, HorizonSeq};

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, NOW_MS, actor, all_rows, client, epoch, lock, page, partition,
        push_key, seq, team_one, touch, whole_log, window,
    },
    support::{at_every_moment, cancel, head, ready, refused, serves, write},
};
use crate::{
    ActivityBatch, ClientKey, ClientRecord, LoadRequest, Pruned, StorageCode, Store, StoreError,
};

async fn put_client(store: &dyn Store, name: &str, cursor: Cursor, updated_at_ms: i64) {
    let record = ClientRecord {
        actor: actor("a1"),
        cursor,
        subscriptions: Vec::new(),
        wire_version: 3,
        updated_at_ms,
        failure: None,
    };
    let key = ClientKey {
        partition: partition("p"),
        client: client(name),
    };
    let batch = ActivityBatch {
        touches: Vec::new(),
        clients: vec![(key, epoch("e1"), record)],
    };
    store.put_activity(batch).await.unwrap();
}

/// Commits at times 10, 20, 30 … with one note each.
async fn write_log(store: &dyn Store, count: i64) {
    for (place, n) in (1..).zip(1..=count) {
        let item = Item::note(&format!("n{place}"));
        write(store, [Draft::new("p", place).at(n * 10).insert(&item)]).await;
    }
}

async fn prune(store: &dyn Store, horizon: u64) -> Result<Pruned, StoreError> {
    let horizon = HorizonSeq::at(seq(horizon));
    store.prune(&partition("p"), &epoch("e1"), horizon).await
}

fn pruned(previous: u64, horizon: u64, removed_commits: u64) -> Pruned {
    Pruned {
        previous: HorizonSeq::at(seq(previous)),
        horizon: HorizonSeq::at(seq(horizon)),
        removed_commits,
    }
}

async fn log_seqs(store: &dyn Store) -> Vec<u64> {
    window(store, whole_log("p", NOTES, team_one()))
        .await
        .seqs()
}

pub(super) async fn the_oldest_cursor_is_the_least_of_clients_seen_since(database: &dyn Database) {
    let store = ready(database).await;
    write_log(&*store, 9).await;
    let oldest = async |since: i64| {
        let inputs = store.retention_inputs(&partition("p"), since, 0).await;
        inputs.unwrap().oldest_cursor.map(CommitSeq::get)
    };
    assert_eq!(oldest(0).await, None);
    put_client(&*store, "a", Cursor::At(seq(3)), 100).await;
    put_client(&*store, "b", Cursor::At(seq(5)), 200).await;
    put_client(&*store, "c", Cursor::At(seq(4)), 300).await;
    assert_eq!(oldest(0).await, Some(3));
    assert_eq!(oldest(100).await, Some(3), "seen at that very time counts");
    assert_eq!(oldest(101).await, Some(4));
    assert_eq!(oldest(301).await, None);
    put_client(&*store, "d", Cursor::At(CommitSeq::START), 400).await;
    assert_eq!(
        oldest(301).await,
        Some(0),
        "the start of the log is a cursor"
    );
}

pub(super) async fn a_client_without_a_cursor_holds_back_nothing(database: &dyn Database) {
    let store = ready(database).await;
    put_client(&*store, "a", Cursor::Never, 100).await;
    let inputs = store.retention_inputs(&partition("p"), 0, 0).await.unwrap();
    assert_eq!(inputs.oldest_cursor, None);
    put_client(&*store, "b", Cursor::At(seq(7)), 100).await;
    let inputs = store.retention_inputs(&partition("p"), 0, 0).await.unwrap();
    assert_eq!(inputs.oldest_cursor, Some(seq(7)));
}

pub(super) async fn the_newest_aged_commit_is_strictly_older(database: &dyn Database) {
    let store = ready(database).await;
    write_log(&*store, 3).await;
    let newest = async |before: i64| {
        let inputs = store.retention_inputs(&partition("p"), 0, before).await;
        inputs.unwrap().newest_before.get()
    };
    assert_eq!(newest(0).await, 0);
    assert_eq!(newest(10).await, 0, "of that very time is not older");
    assert_eq!(newest(11).await, 1);
    assert_eq!(newest(30).await, 2);
    assert_eq!(newest(31).await, 3);
    assert_eq!(newest(i64::MAX).await, 3);
}

pub(super) async fn a_clock_that_went_back_does_not_hide_a_commit(database: &dyn Database) {
    let store = ready(database).await;
    for (place, at_ms) in [(1, 10), (2, 50), (3, 20), (4, 60)] {
        write(&*store, [Draft::new("p", place).at(at_ms)]).await;
    }
    let inputs = store
        .retention_inputs(&partition("p"), 0, 40)
        .await
        .unwrap();
    assert_eq!(
        inputs.newest_before,
        seq(3),
        "the newest, not the one with the latest time"
    );
}

pub(super) async fn retention_inputs_come_with_their_gate(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    write_log(&*store, 3).await;
    prune(&*store, 1).await.unwrap();
    let inputs = store.retention_inputs(&partition("p"), 0, 0).await.unwrap();
    assert_eq!(inputs.gate.log_epoch, Some(epoch("e1")));
    assert_eq!(inputs.gate.head, seq(3));
    assert_eq!(inputs.gate.horizon, HorizonSeq::at(seq(1)));
    put_client(&*store, "a", Cursor::At(seq(2)), NOW_MS).await;
    for name in ["q", "nobody"] {
        let inputs = store
            .retention_inputs(&partition(name), 0, i64::MAX)
            .await
            .unwrap();
        assert_eq!(inputs.oldest_cursor, None);
        assert_eq!(inputs.newest_before, CommitSeq::START);
        assert_eq!(inputs.gate.head, CommitSeq::START);
    }
}

pub(super) async fn pruning_removes_the_log_through_the_horizon(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    write_log(&*store, 5).await;
    write(&*store, [Draft::new("q", 1).insert(&Item::note("n"))]).await;
    assert_eq!(prune(&*store, 3).await.unwrap(), pruned(0, 3, 3));
    assert_eq!(log_seqs(&*store).await, [4, 5]);
    let inputs = store
        .retention_inputs(&partition("p"), 0, 31)
        .await
        .unwrap();
    assert_eq!(
        inputs.newest_before,
        CommitSeq::START,
        "commits are gone too"
    );
    let other = window(&*store, whole_log("q", NOTES, team_one())).await;
    assert_eq!(other.seqs(), [1], "another partition keeps its log");
}

pub(super) async fn newest_change_forgets_what_was_pruned(database: &dyn Database) {
    let store = ready(database).await;
    let drafts = [
        Draft::new("p", 1).insert(&Item::note("a")),
        Draft::new("p", 2).insert(&Item::note("b").team("t2")),
        Draft::new("p", 3),
    ];
    write(&*store, drafts).await;
    prune(&*store, 1).await.unwrap();
    let newest = async |team: &str| {
        store
            .newest_change(&partition("p"), NOTES, "team", &[team.to_owned()])
            .await
            .unwrap()
    };
    assert_eq!(newest("t1").await, None);
    assert_eq!(newest("t2").await, Some(seq(2)));
}

pub(super) async fn pruning_keeps_rows_and_outcomes(database: &dyn Database) {
    let store = ready(database).await;
    write_log(&*store, 3).await;
    prune(&*store, 3).await.unwrap();
    let rows = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.ids(), ["n1", "n2", "n3"]);
    for id in ["m1", "m2", "m3"] {
        let found = store.find_push_result(&push_key("p", "c1", id)).await;
        assert!(found.unwrap().is_some());
    }
}

pub(super) async fn a_pruned_log_goes_on_where_it_was(database: &dyn Database) {
    let store = ready(database).await;
    write_log(&*store, 3).await;
    prune(&*store, 3).await.unwrap();
    assert_eq!(head(&*store, "p").await, 3);
    write(&*store, [Draft::new("p", 4).insert(&Item::note("n4"))]).await;
    assert_eq!(log_seqs(&*store).await, [4]);
}

pub(super) async fn the_horizon_never_falls(database: &dyn Database) {
    let store = ready(database).await;
    write_log(&*store, 5).await;
    prune(&*store, 3).await.unwrap();
    assert_eq!(prune(&*store, 1).await.unwrap(), pruned(3, 3, 0));
    assert_eq!(prune(&*store, 0).await.unwrap(), pruned(3, 3, 0));
    let record = store
        .find_partition(&partition("p"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(record.horizon, HorizonSeq::at(seq(3)));
    assert_eq!(log_seqs(&*store).await, [4, 5]);
    assert_eq!(prune(&*store, 4).await.unwrap(), pruned(3, 4, 1));
}

pub(super) async fn pruning_again_at_the_same_horizon_is_nothing(database: &dyn Database) {
    let store = ready(database).await;
    write_log(&*store, 5).await;
    prune(&*store, 3).await.unwrap();
    assert_eq!(prune(&*store, 3).await.unwrap(), pruned(3, 3, 0));
    assert_eq!(log_seqs(&*store).await, [4, 5]);
}

pub(super) async fn pruning_finishes_what_was_interrupted(database: &dyn Database) {
    let store = ready(database).await;
    write_log(&*store, 4).await;
    let gone = Item::note("n1");
    write(
        &*store,
        [Draft::new("p", 5).delete(&gone), Draft::new("p", 6)],
    )
    .await;
    let horizon = HorizonSeq::at(seq(5));
    if !database
        .interrupt_prune(&store, &partition("p"), horizon)
        .await
    {
        return;
    }
    let wanted = LoadRequest {
        rows: vec![gone.key("p")],
        ..lock(&["p"])
    };
    let loaded = store.begin_write(wanted).await.unwrap().1;
    assert_eq!(loaded.gates[0].horizon, horizon);
    assert_eq!(loaded.tombstones, [None], "a leftover counts as absent");
    assert_eq!(prune(&*store, 5).await.unwrap(), pruned(5, 5, 5));
    assert!(log_seqs(&*store).await.is_empty());
    assert_eq!(prune(&*store, 5).await.unwrap(), pruned(5, 5, 0));
}

pub(super) async fn pruning_under_another_epoch_is_refused(database: &dyn Database) {
    let store = ready(database).await;
    write_log(&*store, 3).await;
    store
        .rotate_epoch(&partition("p"), &epoch("e2"), NOW_MS)
        .await
        .unwrap();
    let code = refused(prune(&*store, 2).await);
    assert_eq!(code, StorageCode::PruneEpochMismatch);
    assert_eq!(log_seqs(&*store).await, [1, 2, 3]);
    let record = store
        .find_partition(&partition("p"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(record.horizon, HorizonSeq::START);
    serves(&*store, "p").await;
}

pub(super) async fn pruning_an_unregistered_partition_is_refused(database: &dyn Database) {
    let store = ready(database).await;
    write(&*store, [Draft::new("q", 1).insert(&Item::note("n"))]).await;
    for name in ["q", "nobody"] {
        let horizon = HorizonSeq::at(seq(1));
        let result = store.prune(&partition(name), &epoch("e1"), horizon).await;
        assert_eq!(refused(result), StorageCode::PartitionUnregistered);
    }
    let seen = window(&*store, whole_log("q", NOTES, team_one())).await;
    assert_eq!(seen.seqs(), [1]);
    assert_eq!(seen.gate.horizon, HorizonSeq::START);
}

pub(super) async fn pruning_is_done_or_not_done(database: &dyn Database) {
    let store = ready(database).await;
    let mut place = 0;
    at_every_moment(async |moment| {
        place += 1;
        let item = Item::note(&format!("n{place}"));
        let draft = Draft::new("p", place).insert(&item);
        write(&*store, [draft]).await;
        place += 1;
        write(&*store, [Draft::new("p", place).delete(&item)]).await;
        let ended = cancel(moment, prune(&*store, place)).await.is_some();
        serves(&*store, "p").await;
        let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
        let done = seen.gate.horizon.covers(seq(place));
        assert_eq!(done, !seen.seqs().contains(&place), "at once");
        assert!(done || !ended);
        ended
    })
    .await;
}
