//! The serve gate, read inside each pull and push (§2.4).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidewater_model::ErrorCode;
use tidewater_schema::Schema;
use tidewater_store::{CheckpointOutcome, Store};
use tidewater_wire::{Operation, OperationAction, SubStatus};

use super::notes;
use crate::{
    EngineConfig, Readiness, RoundError,
    testing::{Ask, SCHEMA, TestServer, note, partition},
};

const LEASE: Duration = Duration::from_secs(60);

async fn declaring(name: &str) -> TestServer {
    TestServer::start_with(EngineConfig {
        declared_checkpoints: BTreeSet::from([name.to_owned()]),
        ..EngineConfig::default()
    })
    .await
}

/// A delete of nothing: whatever is decided about it, it needs a write transaction.
fn push(id: &str) -> Ask {
    let operation = Operation {
        table: "notes".into(),
        row_id: "nothing".into(),
        action: OperationAction::Delete,
        base_version: None,
    };
    Ask::new().push(id, vec![operation])
}

#[track_caller]
fn check(error: &RoundError, details: &str) {
    assert_eq!(error.code, ErrorCode::SchemaNotReady);
    assert_eq!(error.message, "server schema is not ready for this request");
    assert_eq!(error.details.as_deref(), Some(details));
}

#[tokio::test]
async fn a_pending_checkpoint_is_served_by_whoever_declares_it() {
    let details = r#"{"partition":"p1","projection":"titles"}"#;
    for (declared, served) in [("titles", true), ("others", false)] {
        let server = declaring(declared).await;
        server.commit(&[note("n1", "t1", "one")]).await;
        let (engine, here) = (&server.engine, partition());
        engine
            .declare_checkpoint(&partition(), "titles")
            .await
            .unwrap();
        if served {
            let answer = server.round(push("c1").and_pull([notes(0)])).await;
            assert_eq!(answer.sections[0].commits.len(), 1);
            continue;
        }
        // The log, a page, a push: each reads the gate with what it reads.
        for ask in [Ask::pull([notes(0)]), Ask::pull([notes(-1)]), push("c1")] {
            check(&server.refusal(ask).await, details);
        }
        // It is the partition that is closed, not the server.
        let elsewhere = crate::Identity::new("p2", "ann");
        server.commit_to("p2", &[note("n1", "t1", "one")]).await;
        server
            .try_round(&elsewhere, Ask::pull([notes(0)]))
            .await
            .unwrap();

        let claim = engine.claim_checkpoint(&here, "titles", LEASE);
        let claimed = claim.await.unwrap().unwrap();
        let again = engine.claim_checkpoint(&here, "titles", LEASE);
        assert_eq!(again.await.unwrap(), None, "somebody has it");
        engine.fence_writers(&partition()).await.unwrap();
        let seen = server.commit(&[note("n2", "t1", "two")]).await;
        let watermark = tidewater_model::CommitSeq::from_i64(seen).unwrap();
        let advanced = engine.advance_checkpoint(&claimed, watermark, 2, LEASE);
        assert!(advanced.await.unwrap());
        let pending = vec!["titles".to_owned()];
        let readiness = engine.readiness().await.unwrap();
        assert_eq!(readiness, Readiness::Ready { pending });
        let outcome = engine.activate_checkpoint(&claimed).await.unwrap();
        assert_eq!(outcome, CheckpointOutcome::Done);
        let answer = server.round(push("c1").and_pull([notes(0)])).await;
        assert_eq!(answer.sections[0].start.status, SubStatus::Active);
    }
}

#[tokio::test]
async fn a_fence_above_the_running_version_stops_pushes_and_lets_pulls_go_on() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "one")]).await;
    server.store.raise_fence(&partition(), 3).await.unwrap();
    server.round(push("c1")).await;
    server.store.raise_fence(&partition(), 4).await.unwrap();
    let details = r#"{"storedSchemaVersion":4,"runningSchemaVersion":3}"#;
    check(&server.refusal(push("c2")).await, details);
    let answer = server.round(Ask::pull([notes(0)])).await;
    assert_eq!(answer.sections[0].commits.len(), 1);
}

#[tokio::test]
async fn a_server_whose_database_was_migrated_by_another_serves_and_writes_nothing_more() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "one")]).await;
    let newer = SCHEMA.replace("\"schemaVersion\": 3", "\"schemaVersion\": 4");
    let newer = Arc::new(Schema::from_json(&newer).unwrap());
    server.store.prepare(&newer).await.unwrap();
    let details = r#"{"storedSchemaVersion":4,"runningSchemaVersion":3}"#;
    for ask in [Ask::pull([notes(0)]), Ask::pull([notes(-1)]), push("c1")] {
        check(&server.refusal(ask).await, details);
    }
    let readiness = server.engine.readiness().await.unwrap();
    assert_eq!(readiness, Readiness::OtherSchema { stored: 4 });
    let found = server.store.find_partition(&partition()).await.unwrap();
    assert_eq!(found.unwrap().head.get(), 1);
}

#[tokio::test]
async fn a_gate_that_closes_between_push_and_pull_ends_the_response_with_an_error() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "one")]).await;
    server.store.before_next_read(|store| async move {
        let key = tidewater_store::CheckpointKey {
            partition: partition(),
            name: "titles".to_owned(),
        };
        let declare = tidewater_store::CheckpointChange::Declare { schema_version: 3 };
        store.change_checkpoint(&key, declare).await.unwrap();
    });
    let answer = server.round(push("c1").and_pull([notes(0)])).await;
    assert_eq!(answer.results.len(), 1, "what was pushed is told");
    let error = answer.error.unwrap();
    assert_eq!(error.code, "sync.schema_not_ready");
    assert!(answer.sections.is_empty());
}
