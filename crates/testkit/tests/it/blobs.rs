//! Blobs up and down, with the published client (§5.9).

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use syncular_client::Mutation;
use tidewater_testkit::{
    InstanceSpec, StoreKind,
    message::{commit, delete},
    schema::{SchemaDoc, TableDoc},
    scopes,
};
use tidewater_wire::{WireVersion, content_address};

use crate::{
    raw::Raw,
    support::{Replica, World, object},
};

on_every_store!(
    a_blob_travels_from_one_device_to_the_other,
    with_a_bucket_the_bytes_travel_past_the_server,
    a_row_that_refers_to_nothing_is_not_written,
    whoever_may_not_read_a_row_learns_nothing_about_its_blob,
    the_sweep_takes_what_nothing_refers_to_and_nothing_else,
);

const HOUR_MS: i64 = 60 * 60 * 1_000;

fn world(kind: StoreKind) -> World {
    let files = TableDoc::new("files")
        .column("id", "string")
        .column("team_id", "string")
        .nullable("content", "blob_ref")
        .scope("team", "team_id");
    // The client looks at its own clock before it uses a URL.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let spec = InstanceSpec {
        now_ms: i64::try_from(now.as_millis()).unwrap(),
        ..InstanceSpec::new(SchemaDoc::new(1).table(files).json())
    };
    let world = World::new(kind, spec);
    world.allow("alice", scopes([("team_id", &["t1"])]));
    world.allow("bob", scopes([("team_id", &["t1"])]));
    world.allow("mallory", scopes([("team_id", &["t2"])]));
    world
}

fn device(world: &World, actor: &str) -> Replica {
    let mut replica = world.bare_replica(actor, &format!("client-{actor}"));
    replica.subscribe("s1", "files", &[("team_id", &["t1"])]);
    replica
}

/// A file with this content, from alice.
fn share(alice: &mut Replica, id: &str, content: &[u8]) -> String {
    let reference = alice
        .client
        .upload_blob(
            content,
            Some("image/png".to_owned()),
            Some("a.png".to_owned()),
        )
        .unwrap();
    let values: Map<String, Value> = object(json!({
        "id": id, "team_id": "t1", "content": reference.to_string(),
    }));
    alice.mutate(Mutation::Upsert {
        table: "files".to_owned(),
        values,
        base_version: None,
    });
    alice.sync();
    reference["blobId"].as_str().unwrap().to_owned()
}

/// What a device gets when it asks for a blob: the bytes, or the code.
fn fetch(replica: &mut Replica, id: &str) -> Result<Vec<u8>, String> {
    let fetched = replica.client.fetch_blob_bytes(&mut replica.wire, id);
    fetched.map(|blob| blob.bytes).map_err(|(code, _)| code)
}

/// Bytes that look like nothing in particular.
fn content(length: usize) -> Vec<u8> {
    let numbers = (0u32..).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]);
    numbers.take(length).collect()
}

fn a_blob_travels_from_one_device_to_the_other(kind: StoreKind) {
    let world = world(kind);
    let (mut alice, mut bob) = (device(&world, "alice"), device(&world, "bob"));
    for length in [0, 1, 300_000] {
        let content = content(length);
        let id = share(&mut alice, &format!("f{length}"), &content);
        bob.sync();
        assert!(fetch(&mut bob, &id).unwrap() == content, "{length}");
        // The second time it is there already.
        assert!(fetch(&mut bob, &id).unwrap() == content, "{length}");
    }
    let counts = world.counts();
    assert_eq!(counts.transfers.blob_uploads, 3);
    assert_eq!(counts.transfers.blob_downloads, 3);
    assert_eq!((counts.bucket_downloads, counts.bucket_uploads), (0, 0));
}

