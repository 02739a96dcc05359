//! Pushes through whole rounds: what a commit does, what its author is told, what stays.

use std::sync::Arc;

use tidewater_model::{ClientId, ErrorCode, limits};
use tidewater_store::Store;
use tidewater_wire::{
    OpResult, Operation, OperationAction, PushOutcome, WireVersion,
    row::{Value, encode_row, encode_sparse_row},
};

use crate::{
    Identity, RoundError,
    testing::{Answer, Ask, Grants, PARTITION, TestServer, identity, partition, subscription},
};

/// A row of `notes` with every column, in the payload form of `version`.
fn note(version: WireVersion, id: &str, team: &str, body: Option<&str>) -> OperationAction {
    let mut values = [Some(id), Some(team), body].map(|text| {
        text.map(|text| {
            let mut out = Vec::new();
            Value::String(text).encode(&mut out);
            out
        })
    });
    let cells = values.each_mut().map(|value| value.as_deref());
    let row = if version.is_sparse() {
        encode_sparse_row(&cells.map(Some))
    } else {
        encode_row(&cells)
    };
    OperationAction::Upsert(row.into())
}

fn upsert(id: &str, team: &str, body: &str, base_version: Option<i64>) -> Operation {
    let action = note(WireVersion::V3, id, team, Some(body));
    Operation {
        table: "notes".into(),
        row_id: id.into(),
        action,
        base_version,
    }
}

fn delete(id: &str) -> Operation {
    let action = OperationAction::Delete;
    Operation {
        table: "notes".into(),
        row_id: id.into(),
        action,
        base_version: None,
    }
}

fn all_notes() -> tidewater_wire::Subscription {
    subscription("s", "notes", &[("team_id", &["t1", "t2"])], -1)
}

impl TestServer {
    /// Pushes one commit; its outcome and the codes of its records, in words.
    async fn push(&self, id: &str, operations: Vec<Operation>) -> String {
        told(&self.round(Ask::new().push(id, operations)).await)[0].clone()
    }

    /// The rows of `notes` that anybody could see, as text with their versions.
    async fn notes(&self) -> Vec<String> {
        let answer = self.round(Ask::pull([all_notes()])).await;
        let segment = answer.section().pages[0].inline();
        segment
            .blocks
            .iter()
            .flatten()
            .map(|row| format!("{}@{}", self.text("notes", &row.row), row.server_version))
            .collect()
    }

    async fn head(&self) -> u64 {
        let record = self.store.find_partition(&partition()).await.unwrap();
        record.unwrap().head.get()
    }
}

/// Outcomes and codes: `applied 1`, `cached 1`, `rejected 0:sync.forbidden`.
fn told(answer: &Answer) -> Vec<String> {
    answer
        .results
        .iter()
        .map(|result| match result.outcome {
            PushOutcome::Applied(seq) => format!("applied {seq}"),
            PushOutcome::Cached(seq) => format!("cached {seq}"),
            PushOutcome::Rejected => {
                let records: Vec<String> = result
                    .results
                    .iter()
                    .map(|record| match record {
                        OpResult::Applied { op_index } => format!("{op_index}:applied"),
                        OpResult::Conflict { op_index, code, .. }
                        | OpResult::Error { op_index, code, .. } => format!("{op_index}:{code}"),
                    })
                    .collect();
                format!("rejected {}", records.join(" "))
            }
        })
        .collect()
}

#[tokio::test]
async fn an_insert_applies_with_one_record_per_operation() {
    let server = TestServer::start().await;
    let operations = vec![
        upsert("n1", "t1", "a", None),
        upsert("n2", "t1", "b", Some(0)),
    ];
    let answer = server.round(Ask::new().push("k1", operations)).await;
    assert_eq!(answer.results[0].outcome, PushOutcome::Applied(1));
    let records = [0, 1].map(|op_index| OpResult::Applied { op_index });
    assert_eq!(answer.results[0].results, records);
    assert_eq!(server.notes().await, ["n1|t1|a@1", "n2|t1|b@1"]);
}

#[tokio::test]
async fn a_commit_sees_its_own_operations() {
    let server = TestServer::start().await;
    let operations = vec![
        upsert("n1", "t1", "a", Some(0)),
        upsert("n1", "t1", "b", Some(1)),
        delete("n1"),
        upsert("n1", "t1", "c", None),
    ];
    assert_eq!(server.push("k1", operations).await, "applied 1");
    assert_eq!(server.notes().await, ["n1|t1|c@1"]);
}

