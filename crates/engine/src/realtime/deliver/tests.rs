//! Tables of what a commit becomes, by what was said and heard before.

use super::*;

fn seq(raw: u64) -> CommitSeq {
    CommitSeq::new(raw).unwrap()
}

/// A connection whose client has everything up to 5, which is all.
fn current() -> Flow {
    let mut flow = Flow::default();
    flow.admit(Some(seq(5)), seq(5));
    flow
}

fn pulled(head: u64, reached: u64) -> Pulled {
    Pulled {
        head: seq(head),
        reached: seq(reached),
        acknowledged_as: seq(reached),
        is_wider: false,
    }
}

#[track_caller]
fn check(flow: &Flow, raw: u64, expected: Verdict) {
    assert_eq!(flow.judge(seq(raw), false), expected, "{flow:?}");
}

#[test]
fn a_current_client_gets_deltas_and_nothing_twice() {
    let mut flow = current();
    check(&flow, 5, Verdict::Covered);
    check(&flow, 6, Verdict::Deliverable);
    flow.sent(seq(6));
    check(&flow, 6, Verdict::Covered);
    check(&flow, 9, Verdict::Deliverable);
}

#[test]
fn a_client_that_is_behind_or_never_pulled_gets_wake_ups_only() {
    for cursor in [None, Some(seq(4))] {
        let mut flow = Flow::default();
        flow.admit(cursor, seq(5));
        check(&flow, 6, Verdict::Missed);
        assert_eq!(flow.miss(seq(6)), Wake::Send);
        assert_eq!(flow.miss(seq(7)), Wake::Amend, "one wake-up is enough");
    }
}

#[test]
fn suppression_ends_when_the_newest_missed_commit_is_acknowledged() {
    let mut flow = current();
    flow.miss(seq(6));
    flow.miss(seq(8));
    assert_eq!(flow.ack(seq(5)), (Some(seq(5)), None));
    assert!(flow.is_suppressed());
    // What the wake-up announced was pulled, but 8 was not: nobody else would say so.
    assert_eq!(flow.ack(seq(7)), (Some(seq(7)), Some(seq(8))));
    assert_eq!(flow.ack(seq(8)), (Some(seq(8)), None));
    assert!(!flow.is_suppressed());
    check(&flow, 9, Verdict::Deliverable);
}

#[test]
fn an_acknowledgment_never_goes_back() {
    let mut flow = current();
    flow.sent(seq(6));
    assert_eq!(flow.ack(seq(6)).0, Some(seq(6)));
    assert_eq!(flow.ack(seq(2)).0, None);
    assert_eq!(flow.ack(seq(6)).0, None);
}

#[test]
fn what_was_pulled_elsewhere_and_acknowledged_is_not_delivered() {
    let mut flow = current();
    flow.ack(seq(7));
    check(&flow, 7, Verdict::Covered);
    check(&flow, 8, Verdict::Deliverable);
}

#[test]
fn a_commit_of_others_during_a_round_needs_its_own_wake_up() {
    let mut flow = current();
    flow.miss(seq(6));
    flow.round_started(false);
    check(&flow, 7, Verdict::Missed);
    assert_eq!(flow.miss(seq(7)), Wake::Send);
}

#[test]
fn a_commit_of_ones_own_waits_for_the_end_of_the_round() {
    for (end, missed) in [
        (Some(pulled(7, 7)), None),
        (Some(pulled(7, 6)), Some(seq(7))),
        (None, Some(seq(7))),
    ] {
        let mut flow = current();
        flow.round_started(false);
        assert_eq!(flow.judge(seq(7), true), Verdict::Awaited);
        flow.awaits(seq(7));
        let still_missing = match end {
            Some(pulled) => flow.round_pulled(pulled, seq(7)),
            None => flow.round_failed(),
        };
        assert_eq!(still_missing, missed);
        assert!(!flow.is_in_round());
    }
}

#[test]
fn deltas_taken_back_for_a_round_must_be_brought_by_it() {
    let mut flow = current();
    flow.sent(seq(6));
    flow.round_started(true);
    assert_eq!(flow.round_failed(), Some(seq(6)));
    let mut flow = current();
    flow.sent(seq(6));
    flow.round_started(true);
    assert_eq!(flow.round_pulled(pulled(6, 6), seq(6)), None);
}

#[test]
fn a_round_that_did_not_reach_its_head_leaves_something_to_pull() {
    let mut flow = current();
    flow.round_started(false);
    assert_eq!(flow.round_pulled(pulled(9, 7), seq(9)), Some(seq(9)));
}

