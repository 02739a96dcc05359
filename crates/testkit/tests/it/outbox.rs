//! What was written offline arrives, once, in order (§2.3, §7.1, §7.2).

use serde_json::json;
use syncular_client::CommitOutcomeStatus;
use tidewater_testkit::StoreKind;

use crate::support::World;

on_every_store!(
    an_offline_outbox_of_two_hundred_commits_arrives_in_order,
    a_lost_answer_is_given_again_and_nothing_is_written_twice,
    an_outcome_that_cannot_be_read_keeps_the_commit_until_it_can,
    a_duplicate_of_an_old_request_changes_nothing,
);

fn an_offline_outbox_of_two_hundred_commits_arrives_in_order(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    alice.sync();
    let mut commits = Vec::new();
    for number in 0..200 {
        // Each row is written four times: the last one has to win.
        commits.push(alice.put(&format!("n{:03}", number % 50), &format!("title {number}")));
    }
    let report = alice.sync();
    assert_eq!(report.applied, commits);
    assert_eq!(world.head(), 200);
    bob.sync();
    let rows = bob.titles();
    assert_eq!(rows.len(), 50);
    for (number, row) in rows.into_iter().enumerate() {
        let title = json!(format!("title {}", 150 + number));
        assert_eq!(row, (format!("n{number:03}"), 4, title));
    }
    alice.assert_agrees(&world);
}

fn a_lost_answer_is_given_again_and_nothing_is_written_twice(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.sync();
    let commit = alice.put("n1", "once");
    alice.wire.answers_to_lose = 1;
    assert_eq!(alice.failed_round(), "transport.failed");
    assert_eq!(alice.client.pending_commit_ids(), [commit.as_str()]);
    assert_eq!(world.head(), 1);

    let report = alice.sync();
    assert_eq!(report.applied, [commit.as_str()]);
    let outcome = alice.client.commit_outcome(&commit).unwrap().unwrap();
    assert_eq!(outcome.status, CommitOutcomeStatus::Cached);
    assert_eq!(world.head(), 1);
    assert_eq!(world.rows("notes")[0].version, 1);
    alice.assert_agrees(&world);
}

fn an_outcome_that_cannot_be_read_keeps_the_commit_until_it_can(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.sync();
    let commit = alice.put("n1", "once");
    alice.wire.answers_to_lose = 1;
    alice.failed_round();
    world.instance.blind_next_outcome();
    let report = alice.good_round();
    assert_eq!(report.retryable, [commit.as_str()]);
    assert_eq!(alice.client.pending_commit_ids(), [commit.as_str()]);
    let report = alice.sync();
    assert_eq!(report.applied, [commit.as_str()]);
    assert_eq!(world.head(), 1);
    alice.assert_agrees(&world);
}

fn a_duplicate_of_an_old_request_changes_nothing(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.sync();
    alice.put("n1", "old");
    alice.good_round();
    let stale = alice.wire.last_request.clone();
    alice.put("n1", "new");
    alice.sync();
    // The network delivers the first request once more.
    syncular_client::Transport::sync(&mut alice.wire, &stale).unwrap();
    assert_eq!(world.head(), 2);
    assert_eq!(world.rows("notes")[0].values["title"], "new");
    alice.sync();
    alice.assert_agrees(&world);
}
