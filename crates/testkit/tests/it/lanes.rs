//! Whole tables as SQLite images: the same rows as by the other lane, and one build for all who
//! ask (§5.3, §4.7).

use serde_json::{Map, Value};
use tidewater_testkit::{
    InstanceLimits, InstanceSpec, StoreKind,
    message::{EXTERNAL_ROWS, commit, pull_header, teams},
    schema, scopes,
};
use tidewater_wire::{MediaType, WireVersion};

use crate::{
    bootstrap::fill,
    raw::Raw,
    support::{Replica, World, whole_note},
};

on_every_store!(
    an_image_that_arrives_spoiled_is_refused_and_the_next_pull_heals,
    a_restart_in_the_middle_of_a_bootstrap_changes_nothing,
    a_commit_to_another_scope_leaves_the_image_as_it_is,
    a_table_that_fits_a_page_comes_as_rows,
);

/// Notes of team t1, read by many.
fn world(kind: StoreKind, rows: usize) -> World {
    let world = World::of_notes(kind);
    for actor in ["carol", "dave", "erin"] {
        world.allow(actor, scopes([("team_id", &["t1"])]));
    }
    world.allow("alice", scopes([("team_id", &["t1", "t2"])]));
    fill(&world, rows);
    world
}

/// Every row of a device: id, version, columns.
fn rows(replica: &Replica) -> Vec<(String, i64, Map<String, Value>)> {
    let rows = replica.client.read_rows("notes").unwrap().into_iter();
    rows.map(|row| (row.row_id, row.version, row.values))
        .collect()
}

/// What a device that has nothing has afterwards, and in how many rows of segments it came.
fn bootstrap(mut replica: Replica) -> (Replica, u32) {
    let report = replica.sync();
    (replica, report.segment_rows_applied)
}

#[test]
fn a_hundred_thousand_rows_are_the_same_by_image_and_by_rows() {
    const ROWS: u32 = 100_000;
    let world = world(StoreKind::Sqlite, 100_000);
    let (by_rows, count) = bootstrap(world.replica("bob"));
    assert_eq!(count, ROWS);
    assert_eq!(world.counts().builds.image_builds, 0);

    let (cold, count) = bootstrap(world.image_replica("carol"));
    assert_eq!((count, cold.wire.downloads), (ROWS, 1));
    let (warm, count) = bootstrap(world.image_replica("dave"));
    assert_eq!((count, warm.wire.downloads), (ROWS, 1));
    let builds = world.counts().builds;
    assert_eq!((builds.image_builds, builds.image_reuses), (1, 1));

    by_rows.assert_agrees(&world);
    let expected = rows(&by_rows);
    assert!(rows(&cold) == expected && rows(&warm) == expected);

    // Rows that came before others in the image are changed, and the log goes on from its pin.
    let mut alice = world.replica("alice");
    alice.sync();
    alice.put("n00001", "changed");
    alice.delete("n99999");
    alice.sync();
    let mut cold = cold;
    let report = cold.sync();
    assert_eq!(
        (report.segment_rows_applied, report.commits_applied),
        (0, 2)
    );
    cold.assert_agrees(&world);
    // There is a newer pin now, and nothing fits it.
    let (newest, _) = bootstrap(world.image_replica("erin"));
    newest.assert_agrees(&world);
    assert_eq!(world.counts().builds.image_builds, 2);
}

#[test]
fn pages_by_reference_go_on_wherever_the_downloads_were_cut() {
    let limits = InstanceLimits {
        inline_segment_max_bytes: Some(64),
        ..InstanceLimits::default()
    };
    let spec = InstanceSpec {
        limits,
        ..InstanceSpec::new(schema::notes(1).json())
    };
    let world = World::new(StoreKind::Sqlite, spec);
    for actor in ["alice", "bob"] {
        world.allow(actor, scopes([("team_id", &["t1"])]));
    }
    fill(&world, 20_000);
    let mut bob = world.replica("bob");
    bob.good_round();
    let mut rounds = 0;
    loop {
        // Four pages a round: none, one, two and three of them arrive before the cable is cut.
        for pages in 0..4 {
            bob.wire.downloads_left = Some(pages);
            bob.failed_round();
        }
        bob.wire.downloads_left = None;
        let report = bob.good_round();
        rounds += 1;
        assert_eq!(report.segment_rows_applied, 4_000);
        if report.bootstrapping.is_empty() {
            break;
        }
    }
    assert_eq!(rounds, 5);
    bob.assert_agrees(&world);
    // Pages that were there were not made again.
    assert_eq!(world.counts().builds.page_builds, 20);
}

