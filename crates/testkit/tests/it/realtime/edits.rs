//! Edits between connected devices (§8.2, §8.3), across absences, refreshes and restarts.

use serde_json::json;
use syncular_client::WindowBase;
use tidewater_testkit::{StoreKind, scopes};

use crate::{
    party::{Party, subscribe},
    support::World,
};

on_each_database!(
    an_edit_of_one_device_is_on_the_other_without_a_round,
    edits_made_offline_arrive_when_the_device_is_back,
    a_new_window_takes_effect_without_a_new_connection,
    a_window_that_moves_brings_edits_of_what_is_in_it_and_no_others,
    a_scope_that_was_taken_away_brings_nothing_more,
    everybody_comes_back_after_a_restart,
    a_commit_that_is_too_large_for_a_delta_arrives_anyway,
);

fn an_edit_of_one_device_is_on_the_other_without_a_round(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &["t1"]);
    let bob = party.join(&world.url, "bob", "b", &["t1"]);
    let rounds = party.devices[bob].rounds;
    for number in 0..20 {
        let title = format!("edit {number}");
        party.devices[alice].put("n1", "t1", &title);
        party.until("bob sees the edit", |devices| {
            devices[bob].title("n1").as_deref() == Some(&title)
        });
    }
    assert_eq!(party.devices[bob].rounds, rounds);
    assert_eq!(party.devices[bob].deltas, 20);
    party.devices[bob].put("n1", "t1", "by bob");
    party.until("alice sees the answer", |devices| {
        devices[alice].title("n1").as_deref() == Some("by bob")
    });
    party.until_converged(&world);
}

fn edits_made_offline_arrive_when_the_device_is_back(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &["t1"]);
    let bob = party.join(&world.url, "bob", "b", &["t1"]);
    party.devices[bob].go_offline();
    party.devices[bob].put("n1", "t1", "from the train");
    party.devices[alice].put("n2", "t1", "meanwhile");
    party.until("alice has sent hers", |devices| devices[alice].is_idle());
    assert_eq!(world.head(), 1);
    party.devices[bob].is_online = true;
    party.until_converged(&world);
    assert_eq!(world.head(), 2);
    // And deltas go on from there.
    party.devices[alice].put("n3", "t1", "after");
    party.until("bob is back for good", |devices| {
        devices[bob].title("n3").is_some()
    });
}

fn a_new_window_takes_effect_without_a_new_connection(kind: StoreKind) {
    let world = World::of_notes(kind);
    for actor in ["alice", "bob"] {
        world.allow(actor, scopes([("team_id", &["t1", "t2"])]));
    }
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &["t1", "t2"]);
    let bob = party.join(&world.url, "bob", "b", &["t1"]);
    party.devices[alice].put("n1", "t2", "unseen");
    party.until("alice is done", |devices| devices[alice].is_idle());
    assert_eq!(party.devices[bob].title("n1"), None);
    subscribe(&mut party.devices[bob].client, "s2", &["t2"]);
    party.devices[bob].ask();
    party.until("bob has the window", |devices| {
        devices[bob].title("n1").is_some() && devices[bob].is_idle()
    });
    let (rounds, losses) = (party.devices[bob].rounds, party.devices[bob].losses);
    party.devices[alice].put("n1", "t2", "seen");
    party.until("a delta of the new window came", |devices| {
        devices[bob].title("n1").as_deref() == Some("seen")
    });
    assert_eq!(party.devices[bob].rounds, rounds);
    assert_eq!(party.devices[bob].losses, losses);
    party.until_converged(&world);
}

