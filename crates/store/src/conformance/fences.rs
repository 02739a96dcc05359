//! Fences of writers, and checkpoints of backfills (§2.4).

use std::sync::Arc;

use serde_json::json;
use tidewater_model::HorizonSeq;

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, NOW_MS, all_rows, compile, epoch, page, partition, push_key, schema,
        schema_document, seq, team_one, touch,
    },
    support::{begin, head, ready, refused, serves, write},
};
use crate::{
    Checkpoint, CheckpointChange, CheckpointKey, CheckpointOutcome, CheckpointState, StorageCode,
    Store,
};

fn key(name: &str, checkpoint: &str) -> CheckpointKey {
    CheckpointKey {
        partition: partition(name),
        name: checkpoint.to_owned(),
    }
}

const DECLARE: CheckpointChange = CheckpointChange::Declare { schema_version: 2 };

const fn claim(at_ms: i64) -> CheckpointChange {
    CheckpointChange::Claim {
        at_ms,
        lease_ms: 1_000,
        force: false,
    }
}

async fn change(
    store: &dyn Store,
    key: &CheckpointKey,
    change: CheckpointChange,
) -> (CheckpointOutcome, Checkpoint) {
    store.change_checkpoint(key, change).await.unwrap()
}

async fn fence(store: &dyn Store, name: &str) -> Option<i32> {
    store
        .read_gate(&partition(name))
        .await
        .unwrap()
        .writer_fence
}

pub(super) async fn a_partition_without_a_fence_has_no_barrier(database: &dyn Database) {
    let store = ready(database).await;
    assert_eq!(fence(&*store, "p").await, None);
    assert_eq!(begin(&*store, "p").await.1.writer_fence, None);
    write(&*store, [Draft::new("p", 1).insert(&Item::note("a"))]).await;
}

pub(super) async fn a_fence_only_rises(database: &dyn Database) {
    let store = ready(database).await;
    let name = partition("p");
    for (version, required) in [(1, 1), (3, 3), (2, 3), (3, 3)] {
        assert_eq!(store.raise_fence(&name, version).await.unwrap(), required);
        assert_eq!(fence(&*store, "p").await, Some(required));
    }
    let (txn, gate) = begin(&*store, "p").await;
    assert_eq!(gate.writer_fence, Some(3), "a writer sees it too");
    drop(txn);
    assert_eq!(fence(&*store, "q").await, None, "it is of its partition");
    database.close(store).await;
    let store = database.open().await;
    store.prepare(&schema()).await.unwrap();
    assert_eq!(fence(&*store, "p").await, Some(3));
}

pub(super) async fn a_commit_below_the_fence_is_refused_and_leaves_no_trace(
    database: &dyn Database,
) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    write(&*store, [Draft::new("p", 1).insert(&Item::note("a"))]).await;
    // At its own version a writer goes on.
    store.raise_fence(&partition("p"), 1).await.unwrap();
    write(&*store, [Draft::new("p", 2).insert(&Item::note("b"))]).await;
    store.raise_fence(&partition("p"), 2).await.unwrap();
    let commit = || Draft::new("p", 3).insert(&Item::note("c")).build();
    let (mut txn, _) = begin(&*store, "p").await;
    let code = refused(txn.apply(vec![commit()]).await);
    assert_eq!(code, StorageCode::WriterFenceRejected);
    drop(txn);
    let (txn, _) = begin(&*store, "p").await;
    let code = refused(txn.finish(vec![commit()]).await.map(drop));
    assert_eq!(code, StorageCode::WriterFenceRejected);
    serves(&*store, "p").await;
    assert_eq!(head(&*store, "p").await, 2);
    let rows = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.ids(), ["a", "b"], "it still reads");
    let outcome = store.find_push_result(&push_key("p", "c1", "m3")).await;
    assert_eq!(outcome.unwrap(), None);
    write(&*store, [Draft::new("q", 1).insert(&Item::note("d"))]).await;
}

