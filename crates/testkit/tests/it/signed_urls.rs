//! Segments by URLs that are their own permission, with the published client (§5.4).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use syncular_client::ClientLimits;
use tidewater_testkit::{
    InstanceLimits, InstanceSpec, StoreKind,
    message::{pull_header, teams},
    schema, scopes,
};
use tidewater_wire::WireVersion;

use crate::{
    bootstrap::fill,
    raw::Raw,
    support::{Replica, Wire, World},
};

on_every_store!(
    a_device_fetches_by_url_whichever_lane_it_takes,
    a_url_that_is_lost_or_has_ended_is_asked_for_again,
    only_those_who_ask_get_urls,
);

/// Notes of team t1, every page by reference, at the time that the client's own clock tells.
fn world(kind: StoreKind) -> World {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let limits = InstanceLimits {
        inline_segment_max_bytes: Some(64),
        ..InstanceLimits::default()
    };
    let spec = InstanceSpec {
        limits,
        now_ms: i64::try_from(now.as_millis()).unwrap(),
        signed_urls: json!({ "ttlSeconds": 600 }),
        ..InstanceSpec::new(schema::notes(1).json())
    };
    let world = World::new(kind, spec);
    for actor in ["alice", "bob"] {
        world.allow(actor, scopes([("team_id", &["t1"])]));
    }
    fill(&world, 2_500);
    world
}

fn device(world: &World, accept: u8) -> Replica {
    let limits = ClientLimits {
        accept: Some(accept),
        ..ClientLimits::default()
    };
    let id = format!("device-{accept}");
    let client = syncular_client::SyncClient::new(id.clone(), &world.schema, limits).unwrap();
    let mut replica = Replica {
        client,
        wire: Wire::with_urls(&world.url, "bob", &id),
    };
    replica.subscribe("s1", "notes", &[("team_id", &["t1"])]);
    replica
}

fn a_device_fetches_by_url_whichever_lane_it_takes(kind: StoreKind) {
    let world = world(kind);
    for (accept, downloads) in [(0b1011, 3), (0b1111, 1)] {
        let before = world.counts().transfers;
        let mut bob = device(&world, accept);
        assert_eq!(bob.sync().segment_rows_applied, 2_500);
        bob.assert_agrees(&world);
        let after = world.counts().transfers;
        assert_eq!(after.signed_downloads - before.signed_downloads, downloads);
        assert_eq!(after.segment_downloads, 0);
    }
}

fn a_url_that_is_lost_or_has_ended_is_asked_for_again(kind: StoreKind) {
    let world = world(kind);
    let mut bob = device(&world, 0b1111);
    bob.good_round();
    bob.wire.downloads_left = Some(0);
    bob.failed_round();
    bob.wire.downloads_left = None;
    bob.wire.downloads_to_spoil = 1;
    bob.failed_round();
    assert_eq!(bob.titles(), []);
    // A URL that has ended is not even tried.
    world
        .block_on(
            world
                .instance
                .set_signed_url_lifetime(Some(Duration::from_secs(1))),
        )
        .unwrap();
    world.instance.clock().advance(-60_000);
    let tried = bob.wire.downloads;
    bob.failed_round();
    assert_eq!(bob.wire.downloads, tried);
    world.instance.clock().advance(60_000);
    world
        .block_on(
            world
                .instance
                .set_signed_url_lifetime(Some(Duration::from_secs(60))),
        )
        .unwrap();
    bob.sync();
    bob.assert_agrees(&world);
    // Nothing was fetched past the URLs, and nothing was built again for the new ones.
    let counts = world.counts();
    assert_eq!(counts.transfers.segment_downloads, 0);
    assert_eq!(counts.builds.image_builds, 1);
}

fn only_those_who_ask_get_urls(kind: StoreKind) {
    let world = world(kind);
    let mut raw = Raw::ready(&world, "bob", "b", WireVersion::V3);
    for (accept, has_url) in [
        (0b0010, false),
        (0b1010, true),
        (0b0110, false),
        (0b1110, true),
    ] {
        raw.author.limits = pull_header(accept);
        let mut answer = raw.pull(vec![teams("s1", &["t1"], -1)]);
        let references = answer.sections.remove(0).references;
        assert!(!references.is_empty());
        let now_ms = tidewater_engine::Clock::now_ms(world.instance.clock());
        for reference in references {
            assert_eq!(reference.url.is_some(), has_url, "{accept:#b}");
            let Some((url, expires_at_ms)) = reference.url else {
                continue;
            };
            let base = format!("{}/signed/segments/{}?st=", world.url, reference.segment_id);
            assert!(url.starts_with(&base), "{url}");
            assert!(!url.contains(world.instance.partition().as_str()));
            assert_eq!(expires_at_ms, (now_ms / 1_000 + 600) * 1_000);
        }
    }
    world
        .block_on(world.instance.set_signed_url_lifetime(None))
        .unwrap();
    raw.author.limits = pull_header(0b1110);
    let mut answer = raw.pull(vec![teams("s1", &["t1"], -1)]);
    assert_eq!(answer.sections.remove(0).references.remove(0).url, None);
}
