//! Where the horizon may go as a table, and upkeep as a whole (§4.6).

use std::time::Duration;

use tidewater_model::LogEpoch;
use tidewater_store::{Gate, Store};
use tidewater_wire::Subscription;

use super::*;
use crate::{
    EngineConfig,
    testing::{Ask, TestServer, note, partition, subscription},
};

fn seq(raw: u64) -> CommitSeq {
    CommitSeq::new(raw).unwrap()
}

/// Head 5,000, current horizon 100, 1,000 commits retained.
#[track_caller]
fn check(oldest_cursor: Option<u64>, newest_before: u64, expected: u64) {
    check_log((5_000, 100), oldest_cursor, newest_before, expected);
}

#[track_caller]
fn check_log(
    (head, current): (u64, u64),
    oldest_cursor: Option<u64>,
    newest_before: u64,
    expected: u64,
) {
    let gate = Gate {
        log_epoch: Some(LogEpoch::new("e")),
        schema_version: 1,
        head: seq(head),
        horizon: HorizonSeq::at(seq(current)),
        writer_fence: None,
        pending_checkpoints: Vec::new(),
    };
    let oldest_cursor = oldest_cursor.map(seq);
    let inputs = RetentionInputs {
        gate,
        oldest_cursor,
        newest_before: seq(newest_before),
    };
    let retention = Retention {
        retained_commits: 1_000,
        ..Retention::default()
    };
    assert_eq!(horizon(&inputs, retention), HorizonSeq::at(seq(expected)));
}

#[test]
fn an_active_client_holds_the_horizon_at_its_cursor() {
    check(Some(2_500), 0, 2_500);
    check(Some(0), 0, 100);
}

#[test]
fn without_active_clients_only_the_newest_commits_are_kept() {
    check(None, 0, 4_000);
    check(None, 4_900, 4_000);
}

#[test]
fn what_is_too_old_goes_whoever_waits_for_it() {
    check(Some(500), 3_000, 3_000);
    check(Some(3_000), 500, 3_000);
}

#[test]
fn the_newest_commits_are_kept_even_when_all_clients_have_them_or_they_are_old() {
    check(Some(5_000), 0, 4_000);
    check(Some(0), 5_000, 4_000);
}

#[test]
fn the_horizon_never_falls() {
    check(Some(50), 0, 100);
    check_log((5_000, 4_500), None, 0, 4_500);
}

#[test]
fn a_short_log_is_kept_whole() {
    check_log((0, 0), None, 0, 0);
    check_log((999, 0), None, 999, 0);
    check_log((1_001, 0), None, 0, 1);
}

fn keep(retained_commits: u64) -> Retention {
    Retention {
        active_window_ms: 1_000,
        forced_age_ms: 10_000,
        retained_commits,
    }
}

fn notes(cursor: i64) -> Subscription {
    subscription("s", "notes", &[("team_id", &["t1"])], cursor)
}

async fn with_commits(config: EngineConfig, count: i64) -> TestServer {
    let server = TestServer::start_with(config).await;
    for number in 0..count {
        server
            .commit(&[note(&format!("n{number}"), "t1", "")])
            .await;
    }
    server
}

/// Moves the paused clock of the runtime, with everything that falls due on the way.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

async fn pruned_to(server: &TestServer, retention: Retention) -> u64 {
    let pruned = server.engine.prune(&partition(), retention).await.unwrap();
    pruned.horizon.seq().get()
}

#[tokio::test]
async fn an_active_client_is_known_to_pruning_before_its_record_is_written() {
    let server = with_commits(EngineConfig::default(), 10).await;
    server.round(Ask::pull([notes(0)]).limited(4, 0, 0)).await;
    assert_eq!(pruned_to(&server, keep(2)).await, 4);
    // A client that goes back holds the horizon where it is.
    server.round(Ask::pull([notes(4)])).await;
    server.round(Ask::pull([notes(4)]).limited(1, 0, 0)).await;
    assert_eq!(pruned_to(&server, keep(2)).await, 5);
}

#[tokio::test]
async fn a_client_that_was_not_seen_lately_holds_nothing_back() {
    let server = with_commits(EngineConfig::default(), 10).await;
    server.round(Ask::pull([notes(0)]).limited(4, 0, 0)).await;
    server.clock.advance_ms(1_000);
    assert_eq!(pruned_to(&server, keep(2)).await, 4);
    server.clock.advance_ms(1);
    assert_eq!(pruned_to(&server, keep(2)).await, 8);
}

#[tokio::test]
async fn a_client_that_never_pulled_actively_holds_nothing_back() {
    let server = with_commits(EngineConfig::default(), 10).await;
    server.resolver.allow(&[]);
    server.round(Ask::pull([notes(0)])).await;
    assert_eq!(pruned_to(&server, keep(2)).await, 8);
}

#[tokio::test]
async fn old_commits_go_although_a_client_waits_for_them() {
    let server = with_commits(EngineConfig::default(), 6).await;
    server.clock.advance_ms(10_001);
    for number in 6..10 {
        server
            .commit(&[note(&format!("n{number}"), "t1", "")])
            .await;
    }
    server.round(Ask::pull([notes(0)]).limited(1, 0, 0)).await;
    assert_eq!(pruned_to(&server, keep(2)).await, 6);
    assert_eq!(pruned_to(&server, keep(7)).await, 6);
}

