//! Devices at two schema versions share a server that serves both (§9).

use serde_json::{Value, json};
use syncular_client::{ClientLimits, SchemaFloor, SyncClient};
use tidewater_testkit::{StoreKind, schema};

use crate::{
    bootstrap::fill,
    support::{Replica, Wire, World},
};

on_every_store!(
    devices_of_two_versions_write_the_same_row_and_none_loses_a_column,
    an_older_device_takes_over_an_image_of_its_own_version,
);

/// The notes of version 1 and a column more.
fn second_version() -> Value {
    schema::SchemaDoc::new(2)
        .table(schema::notes_table().nullable("color", "string"))
        .json()
}

fn serve_both(world: &World) {
    let older = [schema::notes(1).json()];
    let newer = second_version();
    let upgraded = world.instance.upgrade_beside(&newer, &older);
    world.block_on(upgraded).unwrap();
}

/// A device of bob's at version 2.
fn newer_device(world: &World) -> Replica {
    let client_id = "client-bob".to_owned();
    let limits = crate::support::limits();
    let wire = Wire::new(&world.url, "bob", &client_id);
    let client = SyncClient::new(client_id, &second_version(), limits).unwrap();
    let mut replica = Replica { client, wire };
    replica.subscribe("s1", "notes", &[("team_id", &["t1"])]);
    replica
}

/// A column of a note on a device.
fn value(replica: &Replica, id: &str, column: &str) -> Value {
    let rows = replica.client.read_rows("notes").unwrap();
    let row = rows.iter().find(|row| row.values["id"] == json!(id));
    row.unwrap().values[column].clone()
}

fn devices_of_two_versions_write_the_same_row_and_none_loses_a_column(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.put("n1", "of version 1");
    alice.sync();
    serve_both(&world);

    // The device that did not upgrade goes on, and does not even start over.
    alice.put("n2", "after the upgrade");
    let report = alice.good_round();
    assert_eq!(report.schema_floor, None);
    assert!(report.resets.is_empty());
    let mut bob = newer_device(&world);
    bob.sync();
    assert_eq!(value(&bob, "n2", "title"), json!("after the upgrade"));
    bob.patch("n1", json!({"color": "red"}), None);
    bob.sync();
    alice.sync();
    alice.put("n1", "changed by version 1");
    alice.sync();
    bob.sync();
    assert_eq!(value(&bob, "n1", "title"), json!("changed by version 1"));
    assert_eq!(value(&bob, "n1", "color"), json!("red"));
    assert_eq!(value(&alice, "n1", "title"), json!("changed by version 1"));
    bob.assert_agrees(&world);

    // The window closes: now the older device must follow.
    world
        .block_on(world.instance.upgrade(&second_version()))
        .unwrap();
    let floor = SchemaFloor {
        required_schema_version: Some(2),
        latest_schema_version: Some(2),
    };
    assert_eq!(alice.good_round().schema_floor, Some(floor));
    alice
        .client
        .recreate_with_schema(&second_version())
        .unwrap();
    alice.sync();
    assert_eq!(value(&alice, "n1", "color"), json!("red"));
    alice.assert_agrees(&world);
}

fn an_older_device_takes_over_an_image_of_its_own_version(kind: StoreKind) {
    const ROWS: usize = 3_000;
    let world = World::of_notes(kind);
    fill(&world, ROWS);
    serve_both(&world);
    for (name, document) in [("old", world.schema.clone()), ("new", second_version())] {
        let limits = ClientLimits {
            accept: Some(0b0110),
            ..ClientLimits::default()
        };
        let client_id = format!("client-{name}");
        let wire = Wire::new(&world.url, "bob", &client_id);
        let client = SyncClient::new(client_id, &document, limits).unwrap();
        let mut device = Replica { client, wire };
        device.subscribe("s1", "notes", &[("team_id", &["t1"])]);
        device.good_round();
        let report = device.good_round();
        assert_eq!(usize::try_from(report.segment_rows_applied).unwrap(), ROWS);
        assert_eq!(device.wire.downloads, 1, "one image");
        assert_eq!(device.client.read_rows("notes").unwrap().len(), ROWS);
    }
}