#[tokio::test]
async fn a_conflict_shows_the_row_as_it_is() {
    let server = TestServer::start().await;
    server.push("k1", vec![upsert("n1", "t1", "a", None)]).await;
    server.push("k2", vec![upsert("n1", "t1", "b", None)]).await;
    let answer = server
        .round(Ask::new().push("k3", vec![upsert("n1", "t1", "c", Some(1))]))
        .await;
    let [
        OpResult::Conflict {
            op_index: 0,
            code,
            server_version: 2,
            server_row,
            conflict_columns,
            ..
        },
    ] = &answer.results[0].results[..]
    else {
        panic!("not a conflict: {:?}", answer.results)
    };
    assert_eq!(&**code, "sync.version_conflict");
    assert_eq!(server.text("notes", server_row), "n1|t1|b");
    assert_eq!(conflict_columns[..], [0b110]);
}

#[tokio::test]
async fn a_conflict_in_wire_version_2_has_no_columns() {
    let server = TestServer::start().await;
    server.push("k1", vec![upsert("n1", "t1", "a", None)]).await;
    let action = note(WireVersion::V2, "n1", "t1", Some("c"));
    let operation = Operation {
        table: "notes".into(),
        row_id: "n1".into(),
        action,
        base_version: Some(7),
    };
    let ask = Ask::new()
        .in_version(WireVersion::V2)
        .push("k2", vec![operation]);
    let answer = server.round(ask).await;
    let [
        OpResult::Conflict {
            conflict_columns, ..
        },
    ] = &answer.results[0].results[..]
    else {
        panic!("not a conflict: {:?}", answer.results)
    };
    assert!(conflict_columns.is_empty());
    // The same outcome asked for in version 3 names every comparable column (OQ-11).
    let action = note(WireVersion::V3, "n1", "t1", Some("c"));
    let operation = Operation {
        table: "notes".into(),
        row_id: "n1".into(),
        action,
        base_version: Some(7),
    };
    let answer = server.round(Ask::new().push("k2", vec![operation])).await;
    let [
        OpResult::Conflict {
            conflict_columns, ..
        },
    ] = &answer.results[0].results[..]
    else {
        panic!("not a conflict: {:?}", answer.results)
    };
    assert_eq!(conflict_columns[..], [0b110]);
}

#[tokio::test]
async fn a_rejected_commit_leaves_no_trace_and_takes_no_number() {
    let server = TestServer::start().await;
    server.push("k1", vec![upsert("n1", "t1", "a", None)]).await;
    let operations = vec![
        upsert("n2", "t1", "b", None),
        delete("n1"),
        upsert("n3", "t1", "c", Some(4)),
    ];
    assert_eq!(
        server.push("k2", operations).await,
        "rejected 2:sync.row_missing"
    );
    assert_eq!(server.notes().await, ["n1|t1|a@1"]);
    assert_eq!(server.push("k3", vec![delete("n1")]).await, "applied 2");
}

#[tokio::test]
async fn a_rejected_commit_does_not_stop_the_next_one() {
    let server = TestServer::start().await;
    let ask = Ask::new()
        .push("k1", vec![upsert("n1", "t1", "a", Some(3))])
        .push("k2", vec![upsert("n1", "t1", "a", None)])
        .push(
            "k3",
            vec![Operation {
                table: "nothing".into(),
                ..delete("n1")
            }],
        );
    let expected = [
        "rejected 0:sync.row_missing",
        "applied 1",
        "rejected 0:sync.unknown_table",
    ];
    assert_eq!(told(&server.round(ask).await), expected);
}

#[tokio::test]
async fn a_replay_is_answered_from_the_record_whatever_it_contains() {
    let server = TestServer::start().await;
    server.push("k1", vec![upsert("n1", "t1", "a", None)]).await;
    assert_eq!(
        server.push("k1", vec![upsert("n1", "t1", "a", None)]).await,
        "cached 1"
    );
    assert_eq!(
        server
            .push("k1", vec![upsert("n9", "t9", "zzz", Some(8))])
            .await,
        "cached 1"
    );
    let refused = "rejected 0:sync.row_missing";
    assert_eq!(
        server
            .push("k2", vec![upsert("n2", "t1", "b", Some(3))])
            .await,
        refused
    );
    assert_eq!(
        server.push("k2", vec![upsert("n2", "t1", "b", None)]).await,
        refused
    );
    assert_eq!(server.notes().await, ["n1|t1|a@1"]);
}

#[tokio::test]
async fn the_same_commit_twice_in_one_request_is_applied_once() {
    let server = TestServer::start().await;
    let write = || vec![upsert("n1", "t1", "a", None)];
    let answer = server
        .round(Ask::new().push("k1", write()).push("k1", write()))
        .await;
    assert_eq!(told(&answer), ["applied 1", "cached 1"]);
    assert_eq!(server.notes().await, ["n1|t1|a@1"]);
}

