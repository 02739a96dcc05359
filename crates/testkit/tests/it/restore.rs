//! A database put back to a backup gets a new epoch, and devices find their way (§2.1).

use serde_json::json;
use syncular_client::CommitOutcomeStatus;
use tidewater_testkit::StoreKind;

use crate::support::World;

on_every_store!(
    a_device_ahead_of_a_restored_server_starts_over_and_sends_its_outbox_once,
    an_outcome_in_the_backup_still_answers_a_replay,
    a_backup_can_be_restored_again,
);

fn a_device_ahead_of_a_restored_server_starts_over_and_sends_its_outbox_once(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    alice.put("n1", "before the backup");
    alice.sync();
    bob.sync();
    world.block_on(world.instance.back_up()).unwrap();
    alice.put("n2", "after the backup");
    alice.sync();
    bob.sync();
    let waiting = bob.put("n3", "in the outbox");
    let epoch = world.block_on(world.instance.log_epoch()).unwrap();
    world.block_on(world.instance.restore()).unwrap();
    assert_ne!(world.block_on(world.instance.log_epoch()).unwrap(), epoch);
    assert_eq!(world.head(), 1);

    let report = bob.sync();
    assert_eq!(report.resets, ["s1"]);
    assert_eq!(report.applied, [waiting]);
    assert_eq!(world.head(), 2);
    let ids: Vec<_> = bob.titles().into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, ["n1", "n3"]);
    alice.sync();
    alice.assert_agrees(&world);
    bob.assert_agrees(&world);
}

fn an_outcome_in_the_backup_still_answers_a_replay(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.sync();
    let commit = alice.put("n1", "once");
    alice.wire.answers_to_lose = 1;
    alice.failed_round();
    world.block_on(world.instance.back_up()).unwrap();
    world.block_on(world.instance.restore()).unwrap();
    let report = alice.sync();
    assert_eq!(report.applied, [commit.as_str()]);
    let outcome = alice.client.commit_outcome(&commit).unwrap().unwrap();
    assert_eq!(outcome.status, CommitOutcomeStatus::Cached);
    assert_eq!(world.head(), 1);
    alice.assert_agrees(&world);
}

fn a_backup_can_be_restored_again(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.put("n1", "kept");
    alice.sync();
    world.block_on(world.instance.back_up()).unwrap();
    for _ in 0..2 {
        alice.put("n1", "lost");
        alice.sync();
        assert_eq!(world.head(), 2);
        world.block_on(world.instance.restore()).unwrap();
        alice.sync();
        assert_eq!(alice.titles(), [("n1".to_owned(), 1, json!("kept"))]);
        alice.assert_agrees(&world);
    }
}
