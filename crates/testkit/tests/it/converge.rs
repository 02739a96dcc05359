//! Two devices end up with the same rows (§4.5, §6.1), and each of them with those of the server.

use serde_json::json;
use tidewater_testkit::StoreKind;

use crate::support::World;

on_every_store!(
    inserts_patches_and_deletes_of_two_devices_converge,
    a_patch_touches_only_the_columns_it_names,
    two_commits_ride_one_round_and_both_apply,
    a_round_with_nothing_to_say_changes_nothing,
);

fn inserts_patches_and_deletes_of_two_devices_converge(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    alice.put("n1", "first");
    alice.put("n2", "second");
    alice.put("n3", "third");
    alice.sync();
    bob.sync();
    bob.patch("n1", json!({ "title": "first, by bob" }), None);
    bob.delete("n2");
    bob.put("n4", "fourth");
    bob.sync();
    alice.put("n3", "third, again");
    alice.sync();
    bob.sync();

    let expected = [
        ("n1", 2, "first, by bob"),
        ("n3", 2, "third, again"),
        ("n4", 1, "fourth"),
    ];
    let expected = expected.map(|(id, version, title)| (id.to_owned(), version, json!(title)));
    assert_eq!(alice.titles(), expected);
    alice.assert_agrees(&world);
    bob.assert_agrees(&world);
    // Three inserts; a patch, a delete and an insert; an update: one commit each.
    assert_eq!(world.head(), 7);
}

fn a_patch_touches_only_the_columns_it_names(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    alice.put("n1", "title");
    alice.sync();
    bob.sync();
    // Neither has seen the other's: different columns, so both hold (§6.2).
    alice.patch("n1", json!({ "title": "by alice" }), Some(1));
    bob.patch("n1", json!({ "stars": 5, "done": true }), Some(1));
    alice.sync();
    let report = bob.sync();
    assert_eq!(report.conflicts, 0);
    alice.sync();
    let row = &world.rows("notes")[0];
    assert_eq!(row.version, 3);
    assert_eq!(row.values["title"], "by alice");
    assert_eq!(
        (&row.values["stars"], &row.values["done"]),
        (&json!(5), &json!(true))
    );
    alice.assert_agrees(&world);
    bob.assert_agrees(&world);
}

fn two_commits_ride_one_round_and_both_apply(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.sync();
    let commits = [alice.put("n1", "one"), alice.put("n2", "two")];
    let report = alice.good_round();
    assert_eq!(report.applied, commits);
    assert_eq!(world.head(), 2);
    alice.assert_agrees(&world);
}

fn a_round_with_nothing_to_say_changes_nothing(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.put("n1", "one");
    alice.sync();
    let before = alice.titles();
    let report = alice.good_round();
    assert_eq!(
        (report.commits_applied, report.segment_rows_applied),
        (0, 0)
    );
    assert_eq!(alice.titles(), before);
    assert_eq!(world.head(), 1);
}
