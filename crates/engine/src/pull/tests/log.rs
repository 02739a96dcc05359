//! Incremental sections (§4.5) and revoked ones (§3.3).

use tidewater_wire::{Operation, OperationAction, WireVersion, row::Value};

use super::{check_active, check_reset, check_revoked, commits, notes};
use crate::{
    EngineConfig,
    testing::{Ask, Grants, TestServer, Write, note, subscription, task},
};

#[tokio::test]
async fn a_subscription_without_news_moves_past_the_commits_of_others() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "mine")]).await;
    server.commit(&[note("n2", "t2", "theirs")]).await;
    server.commit(&[task("k1", "o1", "l1")]).await;
    let answer = server.round(Ask::pull([notes(1)])).await;
    let section = answer.section();
    check_active(section, false);
    assert_eq!(section.start.id, "s");
    assert_eq!(section.start.effective_scopes, notes(1).scopes);
    assert_eq!(commits(&server, section), [""; 0]);
    assert_eq!((section.next_cursor(), section.token()), (3, None));
}

#[tokio::test]
async fn commits_are_delivered_with_their_matching_changes_only() {
    let server = TestServer::start().await;
    server
        .commit(&[
            note("n1", "t1", "a"),
            note("n2", "t2", "b"),
            task("k", "o1", "l1"),
        ])
        .await;
    server.commit(&[note("n2", "t2", "c")]).await;
    server
        .commit(&[
            note("n1", "t1", "d"),
            note("n1", "t1", "e"),
            note("n3", "t1", "f"),
        ])
        .await;
    server.commit(&[Write::Delete("notes", "n1")]).await;
    let answer = server.round(Ask::pull([notes(0)])).await;
    let section = answer.section();
    let expected = [
        "1 by seeder: n1|t1|a@1",
        "3 by seeder: n1|t1|d@2 n1|t1|e@3 n3|t1|f@1",
        "4 by seeder: -n1",
    ];
    assert_eq!(commits(&server, section), expected);
    assert_eq!(section.next_cursor(), 4);
    let frame = &section.commits[0];
    assert_eq!(frame.created_at_ms, crate::testing::START_MS);
    assert_eq!(frame.tables, ["notes"]);
    assert_eq!(frame.changes[0].scopes, [("team_id".into(), "t1".into())]);
    let frame = &section.commits[2];
    assert_eq!(frame.changes[0].scopes, [("team_id".into(), "t1".into())]);
}

#[tokio::test]
async fn a_row_that_is_deleted_and_created_again_starts_over() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "a")]).await;
    server
        .commit(&[Write::Delete("notes", "n1"), note("n1", "t1", "b")])
        .await;
    server.commit(&[Write::Delete("notes", "n1")]).await;
    server.commit(&[note("n1", "t1", "c")]).await;
    let answer = server.round(Ask::pull([notes(1)])).await;
    let expected = [
        "2 by seeder: -n1 n1|t1|b@1",
        "3 by seeder: -n1",
        "4 by seeder: n1|t1|c@1",
    ];
    assert_eq!(commits(&server, answer.section()), expected);
}

#[tokio::test]
async fn two_variables_must_both_match() {
    let server = TestServer::start().await;
    server
        .commit(&[task("k1", "o1", "l1"), task("k2", "o1", "l2")])
        .await;
    server
        .commit(&[task("k3", "o2", "l1"), task("k4", "o1", "l3")])
        .await;
    let scopes: &[(&str, &[&str])] = &[("org", &["o1"]), ("list", &["l1", "l3"])];
    let answer = server
        .round(Ask::pull([subscription("s", "tasks", scopes, 0)]))
        .await;
    let expected = ["1 by seeder: k1|o1|l1|-|-@1", "2 by seeder: k4|o1|l3|-|-@1"];
    assert_eq!(commits(&server, answer.section()), expected);
}

#[tokio::test]
async fn the_limit_counts_changes_and_never_splits_a_commit() {
    let server = TestServer::start().await;
    server
        .commit(&[note("a", "t1", ""), note("b", "t1", "")])
        .await;
    server.commit(&[note("x", "t2", "")]).await;
    server
        .commit(&[note("c", "t1", ""), note("d", "t1", "")])
        .await;
    server.commit(&[note("e", "t1", "")]).await;
    let answer = server.round(Ask::pull([notes(0)]).limited(3, 0, 0)).await;
    assert_eq!(
        commits(&server, answer.section()),
        ["1 by seeder: a|t1|@1 b|t1|@1"]
    );
    assert_eq!(answer.section().next_cursor(), 1);
    let answer = server.round(Ask::pull([notes(1)]).limited(3, 0, 0)).await;
    let expected = ["3 by seeder: c|t1|@1 d|t1|@1", "4 by seeder: e|t1|@1"];
    assert_eq!(commits(&server, answer.section()), expected);
    assert_eq!(answer.section().next_cursor(), 4);
}

