//! Segments by reference, fetched from their own route (§5.1, §5.5, §5.7).

use tidewater_testkit::{
    InstanceLimits, InstanceSpec, StoreKind,
    message::{EXTERNAL_ROWS, commit, pull_header, teams},
    schema, scopes,
};
use tidewater_wire::{RowsSegment, SegmentRef, WireVersion, content_address};

use crate::{
    raw::Raw,
    support::{World, whole_note},
};

on_every_store!(
    a_large_page_comes_by_reference_and_the_device_fetches_it,
    a_download_that_fails_is_asked_for_again,
    every_download_is_authorized_anew,
    a_segment_of_an_older_epoch_is_gone,
    an_expired_segment_is_told_apart_from_an_unknown_one,
);

/// Notes of team t1 in a database where every page comes by reference.
fn world(kind: StoreKind) -> World {
    let limits = InstanceLimits {
        inline_segment_max_bytes: Some(64),
        segment_ttl_ms: Some(60_000),
        ..InstanceLimits::default()
    };
    let world = World::new(
        kind,
        InstanceSpec {
            limits,
            ..InstanceSpec::new(schema::notes(1).json())
        },
    );
    world.allow("alice", scopes([("team_id", &["t1"])]));
    world.allow("bob", scopes([("team_id", &["t1"])]));
    let raw = Raw::ready(&world, "alice", "filler", WireVersion::V3);
    let operations = (0..100)
        .map(|number| {
            let values = whole_note(&format!("n{number:03}"), "t1", &"x".repeat(50));
            raw.author.upsert("notes", &values, None)
        })
        .collect();
    raw.apply(commit("fill", operations));
    world
}

fn a_large_page_comes_by_reference_and_the_device_fetches_it(kind: StoreKind) {
    let world = world(kind);
    let mut bob = world.replica("bob");
    let report = bob.sync();
    assert_eq!(report.segment_rows_applied, 100);
    assert_eq!(bob.wire.downloads, 1);
    bob.assert_agrees(&world);
}

fn a_download_that_fails_is_asked_for_again(kind: StoreKind) {
    let world = world(kind);
    let mut bob = world.replica("bob");
    bob.good_round();
    bob.wire.downloads_left = Some(0);
    bob.failed_round();
    assert_eq!(bob.titles(), []);
    assert_eq!(bob.client.subscription_state("s1").unwrap().cursor, -1);
    bob.wire.downloads_left = None;
    bob.sync();
    bob.assert_agrees(&world);
}

/// Bob's reference to the first page.
fn reference(raw: &mut Raw) -> SegmentRef {
    raw.author.limits = pull_header(EXTERNAL_ROWS);
    let mut answer = raw.pull(vec![teams("s1", &["t1"], -1)]);
    let section = answer.sections.remove(0);
    assert!(section.start.bootstrap && section.inline.is_empty());
    section.references.into_iter().next().unwrap()
}

const SCOPES: &str = r#"{"team_id":["t1"]}"#;

fn every_download_is_authorized_anew(kind: StoreKind) {
    let world = world(kind);
    let mut bob = Raw::ready(&world, "bob", "b", WireVersion::V3);
    let reference = reference(&mut bob);
    let (status, bytes) = bob.download(&reference.segment_id, SCOPES);
    assert_eq!(status, 200);
    assert_eq!(content_address(&bytes), *reference.segment_id);
    assert_eq!(i64::try_from(bytes.len()).unwrap(), reference.byte_length);
    let segment = RowsSegment::decode(&bytes).unwrap();
    assert_eq!(segment.blocks.concat().len(), 100);
    // The other spelling of the same address.
    let escaped = reference.segment_id.replace(':', "%3A");
    assert_eq!(bob.download(&escaped, SCOPES).0, 200);

    check(
        bob.download(&reference.segment_id, "{}"),
        403,
        "sync.forbidden",
    );
    check(
        bob.download(&reference.segment_id, r#"{"team_id":["t2"]}"#),
        403,
        "sync.forbidden",
    );
    check(
        bob.download(&reference.segment_id, r#"{"team_id":["*"]}"#),
        400,
        "sync.invalid_subscription",
    );
    let unknown = content_address(b"something else");
    check(bob.download(&unknown, SCOPES), 404, "sync.not_found");
    world.allow("bob", scopes([]));
    check(
        bob.download(&reference.segment_id, SCOPES),
        403,
        "sync.forbidden",
    );
}

fn a_segment_of_an_older_epoch_is_gone(kind: StoreKind) {
    let world = world(kind);
    let mut bob = Raw::ready(&world, "bob", "b", WireVersion::V3);
    let reference = reference(&mut bob);
    world.block_on(world.instance.back_up()).unwrap();
    world.block_on(world.instance.restore()).unwrap();
    check(
        bob.download(&reference.segment_id, SCOPES),
        404,
        "sync.not_found",
    );
}

fn an_expired_segment_is_told_apart_from_an_unknown_one(kind: StoreKind) {
    let world = world(kind);
    let mut bob = Raw::ready(&world, "bob", "b", WireVersion::V3);
    let before = reference(&mut bob);
    world.instance.clock().advance(60_000);
    check(
        bob.download(&before.segment_id, SCOPES),
        404,
        "sync.segment_expired",
    );
    // Asking again renews what has the same bytes.
    let after = reference(&mut bob);
    assert_eq!(after.segment_id, before.segment_id);
    assert_eq!(bob.download(&after.segment_id, SCOPES).0, 200);
}

#[track_caller]
fn check((status, body): (u16, bytes::Bytes), expected: u16, code: &str) {
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, body["code"].as_str()), (expected, Some(code)));
}
