//! What one node did is soon known at the others, whatever became of the connections between.

use std::time::{Duration, Instant};

use crate::{cluster::Cluster, device::Device};

/// Less than a node lets pass before it looks at everything again: a signal has to have arrived.
const SOON: Duration = Duration::from_secs(15);

/// Pulls from a node until a note is there.
#[track_caller]
fn pull_until(device: &mut Device, node: usize, id: &str) {
    let since = Instant::now();
    while !(device.round(node) && device.has(id)) {
        assert!(since.elapsed() < SOON, "node {node} does not have {id}");
    }
}

#[test]
fn a_commit_is_seen_at_every_node_through_cuts_crashes_and_restarts() {
    let cluster = Cluster::start(2);
    let mut writer = Device::new(&cluster, "writer");
    let mut reader = Device::new(&cluster, "reader");
    let mut written = 0;
    let mut check = |from: usize, to: usize| {
        written += 1;
        let id = format!("n{written}");
        writer.put(&id, "a title");
        while !(writer.round(from) && writer.client.pending_commit_ids().is_empty()) {}
        pull_until(&mut reader, to, &id);
    };
    for _ in 0..5 {
        check(0, 1);
        check(1, 0);
    }
    cluster.cut_signals();
    check(0, 1);
    check(1, 0);
    cluster.crash_database();
    check(0, 1);
    check(1, 0);
    cluster.kill(1);
    cluster.restart(1);
    check(0, 1);
    check(1, 0);
}

#[test]
fn a_commit_whose_answer_was_lost_is_answered_by_another_node_and_is_there_once() {
    let cluster = Cluster::start(3);
    let mut device = Device::new(&cluster, "a");
    // The first round is for the epoch of the log.
    assert!(device.round(0));
    let commits = "SELECT count(*) FROM sync_commits";
    for round in 0..6 {
        device.put("n1", &format!("title {round}"));
        device.lost_round(round % 3);
        assert!(device.round((round + 1) % 3));
        assert!(device.client.pending_commit_ids().is_empty());
        assert_eq!(
            cluster.database().number(commits),
            i64::try_from(round).unwrap() + 1
        );
    }
    assert_eq!(device.titles()[0].1, 6);
}

#[test]
fn a_job_has_one_node_and_another_when_that_is_killed() {
    let cluster = Cluster::start(2);
    Device::new(&cluster, "a").round(0);
    let holders = "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' \
        AND granted AND (classid::int8 << 32 | objid::int8) & 65535 = 1 \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let pid = holders.replace("count(DISTINCT pid)", "coalesce(max(pid), 0)");
    cluster.until(holders, |count| count == 1);
    let before = cluster.database().number(&pid);
    // Whichever it is: the other one has the job then.
    cluster.cut_signals();
    cluster.until(&pid, |pid| pid != 0 && pid != before);
    assert_eq!(cluster.database().number(holders), 1);
    cluster.kill(0);
    cluster.until(holders, |count| count == 1);
    cluster.restart(0);
    cluster.kill(1);
    cluster.until(holders, |count| count == 1);
}
