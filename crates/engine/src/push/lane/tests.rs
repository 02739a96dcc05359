//! Grouping, fairness and bounds of the queues, without a database.

use bytes::Bytes;
use tidewater_schema::Schema;
use tidewater_wire::Operation;

use super::*;

fn job(partition: &str, commits: usize, operations: usize) -> Job {
    let operation = Operation {
        table: "notes".into(),
        row_id: "r".into(),
        action: OperationAction::Upsert(Bytes::from_static(b"12345678")),
        base_version: None,
    };
    let commit = PushCommit {
        client_commit_id: "k".into(),
        operations: vec![operation; operations],
    };
    let (reply, _) = oneshot::channel();
    Job {
        held: Held::default(),
        identity: Identity::new(partition, "actor"),
        client: ClientId::new("client"),
        client_is_bound: true,
        version: WireVersion::V3,
        view: view(),
        log_epoch: LogEpoch::new("e"),
        allowed: None,
        commits: vec![commit; commits],
        reply,
    }
}

fn view() -> Arc<SchemaView> {
    let schema = Schema::from_json(r#"{"version": 1, "tables": []}"#).unwrap();
    Arc::clone(schema.view(1).unwrap())
}

fn lanes(kind: WriteLanes, commits_max: usize) -> Lanes {
    let config = EngineConfig {
        queued_commits_max: commits_max,
        ..EngineConfig::default()
    };
    Lanes::new(&config, kind)
}

fn partitions(group: Option<Vec<Job>>) -> Vec<String> {
    let group = group.unwrap_or_default();
    group
        .iter()
        .map(|job| job.identity.partition.to_string())
        .collect()
}

#[test]
fn what_waits_together_is_taken_together() {
    let lanes = lanes(WriteLanes::One, 100);
    assert_eq!(lanes.enqueue(job("a", 1, 1)).unwrap(), Some(None));
    for partition in ["a", "b", "a"] {
        assert_eq!(
            lanes.enqueue(job(partition, 1, 1)).unwrap(),
            None,
            "the lane runs already"
        );
    }
    assert_eq!(partitions(lanes.next_group(&None)), ["a", "b", "a", "a"]);
    assert!(lanes.next_group(&None).is_none());
}

#[test]
fn a_busy_partition_takes_turns_with_the_others() {
    let lanes = lanes(WriteLanes::One, 10_000);
    for _ in 0..3 {
        lanes
            .enqueue(job("busy", GROUP_COMMITS_MAX / 2, 1))
            .unwrap();
    }
    lanes.enqueue(job("quiet", 1, 1)).unwrap();
    assert_eq!(partitions(lanes.next_group(&None)), ["busy", "quiet"]);
    assert_eq!(partitions(lanes.next_group(&None)), ["busy", "busy"]);
}

#[test]
fn a_group_ends_before_it_has_too_many_commits_or_operations() {
    let lanes = lanes(WriteLanes::One, 10_000);
    lanes.enqueue(job("a", 1, GROUP_OPERATIONS_MAX)).unwrap();
    lanes.enqueue(job("a", 1, 1)).unwrap();
    assert_eq!(lanes.next_group(&None).unwrap().len(), 1);
    assert_eq!(lanes.next_group(&None).unwrap().len(), 1);
}

#[test]
fn a_job_above_the_bounds_of_a_group_goes_alone() {
    let lanes = lanes(WriteLanes::One, 10_000);
    lanes.enqueue(job("a", GROUP_COMMITS_MAX + 1, 1)).unwrap();
    lanes.enqueue(job("b", 1, 1)).unwrap();
    assert_eq!(partitions(lanes.next_group(&None)), ["a"]);
    assert_eq!(partitions(lanes.next_group(&None)), ["b"]);
}

#[test]
fn a_full_queue_refuses_with_a_hint_and_accepts_again_when_it_drained() {
    let lanes = lanes(WriteLanes::One, 2);
    lanes.enqueue(job("a", 2, 1)).unwrap();
    let refused = lanes.enqueue(job("b", 1, 1)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::RateLimited);
    assert_eq!(refused.details.as_deref(), Some(r#"{"retryAfterMs":500}"#));
    assert_eq!(lanes.next_group(&None).unwrap().len(), 1);
    lanes.enqueue(job("b", 1, 1)).unwrap();
}

#[test]
fn a_request_above_the_bound_is_accepted_when_nothing_waits() {
    let lanes = lanes(WriteLanes::One, 2);
    lanes.enqueue(job("a", 3, 1)).unwrap();
}

#[test]
fn partitions_with_lanes_of_their_own_are_not_grouped() {
    let lanes = lanes(WriteLanes::PerPartition, 100);
    let (a, b) = (Some(PartitionId::new("a")), Some(PartitionId::new("b")));
    assert_eq!(lanes.enqueue(job("a", 1, 1)).unwrap(), Some(a.clone()));
    assert_eq!(lanes.enqueue(job("b", 1, 1)).unwrap(), Some(b.clone()));
    assert_eq!(partitions(lanes.next_group(&a)), ["a"]);
    assert_eq!(partitions(lanes.next_group(&b)), ["b"]);
}

#[tokio::test]
async fn closing_refuses_new_jobs_and_waits_for_the_accepted_ones() {
    let lanes = lanes(WriteLanes::One, 100);
    lanes.enqueue(job("a", 1, 1)).unwrap();
    let closing = lanes.close();
    tokio::pin!(closing);
    assert!(
        closing.as_mut().now_or_never().is_none(),
        "a job is waiting"
    );
    assert!(lanes.enqueue(job("b", 1, 1)).is_err());
    lanes.next_group(&None);
    assert!(closing.as_mut().now_or_never().is_none(), "the group runs");
    assert!(lanes.next_group(&None).is_none());
    closing.await;
}