#[tokio::test]
async fn overlapping_deliveries_of_one_commit_apply_it_once() {
    let server = Arc::new(TestServer::start().await);
    let mut followed = server.engine.follow_commits();
    let deliver = || {
        let server = Arc::clone(&server);
        async move { server.push("k1", vec![upsert("n1", "t1", "a", None)]).await }
    };
    let (left, right) = tokio::join!(deliver(), deliver());
    let mut both = [left, right];
    both.sort();
    assert_eq!(both, ["applied 1", "cached 1"]);
    assert_eq!(followed.try_recv().unwrap().commit_seq().get(), 1);
    assert!(followed.try_recv().is_err(), "observers are told once");
}

#[tokio::test]
async fn writes_are_authorized_by_the_stored_row() {
    let server = TestServer::start().await;
    server.push("k1", vec![upsert("n1", "t1", "a", None)]).await;
    server.resolver.allow(&[("team_id", &["t2"])]);
    let forbidden = "rejected 0:sync.forbidden";
    assert_eq!(
        server
            .push("k2", vec![upsert("n1", "t2", "mine", None)])
            .await,
        forbidden
    );
    assert_eq!(
        server
            .push("k3", vec![upsert("n1", "t2", "mine", Some(0))])
            .await,
        forbidden
    );
    assert_eq!(server.push("k4", vec![delete("n1")]).await, forbidden);
    assert_eq!(
        server.push("k5", vec![upsert("n5", "t1", "a", None)]).await,
        forbidden
    );
    assert_eq!(
        server.push("k6", vec![upsert("n6", "t2", "a", None)]).await,
        "applied 2"
    );
}

#[tokio::test]
async fn a_delete_of_nothing_applies_and_takes_a_number() {
    let server = TestServer::start().await;
    let mut followed = server.engine.follow_commits();
    assert_eq!(server.push("k1", vec![delete("n1")]).await, "applied 1");
    assert!(followed.try_recv().is_err(), "nothing changed");
    assert_eq!(server.head().await, 1);
}

#[tokio::test]
async fn a_failing_resolver_forbids_every_write() {
    let server = TestServer::start().await;
    server.resolver.switch(Grants::Fails);
    let operations = vec![upsert("n1", "t1", "a", None)];
    assert_eq!(
        server.push("k1", operations).await,
        "rejected 0:sync.forbidden"
    );
    assert_eq!(
        server.push("k2", vec![delete("n1")]).await,
        "rejected 0:sync.forbidden"
    );
}

#[tokio::test]
async fn a_payload_that_is_not_the_row_it_claims_rejects_its_commit() {
    let server = TestServer::start().await;
    let broken = Operation {
        action: OperationAction::Upsert(vec![0xff].into()),
        ..upsert("n1", "t1", "a", None)
    };
    let invalid = "rejected 0:sync.invalid_request";
    assert_eq!(server.push("k1", vec![broken]).await, invalid);
    let misnamed = Operation {
        row_id: "n2".into(),
        ..upsert("n1", "t1", "a", None)
    };
    assert_eq!(server.push("k2", vec![misnamed]).await, invalid);
}

#[tokio::test]
async fn more_operations_than_allowed_fail_the_request_and_apply_nothing() {
    let server = TestServer::start().await;
    let cap = limits::OPERATIONS_PER_REQUEST_DEFAULT;
    let ask = Ask::new()
        .push("k1", vec![upsert("n1", "t1", "a", None)])
        .push("k2", vec![delete("x"); cap]);
    let error = server.refusal(ask).await;
    assert_eq!(error.code, ErrorCode::TooManyOperations);
    assert_eq!(
        error.details.as_deref(),
        Some(r#"{"operations":501,"cap":500}"#)
    );
    assert_eq!(server.head().await, 0);
}

#[tokio::test]
async fn a_tombstone_outlives_its_commit_and_ends_with_an_insert() {
    let server = TestServer::start().await;
    server.push("k1", vec![upsert("n1", "t1", "a", None)]).await;
    server.push("k2", vec![delete("n1")]).await;
    let again = || vec![upsert("n1", "t1", "b", None)];
    assert_eq!(
        server.push("k3", again()).await,
        "rejected 0:sync.row_deleted"
    );
    assert_eq!(
        server
            .push("k4", vec![upsert("n1", "t1", "b", Some(0))])
            .await,
        "applied 3"
    );
    server.push("k5", vec![delete("n2")]).await;
    assert_eq!(server.notes().await, ["n1|t1|b@1"]);
    assert_eq!(server.push("k6", again()).await, "applied 5");
}

#[tokio::test]
async fn a_client_id_belongs_to_the_first_actor_who_pushes_with_it() {
    let server = TestServer::start().await;
    server.push("k1", vec![upsert("n1", "t1", "a", None)]).await;
    let other = Identity::new(PARTITION, "bob");
    let refused = server
        .try_round(&other, Ask::new().push("k2", vec![delete("n1")]))
        .await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidClientId);
}

