//! Old outcomes go, in time and no sooner (§2.3).

use std::{sync::Arc, time::Duration};

use bytestring::ByteString;
use tidewater_model::{ActorId, ClientId};
use tidewater_store::{
    CommitWrite, Finished, LoadRequest, PartitionTouch, PushResultRecord, PushStatus, Store as _,
};
use tidewater_wire::{Operation, OperationAction, PushOutcome};

use super::*;
use crate::{
    Clock as _, Retention,
    testing::{Ask, TestServer, partition},
};

const HOUR_MS: i64 = 60 * 60 * 1_000;

/// The log is pruned after an hour, outcomes after the age given.
fn config(outcome_age_ms: i64) -> EngineConfig {
    EngineConfig {
        outcome_age_ms,
        retention: Retention {
            forced_age_ms: HOUR_MS,
            ..Retention::default()
        },
        ..EngineConfig::default()
    }
}

fn key(name: &str, number: usize) -> PushKey {
    PushKey {
        partition: PartitionId::new(name),
        client: ClientId::new("c1"),
        client_commit_id: ByteString::from(format!("m{number:04}")),
    }
}

impl TestServer {
    /// Records outcomes of a partition, now.
    async fn record(&self, name: &str, numbers: std::ops::Range<usize>) {
        let touch = PartitionTouch {
            partition: PartitionId::new(name),
            initial_epoch: tidewater_model::LogEpoch::new("e"),
            at_ms: 0,
        };
        self.store.touch_partition(touch).await.unwrap();
        let wanted = LoadRequest {
            partitions: vec![PartitionId::new(name)],
            ..LoadRequest::default()
        };
        let (txn, _) = self.store.begin_write(wanted).await.unwrap();
        let commits = numbers.map(|number| {
            Arc::new(CommitWrite {
                key: key(name, number),
                actor: ActorId::new("a"),
                result: PushResultRecord {
                    status: PushStatus::Rejected,
                    results: Vec::new(),
                    recorded_at_ms: Some(self.clock.now_ms()),
                    actor: None,
                    schema_version: None,
                    content_digest: None,
                },
                applied: None,
                bind_client_at_ms: None,
            })
        });
        let finished = txn.finish(commits.collect()).await.unwrap();
        assert!(matches!(finished, Finished::Committed));
    }

    async fn is_recorded(&self, name: &str, number: usize) -> bool {
        let found = self.store.find_push_result(&key(name, number)).await;
        found.unwrap().is_some()
    }

    /// Pushes one commit under an id and says what became of it.
    async fn push_once(&self, id: &str) -> PushOutcome {
        let operation = Operation {
            table: "notes".into(),
            row_id: "nothing".into(),
            action: OperationAction::Delete,
            base_version: None,
        };
        let answer = self.round(Ask::new().push(id, vec![operation])).await;
        answer.results[0].outcome
    }
}

#[track_caller]
fn check_age(outcome_age_ms: i64, expected: i64) {
    assert_eq!(age_ms(&config(outcome_age_ms)), expected);
}

#[test]
fn outcomes_are_never_forgotten_before_the_log() {
    check_age(2 * HOUR_MS, 2 * HOUR_MS);
    check_age(HOUR_MS, HOUR_MS);
    check_age(HOUR_MS - 1, HOUR_MS);
    check_age(0, HOUR_MS);
    check_age(i64::MIN, HOUR_MS);
    check_age(i64::MAX, i64::MAX);
}

#[test]
fn by_default_outcomes_outlive_the_log_by_far() {
    let config = EngineConfig::default();
    assert_eq!(age_ms(&config), 90 * 24 * HOUR_MS);
    assert!(age_ms(&config) >= 3 * config.retention.forced_age_ms);
}

#[tokio::test]
async fn an_outcome_goes_when_it_is_older_than_its_age() {
    let server = TestServer::start_with(config(3 * HOUR_MS)).await;
    server.record("p", 0..1).await;
    server.clock.advance_ms(1);
    server.record("p", 1..2).await;
    server.clock.advance_ms(3 * HOUR_MS - 1);
    assert_eq!(prune_all(&server.engine).await.unwrap(), 0);
    server.clock.advance_ms(1);
    assert_eq!(prune_all(&server.engine).await.unwrap(), 1);
    assert!(!server.is_recorded("p", 0).await);
    assert!(server.is_recorded("p", 1).await);
}

