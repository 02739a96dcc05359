//! Copies are made once, read while they grow, and bounded.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt as _, future::join_all};
use http_body_util::BodyExt as _;
use tidewater_engine::RoundError;
use tidewater_model::ErrorCode;
use tidewater_objects::ObjectStream;
use tokio::sync::mpsc;

use super::*;
use crate::quota::Quota;

fn copies(memory: u64, disk: u64) -> Arc<Copies> {
    Copies::new(TransferConfig {
        copies_memory_bytes_max: memory,
        copies_disk_bytes_max: disk,
        ..TransferConfig::default()
    })
}

fn share() -> Share {
    Quota::new(1).take(1).unwrap()
}

/// Bytes that compress, but not to nothing.
fn sample(length: usize) -> Bytes {
    let numbers = (0u32..).flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 20).to_le_bytes());
    numbers.take(length).collect()
}

/// Opens `bytes` and counts how often.
fn opener(bytes: &Bytes, opened: &Arc<AtomicU64>) -> impl FnOnce() -> Opening + Send + 'static {
    let (bytes, opened) = (bytes.clone(), Arc::clone(opened));
    move || {
        opened.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { Ok(ObjectStream::from_bytes(&bytes, None)) })
    }
}

fn length(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap()
}

async fn copy(copies: &Arc<Copies>, id: &str, coding: Coding, bytes: &Bytes) -> Option<Vec<u8>> {
    let open = opener(bytes, &Arc::default());
    let body = copies.body(id, coding, length(bytes), share(), open).await;
    let body = body.ok()?;
    Some(body.collect().await.unwrap().to_bytes().to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_gets_the_one_copy_and_its_object_is_opened_once() {
    for size in [50_000, 3_000_000] {
        let copies = copies(1 << 24, 1 << 24);
        let (bytes, opened) = (sample(size), Arc::new(AtomicU64::new(0)));
        let asked = (0..50).map(|_| {
            let open = opener(&bytes, &opened);
            let body = copies.body("a", Coding::Zstd, length(&bytes), share(), open);
            async { body.await.ok().unwrap().collect().await.unwrap().to_bytes() }
        });
        for body in join_all(asked).await {
            assert!(zstd::decode_all(&body[..]).unwrap() == bytes);
        }
        assert_eq!((opened.load(Ordering::SeqCst), copies.made()), (1, 1));
    }
}

#[tokio::test]
async fn each_coding_has_a_copy_of_its_own() {
    let copies = copies(1 << 24, 1 << 24);
    let bytes = sample(2_000_000);
    let gzip = copy(&copies, "a", Coding::Gzip, &bytes).await.unwrap();
    let zstd = copy(&copies, "a", Coding::Zstd, &bytes).await.unwrap();
    let mut decoded = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(&gzip[..]);
    io::Read::read_to_end(&mut decoder, &mut decoded).unwrap();
    assert!(decoded == bytes && zstd::decode_all(&zstd[..]).unwrap() == bytes);
    assert_eq!(copies.made(), 2);
}

#[tokio::test]
async fn what_is_done_has_a_length_and_what_grows_is_read_at_once() {
    let copies = copies(1 << 24, 1 << 24);
    let bytes = sample(4_000_000);
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    let total = length(&bytes);
    let open = move || -> Opening {
        let chunks = stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|chunk| (Ok(chunk), receiver))
        });
        Box::pin(async move { Ok(ObjectStream::new(total, 0..total, chunks.boxed())) })
    };
    let mut rest = bytes.clone();
    let half = rest.split_to(2_000_000);
    sender.send(half).await.unwrap();
    let asked = copies.body("a", Coding::Zstd, total, share(), open);
    let mut body = asked.await.ok().unwrap();
    assert_eq!(http_body::Body::size_hint(&body).exact(), None);
    // Half of the object has not come, and the client reads already.
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(!first.is_empty());
    // Who leaves does not end it.
    drop(body);
    sender.send(rest).await.unwrap();
    drop(sender);
    let encoded = copy(&copies, "a", Coding::Zstd, &bytes).await.unwrap();
    assert!(zstd::decode_all(&encoded[..]).unwrap() == bytes);
    let open = opener(&bytes, &Arc::default());
    let again = copies.body("a", Coding::Zstd, total, share(), open);
    let hint = http_body::Body::size_hint(&again.await.ok().unwrap());
    assert_eq!(hint.exact(), u64::try_from(encoded.len()).ok());
    assert_eq!(copies.made(), 1);
}

#[tokio::test]
async fn the_copy_that_was_not_asked_for_the_longest_makes_room() {
    let bytes = sample(50_000);
    let roomy = copies(1 << 24, 0);
    let one = copy(&roomy, "a", Coding::Zstd, &bytes).await.unwrap().len();
    // Room for one, and for another in the making.
    let room = u64::try_from(one).unwrap() + 52_000;
    let copies = copies(room, 0);
    for id in ["a", "b", "a", "c", "a"] {
        copy(&copies, id, Coding::Zstd, &bytes).await.unwrap();
    }
    assert_eq!(copies.made(), 3);
    copy(&copies, "b", Coding::Zstd, &bytes).await.unwrap();
    assert_eq!(copies.made(), 4);
}

#[tokio::test]
async fn what_does_not_fit_has_no_copy() {
    let bytes = sample(2_000_000);
    let none = copies(1 << 24, 0);
    assert!(copy(&none, "a", Coding::Zstd, &bytes).await.is_none());
    let little = copies(0, 1_999_999);
    assert!(copy(&little, "a", Coding::Zstd, &bytes).await.is_none());
    assert!(
        copy(&little, "b", Coding::Zstd, &sample(5_000))
            .await
            .is_none()
    );
}

#[tokio::test]
async fn a_failure_is_nobodys_copy_and_the_next_one_who_asks_has_it_made() {
    for size in [50_000, 2_000_000] {
        let copies = copies(1 << 24, 1 << 24);
        let bytes = sample(size);
        let failing =
            || -> Opening { Box::pin(async { Err(RoundError::new(ErrorCode::NotFound, "gone")) }) };
        let body = copies.body("a", Coding::Zstd, length(&bytes), share(), failing);
        assert!(body.await.is_err());
        // Files have a rest after a failure; memory does not.
        *copies.disk_failed_at.lock() = None;
        let encoded = copy(&copies, "a", Coding::Zstd, &bytes).await.unwrap();
        assert!(zstd::decode_all(&encoded[..]).unwrap() == bytes);
    }
}
