//! Every transition of a checkpoint, allowed and refused.

use super::*;
use crate::StoreErrorKind;

fn seq(raw: u64) -> CommitSeq {
    CommitSeq::new(raw).unwrap()
}

fn key() -> CheckpointKey {
    CheckpointKey {
        partition: PartitionId::new("p"),
        name: "titles".to_owned(),
    }
}

fn ground(head: u64, horizon: u64, writer_fence: Option<i32>) -> CheckpointGround {
    CheckpointGround {
        head: seq(head),
        horizon: HorizonSeq::at(seq(horizon)),
        writer_fence,
    }
}

fn step(
    stored: Option<&Checkpoint>,
    ground: CheckpointGround,
    change: CheckpointChange,
) -> (CheckpointOutcome, Checkpoint) {
    transition(&key(), stored, ground, change).unwrap()
}

#[track_caller]
fn refused(
    stored: Option<&Checkpoint>,
    ground: CheckpointGround,
    change: CheckpointChange,
) -> StorageCode {
    match transition(&key(), stored, ground, change).unwrap_err().kind {
        StoreErrorKind::Refused(code) => code,
        kind => panic!("{kind}"),
    }
}

const CLAIM: CheckpointChange = CheckpointChange::Claim {
    at_ms: 1_000,
    lease_ms: 500,
    force: false,
};

fn claim_at(at_ms: i64, force: bool) -> CheckpointChange {
    CheckpointChange::Claim {
        at_ms,
        lease_ms: 500,
        force,
    }
}

fn advance(owner_epoch: i64, watermark: u64) -> CheckpointChange {
    CheckpointChange::Advance {
        owner_epoch,
        watermark: seq(watermark),
        observed_rows: 7,
        at_ms: 1_200,
        lease_ms: 500,
    }
}

/// Declared for version 2 and claimed at head 5.
fn claimed() -> Checkpoint {
    let change = CheckpointChange::Declare { schema_version: 2 };
    let (_, declared) = step(None, ground(5, 1, None), change);
    assert_eq!(declared.state, CheckpointState::Declared);
    let (outcome, claimed) = step(Some(&declared), ground(5, 1, None), CLAIM);
    assert_eq!(outcome, CheckpointOutcome::Done);
    claimed
}

#[test]
fn a_claim_begins_at_the_head_with_a_lease() {
    let claimed = claimed();
    assert_eq!(claimed.state, CheckpointState::Backfilling);
    assert_eq!(claimed.watermark, seq(5));
    assert_eq!(claimed.owner_epoch, 1);
    assert_eq!(claimed.lease_expires_at_ms, Some(1_500));
}

#[test]
fn a_lease_holds_others_back_until_it_ends_or_is_taken() {
    let claimed = claimed();
    let now = ground(9, 1, None);
    let (outcome, same) = step(Some(&claimed), now, claim_at(1_499, false));
    assert_eq!((outcome, &same), (CheckpointOutcome::Held, &claimed));
    for change in [claim_at(1_500, false), claim_at(1_001, true)] {
        let (outcome, next) = step(Some(&claimed), now, change);
        assert_eq!(outcome, CheckpointOutcome::Done);
        assert_eq!(next.owner_epoch, 2);
        assert_eq!(next.watermark, seq(5), "it goes on where the owner was");
    }
}

#[test]
fn an_owner_that_was_superseded_changes_nothing() {
    let before = claimed();
    let now = ground(9, 1, Some(2));
    let (_, taken) = step(Some(&before), now, claim_at(1_500, false));
    for change in [advance(1, 8), CheckpointChange::Activate { owner_epoch: 1 }] {
        let (outcome, same) = step(Some(&taken), now, change);
        assert_eq!((outcome, same), (CheckpointOutcome::Stale, taken.clone()));
    }
}

#[test]
fn advancing_never_passes_the_head_and_never_goes_back() {
    let claimed = claimed();
    let now = ground(9, 1, None);
    let (_, next) = step(Some(&claimed), now, advance(1, 100));
    assert_eq!((next.watermark, next.observed_rows), (seq(9), 7));
    assert_eq!(next.lease_expires_at_ms, Some(1_700));
    let (_, next) = step(Some(&next), now, advance(1, 2));
    assert_eq!(next.watermark, seq(9));
}

#[test]
fn activation_needs_a_fence_and_the_log_above_the_watermark() {
    let claimed = claimed();
    let activate = CheckpointChange::Activate { owner_epoch: 1 };
    for fence in [None, Some(1)] {
        assert_eq!(
            refused(Some(&claimed), ground(9, 5, fence), activate),
            StorageCode::CheckpointFenceMissing
        );
    }
    let (outcome, same) = step(Some(&claimed), ground(9, 6, Some(2)), activate);
    assert_eq!(
        (outcome, &same),
        (CheckpointOutcome::Unverifiable, &claimed)
    );
    let (outcome, done) = step(Some(&claimed), ground(9, 5, Some(3)), activate);
    assert_eq!(outcome, CheckpointOutcome::Done);
    assert_eq!(done.state, CheckpointState::Activated);
    let (outcome, _) = step(Some(&done), ground(9, 5, Some(3)), activate);
    assert_eq!(outcome, CheckpointOutcome::Stale, "it is active already");
    assert_eq!(
        refused(Some(&done), ground(9, 5, Some(3)), CLAIM),
        StorageCode::CheckpointNotDeclared
    );
}

#[test]
fn a_claim_begins_anew_when_the_log_it_needs_is_gone() {
    let claimed = claimed();
    let (_, next) = step(Some(&claimed), ground(9, 6, None), claim_at(2_000, false));
    assert_eq!((next.watermark, next.observed_rows), (seq(9), 0));
}

#[test]
fn declaring_again_begins_anew_for_a_newer_version_only() {
    let claimed = claimed();
    let now = ground(9, 1, None);
    for schema_version in [1, 2] {
        let change = CheckpointChange::Declare { schema_version };
        assert_eq!(step(Some(&claimed), now, change).1, claimed);
    }
    let change = CheckpointChange::Declare { schema_version: 3 };
    let (_, next) = step(Some(&claimed), now, change);
    assert_eq!(
        (next.state, next.schema_version),
        (CheckpointState::Declared, 3)
    );
    let (outcome, _) = step(Some(&next), now, advance(1, 8));
    assert_eq!(outcome, CheckpointOutcome::Stale);
}

#[test]
fn nothing_but_a_declaration_makes_a_checkpoint() {
    for change in [
        CLAIM,
        advance(1, 8),
        CheckpointChange::Activate { owner_epoch: 1 },
    ] {
        assert_eq!(
            refused(None, ground(9, 1, Some(9)), change),
            StorageCode::CheckpointNotDeclared
        );
    }
}

#[test]
fn states_are_read_as_they_are_written() {
    for state in [
        CheckpointState::Declared,
        CheckpointState::Backfilling,
        CheckpointState::Activated,
    ] {
        assert_eq!(CheckpointState::from_text(state.as_str()), Some(state));
    }
    assert_eq!(CheckpointState::from_text("begun"), None);
}

#[test]
fn a_name_is_short_and_printable() {
    for name in ["", "a\0b", &"x".repeat(129)] {
        let key = CheckpointKey {
            name: name.to_owned(),
            ..key()
        };
        let change = CheckpointChange::Declare { schema_version: 1 };
        assert!(transition(&key, None, ground(0, 0, None), change).is_err());
    }
}
