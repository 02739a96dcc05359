//! Promises of a blob store.

#![expect(missing_docs, reason = "cases say in their names what they check")]

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tidewater_model::PartitionId;
use tidewater_wire::content_address;

use crate::{BlobStore, BlobUsage, HOLD_MS, NewBlob, ObjectError, ObjectErrorKind, PutBlob};

/// A time at which nothing has happened yet.
const NOW_MS: i64 = 1_000 * HOLD_MS;

const NO_BOUND: u64 = u64::MAX;

fn partition() -> PartitionId {
    PartitionId::new("p1")
}

async fn put_in(
    store: &impl BlobStore,
    partition: &PartitionId,
    content: &'static str,
    now_ms: i64,
) -> (String, PutBlob) {
    let bytes = Bytes::from_static(content.as_bytes());
    let id = content_address(&bytes);
    let blob = NewBlob::from_bytes(partition.clone(), &*id, bytes);
    let put = store.put(blob, now_ms).await.unwrap();
    (id, put)
}

async fn put(store: &impl BlobStore, content: &'static str, now_ms: i64) -> String {
    put_in(store, &partition(), content, now_ms).await.0
}

async fn read(store: &impl BlobStore, partition: &PartitionId, id: &str) -> Option<Bytes> {
    let stream = store.open(partition, id, None).await.unwrap()?;
    Some(stream.collect(usize::MAX).await.unwrap())
}

async fn holds(store: &impl BlobStore, id: &str, now_ms: i64) -> bool {
    let missing = store.hold(&partition(), &[id], NO_BOUND, now_ms).await;
    missing.unwrap().is_empty()
}

/// Removes what was not used for so long.
async fn removes(store: &impl BlobStore, id: &str, unused_ms: i64, now_ms: i64) -> bool {
    store
        .remove(&partition(), id, now_ms - unused_ms, now_ms)
        .await
        .unwrap()
}

const DAY_MS: i64 = 24 * HOLD_MS;

pub async fn a_blob_reads_back_as_it_was_put(store: &impl BlobStore) {
    let bytes = Bytes::from_static(b"hello");
    let id = content_address(&bytes);
    let mut blob = NewBlob::from_bytes(partition(), &*id, bytes.clone());
    blob.media_type = Some("text/plain".to_owned());
    blob.bytes_max = 5;
    let put = store.put(blob, NOW_MS).await.unwrap();
    assert!(put.is_new);
    assert_eq!(put.record.id, id);
    assert_eq!(
        (put.record.byte_length, put.record.created_at_ms),
        (5, NOW_MS)
    );
    assert_eq!(put.record.media_type.as_deref(), Some("text/plain"));
    let head = store.head(&partition(), &id).await.unwrap();
    assert_eq!(head, Some(put.record));
    assert_eq!(read(store, &partition(), &id).await, Some(bytes));
}

pub async fn a_blob_belongs_to_one_partition(store: &impl BlobStore) {
    let other = PartitionId::new("p2");
    let id = put(store, "hello", NOW_MS).await;
    assert_eq!(store.head(&other, &id).await.unwrap(), None);
    assert_eq!(read(store, &other, &id).await, None);
    let missing = store.hold(&other, &[&id], NO_BOUND, NOW_MS).await.unwrap();
    assert_eq!(missing, [&*id]);
    let (_, put) = put_in(store, &other, "hello", NOW_MS).await;
    assert!(put.is_new);
}

pub async fn putting_a_blob_again_keeps_its_first_record(store: &impl BlobStore) {
    let (_, first) = put_in(store, &partition(), "hello", NOW_MS).await;
    for later in [1, DAY_MS] {
        let (_, again) = put_in(store, &partition(), "hello", NOW_MS + later).await;
        assert!(!again.is_new);
        assert_eq!(again.record, first.record);
    }
    let usage = store.usage(&partition()).await.unwrap();
    assert_eq!(usage, BlobUsage { blobs: 1, bytes: 5 });
}

