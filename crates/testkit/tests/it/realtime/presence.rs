//! Who is there: from the first document to the last connection (§8.6).

use serde_json::json;
use tidewater_testkit::StoreKind;

use crate::{party::Party, support::World};

on_each_database!(
    presence_is_seen_while_it_lasts,
    who_comes_late_sees_who_is_there,
    who_is_cut_off_is_not_there_any_more,
    presence_stays_within_its_scope,
);

const KEY: &str = "team:t1";

fn presence_is_seen_while_it_lasts(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &["t1"]);
    let bob = party.join(&world.url, "bob", "b", &["t1"]);
    for doc in [json!({ "at": "top" }), json!({ "at": "bottom", "é": [1] })] {
        party.devices[alice].present(KEY, Some(doc.clone()));
        party.until("bob sees alice", |devices| {
            devices[bob].peers(KEY) == [("a".to_owned(), doc.clone())]
        });
    }
    // A round changes nothing about it.
    party.devices[bob].put("n1", "t1", "x");
    party.until_converged(&world);
    assert_eq!(party.devices[bob].peers(KEY).len(), 1);
    assert!(party.devices[alice].peers(KEY).is_empty());
    party.devices[alice].present(KEY, None);
    party.until("alice has left", |devices| {
        devices[bob].peers(KEY).is_empty()
    });
}

fn who_comes_late_sees_who_is_there(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &["t1"]);
    let other = party.join(&world.url, "alice", "a2", &["t1"]);
    party.devices[alice].present(KEY, Some(json!({ "n": 1 })));
    party.devices[other].present(KEY, Some(json!({ "n": 2 })));
    let bob = party.join(&world.url, "bob", "b", &["t1"]);
    party.until("bob sees both", |devices| {
        devices[bob].peers(KEY)
            == [
                ("a".to_owned(), json!({ "n": 1 })),
                ("a2".to_owned(), json!({ "n": 2 })),
            ]
    });
}

fn who_is_cut_off_is_not_there_any_more(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &["t1"]);
    let bob = party.join(&world.url, "bob", "b", &["t1"]);
    party.devices[alice].present(KEY, Some(json!({})));
    party.until("bob sees alice", |devices| {
        devices[bob].peers(KEY).len() == 1
    });
    party.devices[alice].go_offline();
    party.until("alice is gone", |devices| {
        devices[bob].peers(KEY).is_empty()
    });
}

fn presence_stays_within_its_scope(kind: StoreKind) {
    let world = World::of_notes(kind);
    world.allow("carol", tidewater_testkit::scopes([("team_id", &["t2"])]));
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &["t1"]);
    let carol = party.join(&world.url, "carol", "c", &["t2"]);
    let bob = party.join(&world.url, "bob", "b", &["t1"]);
    // Refused, and the connection goes on.
    party.devices[carol].present(KEY, Some(json!({ "from": "outside" })));
    party.devices[alice].present(KEY, Some(json!({ "from": "inside" })));
    party.until("bob sees alice", |devices| {
        devices[bob].peers(KEY) == [("a".to_owned(), json!({ "from": "inside" }))]
    });
    assert!(party.devices[carol].peers(KEY).is_empty());
    assert_eq!(party.devices[carol].losses, 0);
}