pub(super) async fn an_upgrade_raises_the_fence_of_every_partition(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    touch(&*store, "r").await;
    write(&*store, [Draft::new("p", 1).insert(&Item::note("a"))]).await;
    store.raise_fence(&partition("r"), 9).await.unwrap();
    let mut document = schema_document();
    document["schemaVersion"] = json!(2);
    let column = json!({"name": "extra", "type": "integer", "nullable": true});
    let columns = document["tables"][0]["columns"].as_array_mut();
    columns.unwrap().push(column);
    store.prepare(&compile(&document)).await.unwrap();
    let fences = [
        fence(&*store, "p").await,
        fence(&*store, "q").await,
        fence(&*store, "r").await,
    ];
    assert_eq!(fences, [Some(2), Some(2), Some(9)]);
    let state = store.schema_state().await.unwrap();
    assert_eq!(state.schema_version, 2);
    let (mut txn, gate) = begin(&*store, "p").await;
    assert_eq!(gate.schema_version, 2);
    let draft = Draft::new("p", 2).delete(&Item::note("a"));
    assert_eq!(txn.apply(vec![draft.build()]).await.unwrap(), None);
}

pub(super) async fn a_fence_waits_for_the_writer_that_has_its_partition(database: &dyn Database) {
    let store = ready(database).await;
    let (txn, _) = begin(&*store, "p").await;
    let raising = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.raise_fence(&partition("p"), 2).await })
    };
    let commit = Draft::new("p", 1).insert(&Item::note("a")).build();
    txn.finish(vec![commit]).await.unwrap();
    assert_eq!(raising.await.unwrap().unwrap(), 2);
    assert_eq!(head(&*store, "p").await, 1, "it was there first");
    let (txn, _) = begin(&*store, "p").await;
    let commit = Draft::new("p", 2).insert(&Item::note("b")).build();
    refused(txn.finish(vec![commit]).await.map(drop));
}

pub(super) async fn a_checkpoint_is_declared_claimed_advanced_and_activated(
    database: &dyn Database,
) {
    let store = ready(database).await;
    write(&*store, [Draft::new("p", 1).insert(&Item::note("a"))]).await;
    let titles = key("p", "titles");
    let (_, declared) = change(&*store, &titles, DECLARE).await;
    assert_eq!(declared.state, CheckpointState::Declared);
    let (_, claimed) = change(&*store, &titles, claim(NOW_MS)).await;
    assert_eq!(claimed.watermark, seq(1));
    write(&*store, [Draft::new("p", 2).insert(&Item::note("b"))]).await;
    let advance = CheckpointChange::Advance {
        owner_epoch: claimed.owner_epoch,
        watermark: seq(2),
        observed_rows: 2,
        at_ms: NOW_MS,
        lease_ms: 1_000,
    };
    let (outcome, advanced) = change(&*store, &titles, advance).await;
    assert_eq!(outcome, CheckpointOutcome::Done);
    assert_eq!((advanced.watermark, advanced.observed_rows), (seq(2), 2));
    let activate = CheckpointChange::Activate {
        owner_epoch: claimed.owner_epoch,
    };
    let code = refused(store.change_checkpoint(&titles, activate).await);
    assert_eq!(code, StorageCode::CheckpointFenceMissing);
    store.raise_fence(&partition("p"), 2).await.unwrap();
    // What was written stays when the store is closed.
    database.close(store).await;
    let store = database.open().await;
    store.prepare(&schema()).await.unwrap();
    assert_eq!(store.list_checkpoints(None, 10).await.unwrap(), [advanced]);
    let (outcome, activated) = change(&*store, &titles, activate).await;
    assert_eq!(outcome, CheckpointOutcome::Done);
    assert_eq!(activated.state, CheckpointState::Activated);
    let (outcome, _) = change(&*store, &titles, activate).await;
    assert_eq!(outcome, CheckpointOutcome::Stale);
}

pub(super) async fn a_gate_names_the_pending_checkpoints_of_its_partition(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    for name in ["z", "a", "\u{1F600}", "\u{E000}"] {
        change(&*store, &key("p", name), DECLARE).await;
    }
    let pending = ["a", "z", "\u{E000}", "\u{1F600}"];
    let rows = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.gate.pending_checkpoints, pending);
    assert_eq!(begin(&*store, "p").await.1.pending_checkpoints, pending);
    let gate = store.read_gate(&partition("p")).await.unwrap();
    assert_eq!(gate.pending_checkpoints, pending);
    assert_eq!(gate.log_epoch, Some(epoch("e1")));
    let gate = store.read_gate(&partition("q")).await.unwrap();
    assert!(gate.pending_checkpoints.is_empty());
    change(&*store, &key("q", "z"), DECLARE).await;
    let state = store.schema_state().await.unwrap();
    assert_eq!(state.pending_checkpoints, pending);
    store.raise_fence(&partition("p"), 2).await.unwrap();
    let (_, claimed) = change(&*store, &key("p", "a"), claim(NOW_MS)).await;
    let activate = CheckpointChange::Activate {
        owner_epoch: claimed.owner_epoch,
    };
    change(&*store, &key("p", "a"), activate).await;
    let gate = store.read_gate(&partition("p")).await.unwrap();
    assert_eq!(gate.pending_checkpoints, pending[1..]);
}