async fn check_refused(
    store: &impl BlobStore,
    blob: NewBlob,
    expected: ObjectErrorKind,
) -> ObjectError {
    let id = blob.id.clone();
    let error = store.put(blob, NOW_MS).await.unwrap_err();
    assert_eq!(error.kind, expected, "{error}");
    assert_eq!(store.head(&partition(), &id).await.unwrap(), None);
    assert_eq!(read(store, &partition(), &id).await, None);
    assert!(!holds(store, &id, NOW_MS).await);
    error
}

pub async fn content_that_is_not_what_its_address_says_is_not_stored(store: &impl BlobStore) {
    let right = content_address(b"right");
    for wrong in ["wrong", "", "righ", "right!"] {
        let bytes = Bytes::from_static(wrong.as_bytes());
        let blob = NewBlob::from_bytes(partition(), &*right, bytes);
        check_refused(store, blob, ObjectErrorKind::ContentMismatch).await;
    }
    // Nor is it told that the blob is there already.
    put(store, "right", NOW_MS).await;
    let wrong = NewBlob::from_bytes(partition(), &*right, Bytes::from_static(b"wrong"));
    let error = store.put(wrong, NOW_MS).await.unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::ContentMismatch);
    assert_eq!(
        read(store, &partition(), &right).await.unwrap(),
        &b"right"[..]
    );
}

pub async fn content_above_its_bound_is_not_stored(store: &impl BlobStore) {
    let bytes = Bytes::from_static(b"hello");
    let mut blob = NewBlob::from_bytes(partition(), content_address(&bytes), bytes);
    blob.bytes_max = 4;
    check_refused(store, blob, ObjectErrorKind::TooLarge).await;
}

pub async fn content_that_is_interrupted_is_not_stored(store: &impl BlobStore) {
    for length in [5, LARGE] {
        let bytes = large().slice(..length);
        let mut blob = NewBlob::from_bytes(partition(), content_address(&bytes), Bytes::new());
        let end = stream::iter([Ok(bytes), Err("the client is gone".into())]);
        blob.body = end.boxed();
        check_refused(store, blob, ObjectErrorKind::Interrupted).await;
    }
}

/// More than any part of an upload.
const LARGE: usize = 9 * 1024 * 1024 + 17;

fn large() -> Bytes {
    let bytes = (0..LARGE).map(|position| u8::try_from(position * 7 % 251).unwrap());
    bytes.collect()
}

pub async fn a_large_blob_is_stored_whole_or_not_at_all(store: &impl BlobStore) {
    let bytes = large();
    let id = content_address(&bytes);
    let in_chunks = |bytes: &Bytes| {
        let mut rest = bytes.clone();
        let chunks = std::iter::from_fn(move || {
            (!rest.is_empty()).then(|| Ok(rest.split_to(rest.len().min(100_000))))
        });
        stream::iter(chunks.collect::<Vec<_>>()).boxed()
    };
    let mut wrong = bytes.to_vec();
    wrong[LARGE - 1] ^= 1;
    let mut blob = NewBlob::from_bytes(partition(), &*id, Bytes::new());
    blob.body = in_chunks(&wrong.into());
    check_refused(store, blob, ObjectErrorKind::ContentMismatch).await;

    let mut blob = NewBlob::from_bytes(partition(), &*id, Bytes::new());
    blob.body = in_chunks(&bytes);
    let put = store.put(blob, NOW_MS).await.unwrap();
    assert_eq!(put.record.byte_length, u64::try_from(LARGE).unwrap());
    let head = store.head(&partition(), &id).await.unwrap();
    assert_eq!(head, Some(put.record));
    assert!(read(store, &partition(), &id).await.unwrap() == bytes);
}

pub async fn a_blob_may_be_empty(store: &impl BlobStore) {
    let id = put(store, "", NOW_MS).await;
    assert_eq!(read(store, &partition(), &id).await, Some(Bytes::new()));
}

pub async fn a_range_is_cut_at_the_end(store: &impl BlobStore) {
    let id = put(store, "0123456789", NOW_MS).await;
    for (range, expected) in [
        (0..10, &b"0123456789"[..]),
        (2..4, b"23"),
        (8..100, b"89"),
        (10..11, b""),
        (4..4, b""),
        (u64::MAX - 1..u64::MAX, b""),
    ] {
        let stream = store.open(&partition(), &id, Some(range)).await;
        let stream = stream.unwrap().unwrap();
        assert_eq!(stream.total_length(), 10);
        assert_eq!(stream.collect(10).await.unwrap(), expected);
    }
}