fn with_a_bucket_the_bytes_travel_past_the_server(kind: StoreKind) {
    let world = world(kind);
    world.instance.set_blob_presign(true);
    let (mut alice, mut bob) = (device(&world, "alice"), device(&world, "bob"));
    let content = content(50_000);
    let id = share(&mut alice, "f1", &content);
    bob.sync();
    assert!(fetch(&mut bob, &id).unwrap() == content);
    let counts = world.counts();
    assert_eq!(counts.transfers.blob_uploads, 0);
    assert_eq!((counts.bucket_downloads, counts.bucket_uploads), (1, 1));
    // What is there already need not be sent again.
    let mut carol = world.bare_replica("alice", "client-carol");
    carol.subscribe("s1", "files", &[("team_id", &["t1"])]);
    share(&mut carol, "f2", &content);
    assert_eq!(world.counts().bucket_uploads, 1);
    // Nobody gets a URL who does not get the bytes.
    let before = world.counts().bucket_downloads;
    let mut mallory = device(&world, "mallory");
    assert_eq!(fetch(&mut mallory, &id), Err("blob.forbidden".to_owned()));
    assert_eq!(world.counts().bucket_downloads, before);
}

fn a_row_that_refers_to_nothing_is_not_written(kind: StoreKind) {
    let world = world(kind);
    let raw = Raw::ready(&world, "alice", "raw", WireVersion::V3);
    let absent = content_address(b"nobody has this");
    let file = json!({
        "id": "f1", "team_id": "t1",
        "content": json!({ "blobId": absent, "byteLength": 15 }).to_string(),
    });
    let write = raw.author.upsert("files", &file, None);
    assert_eq!(raw.reject(commit("k1", vec![write])), "blob.not_found");
    assert_eq!((world.rows("files"), world.head()), (vec![], 0));
}

fn whoever_may_not_read_a_row_learns_nothing_about_its_blob(kind: StoreKind) {
    let world = world(kind);
    let (mut alice, mut bob) = (device(&world, "alice"), device(&world, "bob"));
    let id = share(&mut alice, "f1", b"secret");
    bob.sync();
    let absent = content_address(b"nobody has this");
    let mut mallory = device(&world, "mallory");
    for id in [&id, &absent] {
        assert_eq!(fetch(&mut mallory, id), Err("blob.forbidden".to_owned()));
    }
    // The very same answer, to the byte.
    let ask = |id: &str| {
        let url = format!("{}/blobs/{id}", world.url);
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .into();
        let request = agent.get(url).header("authorization", "Bearer mallory");
        let mut response = request.call().unwrap();
        let body = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), body)
    };
    assert_eq!(ask(&id), ask(&absent));
    assert_eq!(ask(&id).0, 403);
    // Permission goes, and with it the blob; a failing resolver denies, too.
    world.allow("bob", scopes([]));
    assert_eq!(fetch(&mut bob, &id), Err("blob.forbidden".to_owned()));
    world.allow("bob", scopes([("team_id", &["t1"])]));
    assert_eq!(fetch(&mut bob, &id), Ok(b"secret".to_vec()));
}

fn the_sweep_takes_what_nothing_refers_to_and_nothing_else(kind: StoreKind) {
    let world = world(kind);
    let mut alice = device(&world, "alice");
    let kept = share(&mut alice, "f1", b"kept");
    let dropped = share(&mut alice, "f2", b"dropped");
    let raw = Raw::ready(&world, "alice", "raw", WireVersion::V3);
    raw.apply(commit("k1", vec![delete("files", "f2")]));
    let sweep = || world.block_on(world.instance.sweep_blobs()).unwrap();
    // It may be on its way into a row.
    assert_eq!(sweep().removed, 0);
    // A folder tells when it was written by the machine's clock, which this one began with.
    world.instance.clock().advance(23 * HOUR_MS);
    assert_eq!(sweep().removed, 0);
    world.instance.clock().advance(2 * HOUR_MS);
    let swept = sweep();
    assert_eq!((swept.looked_at, swept.referenced), (2, 1));
    assert_eq!((swept.removed, swept.removed_bytes), (1, 7));
    assert_eq!(sweep().looked_at, 1);
    let mut bob = device(&world, "bob");
    bob.sync();
    assert_eq!(fetch(&mut bob, &kept), Ok(b"kept".to_vec()));
    assert_eq!(fetch(&mut bob, &dropped), Err("blob.forbidden".to_owned()));
    // What was swept has to be sent again before it can be referred to.
    let again = share(&mut alice, "f3", b"dropped");
    bob.sync();
    assert_eq!(fetch(&mut bob, &again), Ok(b"dropped".to_vec()));
}