fn an_image_that_arrives_spoiled_is_refused_and_the_next_pull_heals(kind: StoreKind) {
    let world = world(kind, 2_500);
    let mut bob = world.image_replica("bob");
    bob.good_round();
    bob.wire.downloads_to_spoil = 1;
    bob.failed_round();
    assert_eq!(bob.titles(), []);
    assert_eq!(bob.client.subscription_state("s1").unwrap().cursor, -1);
    let (bob, count) = bootstrap(bob);
    assert_eq!((count, bob.wire.downloads), (2_500, 2));
    bob.assert_agrees(&world);
    assert_eq!(world.counts().builds.image_builds, 1);
}

fn a_restart_in_the_middle_of_a_bootstrap_changes_nothing(kind: StoreKind) {
    let world = world(kind, 9_000);
    let (mut by_rows, mut by_image) = (world.replica("bob"), world.image_replica("carol"));
    by_image.good_round();
    by_image.wire.downloads_left = Some(0);
    by_image.failed_round();
    by_rows.good_round();
    assert_eq!(by_rows.good_round().segment_rows_applied, 4_000);
    let epoch = world.block_on(world.instance.log_epoch()).unwrap();

    world.block_on(world.instance.restart()).unwrap();

    by_image.wire.downloads_left = None;
    let (by_image, count) = bootstrap(by_image);
    assert_eq!((count, by_image.wire.downloads), (9_000, 1));
    let (by_rows, count) = bootstrap(by_rows);
    assert_eq!(count, 5_000);
    by_rows.assert_agrees(&world);
    by_image.assert_agrees(&world);
    // What was built before the restart was still there.
    assert_eq!(world.counts().builds.image_builds, 1);
    assert_eq!(world.block_on(world.instance.log_epoch()).unwrap(), epoch);
}

fn a_commit_to_another_scope_leaves_the_image_as_it_is(kind: StoreKind) {
    let world = world(kind, 2_500);
    let writer = Raw::ready(&world, "alice", "writer", WireVersion::V3);
    let mut reader = Raw::ready(&world, "bob", "reader", WireVersion::V3);
    reader.author.limits = pull_header(0b0110);
    let ask = |expected_builds: u64| {
        let mut answer = reader.pull(vec![teams("s1", &["t1"], -1)]);
        let reference = answer.sections.remove(0).references.remove(0);
        assert_eq!(reference.media_type, MediaType::Sqlite);
        assert_eq!(world.counts().builds.image_builds, expected_builds);
        reference.segment_id
    };
    let write = |number: usize, team: &str| {
        let note = whole_note(&format!("x{number}"), team, "x");
        let write = writer.author.upsert("notes", &note, None);
        writer.apply(commit(&format!("k{number}"), vec![write]));
    };
    let first = ask(1);
    for number in 0..20 {
        write(number, "t2");
        assert_eq!(ask(1), first);
    }
    write(20, "t1");
    assert_ne!(ask(2), first);
}

fn a_table_that_fits_a_page_comes_as_rows(kind: StoreKind) {
    let world = world(kind, 900);
    let (carol, count) = bootstrap(world.image_replica("carol"));
    assert_eq!((count, carol.wire.downloads), (900, 0));
    carol.assert_agrees(&world);
    let builds = world.counts().builds;
    assert_eq!((builds.image_builds, builds.image_declines), (0, 1));
    // Who takes pages by reference alone gets one.
    let mut reader = Raw::ready(&world, "bob", "reader", WireVersion::V3);
    reader.author.limits = pull_header(EXTERNAL_ROWS);
    let mut answer = reader.pull(vec![teams("s1", &["t1"], -1)]);
    let reference = answer.sections.remove(0).references.remove(0);
    assert_eq!(reference.media_type, MediaType::Rows);
}