fn a_window_that_moves_brings_edits_of_what_is_in_it_and_no_others(kind: StoreKind) {
    let world = World::of_notes(kind);
    let all = ["t1", "t2", "t3"];
    for actor in ["alice", "bob"] {
        world.allow(actor, scopes([("team_id", &all)]));
    }
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &all);
    for (id, team) in [("n1", "t1"), ("n2", "t2"), ("n3", "t3")] {
        party.devices[alice].put(id, team, "before");
    }
    party.until("alice is done", |devices| devices[alice].is_idle());
    let bob = party.join(&world.url, "bob", "b", &[]);
    let base = WindowBase {
        table: "notes".to_owned(),
        variable: "team_id".to_owned(),
        fixed_scopes: Vec::new(),
        params: None,
    };
    let windows: [&[&str]; 4] = [&["t1", "t2"], &["t2", "t3"], &["t3"], &all];
    for (turn, window) in windows.into_iter().enumerate() {
        let units: Vec<_> = window.iter().map(|&unit| unit.to_owned()).collect();
        party.devices[bob].client.set_window(&base, &units).unwrap();
        party.devices[bob].ask();
        party.until("bob has all of the window", |devices| {
            devices[bob].is_idle() && devices[bob].client.window_state(&base).pending.is_empty()
        });
        let (deltas, rounds) = (party.devices[bob].deltas, party.devices[bob].rounds);
        let title = format!("turn {turn}");
        for (id, team) in [("n1", "t1"), ("n2", "t2"), ("n3", "t3")] {
            party.devices[alice].put(id, team, &title);
        }
        party.until("bob sees the edits in the window", |devices| {
            let seen = ["n1", "n2", "n3"].map(|id| devices[bob].title(id));
            let wanted = all.map(|team| window.contains(&team).then(|| title.clone()));
            devices[alice].is_idle() && seen == wanted
        });
        let bob = &party.devices[bob];
        assert_eq!(bob.deltas, deltas + window.len());
        assert_eq!((bob.rounds, bob.losses), (rounds, 0));
    }
}

fn a_scope_that_was_taken_away_brings_nothing_more(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &["t1"]);
    let bob = party.join(&world.url, "bob", "b", &["t1"]);
    party.devices[alice].put("n1", "t1", "not secret yet");
    party.until_converged(&world);
    world.allow("bob", scopes([("team_id", &[])]));
    world.block_on(world.instance.refresh_scopes(Some("bob")));
    // Nobody had to ask, or to connect again.
    party.until("bob has lost the rows", |devices| {
        devices[bob].title("n1").is_none() && devices[bob].is_idle()
    });
    let deltas = party.devices[bob].deltas;
    party.devices[alice].put("n1", "t1", "secret");
    party.until("alice is done", |devices| devices[alice].is_idle());
    world.allow("bob", scopes([("team_id", &["t1"])]));
    world.block_on(world.instance.refresh_scopes(None));
    // The client has given the subscription up, and its host asks for it again.
    subscribe(&mut party.devices[bob].client, "s1", &["t1"]);
    party.until_converged(&world);
    assert_eq!(party.devices[bob].deltas, deltas);
    party.devices[alice].put("n2", "t1", "for both");
    party.until_converged(&world);
    assert_eq!(party.devices[bob].deltas, deltas + 1);
    assert_eq!(party.devices[bob].losses, 0);
}

fn everybody_comes_back_after_a_restart(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut party = Party::new(&world);
    for number in 0..20 {
        party.join(&world.url, "alice", &format!("d{number}"), &["t1"]);
    }
    for round in 0..2 {
        for (number, device) in party.devices.iter_mut().enumerate() {
            device.put(&format!("n{number}"), "t1", &format!("round {round}"));
        }
        world.block_on(world.instance.restart()).unwrap();
        party.until_converged(&world);
    }
    assert!(party.devices.iter().all(|device| device.losses >= 1));
    let before: Vec<_> = party.devices.iter().map(|device| device.deltas).collect();
    party.devices[0].put("last", "t1", "to all");
    party.until_converged(&world);
    let deltas = party.devices.iter().map(|device| device.deltas);
    assert!(
        deltas
            .zip(before)
            .skip(1)
            .all(|(after, before)| after > before)
    );
}

fn a_commit_that_is_too_large_for_a_delta_arrives_anyway(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &["t1"]);
    let bob = party.join(&world.url, "bob", "b", &["t1"]);
    let deltas = party.devices[bob].deltas;
    party.devices[alice].put("n1", "t1", &"x".repeat(2 * 1024 * 1024));
    party.until_converged(&world);
    assert_eq!(party.devices[bob].deltas, deltas);
    party.devices[alice].put("n2", "t1", "small");
    party.until_converged(&world);
    assert_eq!(party.devices[bob].deltas, deltas + 1);
    assert_eq!(world.rows("notes")[1].values["title"], json!("small"));
}