pub async fn what_is_no_address_is_unknown(store: &impl BlobStore) {
    for id in ["", "sha256:", "sha256:../../etc", "x", "sha256:AB"] {
        assert_eq!(store.head(&partition(), id).await.unwrap(), None);
        assert!(store.open(&partition(), id, None).await.unwrap().is_none());
        assert!(!holds(store, id, NOW_MS).await);
        assert!(!removes(store, id, DAY_MS, NOW_MS).await);
        let blob = NewBlob::from_bytes(partition(), id, Bytes::new());
        let error = store.put(blob, NOW_MS).await.unwrap_err();
        assert_eq!(error.kind, ObjectErrorKind::ContentMismatch);
    }
}

pub async fn holding_names_what_is_missing(store: &impl BlobStore) {
    let there = put(store, "there", NOW_MS).await;
    let (b, a) = (content_address(b"b"), content_address(b"a"));
    let ids = [&*b, &there, &a, &there];
    let missing = store.hold(&partition(), &ids, NO_BOUND, NOW_MS).await;
    assert_eq!(missing.unwrap(), [&*b, &a]);
    let nothing = store.hold(&partition(), &[], NO_BOUND, NOW_MS).await;
    assert!(nothing.unwrap().is_empty());
    let many = vec![&*there; crate::HELD_BLOBS_MAX + 1];
    let error = store.hold(&partition(), &many, NO_BOUND, NOW_MS).await;
    assert_eq!(error.unwrap_err().kind, ObjectErrorKind::TooLarge);
}

pub async fn an_old_blob_is_removed_once(store: &impl BlobStore) {
    let id = put(store, "old", NOW_MS).await;
    // Strictly older than the time, by its age when it was stored.
    assert!(!removes(store, &id, DAY_MS, NOW_MS + DAY_MS).await);
    assert!(removes(store, &id, DAY_MS, NOW_MS + DAY_MS + 1).await);
    assert!(!removes(store, &id, DAY_MS, NOW_MS + DAY_MS + 1).await);
    assert_eq!(store.head(&partition(), &id).await.unwrap(), None);
    assert_eq!(read(store, &partition(), &id).await, None);
    assert!(!holds(store, &id, NOW_MS + DAY_MS + 2).await);
}

pub async fn a_young_blob_is_not_removed(store: &impl BlobStore) {
    let id = put(store, "young", NOW_MS).await;
    // Whatever the grace period is.
    assert!(!removes(store, &id, 0, NOW_MS + 2 * HOLD_MS).await);
    assert!(removes(store, &id, 0, NOW_MS + 2 * HOLD_MS + 1).await);
}

pub async fn a_held_blob_is_not_removed(store: &impl BlobStore) {
    let held = put(store, "held", NOW_MS).await;
    let uploaded = put(store, "uploaded", NOW_MS).await;
    let later = NOW_MS + 2 * DAY_MS;
    assert!(holds(store, &held, later).await);
    assert_eq!(put(store, "uploaded", later).await, uploaded);
    for id in [&held, &uploaded] {
        assert!(!removes(store, id, DAY_MS, later).await);
        assert!(!removes(store, id, DAY_MS, later + HOLD_MS).await);
        assert!(!removes(store, id, 0, later + HOLD_MS).await);
        // The record is still the first one.
        let head = store.head(&partition(), id).await.unwrap().unwrap();
        assert_eq!(head.created_at_ms, NOW_MS);
        assert!(removes(store, id, DAY_MS, later + DAY_MS + HOLD_MS).await);
    }
}

pub async fn a_blob_is_removed_from_its_partition_only(store: &impl BlobStore) {
    let other = PartitionId::new("p2");
    let id = put(store, "both", NOW_MS).await;
    put_in(store, &other, "both", NOW_MS).await;
    assert!(removes(store, &id, DAY_MS, NOW_MS + 2 * DAY_MS).await);
    assert!(read(store, &other, &id).await.is_some());
}

