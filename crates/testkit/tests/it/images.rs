//! A device that comes late takes over one image instead of pages (§5.3): what the published client
//! checks in it, over real sockets.

use serde_json::json;
use syncular_client::{ClientLimits, SyncClient};
use tidewater_testkit::StoreKind;

use crate::{
    bootstrap::fill,
    support::{Replica, Wire, World},
};

on_every_store!(
    a_large_table_arrives_as_one_image,
    an_image_is_good_for_the_next_device_while_others_write,
    rows_written_after_an_image_was_made_reach_its_device,
);

/// More than the page of 1,000 rows that a client gets which does not ask.
const ROWS: usize = 3_000;

/// Bob's device, which takes images and nothing inline.
fn device(world: &World, name: &str) -> Replica {
    let limits = ClientLimits {
        accept: Some(0b0110),
        ..ClientLimits::default()
    };
    let id = format!("client-{name}");
    let client = SyncClient::new(id.clone(), &world.schema, limits).unwrap();
    let mut replica = Replica {
        client,
        wire: Wire::new(&world.url, "bob", &id),
    };
    replica.subscribe("s1", "notes", &[("team_id", &["t1"])]);
    replica.good_round();
    replica
}

fn a_large_table_arrives_as_one_image(kind: StoreKind) {
    let world = World::of_notes(kind);
    fill(&world, ROWS);
    let mut bob = device(&world, "bob");
    let report = bob.good_round();
    assert_eq!(usize::try_from(report.segment_rows_applied).unwrap(), ROWS);
    assert_eq!(report.bootstrapping, Vec::<String>::new(), "in one round");
    assert_eq!(bob.wire.downloads, 1);
    bob.assert_agrees(&world);
}

fn an_image_is_good_for_the_next_device_while_others_write(kind: StoreKind) {
    let world = World::of_notes(kind);
    fill(&world, ROWS);
    let mut first = device(&world, "bob-1");
    first.good_round();
    let mut second = device(&world, "bob-2");
    second.good_round();
    assert_eq!((first.wire.downloads, second.wire.downloads), (1, 1));
    first.assert_agrees(&world);
    second.assert_agrees(&world);
}

fn rows_written_after_an_image_was_made_reach_its_device(kind: StoreKind) {
    let world = World::of_notes(kind);
    fill(&world, ROWS);
    let mut bob = device(&world, "bob");
    bob.good_round();
    let mut alice = world.replica("alice");
    alice.sync();
    alice.patch("n00007", json!({ "title": "changed" }), None);
    alice.delete("n00008");
    alice.put("n00000-new", "new");
    alice.sync();
    let report = bob.sync();
    assert_eq!(report.segment_rows_applied, 0);
    bob.assert_agrees(&world);
    // A device that comes now gets an image with all of that.
    let mut late = device(&world, "late");
    let report = late.good_round();
    assert_eq!(usize::try_from(report.segment_rows_applied).unwrap(), ROWS);
    late.assert_agrees(&world);
}
