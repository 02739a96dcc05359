//! What happens beside a read: pruning, rotation, migration, a store that lags (§2.4, §4.5).

use std::sync::Arc;

use tidewater_model::{HorizonSeq, LogEpoch};
use tidewater_schema::Schema;
use tidewater_store::{MemoryStore, Store};
use tidewater_wire::Subscription;

use super::{check_active, check_reset, notes, pages, resumed};
use crate::testing::{Ask, SCHEMA, TestServer, note, partition, seq};

async fn with_commits(count: i64) -> TestServer {
    let server = TestServer::start().await;
    for number in 0..count {
        server
            .commit(&[note(&format!("n{number}"), "t1", "")])
            .await;
    }
    server
}

/// Prunes as another process would: this one is not told.
async fn prune_elsewhere(store: MemoryStore, horizon: i64) {
    let epoch = store
        .find_partition(&partition())
        .await
        .unwrap()
        .unwrap()
        .log_epoch;
    store
        .prune(&partition(), &epoch, HorizonSeq::at(seq(horizon)))
        .await
        .unwrap();
}

async fn rotate_elsewhere(store: MemoryStore) {
    store
        .rotate_epoch(&partition(), &LogEpoch::new("e2"), 0)
        .await
        .unwrap();
}

async fn migrate_elsewhere(store: MemoryStore) {
    let newer = SCHEMA.replace("\"schemaVersion\": 3", "\"schemaVersion\": 4");
    store
        .prepare(&Arc::new(Schema::from_json(&newer).unwrap()))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_subscription_that_has_everything_does_not_touch_the_store() {
    let server = with_commits(3).await;
    let answer = server.round(Ask::pull([notes(3)])).await;
    check_active(answer.section(), false);
    assert_eq!(answer.section().next_cursor(), 3);
    assert_eq!(server.store.reads(), 0);
}

#[tokio::test]
async fn a_horizon_that_passes_the_cursor_before_the_read_resets() {
    let server = with_commits(3).await;
    server
        .store
        .before_next_read(|store| prune_elsewhere(store, 2));
    let answer = server.round(Ask::pull([notes(1)])).await;
    check_reset(answer.section(), 1);
}

#[tokio::test]
async fn a_horizon_at_the_cursor_before_the_read_does_not_reset() {
    let server = with_commits(3).await;
    server
        .store
        .before_next_read(|store| prune_elsewhere(store, 1));
    let answer = server.round(Ask::pull([notes(1)])).await;
    check_active(answer.section(), false);
    assert_eq!(answer.section().commits.len(), 2);
}

#[tokio::test]
async fn a_horizon_that_passes_the_pin_before_the_first_page_raises_it_or_resets() {
    let server = TestServer::without_images().await;
    for id in ["n0", "n1", "n2"] {
        server.commit(&[note(id, "t1", "")]).await;
    }
    let scoped =
        |subscription: Subscription| Ask::pull([subscription]).limited(0, 2, 1).accepting(0b0111);
    server.commit(&[note("x", "t2", "")]).await;
    let answer = server.round(scoped(notes(-1))).await;
    assert_eq!(answer.section().next_cursor(), 3);
    let token = answer.section().token().unwrap().to_owned();

    server
        .store
        .before_next_read(|store| prune_elsewhere(store, 4));
    let answer = server.round(scoped(resumed(Some(&token), 3))).await;
    check_reset(answer.section(), 3);
    let answer = server.round(scoped(notes(-1))).await;
    check_active(answer.section(), true);
    assert_eq!(answer.section().next_cursor(), 4);
}

#[tokio::test]
async fn a_horizon_that_passes_the_pin_between_two_pages_changes_nothing() {
    let server = with_commits(3).await;
    let token = r#"{"asOfCommitSeq":1,"tables":["notes"],"tableIndex":0,"rowCursor":null}"#;
    server
        .store
        .before_read_after(1, |store| prune_elsewhere(store, 2));
    let answer = server
        .round(Ask::pull([resumed(Some(token), 1)]).limited(0, 1, 3))
        .await;
    check_active(answer.section(), true);
    assert_eq!(pages(&server, answer.section()).len(), 3);
    assert_eq!(
        (answer.section().next_cursor(), answer.section().token()),
        (1, None)
    );
    // The client fetched current rows and cannot replay from its pin: legal, and repaired.
    let answer = server.round(Ask::pull([notes(1)])).await;
    check_reset(answer.section(), 1);
}

#[tokio::test]
async fn a_log_that_was_rotated_elsewhere_is_refused_and_then_reset() {
    for cursor in [0, -1] {
        let server = with_commits(2).await;
        let epoch = server.epoch().await;
        server.store.before_next_read(rotate_elsewhere);
        let error = server.refusal(Ask::pull([notes(cursor)])).await;
        assert_eq!(error.code.as_str(), "sync.schema_not_ready");
        assert_eq!(error.message, "server schema is not ready for this request");
        assert_eq!(
            error.details.as_deref(),
            Some(r#"{"logEpochChanged":true}"#)
        );
        let answer = server
            .round(Ask::pull([notes(cursor)]).of_epoch(&epoch))
            .await;
        assert!(answer.header.reset_required);
        assert_eq!(answer.header.log_epoch, "e2");
        assert!(answer.sections.is_empty());
    }
}

#[tokio::test]
async fn a_database_that_was_migrated_elsewhere_is_refused() {
    for cursor in [0, -1] {
        let server = with_commits(2).await;
        server.store.before_next_read(migrate_elsewhere);
        let error = server.refusal(Ask::pull([notes(cursor)])).await;
        assert_eq!(error.code.as_str(), "sync.schema_not_ready");
        let details: serde_json::Value = serde_json::from_str(&error.details.unwrap()).unwrap();
        let expected = serde_json::json!({"storedSchemaVersion": 4, "runningSchemaVersion": 3});
        assert_eq!(details, expected);
    }
}

#[tokio::test]
async fn a_store_that_lags_behind_what_was_acknowledged_is_refused() {
    for cursor in [0, -1] {
        let server = with_commits(2).await;
        server.engine.partitions.advance_head(&partition(), seq(3));
        let error = server.refusal(Ask::pull([notes(cursor)])).await;
        assert_eq!(error.code.as_str(), "sync.storage_stale_read");
    }
}

#[tokio::test]
async fn a_refusal_after_the_first_section_ends_the_response_with_an_error() {
    let server = with_commits(2).await;
    server.store.before_read_after(1, migrate_elsewhere);
    // More than one piece, so the first has left when the second read is refused.
    let body = "x".repeat(100_000);
    server.commit(&[note("large", "t1", &body)]).await;
    let second = Subscription {
        id: "second".into(),
        ..notes(0)
    };
    let answer = server.round(Ask::pull([notes(0), second])).await;
    assert_eq!(answer.sections.len(), 1);
    assert_eq!(answer.sections[0].next_cursor(), 3);
    let error = answer.error.unwrap();
    assert_eq!(
        (&*error.code, error.retryable),
        ("sync.schema_not_ready", true)
    );
}
