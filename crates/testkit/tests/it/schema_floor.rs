//! A client of another schema version is told so, and nothing else happens (§1.6).

use syncular_client::SchemaFloor;
use tidewater_testkit::{StoreKind, schema};

use crate::support::World;

on_every_store!(
    an_old_client_gets_the_floor_and_drains_its_outbox_after_the_upgrade,
    a_client_that_is_newer_than_the_server_gets_the_floor_too,
);

/// The notes of version 1 and a column more.
fn second_version() -> serde_json::Value {
    schema::SchemaDoc::new(2)
        .table(schema::notes_table().nullable("color", "string"))
        .json()
}

fn an_old_client_gets_the_floor_and_drains_its_outbox_after_the_upgrade(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.put("n1", "of version 1");
    alice.sync();
    world
        .block_on(world.instance.upgrade(&second_version()))
        .unwrap();

    let commit = alice.put("n2", "written before the upgrade");
    let floor = SchemaFloor {
        required_schema_version: Some(2),
        latest_schema_version: Some(2),
    };
    assert_eq!(alice.good_round().schema_floor, Some(floor));
    assert_eq!(alice.client.pending_commit_ids(), [commit.as_str()]);
    assert_eq!(world.head(), 1);

    alice
        .client
        .recreate_with_schema(&second_version())
        .unwrap();
    let report = alice.sync();
    assert_eq!(report.applied, [commit]);
    let rows = alice.client.read_rows("notes").unwrap();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.values["color"].is_null()));
    alice.assert_agrees(&world);
}

fn a_client_that_is_newer_than_the_server_gets_the_floor_too(kind: StoreKind) {
    let mut world = World::of_notes(kind);
    world.schema = second_version();
    let mut alice = world.replica("alice");
    alice.put("n1", "of version 2");
    let floor = SchemaFloor {
        required_schema_version: Some(1),
        latest_schema_version: Some(1),
    };
    assert_eq!(alice.good_round().schema_floor, Some(floor));
    assert_eq!(world.head(), 0);
}