#[test]
fn what_came_during_a_round_counts_only_against_new_registrations() {
    for (is_wider, missed) in [(false, None), (true, Some(seq(8)))] {
        let mut flow = current();
        flow.round_started(false);
        let end = Pulled {
            is_wider,
            ..pulled(7, 7)
        };
        assert_eq!(flow.round_pulled(end, seq(8)), missed);
    }
}

#[test]
fn the_hub_may_be_behind_the_round() {
    let mut flow = current();
    flow.round_started(false);
    assert_eq!(flow.round_pulled(pulled(9, 9), seq(6)), None);
    check(&flow, 9, Verdict::Covered);
    check(&flow, 10, Verdict::Deliverable);
}

#[test]
fn acknowledging_the_pin_of_a_snapshot_acknowledges_its_head() {
    let mut flow = Flow::default();
    flow.admit(None, seq(9));
    flow.round_started(false);
    let end = Pulled {
        acknowledged_as: seq(3),
        ..pulled(9, 9)
    };
    assert_eq!(flow.round_pulled(end, seq(9)), None);
    assert_eq!(flow.ack(seq(3)), (Some(seq(3)), None));
    check(&flow, 10, Verdict::Deliverable);
}

#[test]
fn nothing_is_sent_while_scopes_may_be_taken_away() {
    let mut flow = current();
    flow.refresh_started();
    flow.refresh_started();
    flow.refresh_ended();
    check(&flow, 6, Verdict::Missed);
    flow.refresh_ended();
    check(&flow, 6, Verdict::Deliverable);
}

#[test]
fn another_log_is_to_be_pulled_from_its_start() {
    let mut flow = current();
    flow.sent(seq(6));
    flow.restart(seq(2));
    assert!(flow.is_suppressed());
    check(&flow, 2, Verdict::Covered);
    check(&flow, 3, Verdict::Missed);
}

#[test]
fn a_client_that_is_always_a_little_behind_keeps_its_deltas() {
    let mut flow = current();
    for raw in 6..100 {
        assert!(flow.has_room(4), "at {raw}");
        flow.sent(seq(raw));
        flow.ack(seq(raw - 1));
    }
}

#[test]
fn a_client_that_acknowledges_nothing_runs_out_of_room() {
    let mut flow = current();
    (6..10).for_each(|raw| flow.sent(seq(raw)));
    assert!(!flow.has_room(4));
    flow.ack(seq(9));
    assert!(flow.has_room(4));
}

#[test]
fn a_client_that_sees_something_else_waits_for_a_pull_that_was_answered_later() {
    let mut flow = current();
    flow.hold(seq(7));
    check(&flow, 8, Verdict::Missed);
    assert_eq!(flow.ack(seq(7)), (Some(seq(7)), None));
    assert!(flow.is_suppressed(), "that pull may be from before");
    flow.ack(seq(8));
    assert!(!flow.is_suppressed());
    // Over the connection everything is in order.
    let mut flow = current();
    flow.hold(seq(7));
    flow.round_started(false);
    assert_eq!(flow.round_pulled(pulled(7, 7), seq(7)), None);
    check(&flow, 8, Verdict::Deliverable);
}

#[test]
fn one_wake_up_is_enough_until_the_client_says_something() {
    let mut flow = current();
    assert_eq!(flow.miss(seq(9)), Wake::Send);
    assert_eq!(flow.miss(seq(10)), Wake::Amend);
    // It has pulled beside the connection, and says what a snapshot was pinned at.
    flow.ack(seq(6));
    assert_eq!(flow.miss(seq(11)), Wake::Send);
    assert_eq!(flow.miss(seq(12)), Wake::Amend);
}

#[test]
fn a_pull_is_doubted_until_it_is_acknowledged() {
    let mut flow = current();
    assert_eq!(flow.doubt(), None);
    flow.round_started(false);
    assert_eq!(flow.doubt(), Some(Some(seq(5))), "its response may be lost");
    flow.round_pulled(pulled(8, 8), seq(8));
    assert_eq!(flow.doubt(), Some(Some(seq(5))));
    flow.ack(seq(7));
    assert_eq!(flow.doubt(), Some(Some(seq(7))));
    flow.ack(seq(8));
    assert_eq!(flow.doubt(), None);
    flow.round_started(false);
    flow.round_failed();
    assert_eq!(flow.doubt(), None, "nothing was recorded");
}
