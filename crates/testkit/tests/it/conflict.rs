//! A row that moved on under its author (§6.2, §6.3), settled on the device either way.

use serde_json::json;
use syncular_client::{CommitOutcomeResolution, CommitOutcomeStatus, ResolveCommitOutcomeInput};
use tidewater_testkit::StoreKind;

use crate::support::{Replica, World};

on_every_store!(
    a_conflict_resolved_in_favor_of_the_server_leaves_its_row,
    a_conflict_resolved_in_favor_of_the_device_applies_as_the_next_version,
    a_lost_insert_race_shows_the_winner,
    a_conflict_takes_the_other_operations_of_its_commit_with_it,
);

/// Alice's title won; bob's is in conflict. Returns bob's commit.
fn collide(world: &World, alice: &mut Replica, bob: &mut Replica) -> String {
    alice.put("n1", "start");
    alice.sync();
    bob.sync();
    alice.patch("n1", json!({ "title": "by alice" }), Some(1));
    alice.sync();
    let commit = bob.patch("n1", json!({ "title": "by bob" }), Some(1));
    let report = bob.sync();
    assert_eq!(
        (report.conflicts, report.rejected),
        (1, vec![commit.clone()])
    );
    assert_eq!(world.head(), 2);
    commit
}

fn a_conflict_resolved_in_favor_of_the_server_leaves_its_row(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    let commit = collide(&world, &mut alice, &mut bob);
    let conflict = &bob.client.conflicts()[0];
    assert_eq!(conflict.code, "sync.version_conflict");
    assert_eq!(
        (conflict.row_id.as_str(), conflict.server_version),
        ("n1", 2)
    );
    assert_eq!(conflict.server_row["title"], "by alice");
    assert_eq!(conflict.conflict_columns, ["title"]);

    let outcome = bob.client.commit_outcome(&commit).unwrap().unwrap();
    assert_eq!(outcome.status, CommitOutcomeStatus::Conflict);
    resolve(
        &mut bob,
        &commit,
        CommitOutcomeResolution::ResolvedKeepServer,
        None,
    );
    bob.sync();
    assert_eq!(bob.titles(), [("n1".to_owned(), 2, json!("by alice"))]);
    bob.assert_agrees(&world);
}

fn a_conflict_resolved_in_favor_of_the_device_applies_as_the_next_version(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    let commit = collide(&world, &mut alice, &mut bob);
    let seen = bob.client.conflicts()[0].server_version;
    let replacement = bob.patch("n1", json!({ "title": "by bob" }), Some(seen));
    resolve(
        &mut bob,
        &commit,
        CommitOutcomeResolution::Superseded,
        Some(replacement.clone()),
    );
    let report = bob.sync();
    assert_eq!((report.applied, report.conflicts), (vec![replacement], 0));
    alice.sync();
    assert_eq!(alice.titles(), [("n1".to_owned(), 3, json!("by bob"))]);
    alice.assert_agrees(&world);
    bob.assert_agrees(&world);
}

fn a_lost_insert_race_shows_the_winner(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    bob.sync();
    alice.put("n1", "by alice");
    alice.sync();
    let values = crate::support::note("n1", "t1", "by bob");
    let table = "notes".to_owned();
    bob.mutate(syncular_client::Mutation::Upsert {
        table,
        values,
        base_version: Some(0),
    });
    let report = bob.sync();
    assert_eq!(report.conflicts, 1);
    let conflict = &bob.client.conflicts()[0];
    assert_eq!(conflict.server_version, 1);
    assert_eq!(conflict.server_row["title"], "by alice");
}

fn a_conflict_takes_the_other_operations_of_its_commit_with_it(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    alice.put("n1", "start");
    alice.sync();
    bob.sync();
    alice.patch("n1", json!({ "title": "by alice" }), Some(1));
    alice.sync();
    let put = |id: &str, base_version| syncular_client::Mutation::Upsert {
        table: "notes".to_owned(),
        values: crate::support::note(id, "t1", "by bob"),
        base_version,
    };
    bob.client
        .mutate(vec![put("n0", None), put("n1", Some(1)), put("n2", None)])
        .unwrap();
    let report = bob.sync();
    assert_eq!(report.conflicts, 1);
    let ids: Vec<_> = world
        .rows("notes")
        .into_iter()
        .map(|row| row.row_id)
        .collect();
    assert_eq!(ids, ["n1"]);
    assert_eq!(world.head(), 2);
}

fn resolve(
    replica: &mut Replica,
    commit: &str,
    resolution: CommitOutcomeResolution,
    replacement: Option<String>,
) {
    let input = ResolveCommitOutcomeInput {
        client_commit_id: commit.to_owned(),
        resolution,
        replacement_client_commit_id: replacement,
    };
    replica.client.resolve_commit_outcome(input).unwrap();
    assert!(replica.client.conflicts().is_empty());
}
