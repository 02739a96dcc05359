//! Clients far behind (§8.4): who starts over, and that nobody does so for ever.

use super::{check_active, check_reset, notes, pages};
use crate::{
    EngineConfig,
    testing::{Ask, TestServer, note},
};

/// Eight commits to one note of `t1`, and four to others, when four are a long way.
async fn far_ahead() -> TestServer {
    let server = TestServer::start_with(EngineConfig {
        catch_up_commits_max: 4,
        ..EngineConfig::default()
    })
    .await;
    for number in 0..8 {
        server.commit(&[note("n", "t1", &number.to_string())]).await;
    }
    for number in 0..4 {
        server
            .commit(&[note(&format!("x{number}"), "t2", "")])
            .await;
    }
    server
}

#[tokio::test]
async fn a_client_that_missed_much_of_few_rows_starts_over() {
    let server = far_ahead().await;
    for accept in [0b0011, 0b0111] {
        let answer = server.round(Ask::pull([notes(2)]).accepting(accept)).await;
        check_reset(answer.section(), 2);
        // It comes back as it was told, and is not sent away again.
        let answer = server.round(Ask::pull([notes(-1)]).accepting(accept)).await;
        assert_eq!(pages(&server, answer.section()), [["n|t1|7@8"]]);
        let cursor = answer.section().next_cursor();
        let answer = server.round(Ask::pull([notes(cursor)])).await;
        check_active(answer.section(), false);
        assert_eq!(answer.section().next_cursor(), 12);
    }
}

#[tokio::test]
async fn a_client_that_missed_little_of_its_scope_walks_the_log() {
    let server = far_ahead().await;
    // Eight commits behind, four of them to its scope.
    let answer = server.round(Ask::pull([notes(4)])).await;
    check_active(answer.section(), false);
    assert_eq!(answer.section().commits.len(), 4);
}

#[tokio::test]
async fn a_client_with_more_rows_than_that_pays_for_walks_the_log() {
    let server = far_ahead().await;
    server
        .commit(&[note("a", "t1", ""), note("b", "t1", "")])
        .await;
    let answer = server.round(Ask::pull([notes(0)])).await;
    check_active(answer.section(), false);
    assert_eq!(answer.section().commits.len(), 9);
}

#[tokio::test]
async fn a_client_that_is_not_far_behind_costs_no_look_at_its_scope() {
    let server = far_ahead().await;
    let reads = server.store.reads();
    server.round(Ask::pull([notes(8)])).await;
    assert_eq!(server.store.reads(), reads + 1, "the log and nothing else");
}