#[tokio::test]
async fn a_cursor_behind_the_horizon_is_reset_and_bootstraps_to_the_head() {
    let server = with_commits(EngineConfig::default(), 10).await;
    assert_eq!(pruned_to(&server, keep(4)).await, 6);
    let answer = server.round(Ask::pull([notes(5)])).await;
    assert_eq!(answer.section().start.reason_code, "sync.cursor_expired");
    assert_eq!(answer.section().next_cursor(), 5);
    let answer = server.round(Ask::pull([notes(6)])).await;
    assert_eq!(answer.section().commits.len(), 4);
    let answer = server.round(Ask::pull([notes(-1)])).await;
    assert!(answer.section().start.bootstrap);
    assert_eq!(answer.section().next_cursor(), 10);
}

#[tokio::test]
async fn pruning_reports_what_it_did_and_runs_although_nothing_moves() {
    let server = with_commits(EngineConfig::default(), 10).await;
    let prune = async || server.engine.prune(&partition(), keep(4)).await.unwrap();
    let horizon = |raw| HorizonSeq::at(seq(raw));
    let first = prune().await;
    assert_eq!(
        (first.previous, first.horizon),
        (HorizonSeq::START, horizon(6))
    );
    assert_eq!(first.removed_commits, 6);
    let second = prune().await;
    assert_eq!((second.previous, second.horizon), (horizon(6), horizon(6)));
    assert_eq!(second.removed_commits, 0);
}

#[tokio::test]
async fn a_partition_that_nobody_named_is_not_pruned() {
    let server = TestServer::start().await;
    let error = server
        .engine
        .prune(&PartitionId::new("nobody"), keep(0))
        .await
        .unwrap_err();
    assert_eq!(error.code.as_str(), "sync.internal_error");
    assert_eq!(
        (&*error.message, error.details),
        ("internal server error", None)
    );
}

#[tokio::test]
async fn a_log_that_is_replaced_meanwhile_is_not_pruned() {
    let server = with_commits(EngineConfig::default(), 10).await;
    let plan = plan(&server.engine, &partition(), keep(4)).await.unwrap();
    server.engine.rotate_epoch(&partition()).await.unwrap();
    let error = apply(&server.engine, &partition(), &plan)
        .await
        .unwrap_err();
    assert_eq!(
        error.kind,
        StoreErrorKind::Refused(StorageCode::PruneEpochMismatch)
    );
    assert_eq!(server.horizon("p1").await, 0);
}

#[tokio::test(start_paused = true)]
async fn maintenance_writes_activity_and_prunes_every_partition_in_its_time() {
    let config = EngineConfig {
        retention: keep(1),
        ..EngineConfig::default()
    };
    let server = TestServer::start_with(config).await;
    let upkeep = tokio::spawn(Arc::clone(&server.engine).run_maintenance());
    pass(Duration::from_millis(10)).await;

    // More partitions than one page of the registry holds.
    let names: Vec<String> = (0..PARTITIONS_PER_PAGE + 2)
        .map(|n| format!("q{n}"))
        .collect();
    for name in &names {
        server.commit_to(name, &[note("a", "t1", "")]).await;
        server.commit_to(name, &[note("b", "t1", "")]).await;
    }
    server.commit(&[note("n1", "t1", "")]).await;
    server.round(Ask::pull([notes(-1)])).await;
    pass(Duration::from_secs(2)).await;
    let client = tidewater_model::ClientId::new("c1");
    assert!(
        server
            .store
            .find_client(&partition(), &client)
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(server.horizon(&names[0]).await, 0);

    pass(Duration::from_secs(300)).await;
    for name in &names {
        assert_eq!(server.horizon(name).await, 1, "{name}");
    }
    upkeep.abort();
}

#[tokio::test(start_paused = true)]
async fn maintenance_outlives_its_failures() {
    let config = EngineConfig {
        retention: keep(1),
        ..EngineConfig::default()
    };
    let server = with_commits(config, 3).await;
    // A new client is bound before it is answered; what a known one does is upkeep.
    server.round(Ask::pull([notes(1)])).await;
    server.store.fail_upkeep(u64::MAX);
    let upkeep = tokio::spawn(Arc::clone(&server.engine).run_maintenance());
    server.round(Ask::pull([notes(3)])).await;
    pass(Duration::from_secs(1_000)).await;
    assert_eq!(server.horizon("p1").await, 0);
    server.store.fail_upkeep(0);
    pass(Duration::from_secs(301)).await;
    assert_eq!(server.horizon("p1").await, 2);
    upkeep.abort();
}

#[tokio::test(start_paused = true)]
async fn one_partition_that_fails_does_not_keep_the_others_from_their_turn() {
    let config = EngineConfig {
        retention: keep(0),
        ..EngineConfig::default()
    };
    let server = TestServer::start_with(config).await;
    for name in ["a", "b", "c"] {
        server.commit_to(name, &[note("n", "t1", "")]).await;
    }
    server.engine.flush_activity().await.unwrap();
    server.store.fail_upkeep(1);
    prune_all(&server.engine, true).await.unwrap_err();
    let mut horizons = Vec::new();
    for name in ["a", "b", "c"] {
        horizons.push(server.horizon(name).await);
    }
    assert_eq!(horizons, [0, 1, 1]);
}
