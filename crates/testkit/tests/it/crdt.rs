//! Text that several devices edit at once (§5.10), by the published client's own Yjs.

use serde_json::{Value, json};
use syncular_client::Mutation;
use tidewater_testkit::{InstanceSpec, StoreKind, scopes};

use crate::support::{Replica, World, object};

on_every_store!(
    edits_of_two_devices_merge_to_what_a_third_reads,
    a_text_that_nobody_wrote_before_merges_from_nothing,
);

fn world(kind: StoreKind) -> World {
    let schema = json!({ "version": 1, "tables": [{
        "name": "notes", "primaryKey": "id",
        "columns": [
            { "name": "id", "type": "string", "nullable": false },
            { "name": "team_id", "type": "string", "nullable": false },
            { "name": "title", "type": "string", "nullable": true },
            { "name": "text", "type": "crdt", "nullable": true, "crdtType": "yjs-doc" },
        ],
        "scopes": [{ "pattern": "team:{team_id}", "column": "team_id" }],
    }] });
    let world = World::new(kind, InstanceSpec::new(schema));
    for actor in ["alice", "bob", "carol"] {
        world.allow(actor, scopes([("team_id", &["t1"])]));
    }
    world
}

/// Writes the note without a text.
fn create(replica: &mut Replica) {
    let values = json!({ "id": "n1", "team_id": "t1", "title": "x", "text": Value::Null });
    replica.mutate(Mutation::Upsert {
        table: "notes".to_owned(),
        values: object(values),
        base_version: None,
    });
    replica.sync();
}

fn insert(replica: &mut Replica, index: u32, text: &str) {
    let client = &mut replica.client;
    let inserted = client.crdt_insert_text("notes", "n1", "text", "body", index, text);
    inserted.unwrap();
}

fn text(replica: &Replica) -> String {
    replica
        .client
        .crdt_text("notes", "n1", "text", "body")
        .unwrap()
}

fn edits_of_two_devices_merge_to_what_a_third_reads(kind: StoreKind) {
    let world = world(kind);
    let [mut alice, mut bob, mut carol] = ["alice", "bob", "carol"].map(|name| world.replica(name));
    create(&mut alice);
    insert(&mut alice, 0, "middle");
    alice.sync();
    bob.sync();
    assert_eq!(text(&bob), "middle");

    insert(&mut alice, 0, "begin ");
    insert(&mut bob, 6, " end");
    bob.patch("n1", json!({ "title": "by bob" }), None);
    let everybody = [&mut alice, &mut bob, &mut carol];
    for index in [0, 1, 2, 0] {
        let report = everybody[index].sync();
        assert_eq!((report.conflicts, report.rejected.len()), (0, 0));
    }
    for replica in [&alice, &bob, &carol] {
        assert_eq!(text(replica), "begin middle end");
        assert_eq!(replica.titles()[0].2, "by bob");
        replica.assert_agrees(&world);
    }

    // A late delete by one and an insert by another meet as well.
    let client = &mut carol.client;
    client
        .crdt_delete_text("notes", "n1", "text", "body", 0, 6)
        .unwrap();
    insert(&mut bob, 16, "!");
    let everybody = [&mut carol, &mut bob, &mut alice];
    for index in [0, 1, 2, 0] {
        everybody[index].sync();
    }
    for replica in [&alice, &bob, &carol] {
        assert_eq!(text(replica), "middle end!");
        replica.assert_agrees(&world);
    }
}

fn a_text_that_nobody_wrote_before_merges_from_nothing(kind: StoreKind) {
    let world = world(kind);
    let [mut alice, mut bob, mut carol] = ["alice", "bob", "carol"].map(|name| world.replica(name));
    create(&mut alice);
    bob.sync();
    insert(&mut alice, 0, "A");
    insert(&mut bob, 0, "B");
    let everybody = [&mut alice, &mut bob, &mut carol];
    for index in [0, 1, 2, 0] {
        everybody[index].sync();
    }
    // Which of two inserts at one place comes first is Yjs's to say, and the same everywhere.
    let merged = text(&carol);
    assert!(merged == "AB" || merged == "BA", "{merged}");
    for replica in [&alice, &bob, &carol] {
        assert_eq!(text(replica), merged);
        replica.assert_agrees(&world);
    }
}
