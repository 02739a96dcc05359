//! Devices that are connected to several nodes (§8): what is done at one is seen at all of them,
//! and whoever loses its node misses nothing.

use serde_json::json;

use crate::{cluster::Cluster, nats, party::Party};

const NODES: usize = 3;
const KEY: &str = "team:t1";

/// A device at each node, in team t1.
fn one_at_each(cluster: &Cluster, party: &mut Party) -> Vec<usize> {
    (0..cluster.count())
        .map(|node| {
            let (url, name) = (cluster.url(node), format!("d{node}"));
            party.join(&url, "alice", &name, &["t1"])
        })
        .collect()
}

#[test]
fn a_commit_at_one_node_is_a_delta_at_the_others_within_its_scope() {
    commits_are_deltas_everywhere(&Cluster::start(NODES));
}

#[test]
fn over_nats_a_commit_at_one_node_is_a_delta_at_the_others_too() {
    commits_are_deltas_everywhere(&Cluster::start_with(NODES, Some(nats::Server::start())));
}

fn commits_are_deltas_everywhere(cluster: &Cluster) {
    cluster.put_in_teams(&json!({ "carol": ["t2"] }));
    let mut party = Party::new(cluster);
    let members = one_at_each(cluster, &mut party);
    let stranger = party.join(&cluster.url(1), "carol", "c", &["t2"]);
    let before: Vec<_> = party.devices.iter().map(|device| device.rounds).collect();
    for edit in 0..12 {
        let (id, title) = (format!("n{}", edit % 5), format!("edit {edit}"));
        party.devices[members[edit % NODES]].put(&id, "t1", &title);
        party.until("the edit is at every node", |devices| {
            let mut members = members.iter();
            members.all(|&member| devices[member].title(&id).as_deref() == Some(&title))
        });
    }
    for &member in &members {
        let device = &party.devices[member];
        // Its own four took a round each; those of the others came by themselves.
        assert_eq!((device.deltas, device.rounds - before[member]), (8, 4));
    }
    let device = &party.devices[stranger];
    assert_eq!((device.deltas, device.rounds), (0, before[stranger]));
    party.devices.remove(stranger);
    party.until_converged(cluster);
    for &member in &members {
        party.devices[member].present(KEY, Some(json!({ "turn": 1 })));
    }
    until_present(&mut party, &members, 1);
}

/// Every device writes twice, and all come to see all of it.
fn edit_everywhere(cluster: &Cluster, party: &mut Party, turn: usize) {
    for (number, device) in party.devices.iter_mut().enumerate() {
        for id in [format!("own-{number}"), format!("shared-{}", number % 2)] {
            device.put(&id, "t1", &format!("{turn} by {number}"));
        }
    }
    party.until_converged(cluster);
}

#[test]
fn devices_whose_nodes_die_stand_still_or_lose_one_another_miss_nothing() {
    const DEVICES: usize = 6;
    let cluster = Cluster::start(NODES);
    let mut party = Party::new(&cluster);
    for number in 0..DEVICES {
        let (url, name) = (cluster.url(number % NODES), format!("d{number}"));
        party.join(&url, "alice", &name, &["t1"]);
    }
    // Whom the node has left goes to another, and comes back later.
    let go = |party: &mut Party, from: usize, to: usize| {
        for number in (from..DEVICES).step_by(NODES) {
            party.move_to(number, &cluster.url(to));
        }
    };
    let mut turns = 0;
    let mut edit = |party: &mut Party| {
        turns += 1;
        edit_everywhere(&cluster, party, turns);
    };
    edit(&mut party);
    cluster.kill(2);
    go(&mut party, 2, 1);
    edit(&mut party);
    cluster.restart(2);
    go(&mut party, 2, 2);
    edit(&mut party);
    cluster.signal(1, "-STOP");
    go(&mut party, 1, 0);
    edit(&mut party);
    cluster.signal(1, "-CONT");
    edit(&mut party);
    go(&mut party, 1, 1);
    cluster.cut_signals();
    edit(&mut party);
    cluster.crash_database();
    edit(&mut party);
    cluster.cut_signals();
    cluster.kill(1);
    cluster.kill(2);
    go(&mut party, 1, 0);
    go(&mut party, 2, 0);
    edit(&mut party);
    cluster.restart(1);
    cluster.restart(2);
    go(&mut party, 1, 1);
    go(&mut party, 2, 2);
    edit(&mut party);
    let made = i64::try_from(turns * DEVICES * 2).unwrap();
    let recorded = "SELECT count(*) FROM sync_push_results";
    assert_eq!(cluster.database().number(recorded), made);
    let head = "SELECT max_commit_seq FROM sync_partitions";
    assert_eq!(cluster.database().number(head), made);
}

