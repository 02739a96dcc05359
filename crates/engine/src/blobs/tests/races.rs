//! A sweep and a push that want the same blob, in every order that matters. None leaves a row
//! that references a blob which is not there.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::*;

/// A blob that is old enough to be swept.
async fn with_old_blob() -> (Arc<Blobs>, String) {
    let blobs = Arc::new(start().await);
    let blob_id = blobs.upload("a").await;
    blobs.server.clock.advance_ms(2 * DAY_MS);
    (blobs, blob_id)
}

fn push(blob_id: &str) -> Vec<Operation> {
    vec![photo("p", "t1", Some(blob_id), None)]
}

async fn is_referenced(blobs: &Blobs, blob_id: &str) -> bool {
    let asked = vec![blob_id.to_owned()];
    let answer = blobs.server.store.are_referenced(&partition(), asked).await;
    answer.unwrap()[0]
}

#[tokio::test]
async fn a_push_between_the_index_and_the_removal_keeps_its_blob() {
    let (blobs, blob_id) = with_old_blob().await;
    let (pushing, pushed) = (Arc::clone(&blobs), blob_id.clone());
    blobs.store.before_remove(async move {
        assert_eq!(pushing.push("m1", push(&pushed)).await, "applied");
    });
    assert_eq!(blobs.sweep().await, (1, 0, 0));
    assert!(blobs.is_there(&blob_id).await && is_referenced(&blobs, &blob_id).await);
}

#[tokio::test]
async fn a_sweep_between_the_hold_and_the_decision_removes_nothing() {
    let (blobs, blob_id) = with_old_blob().await;
    let sweeping = Arc::clone(&blobs);
    let ran = Arc::new(AtomicBool::new(false));
    let has_run = Arc::clone(&ran);
    blobs.store.after_hold(async move {
        assert_eq!(sweeping.sweep().await, (1, 0, 0));
        has_run.store(true, Ordering::SeqCst);
    });
    assert_eq!(blobs.push("m1", push(&blob_id)).await, "applied");
    assert!(ran.load(Ordering::SeqCst));
    assert!(blobs.is_there(&blob_id).await && is_referenced(&blobs, &blob_id).await);
}

#[tokio::test]
async fn a_push_after_the_removal_is_refused() {
    let (blobs, blob_id) = with_old_blob().await;
    assert_eq!(blobs.sweep().await, (1, 0, 1));
    assert_eq!(blobs.push("m1", push(&blob_id)).await, "0:blob.not_found");
    assert!(!is_referenced(&blobs, &blob_id).await);
}

#[tokio::test]
async fn a_push_that_is_decided_long_after_its_hold_fails_and_may_be_sent_again() {
    let (blobs, blob_id) = with_old_blob().await;
    let waiting = Arc::clone(&blobs);
    blobs.store.after_hold(async move {
        // As long as a removal spares what was held, and longer: then the sweep comes.
        waiting.server.clock.advance_ms(2 * DAY_MS);
        assert_eq!(waiting.sweep().await, (1, 0, 1));
    });
    let failed = blobs
        .server
        .refusal(Ask::new().push("m1", push(&blob_id)))
        .await;
    assert_eq!(failed.code, ErrorCode::InternalError);
    assert!(!is_referenced(&blobs, &blob_id).await);
    // Nothing was recorded under the id of the commit.
    blobs.upload("a").await;
    assert_eq!(blobs.push("m1", push(&blob_id)).await, "applied");
}

#[tokio::test]
async fn a_hold_that_is_still_good_outlives_any_sweep() {
    let (blobs, blob_id) = with_old_blob().await;
    let waiting = Arc::clone(&blobs);
    blobs.store.after_hold(async move {
        waiting.server.clock.advance_ms(HOUR_MS - 1);
        assert_eq!(waiting.sweep().await, (1, 0, 0));
    });
    assert_eq!(blobs.push("m1", push(&blob_id)).await, "applied");
    assert!(blobs.is_there(&blob_id).await);
}
