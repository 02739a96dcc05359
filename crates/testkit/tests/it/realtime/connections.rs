//! One client with two connections, and what is said to connections from outside (§8.3, §8.4,
//! §8.6).

use serde_json::json;
use tidewater_testkit::{
    StoreKind,
    message::{commit, teams},
};
use tidewater_wire::{
    WireVersion,
    control::{PresenceChange, ServerControl, WakeReason, WakeUp},
};

use super::channel::Channel;
use crate::{
    control::{call, check},
    party::Party,
    raw::Raw,
    support::World,
};

on_each_database!(
    both_connections_of_a_client_get_what_happens,
    the_newer_connection_takes_the_document_over,
    a_harness_wakes_and_refreshes_and_sees_where_the_hub_stands,
);

const KEY: &str = "team:t1";

/// A client of alice's that is up to date over HTTP, which is where connections begin.
fn up_to_date(world: &World, client_id: &str) -> Raw {
    let raw = Raw::ready(world, "alice", client_id, WireVersion::V3);
    raw.pull(vec![teams("s1", &["t1"], -1)]);
    raw
}

fn edit(raw: &Raw, number: u32) -> i64 {
    let values = json!({
        "id": "n1", "team_id": "t1", "title": number.to_string(), "stars": null, "done": null,
        "meta": null, "body": null,
    });
    let operation = raw.author.upsert("notes", &values, None);
    raw.apply(commit(&format!("c{number}"), vec![operation]))
}

fn both_connections_of_a_client_get_what_happens(kind: StoreKind) {
    let world = World::of_notes(kind);
    up_to_date(&world, "a");
    let writer = up_to_date(&world, "writer");
    let open = || Channel::open(&world.url, "alice", "a");
    let (mut first, mut second) = world.block_on(async { (open().await, open().await) });
    assert!(!first.hello.requires_sync && !second.hello.requires_sync);
    assert_ne!(first.hello.session_id, second.hello.session_id);
    for number in 1..=3 {
        let seq = edit(&writer, number);
        for channel in [&mut first, &mut second] {
            let delta = world.block_on(channel.delta());
            assert_eq!(delta.sections[0].commits[0].commit_seq, seq);
            world.block_on(channel.ack(seq));
        }
    }
    drop(second);
    let seq = edit(&writer, 4);
    let delta = world.block_on(first.delta());
    assert_eq!(delta.sections[0].commits[0].commit_seq, seq);
}

fn the_newer_connection_takes_the_document_over(kind: StoreKind) {
    let world = World::of_notes(kind);
    up_to_date(&world, "a");
    up_to_date(&world, "b");
    let open = |client: &'static str| Channel::open(&world.url, "alice", client);
    world.block_on(async {
        let mut watcher = open("b").await;
        let mut older = open("a").await;
        let mut newer = open("a").await;
        let mut seen = async || match watcher.control().await {
            ServerControl::Presence(fanout) => (fanout.client_id.to_string(), fanout.change),
            other => panic!("not presence: {other:?}"),
        };
        let of_a = |change| ("a".to_owned(), change);
        older.present(KEY, Some(r#"{"n":1}"#)).await;
        let joined = PresenceChange::Join(r#"{"n":1}"#.into());
        assert_eq!(seen().await, of_a(joined));
        newer.present(KEY, Some(r#"{"n":2}"#)).await;
        // Whether it is told as a join or as an update, it is one document, and the new one.
        let (client, change) = seen().await;
        let doc = match change {
            PresenceChange::Join(doc) | PresenceChange::Update(doc) => doc,
            PresenceChange::Leave => panic!("nobody left"),
        };
        assert_eq!((&*client, &*doc), ("a", r#"{"n":2}"#));
        drop(older);
        newer.present(KEY, Some(r#"{"n":3}"#)).await;
        let updated = PresenceChange::Update(r#"{"n":3}"#.into());
        assert_eq!(seen().await, of_a(updated));
        drop(newer);
        assert_eq!(seen().await, of_a(PresenceChange::Leave));
    });
}

fn a_harness_wakes_and_refreshes_and_sees_where_the_hub_stands(kind: StoreKind) {
    let world = World::of_notes(kind);
    let at = |action: &str| format!("{}/control/{action}", world.url);
    up_to_date(&world, "a");
    let writer = up_to_date(&world, "writer");
    let mut channel = world.block_on(Channel::open(&world.url, "alice", "a"));
    let seq = edit(&writer, 1);
    world.block_on(async {
        channel.delta().await;
        channel.ack(seq).await;
    });
    let wish = json!({ "reason": "reset-required" });
    check("POST", &at("wake"), wish, json!({}));
    let expected = ServerControl::WakeUp(WakeUp {
        cursor: seq,
        reason: WakeReason::ResetRequired,
        timestamp: world.instance.clock().advance(0),
    });
    assert_eq!(world.block_on(channel.control()), expected);
    let (status, _) = call("POST", &at("wake"), &json!({ "reason": "because" }));
    assert_eq!(status, 400);
    let (status, stats) = call("GET", &at("realtime"), &json!({}));
    assert_eq!(status, 200);
    let counted = ["sessions", "deltas", "wakeUps"].map(|name| stats[name].as_u64());
    assert_eq!(counted, [Some(1); 3]);
    let nothing = json!({ "actorId": "alice", "allowed": { "team_id": [] } });
    check("POST", &at("allowed-scopes"), nothing, json!({}));
    let whom = json!({ "actorId": "alice" });
    check("POST", &at("refresh-scopes"), whom, json!({}));
    edit_as_bob(&world);
    // Only the end of the socket comes: there was nothing more for alice.
    check("POST", &at("restart"), json!({}), json!({}));
    assert_eq!(world.block_on(channel.closed()), None);
}

fn edit_as_bob(world: &World) {
    let mut party = Party::new(world);
    let bob = party.join(&world.url, "bob", "bob", &["t1"]);
    party.devices[bob].put("n1", "t1", "not for alice");
    party.until_converged(world);
}