#[tokio::test]
async fn a_commit_above_the_limit_goes_whole_and_alone() {
    let server = TestServer::start().await;
    server
        .commit(&[
            note("a", "t1", ""),
            note("b", "t1", ""),
            note("c", "t1", ""),
        ])
        .await;
    server.commit(&[note("d", "t1", "")]).await;
    let answer = server.round(Ask::pull([notes(0)]).limited(2, 0, 0)).await;
    let section = answer.section();
    assert_eq!(
        commits(&server, section),
        ["1 by seeder: a|t1|@1 b|t1|@1 c|t1|@1"]
    );
    assert_eq!(section.next_cursor(), 1);
}

#[tokio::test]
async fn bytes_bound_a_section_as_changes_do() {
    let config = EngineConfig {
        section_bytes_max: 1_000,
        ..EngineConfig::default()
    };
    let server = TestServer::start_with(config).await;
    let (large, small) = ("x".repeat(2_000), "x".repeat(300));
    server.commit(&[note("a", "t1", &large)]).await;
    for id in ["b", "c", "d", "e"] {
        server.commit(&[note(id, "t1", &small)]).await;
    }
    let mut cursor = 0;
    let mut cursors = Vec::new();
    while cursor < 5 {
        let answer = server.round(Ask::pull([notes(cursor)])).await;
        cursor = answer.section().next_cursor();
        cursors.push((cursor, answer.section().commits.len()));
    }
    assert_eq!(cursors, [(1, 1), (4, 3), (5, 1)]);
}

#[tokio::test]
async fn a_pull_delivers_what_its_own_request_pushed() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "a")]).await;
    let text = |text| Some(Value::String(text));
    let row = crate::testing::full_row(&[text("n2"), text("t1"), text("b")]);
    let operation = Operation {
        table: "notes".into(),
        row_id: "n2".into(),
        action: OperationAction::Upsert(row.into()),
        base_version: None,
    };
    let ask = Ask::pull([notes(1)])
        .push("k1", vec![operation])
        .in_version(WireVersion::V2);
    let answer = server.round(ask).await;
    assert_eq!(answer.results.len(), 1);
    assert_eq!(commits(&server, answer.section()), ["2 by ann: n2|t1|b@1"]);
    assert_eq!(answer.section().next_cursor(), 2);
}

#[tokio::test]
async fn sections_come_in_the_order_of_the_subscriptions() {
    let server = TestServer::start().await;
    server
        .commit(&[note("n1", "t1", "a"), task("k1", "o1", "l1")])
        .await;
    let both: &[(&str, &[&str])] = &[("org", &["o1"]), ("list", &["l1"])];
    let answer = server
        .round(Ask::pull([
            subscription("z", "tasks", both, 0),
            subscription("a", "notes", &[("team_id", &["t1"])], -1),
            subscription("m", "notes", &[("team_id", &["t1", "t2"])], 0),
            subscription("gone", "notes", &[("team_id", &[])], 0),
        ]))
        .await;
    let ids: Vec<_> = answer
        .sections
        .iter()
        .map(|section| &*section.start.id)
        .collect();
    assert_eq!(ids, ["z", "a", "m", "gone"]);
    // The same commit goes out in every section that it matches.
    assert_eq!(
        commits(&server, &answer.sections[0]),
        ["1 by seeder: k1|o1|l1|-|-@1"]
    );
    assert_eq!(
        commits(&server, &answer.sections[2]),
        ["1 by seeder: n1|t1|a@1"]
    );
}

#[tokio::test]
async fn every_wire_version_gets_the_same_section() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "a")]).await;
    for version in WireVersion::ALL {
        let answer = server
            .round(Ask::pull([notes(0)]).in_version(version))
            .await;
        assert_eq!(
            commits(&server, answer.section()),
            ["1 by seeder: n1|t1|a@1"]
        );
    }
}

#[tokio::test]
async fn values_that_are_not_allowed_are_left_out_and_the_others_keep_their_order() {
    let server = TestServer::start().await;
    server.resolver.allow(&[("team_id", &["t1", "t3"])]);
    server
        .commit(&[
            note("n1", "t1", ""),
            note("n2", "t2", ""),
            note("n3", "t3", ""),
        ])
        .await;
    let asked = subscription("s", "notes", &[("team_id", &["t3", "t2", "t1"])], 0);
    let answer = server.round(Ask::pull([asked])).await;
    let section = answer.section();
    let granted = subscription("s", "notes", &[("team_id", &["t3", "t1"])], 0);
    assert_eq!(section.start.effective_scopes, granted.scopes);
    assert_eq!(
        commits(&server, section),
        ["1 by seeder: n1|t1|@1 n3|t3|@1"]
    );
}