pub(super) async fn a_claim_is_held_until_its_lease_ends(database: &dyn Database) {
    let store = ready(database).await;
    let titles = key("p", "titles");
    change(&*store, &titles, DECLARE).await;
    let (_, first) = change(&*store, &titles, claim(NOW_MS)).await;
    let (outcome, held) = change(&*store, &titles, claim(NOW_MS + 999)).await;
    assert_eq!((outcome, &held), (CheckpointOutcome::Held, &first));
    let (outcome, second) = change(&*store, &titles, claim(NOW_MS + 1_000)).await;
    assert_eq!(outcome, CheckpointOutcome::Done);
    assert_eq!(second.owner_epoch, first.owner_epoch + 1);
}

pub(super) async fn of_two_that_claim_at_once_one_has_it(database: &dyn Database) {
    let store = ready(database).await;
    let titles = key("p", "titles");
    change(&*store, &titles, DECLARE).await;
    let claims = (0..4).map(|_| {
        let (store, titles) = (Arc::clone(&store), titles.clone());
        tokio::spawn(async move { store.change_checkpoint(&titles, claim(NOW_MS)).await })
    });
    let mut done = 0;
    for claim in claims.collect::<Vec<_>>() {
        let (outcome, checkpoint) = claim.await.unwrap().unwrap();
        assert_eq!(checkpoint.owner_epoch, 1);
        done += usize::from(outcome == CheckpointOutcome::Done);
    }
    assert_eq!(done, 1);
}

pub(super) async fn a_checkpoint_that_lost_its_log_is_not_activated(database: &dyn Database) {
    let store = ready(database).await;
    let titles = key("p", "titles");
    change(&*store, &titles, DECLARE).await;
    let (_, claimed) = change(&*store, &titles, claim(NOW_MS)).await;
    write(&*store, [Draft::new("p", 1).insert(&Item::note("a"))]).await;
    let horizon = HorizonSeq::at(seq(1));
    let pruned = store.prune(&partition("p"), &epoch("e1"), horizon).await;
    pruned.unwrap();
    store.raise_fence(&partition("p"), 2).await.unwrap();
    let activate = CheckpointChange::Activate {
        owner_epoch: claimed.owner_epoch,
    };
    let (outcome, same) = change(&*store, &titles, activate).await;
    assert_eq!((outcome, same), (CheckpointOutcome::Unverifiable, claimed));
}

pub(super) async fn checkpoints_are_listed_by_partition_and_name(database: &dyn Database) {
    let store = ready(database).await;
    let keys = [
        key("p", "10"),
        key("p", "9"),
        key("p", "\u{E000}"),
        key("p", "\u{1F600}"),
        key("q", "1"),
    ];
    for key in keys.iter().rev() {
        change(&*store, key, DECLARE).await;
    }
    let unknown = key("q", "2");
    let code = refused(store.change_checkpoint(&unknown, claim(NOW_MS)).await);
    assert_eq!(code, StorageCode::CheckpointNotDeclared);
    let listed = |checkpoints: Vec<Checkpoint>| {
        let keys = checkpoints.into_iter().map(|checkpoint| checkpoint.key);
        keys.collect::<Vec<_>>()
    };
    assert_eq!(
        listed(store.list_checkpoints(None, 10).await.unwrap()),
        keys
    );
    for after in 0..keys.len() {
        let found = store.list_checkpoints(Some(&keys[after]), 2).await.unwrap();
        let wanted: Vec<_> = keys[after + 1..].iter().take(2).cloned().collect();
        assert_eq!(listed(found), wanted);
    }
}