/// Waits until each of these sees the others with their numbers, and nobody else.
#[track_caller]
fn until_present(party: &mut Party, there: &[usize], turn: i32) {
    party.until("everybody sees who is there", |devices| {
        there.iter().all(|&member| {
            let others = there.iter().filter(|&&other| other != member);
            let expected: Vec<_> = others
                .map(|other| (format!("d{other}"), json!({ "turn": turn })))
                .collect();
            devices[member].peers(KEY) == expected
        })
    });
}

#[test]
fn who_is_present_is_right_at_every_node_once_the_dust_has_settled() {
    let cluster = Cluster::start(NODES);
    let mut party = Party::new(&cluster);
    let members = one_at_each(&cluster, &mut party);
    let publish = |party: &mut Party, turn: i32| {
        for &member in &members {
            party.devices[member].present(KEY, Some(json!({ "turn": turn })));
        }
    };
    publish(&mut party, 1);
    until_present(&mut party, &members, 1);
    cluster.kill(2);
    until_present(&mut party, &[0, 1], 1);
    party.move_to(2, &cluster.url(0));
    party.until("it is connected again", |devices| devices[2].is_idle());
    publish(&mut party, 2);
    until_present(&mut party, &members, 2);
    cluster.restart(2);
    party.move_to(2, &cluster.url(2));
    party.until("it is back", |devices| devices[2].is_idle());
    publish(&mut party, 3);
    until_present(&mut party, &members, 3);
    cluster.cut_signals();
    publish(&mut party, 4);
    until_present(&mut party, &members, 4);
    cluster.crash_database();
    publish(&mut party, 5);
    until_present(&mut party, &members, 5);
    party.devices[1].go_offline();
    until_present(&mut party, &[0, 2], 5);
}

#[test]
fn a_scope_that_is_taken_away_at_one_node_brings_nothing_more_at_any() {
    let cluster = Cluster::start(NODES);
    let mut party = Party::new(&cluster);
    let alice = party.join(&cluster.url(0), "alice", "a", &["t1"]);
    let bob = party.join(&cluster.url(2), "bob", "b", &["t1"]);
    party.devices[alice].put("n1", "t1", "not secret yet");
    party.until_converged(&cluster);
    cluster.put_in_teams(&json!({ "bob": [] }));
    cluster.refresh_scopes(1, "bob");
    party.until("bob has lost the rows", |devices| {
        devices[bob].title("n1").is_none() && devices[bob].is_idle()
    });
    let deltas = party.devices[bob].deltas;
    party.devices[alice].put("n1", "t1", "secret");
    party.until("alice is done", |devices| devices[alice].is_idle());
    // Whatever was to come to bob has come when something later does.
    cluster.put_in_teams(&json!({}));
    cluster.refresh_scopes(1, "bob");
    crate::party::subscribe(&mut party.devices[bob].client, "s1", &["t1"]);
    party.devices[bob].ask();
    party.until_converged(&cluster);
    assert_eq!(
        (party.devices[bob].deltas, party.devices[bob].losses),
        (deltas, 0)
    );
    party.devices[alice].put("n2", "t1", "for both");
    party.until_converged(&cluster);
    assert_eq!(party.devices[bob].deltas, deltas + 1);
}
