//! A device that was away for longer than the log reaches back (§4.6).

use serde_json::json;
use tidewater_engine::Retention;
use tidewater_testkit::StoreKind;

use crate::support::World;

on_every_store!(
    a_device_behind_the_horizon_starts_over_and_loses_what_was_deleted,
    a_device_at_the_horizon_goes_on_from_its_cursor,
    a_device_seen_lately_holds_the_horizon_back,
    an_outbox_survives_the_reset,
);

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// Keeps as little as the defaults of the active window allow.
const NOTHING_RETAINED: Retention = Retention {
    active_window_ms: 14 * DAY_MS,
    forced_age_ms: 30 * DAY_MS,
    retained_commits: 0,
};

fn prune(world: &World, retention: Retention) -> u64 {
    world
        .block_on(world.instance.prune(retention))
        .unwrap()
        .seq()
        .get()
}

fn a_device_behind_the_horizon_starts_over_and_loses_what_was_deleted(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    for id in ["n1", "n2", "n3"] {
        alice.put(id, "old");
    }
    alice.sync();
    bob.sync();
    assert_eq!(bob.titles().len(), 3);
    // Bob is away for a month.
    world.instance.clock().advance(31 * DAY_MS);
    alice.delete("n2");
    alice.patch("n3", json!({ "title": "new" }), None);
    alice.sync();
    assert_eq!(prune(&world, NOTHING_RETAINED), 5);

    let report = bob.sync();
    assert_eq!(report.resets, ["s1"]);
    assert!(report.segment_rows_applied > 0);
    let ids: Vec<_> = bob.titles().into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, ["n1", "n3"]);
    bob.assert_agrees(&world);
}

fn a_device_at_the_horizon_goes_on_from_its_cursor(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    alice.put("n1", "old");
    alice.sync();
    bob.sync();
    world.instance.clock().advance(31 * DAY_MS);
    assert_eq!(prune(&world, NOTHING_RETAINED), 1);
    alice.put("n2", "new");
    alice.sync();
    let report = bob.sync();
    assert_eq!((report.resets.len(), report.segment_rows_applied), (0, 0));
    bob.assert_agrees(&world);
}

fn a_device_seen_lately_holds_the_horizon_back(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    alice.put("n1", "one");
    alice.sync();
    bob.sync();
    for number in 2..6 {
        alice.put(&format!("n{number}"), "more");
    }
    alice.sync();
    assert_eq!(prune(&world, NOTHING_RETAINED), 1);
    let report = bob.sync();
    assert_eq!(report.resets, Vec::<String>::new());
    bob.assert_agrees(&world);
    // And commits that must be kept are, whoever has them.
    assert_eq!(
        prune(
            &world,
            Retention {
                retained_commits: 3,
                ..NOTHING_RETAINED
            }
        ),
        2
    );
}

fn an_outbox_survives_the_reset(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    alice.put("n1", "one");
    alice.sync();
    bob.sync();
    bob.put("n9", "written offline");
    world.instance.clock().advance(31 * DAY_MS);
    alice.delete("n1");
    alice.sync();
    prune(&world, NOTHING_RETAINED);
    let report = bob.sync();
    assert_eq!((report.applied.len(), report.resets.len()), (1, 1));
    assert_eq!(
        bob.titles(),
        [("n9".to_owned(), 1, json!("written offline"))]
    );
    bob.assert_agrees(&world);
}