impl TestServer {
    /// Whom the client of these tests belongs to in the database.
    async fn bound_to(&self) -> Option<String> {
        let client = ClientId::new("c1");
        let record = self.store.find_client(&partition(), &client).await.unwrap();
        record.map(|record| record.actor.to_string())
    }
}

#[tokio::test]
async fn a_new_client_is_bound_before_its_first_answer_ends_and_a_known_one_costs_no_write() {
    let server = TestServer::start().await;
    server.round(Ask::pull([all_notes()])).await;
    let actor = identity().actor.to_string();
    assert_eq!(server.bound_to().await, Some(actor));
    let before = server.store.activity_writes();
    for _ in 0..3 {
        server.round(Ask::pull([all_notes()])).await;
    }
    assert_eq!(server.store.activity_writes(), before);
}

#[tokio::test]
async fn commits_that_come_together_bind_their_client_without_a_second_write() {
    let server = TestServer::start().await;
    server.push("k1", vec![upsert("n1", "t1", "a", None)]).await;
    let actor = identity().actor.to_string();
    assert_eq!(server.bound_to().await, Some(actor));
    assert_eq!(server.store.activity_writes(), 0);
}

#[tokio::test]
async fn a_client_that_could_not_be_bound_is_bound_by_its_commit() {
    let server = TestServer::start().await;
    server.store.fail_upkeep(2);
    let refused = server.refusal(Ask::pull([all_notes()])).await;
    assert_eq!(refused.code, ErrorCode::InternalError);
    assert_eq!(server.bound_to().await, None);
    // Its record is gathered and not written.
    server.push("k1", vec![upsert("n1", "t1", "a", None)]).await;
    let actor = identity().actor.to_string();
    assert_eq!(server.bound_to().await, Some(actor));
}

#[tokio::test]
async fn outcomes_outlive_a_rotation_of_the_epoch_but_only_for_their_author() {
    let server = TestServer::start().await;
    server.push("k1", vec![upsert("n1", "t1", "a", None)]).await;
    server.engine.rotate_epoch(&partition()).await.unwrap();
    assert_eq!(
        server.push("k1", vec![upsert("n1", "t1", "a", None)]).await,
        "cached 1"
    );

    server.engine.rotate_epoch(&partition()).await.unwrap();
    // The rotation dropped the binding, so the id is free; the outcome is not.
    let other = Identity::new(PARTITION, "bob");
    let ask = Ask::new().push("k1", vec![upsert("n1", "t1", "a", None)]);
    let refused: RoundError = server.try_round(&other, ask).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidClientId);
}

#[tokio::test]
async fn a_push_and_a_pull_in_one_request_deliver_the_push() {
    let server = TestServer::start().await;
    server.push("k0", vec![delete("x")]).await;
    let ask = Ask::new()
        .push("k1", vec![upsert("n1", "t1", "a", None)])
        .and_pull([subscription("s", "notes", &[("team_id", &["t1"])], 1)]);
    let answer = server.round(ask).await;
    assert_eq!(answer.section().commits[0].commit_seq, 2);
    assert_eq!(answer.section().next_cursor(), 2);
}

#[tokio::test]
async fn a_closed_engine_refuses_pushes_and_clients_retry() {
    let server = TestServer::start().await;
    server.engine.close().await.unwrap();
    let error = server
        .refusal(Ask::new().push("k1", vec![delete("n1")]))
        .await;
    assert!(error.code.is_retryable());
}

#[tokio::test]
async fn a_round_that_is_given_up_does_not_undo_its_push() {
    let server = TestServer::start().await;
    // Registers the partition, so that the round below reaches its lane at the first poll.
    server.round(Ask::pull([])).await;
    let ask = Ask::new().push("k1", vec![upsert("n1", "t1", "a", None)]);
    {
        let author = identity();
        let round = server.try_round(&author, ask);
        tokio::pin!(round);
        let mut followed = server.engine.follow_commits();
        tokio::select! {
            biased;
            event = followed.recv() => assert_eq!(event.unwrap().commit_seq().get(), 1),
            _ = &mut round => {}
        }
    }
    assert_eq!(
        server.push("k1", vec![upsert("n1", "t1", "a", None)]).await,
        "cached 1"
    );
}