#[tokio::test]
async fn a_lost_grant_revokes_and_echoes_the_cursor() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "")]).await;
    for lists in [&[("org", &["o1"][..])][..], &[("team_id", &["t2"])], &[]] {
        server.resolver.allow(lists);
        for cursor in [-1, 0, 1, 99] {
            let answer = server.round(Ask::pull([notes(cursor)])).await;
            check_revoked(answer.section(), cursor);
        }
    }
}

#[tokio::test]
async fn losing_one_of_two_variables_revokes_the_subscription() {
    let server = TestServer::start().await;
    server.resolver.allow(&[("org", &["o1"])]);
    let both: &[(&str, &[&str])] = &[("org", &["o1"]), ("list", &["l1"])];
    let answer = server
        .round(Ask::pull([subscription("s", "tasks", both, 0)]))
        .await;
    check_revoked(answer.section(), 0);
}

#[tokio::test]
async fn a_failing_resolver_revokes_and_one_that_is_out_does_not() {
    let server = TestServer::start().await;
    server.resolver.switch(Grants::Fails);
    let answer = server.round(Ask::pull([notes(0)])).await;
    check_revoked(answer.section(), 0);
    server.resolver.switch(Grants::IsOut);
    assert_eq!(
        server.refusal(Ask::pull([notes(0)])).await.code.as_str(),
        "sync.auth_lease_required"
    );
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_does_not_answer_fails_the_round_and_revokes_nothing() {
    let server = TestServer::start().await;
    server.resolver.switch(Grants::NeverAnswers);
    let error = server.refusal(Ask::pull([notes(0)])).await;
    assert_eq!(
        (error.code.as_str(), &*error.message),
        ("sync.internal_error", "internal server error")
    );
}

#[tokio::test]
async fn a_subscription_is_active_until_the_grant_goes() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "")]).await;
    let answer = server.round(Ask::pull([notes(0)])).await;
    check_active(answer.section(), false);
    server.resolver.allow(&[("team_id", &["t2"])]);
    let answer = server.round(Ask::pull([notes(1)])).await;
    check_revoked(answer.section(), 1);
}

// The reference starts a bootstrap here; no client would clear its rows for it (OQ-1).
#[tokio::test]
async fn a_cursor_above_the_head_is_reset() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "")]).await;
    let answer = server.round(Ask::pull([notes(2)])).await;
    check_reset(answer.section(), 2);
    let answer = server.round(Ask::pull([notes(-1)])).await;
    check_active(answer.section(), true);
}

#[tokio::test]
async fn the_resolver_is_asked_once_for_all_subscriptions() {
    let server = TestServer::start().await;
    let many = (0..5).map(|n| subscription(&format!("s{n}"), "notes", &[("team_id", &["t1"])], 0));
    server.round(Ask::pull(many)).await;
    assert_eq!(server.resolver.calls(), 1);
}

/// OQ-35: the client has one replica of a row, and both subscriptions write to it.
#[tokio::test]
async fn a_row_that_moved_to_another_subscription_is_not_deleted_by_the_one_it_left() {
    let server = TestServer::start().await;
    server
        .commit(&[note("n1", "t1", "a"), note("n2", "t1", "b")])
        .await;
    server
        .commit(&[Write::Delete("notes", "n1"), Write::Delete("notes", "n2")])
        .await;
    server.commit(&[note("n1", "t2", "a")]).await;
    let other = |cursor| subscription("other", "notes", &[("team_id", &["t2"])], cursor);

    // Where the row went is named first, so its upsert comes before the delete.
    let answer = server.round(Ask::pull([other(1), notes(1)])).await;
    assert_eq!(
        commits(&server, &answer.sections[0]),
        ["3 by seeder: n1|t2|a@1"]
    );
    assert_eq!(commits(&server, &answer.sections[1]), ["2 by seeder: -n2"]);
    // In a later response as well.
    let answer = server.round(Ask::pull([other(3), notes(1)])).await;
    assert_eq!(commits(&server, &answer.sections[1]), ["2 by seeder: -n2"]);
    // A client that does not see where it went is told that it is gone.
    let answer = server.round(Ask::pull([notes(1)])).await;
    assert_eq!(commits(&server, answer.section()), ["2 by seeder: -n1 -n2"]);
    // A grant that is gone shows nothing.
    server.resolver.allow(&[("team_id", &["t1"])]);
    let answer = server.round(Ask::pull([other(1), notes(1)])).await;
    assert_eq!(
        commits(&server, &answer.sections[1]),
        ["2 by seeder: -n1 -n2"]
    );
}