pub async fn a_removed_blob_can_be_put_again(store: &impl BlobStore) {
    let id = put(store, "again", NOW_MS).await;
    let later = NOW_MS + 2 * DAY_MS;
    assert!(removes(store, &id, DAY_MS, later).await);
    let (_, put) = put_in(store, &partition(), "again", later + 1).await;
    assert!(put.is_new);
    assert_eq!(put.record.created_at_ms, later + 1);
    assert!(!removes(store, &id, DAY_MS, later + 2).await);
    assert!(holds(store, &id, later + 2).await);
}

pub async fn holding_or_removing_wins_and_never_both(store: &impl BlobStore) {
    for round in 0..40 {
        let now_ms = NOW_MS + round * 10 * DAY_MS;
        let id = put(store, "contended", now_ms).await;
        let later = now_ms + 2 * DAY_MS;
        let ids = [&*id];
        let place = partition();
        let hold = store.hold(&place, &ids, NO_BOUND, later);
        let remove = store.remove(&place, &id, later - DAY_MS, later);
        let (missing, is_removed) = futures_util::join!(hold, remove);
        let is_removed = is_removed.unwrap();
        match missing {
            Ok(missing) => assert_eq!(missing.is_empty(), !is_removed, "round {round}"),
            // It cannot be known yet.
            Err(error) => assert!(error.is_retryable() && is_removed, "{error}"),
        }
        let is_there = read(store, &place, &id).await.is_some();
        assert_eq!(is_there, !is_removed, "round {round}");
        // Nothing is left that is in the way of the next round.
        if is_there {
            assert!(removes(store, &id, DAY_MS, later + 2 * DAY_MS).await);
        }
    }
}

pub async fn blobs_are_listed_in_order_page_by_page(store: &impl BlobStore) {
    let contents = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"];
    let mut expected = Vec::new();
    for content in contents {
        expected.push(put(store, content, NOW_MS).await);
    }
    put_in(store, &PartitionId::new("p"), "x", NOW_MS).await;
    put_in(store, &PartitionId::new("p11"), "x", NOW_MS).await;
    expected.sort_unstable();
    let mut listed: Vec<String> = Vec::new();
    loop {
        let after = listed.last().map(String::as_str);
        let page = store.list(&partition(), after, 3).await.unwrap();
        assert!(page.len() <= 3);
        if page.is_empty() {
            break;
        }
        for record in page {
            assert_eq!(
                record.byte_length,
                store
                    .head(&partition(), &record.id)
                    .await
                    .unwrap()
                    .unwrap()
                    .byte_length
            );
            listed.push(record.id);
        }
    }
    assert_eq!(listed, expected);
    let usage = store.usage(&partition()).await.unwrap();
    assert_eq!((usage.blobs, usage.bytes), (7, 28));
}

pub async fn uploaders_at_once_store_one_blob(store: &impl BlobStore) {
    let uploads = (0..8).map(|_| put(store, "everybody has it", NOW_MS));
    let ids = futures_util::future::join_all(uploads).await;
    assert_eq!(
        read(store, &partition(), &ids[0]).await.unwrap(),
        &b"everybody has it"[..]
    );
    let usage = store.usage(&partition()).await.unwrap();
    assert_eq!(usage.blobs, 1);
}

pub async fn partitions_may_have_any_name(store: &impl BlobStore) {
    let names = [
        "", "/", "..", "a/b", "a/b/", "é %?#", "~", "~2e", "\u{1}\n", "a\\b", ".",
    ];
    for name in names {
        let place = PartitionId::new(name);
        let (id, put) = put_in(store, &place, "content", NOW_MS).await;
        assert!(put.is_new, "{name:?}");
        assert!(read(store, &place, &id).await.is_some(), "{name:?}");
        let listed = store.list(&place, None, 10).await.unwrap();
        assert_eq!(listed.len(), 1, "{name:?}");
        assert_eq!(listed[0].id, id);
        let usage = store.usage(&place).await.unwrap();
        assert_eq!(usage, BlobUsage { blobs: 1, bytes: 7 }, "{name:?}");
    }
}