#[tokio::test]
async fn an_age_without_end_keeps_everything() {
    let server = TestServer::start_with(config(i64::MAX)).await;
    server.record("p", 0..1).await;
    server.clock.advance_ms(i64::MAX - server.clock.now_ms());
    assert_eq!(prune_all(&server.engine).await.unwrap(), 0);
}

#[tokio::test]
async fn a_commit_is_replayed_until_its_outcome_is_forgotten() {
    let server = TestServer::start_with(config(2 * HOUR_MS)).await;
    let seq = |outcome| match outcome {
        PushOutcome::Applied(seq) => ("applied", seq),
        PushOutcome::Cached(seq) => ("cached", seq),
        PushOutcome::Rejected => ("rejected", 0),
    };
    assert_eq!(seq(server.push_once("m").await), ("applied", 1));
    server.clock.advance_ms(2 * HOUR_MS);
    prune_all(&server.engine).await.unwrap();
    // Long after the log may be pruned.
    assert_eq!(seq(server.push_once("m").await), ("cached", 1));
    server.clock.advance_ms(1);
    prune_all(&server.engine).await.unwrap();
    assert_eq!(seq(server.push_once("m").await), ("applied", 2));
}

#[tokio::test(start_paused = true)]
async fn once_a_day_every_partition_is_walked_in_pages() {
    let day = Duration::from_secs(24 * 60 * 60);
    let server = TestServer::start_with(config(HOUR_MS)).await;
    let upkeep = tokio::spawn(Arc::clone(&server.engine).run_maintenance());
    tokio::time::sleep(Duration::from_millis(10)).await;
    let count = 2 * OUTCOMES_PER_PAGE + 1;
    for name in ["a", "b", "c"] {
        server.record(name, 0..count).await;
    }
    server.clock.advance_ms(HOUR_MS + 1);
    server.record("b", count..count + 1).await;
    tokio::time::sleep(day - Duration::from_secs(1)).await;
    assert!(server.is_recorded("a", 0).await, "it is not time yet");
    tokio::time::sleep(Duration::from_secs(2)).await;
    for name in ["a", "b", "c"] {
        for number in [0, OUTCOMES_PER_PAGE - 1, OUTCOMES_PER_PAGE, count - 1] {
            assert!(!server.is_recorded(name, number).await, "{name} {number}");
        }
    }
    assert!(server.is_recorded("b", count).await, "a young one stays");
    upkeep.abort();
}

#[tokio::test(start_paused = true)]
async fn upkeep_that_fails_goes_on_the_next_day() {
    let server = TestServer::start_with(config(HOUR_MS)).await;
    server.record("p", 0..1).await;
    server.clock.advance_ms(HOUR_MS + 1);
    server.store.fail_upkeep(u64::MAX);
    let upkeep = tokio::spawn(Arc::clone(&server.engine).run_maintenance());
    tokio::time::sleep(Duration::from_secs(60)).await;
    server.store.fail_upkeep(0);
    assert!(server.is_recorded("p", 0).await);
    tokio::time::sleep(Duration::from_secs(24 * 60 * 60)).await;
    assert!(!server.is_recorded("p", 0).await);
    upkeep.abort();
}

#[tokio::test]
async fn a_partition_that_fails_does_not_keep_the_others_from_their_turn() {
    let server = TestServer::start_with(config(HOUR_MS)).await;
    for name in ["a", "b"] {
        server.record(name, 0..1).await;
    }
    server.clock.advance_ms(HOUR_MS + 1);
    server.store.fail_upkeep(1);
    prune_all(&server.engine).await.unwrap_err();
    assert!(server.is_recorded("a", 0).await);
    assert!(!server.is_recorded("b", 0).await);
    assert!(!server.is_recorded(partition().as_str(), 0).await);
}
