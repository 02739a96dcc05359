//! Two hundred devices that have nothing and come at once (§4.7, §5.5).

use std::{
    sync::{Arc, Barrier},
    thread,
};

use bytes::Bytes;
use tidewater_testkit::{
    StoreKind,
    message::{commit, pull_header, teams},
};
use tidewater_wire::{MediaType, WireVersion, content_address};

use crate::{
    bootstrap::fill,
    raw::Raw,
    support::{World, whole_note},
};

on_every_store!(two_hundred_devices_at_once_cost_one_build_and_all_are_served);

const DEVICES: usize = 200;
const SCOPES: &str = r#"{"team_id":["t1"]}"#;

fn two_hundred_devices_at_once_cost_one_build_and_all_are_served(kind: StoreKind) {
    let world = Arc::new(World::of_notes(kind));
    fill(&world, 5_000);
    let begin = Arc::new(Barrier::new(DEVICES));
    let devices: Vec<_> = (0..DEVICES)
        .map(|number| {
            let mut raw = Raw::ready(&world, "bob", &format!("device-{number}"), WireVersion::V3);
            raw.author.limits = pull_header(0b0111);
            let begin = Arc::clone(&begin);
            thread::spawn(move || {
                begin.wait();
                bootstrap(&raw)
            })
        })
        .collect();
    let got: Vec<(String, Bytes)> = devices
        .into_iter()
        .map(|device| device.join().unwrap())
        .collect();
    // Everybody has the same image, byte for byte, and it is what its address says.
    assert_eq!(content_address(&got[0].1), got[0].0);
    assert!(got.iter().all(|one| *one == got[0]));
    let counts = world.counts();
    let builds = counts.builds;
    assert_eq!(builds.image_builds, 1, "{builds:?}");
    let spared = builds.image_joins + builds.image_reuses;
    assert_eq!(usize::try_from(spared).unwrap(), DEVICES - 1, "{builds:?}");
    assert_eq!((builds.image_declines, builds.image_failures), (0, 0));
    let downloads = usize::try_from(counts.transfers.segment_downloads);
    assert_eq!(downloads, Ok(DEVICES));
    // And who writes was not kept waiting for ever.
    let writer = Raw::ready(&world, "alice", "writer", WireVersion::V3);
    let note = writer
        .author
        .upsert("notes", &whole_note("x", "t1", "x"), None);
    writer.apply(commit("after", vec![note]));
}

/// One pull and one download.
fn bootstrap(raw: &Raw) -> (String, Bytes) {
    let mut answer = raw.pull(vec![teams("s1", &["t1"], -1)]);
    let section = answer.sections.remove(0);
    let [reference] = &section.references[..] else {
        panic!("an image is one reference: {section:?}");
    };
    assert_eq!(reference.media_type, MediaType::Sqlite);
    assert_eq!(reference.row_count, 5_000);
    let (status, bytes) = raw.download(&reference.segment_id, SCOPES);
    assert_eq!(status, 200);
    (reference.segment_id.to_string(), bytes)
}
