//! Segments and blobs in a bucket over HTTP, when it works and when it does not (§5.1, §5.9).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Method, StatusCode};
use tidewater_model::{CommitSeq, LogEpoch, PartitionId};
use tidewater_objects::{
    BackendLimits, BlobStore, NewBlob, NewSegment, ObjectError, ObjectErrorKind,
    PublicationContext, RemoteBlobs, RemoteSegments, SegmentKey, SegmentRecord, SegmentStore,
    SignedUrl,
    conformance::{Fixture, segments::LIFETIME_MS},
};
use tidewater_wire::{MediaType, content_address};

use crate::bucket::{Bucket, What};

mod conformance {
    use super::*;

    tidewater_objects::segment_store_conformance!({
        let bucket = Bucket::start().await;
        let store = RemoteSegments::new(bucket.backend(), LIFETIME_MS);
        Fixture::with_guard(store, bucket)
    });
    tidewater_objects::blob_store_conformance!({
        let bucket = Bucket::start().await;
        Fixture::with_guard(RemoteBlobs::new(bucket.backend()), bucket)
    });
}

const CONTENT: Bytes = Bytes::from_static(b"hello");
const NO_BOUND: u64 = u64::MAX;
const MINUTE: Duration = Duration::from_secs(60);

fn id() -> String {
    content_address(&CONTENT)
}

fn hex() -> String {
    id().trim_start_matches("sha256:").to_owned()
}

fn context(partition: &str) -> PublicationContext {
    PublicationContext {
        key: SegmentKey {
            partition: PartitionId::new(partition),
            log_epoch: LogEpoch::new("e1"),
            table: "notes".to_owned(),
            schema_version: 2,
            media_type: MediaType::Rows,
            scope_digest: "d1".to_owned(),
            as_of: CommitSeq::new(7).unwrap(),
        },
        row_cursor: None,
        next_row_cursor: None,
    }
}

fn segments(bucket: &Bucket) -> RemoteSegments {
    RemoteSegments::new(bucket.backend(), LIFETIME_MS)
}

fn blobs(bucket: &Bucket) -> RemoteBlobs {
    RemoteBlobs::new(bucket.backend())
}

async fn publish(
    store: &RemoteSegments,
    partition: &str,
) -> Result<Arc<SegmentRecord>, ObjectError> {
    let segment = NewSegment::from_bytes(context(partition), 1, CONTENT);
    store.publish(segment, 0).await
}

async fn is_found(store: &RemoteSegments, partition: &str) -> bool {
    let found = store.find(&context(partition).key, 0).await.unwrap();
    found.is_some()
}

fn partition() -> PartitionId {
    PartitionId::new("p1")
}

async fn put(store: &RemoteBlobs) -> Result<(), ObjectError> {
    let blob = NewBlob::from_bytes(partition(), id(), CONTENT);
    store.put(blob, 0).await.map(drop)
}

async fn is_held(store: &RemoteBlobs, bytes_max: u64) -> bool {
    let missing = store.hold(&partition(), &[&id()], bytes_max, 0).await;
    missing.unwrap().is_empty()
}

async fn read(store: &RemoteBlobs) -> Option<Bytes> {
    let stream = store.open(&partition(), &id(), None).await.unwrap()?;
    Some(stream.collect(100).await.unwrap())
}

#[tokio::test]
async fn a_bucket_that_fails_for_a_moment_is_asked_again() {
    let bucket = Bucket::start().await;
    let segments = segments(&bucket);
    let internal = What::Answer(StatusCode::INTERNAL_SERVER_ERROR);
    let unavailable = What::Answer(StatusCode::SERVICE_UNAVAILABLE);
    bucket.fail(Method::PUT, "/seg/", 1, internal);
    bucket.fail(Method::PUT, "/rec/", 2, unavailable);
    bucket.fail(Method::PUT, "/find/", 1, unavailable);
    publish(&segments, "p1").await.unwrap();
    bucket.fail(Method::GET, "/find/", 1, internal);
    bucket.fail(Method::HEAD, "/seg/", 2, unavailable);
    assert!(is_found(&segments, "p1").await);
    let blobs = blobs(&bucket);
    bucket.fail(Method::PUT, "/blob/", 2, internal);
    put(&blobs).await.unwrap();
    assert_eq!(read(&blobs).await, Some(CONTENT));
}

#[tokio::test]
async fn an_answer_that_is_lost_is_not_a_second_publication() {
    let bucket = Bucket::start().await;
    let store = segments(&bucket);
    let lost = What::DoAndAnswer(StatusCode::INTERNAL_SERVER_ERROR);
    bucket.fail(Method::PUT, "/seg/", 1, lost);
    bucket.fail(Method::PUT, "/rec/", 1, lost);
    let record = publish(&store, "p1").await.unwrap();
    assert_eq!(record.publications.len(), 1);
    bucket.fail(Method::PUT, "/rec/", 1, lost);
    let record = publish(&store, "p2").await.unwrap();
    assert_eq!(record.publications.len(), 2);
}

/// Checks that every operation ends in `Unavailable`, and how long all of them take.
async fn check_unavailable(bucket: &Bucket, limits: BackendLimits, longest: Duration) {
    let backend = bucket.backend_with("test-secret-key", limits);
    let segments = RemoteSegments::new(backend.clone(), LIFETIME_MS);
    let blobs = RemoteBlobs::new(backend);
    let begun = Instant::now();
    let place = partition();
    let key = context("p1").key;
    let id = id();
    let kinds = [
        publish(&segments, "p1").await.err(),
        segments.find(&key, 0).await.err(),
        segments.record(&id).await.err(),
        segments.open(&id, None).await.err(),
        segments.open(&id, Some(0..1)).await.err(),
        segments.expire(0).await.err(),
        segments.list(None, 1).await.err(),
        put(&blobs).await.err(),
        blobs.head(&place, &id).await.err(),
        blobs.hold(&place, &[&id], NO_BOUND, 0).await.err(),
        blobs.open(&place, &id, None).await.err(),
        blobs.remove(&place, &id, 0, 0).await.err(),
        blobs.list(&place, None, 1).await.err(),
        blobs.usage(&place).await.err(),
    ]
    .map(|error| error.map(|error| error.kind));
    let unavailable = Some(ObjectErrorKind::Unavailable);
    assert_eq!(kinds, [unavailable; 14]);
    assert!(begun.elapsed() < longest, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_bucket_that_always_fails_is_unavailable_after_a_few_tries() {
    let bucket = Bucket::start().await;
    for method in [Method::GET, Method::HEAD, Method::PUT] {
        let what = What::Answer(StatusCode::SERVICE_UNAVAILABLE);
        bucket.fail(method, "", usize::MAX, what);
    }
    let limits = BackendLimits {
        retries_max: 2,
        ..Bucket::limits()
    };
    check_unavailable(&bucket, limits, Duration::from_secs(30)).await;
    assert_eq!(bucket.take_requests().len(), 14 * 3);
}

#[tokio::test]
async fn a_bucket_that_hangs_is_unavailable_in_time() {
    let bucket = Bucket::start().await;
    for method in [Method::GET, Method::HEAD, Method::PUT] {
        bucket.fail(method, "", usize::MAX, What::Hang);
    }
    let limits = BackendLimits {
        call_timeout: Duration::from_millis(100),
        ..Bucket::limits()
    };
    check_unavailable(&bucket, limits, Duration::from_secs(20)).await;
}

#[tokio::test]
async fn a_bucket_that_hangs_amid_an_answer_is_unavailable_in_time() {
    let bucket = Bucket::start().await;
    publish(&segments(&bucket), "p1").await.unwrap();
    put(&blobs(&bucket)).await.unwrap();
    bucket.fail(Method::GET, "/", usize::MAX, What::HangInBody);
    let limits = BackendLimits {
        call_timeout: Duration::from_millis(200),
        retries_max: 0,
        ..Bucket::limits()
    };
    let backend = bucket.backend_with("test-secret-key", limits);
    let segments = RemoteSegments::new(backend.clone(), LIFETIME_MS);
    let begun = Instant::now();
    let error = segments.record(&id()).await.unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::Unavailable);
    let stream = segments.open(&id(), None).await.unwrap().unwrap();
    let error = stream.collect(100).await.unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::Unavailable);
    let blobs = RemoteBlobs::new(backend);
    let stream = blobs.open(&partition(), &id(), None).await.unwrap();
    let error = stream.unwrap().collect(100).await.unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_reader_may_take_longer_than_any_call() {
    let bucket = Bucket::start().await;
    let bytes = Bytes::from(vec![7; 24 * 1024 * 1024]);
    let id = content_address(&bytes);
    let blob = NewBlob::from_bytes(partition(), &*id, bytes.clone());
    blobs(&bucket).put(blob, 0).await.unwrap();
    let limits = BackendLimits {
        call_timeout: Duration::from_millis(300),
        retries_max: 0,
        ..Bucket::limits()
    };
    let store = RemoteBlobs::new(bucket.backend_with("test-secret-key", limits));
    let stream = store.open(&partition(), &id, None).await.unwrap().unwrap();
    let mut chunks = stream.into_chunks();
    let mut read = chunks.next().await.unwrap().unwrap().len();
    // Calls that hang show that time passes.
    bucket.fail(Method::HEAD, "", usize::MAX, What::Hang);
    for _ in 0..4 {
        let error = store.head(&partition(), &id).await.unwrap_err();
        assert_eq!(error.kind, ObjectErrorKind::Unavailable);
    }
    while let Some(chunk) = chunks.next().await {
        read += chunk.unwrap().len();
    }
    assert_eq!(read, bytes.len());
}

#[tokio::test]
async fn a_bucket_that_refuses_the_credentials_says_so_to_the_operator() {
    let bucket = Bucket::start().await;
    let backend = bucket.backend_with("another-secret", Bucket::limits());
    let store = RemoteBlobs::new(backend);
    let error = put(&store).await.unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::Refused, "{error}");
}

#[tokio::test]
async fn a_segment_whose_bytes_are_lost_is_not_found_and_can_be_published_again() {
    let bucket = Bucket::start().await;
    let store = segments(&bucket);
    publish(&store, "p1").await.unwrap();
    std::fs::remove_file(bucket.file(&format!("tw/seg/sha256/{}", hex()))).unwrap();
    assert!(!is_found(&store, "p1").await);
    assert!(store.open(&id(), None).await.unwrap().is_none());
    let record = publish(&store, "p1").await.unwrap();
    assert_eq!(record.publications.len(), 1);
    assert!(is_found(&store, "p1").await);
    let stream = store.open(&id(), None).await.unwrap().unwrap();
    assert_eq!(stream.collect(100).await.unwrap(), CONTENT);
}

#[tokio::test]
async fn a_segment_whose_record_is_lost_is_not_found_and_can_be_published_again() {
    let bucket = Bucket::start().await;
    let store = segments(&bucket);
    publish(&store, "p1").await.unwrap();
    std::fs::remove_file(bucket.file(&format!("tw/rec/sha256/{}.json", hex()))).unwrap();
    assert!(!is_found(&store, "p1").await);
    assert_eq!(store.record(&id()).await.unwrap(), None);
    publish(&store, "p2").await.unwrap();
    assert!(is_found(&store, "p2").await);
    assert!(!is_found(&store, "p1").await);
}

#[tokio::test]
async fn documents_that_are_damaged_are_corrupt_and_pointers_are_not_believed() {
    let bucket = Bucket::start().await;
    let store = segments(&bucket);
    publish(&store, "p1").await.unwrap();
    for key in bucket.keys() {
        if key.contains("/find/") || key.contains("/page/") {
            std::fs::write(bucket.file(&key), "{").unwrap();
        }
    }
    assert!(!is_found(&store, "p1").await);
    publish(&store, "p1").await.unwrap();
    assert!(is_found(&store, "p1").await);

    let record = bucket.file(&format!("tw/rec/sha256/{}.json", hex()));
    std::fs::write(record, "{").unwrap();
    let error = publish(&store, "p1").await.unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::Corrupt);
    let error = store.record(&id()).await.unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::Corrupt);
}

#[tokio::test]
async fn other_bytes_under_an_address_are_refused_and_stay() {
    let bucket = Bucket::start().await;
    let store = segments(&bucket);
    let path = bucket.file(&format!("tw/seg/sha256/{}", hex()));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "something else").unwrap();
    let error = publish(&store, "p1").await.unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::ContentMismatch);
    assert_eq!(std::fs::read(path).unwrap(), b"something else");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_publish_the_same_at_once_end_in_one_object() {
    let bucket = Bucket::start().await;
    let nodes: Vec<RemoteSegments> = (0..4).map(|_| segments(&bucket)).collect();
    let publishers = (0..16_usize).map(|number| {
        let store = nodes[number % nodes.len()].clone();
        tokio::spawn(async move {
            // Too many at once are told to come back.
            for _ in 0..20 {
                match publish(&store, &format!("p{number}")).await {
                    Err(error) if error.is_retryable() => {}
                    result => return result.unwrap(),
                }
            }
            panic!("publishing never works");
        })
    });
    for publisher in publishers.collect::<Vec<_>>() {
        publisher.await.unwrap();
    }
    let record = nodes[0].record(&id()).await.unwrap().unwrap();
    assert_eq!(record.publications.len(), 16);
    let objects = bucket.keys();
    let bytes = objects.iter().filter(|key| key.contains("/seg/"));
    assert_eq!(bytes.count(), 1);
    for number in 0..16 {
        assert!(is_found(&nodes[1], &format!("p{number}")).await);
    }
}

#[tokio::test]
async fn nothing_is_left_in_the_bucket_of_what_expired() {
    let bucket = Bucket::start().await;
    let store = segments(&bucket);
    for partition in ["p1", "p2"] {
        publish(&store, partition).await.unwrap();
    }
    assert!(bucket.keys().len() >= 6, "{:?}", bucket.keys());
    let removed = store.expire(LIFETIME_MS).await.unwrap();
    assert_eq!((removed.segments, removed.publications), (1, 2));
    assert_eq!(bucket.keys(), Vec::<String>::new());
}

#[tokio::test]
async fn a_removal_that_was_interrupted_is_finished_by_the_next_one() {
    let bucket = Bucket::start().await;
    let store = segments(&bucket);
    publish(&store, "p1").await.unwrap();
    let refused = What::Answer(StatusCode::FORBIDDEN);
    bucket.fail(Method::POST, "", 1, refused);
    bucket.fail(Method::DELETE, "", 1, refused);
    store.expire(LIFETIME_MS).await.unwrap_err();
    assert_eq!(store.record(&id()).await.unwrap(), None);
    bucket.front.forgive();
    store.expire(LIFETIME_MS).await.unwrap();
    assert_eq!(bucket.keys(), Vec::<String>::new());
}

/// What release 0.21 of the reference left: the record in the metadata of the bytes.
#[tokio::test]
async fn a_segment_of_the_oldest_shape_is_served_and_taken_over() {
    use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
    use object_store::{Attribute, Attributes, ObjectStore, PutOptions, aws::AmazonS3Builder};

    let bucket = Bucket::start().await;
    let record = format!(
        r#"{{"segmentId":"{}","partition":"p1","logEpoch":"e1","table":"notes",
            "schemaVersion":2,"mediaType":"rows","scopeDigest":"d1","asOfCommitSeq":7,
            "rowCount":1,"rowCursor":null,"nextRowCursor":null,"byteLength":5,
            "createdAtMs":0,"expiresAtMs":500}}"#,
        id()
    );
    let pointer = format!(r#"{{"segmentId":"{}"}}"#, id());
    let writer = AmazonS3Builder::new()
        .with_bucket_name("bucket")
        .with_region("us-east-1")
        .with_endpoint(bucket.endpoint())
        .with_allow_http(true)
        .with_access_key_id("test-access-key")
        .with_secret_access_key("test-secret-key")
        .build()
        .unwrap();
    let mut attributes = Attributes::new();
    attributes.insert(
        Attribute::Metadata("syncular-record".into()),
        BASE64_URL_SAFE_NO_PAD.encode(record).into(),
    );
    let options = PutOptions {
        attributes,
        ..PutOptions::default()
    };
    let path = format!("tw/seg/sha256/{}", hex()).into();
    writer
        .put_opts(&path, CONTENT.into(), options)
        .await
        .unwrap();
    // printf '["p1","e1","notes",2,"rows","d1",7]' | sha256sum
    let find =
        "tw/find/b87b1f81df485d73de351579232d95f4a252eb3ff3e287f7519bfb7b604f40fb.json".into();
    writer
        .put_opts(&find, pointer.into(), PutOptions::default())
        .await
        .unwrap();

    let store = segments(&bucket);
    let record = store.record(&id()).await.unwrap().unwrap();
    assert_eq!(record.publications.len(), 1);
    assert_eq!(*record.publications[0].context, context("p1"));
    assert!(is_found(&store, "p1").await);
    let record = publish(&store, "p2").await.unwrap();
    assert_eq!(record.publications.len(), 2);
    assert!(is_found(&store, "p1").await && is_found(&store, "p2").await);
}

async fn get(url: &str) -> (StatusCode, Bytes) {
    let response = reqwest::get(url).await.unwrap();
    (response.status(), response.bytes().await.unwrap())
}

#[tokio::test]
async fn a_signed_url_fetches_exactly_one_object() {
    let bucket = Bucket::start().await;
    let store = segments(&bucket);
    publish(&store, "p1").await.unwrap();
    let signed = store.presign(&id(), MINUTE, 10_999).await.unwrap().unwrap();
    assert_eq!(signed.expires_at_ms, 70_000);
    assert!(signed.url.contains("X-Amz-Expires=60"), "{}", signed.url);
    let (status, bytes) = get(&signed.url).await;
    assert_eq!((status, content_address(&bytes)), (StatusCode::OK, id()));
    let other = signed.url.replace("/seg/", "/rec/");
    assert_eq!(get(&other).await.0, StatusCode::FORBIDDEN);
    let longer = signed.url.replace("X-Amz-Expires=60", "X-Amz-Expires=6000");
    assert_eq!(get(&longer).await.0, StatusCode::FORBIDDEN);
    let day = Duration::from_secs(86_400);
    let signed = store.presign(&id(), day, 0).await.unwrap().unwrap();
    assert_eq!(signed.expires_at_ms, 900_000);
    assert!(signed.url.contains("X-Amz-Expires=900"));
    assert_eq!(store.presign("sha256:../x", day, 0).await.unwrap(), None);
}

async fn grant(store: &RemoteBlobs) -> SignedUrl {
    let signed = store.presign_put(&partition(), &id(), 5, MINUTE, 0).await;
    signed.unwrap().unwrap()
}

async fn upload(signed: &SignedUrl, bytes: &'static [u8]) -> StatusCode {
    let client = reqwest::Client::new();
    let sent = client.put(&signed.url).body(bytes).send().await;
    sent.unwrap().status()
}

#[tokio::test]
async fn an_upload_past_the_server_becomes_a_blob_when_it_is_referenced() {
    let bucket = Bucket::start().await;
    let store = blobs(&bucket);
    let signed = grant(&store).await;
    assert!(signed.url.contains(&hex()));
    assert_eq!(upload(&signed, b"hello").await, StatusCode::OK);
    assert_eq!(store.head(&partition(), &id()).await.unwrap(), None);
    assert!(is_held(&store, 5).await);
    let head = store.head(&partition(), &id()).await.unwrap().unwrap();
    assert_eq!((head.byte_length, head.created_at_ms), (5, 0));
    assert_eq!(read(&store).await, Some(CONTENT));
    let signed = store.presign_get(&partition(), &id(), MINUTE, 0).await;
    let (status, bytes) = get(&signed.unwrap().unwrap().url).await;
    assert_eq!((status, bytes), (StatusCode::OK, CONTENT));
    // Nothing waits for a second reference.
    assert!(!bucket.keys().iter().any(|key| key.contains("/upload/")));
    assert!(is_held(&store, 5).await);
}

#[tokio::test]
async fn an_upload_of_wrong_bytes_never_becomes_a_blob() {
    let bucket = Bucket::start().await;
    let store = blobs(&bucket);
    let signed = grant(&store).await;
    assert_eq!(upload(&signed, b"wrong").await, StatusCode::OK);
    assert!(!is_held(&store, NO_BOUND).await);
    assert_eq!(read(&store).await, None);
    assert_eq!(bucket.keys(), Vec::<String>::new());
    // The client that has the right ones is not kept from sending them.
    assert_eq!(upload(&signed, b"hello").await, StatusCode::OK);
    assert!(is_held(&store, NO_BOUND).await);
}

#[tokio::test]
async fn an_upload_of_another_length_is_refused_by_the_bucket() {
    let bucket = Bucket::start().await;
    let store = blobs(&bucket);
    let signed = grant(&store).await;
    for bytes in [&b"hell"[..], b"hello!", b""] {
        assert_eq!(upload(&signed, bytes).await, StatusCode::FORBIDDEN);
    }
    assert!(!is_held(&store, NO_BOUND).await);
    assert_eq!(bucket.keys(), Vec::<String>::new());
}

#[tokio::test]
async fn an_upload_above_the_bound_never_becomes_a_blob() {
    let bucket = Bucket::start().await;
    let store = blobs(&bucket);
    let signed = grant(&store).await;
    assert_eq!(upload(&signed, b"hello").await, StatusCode::OK);
    assert!(!is_held(&store, 4).await);
    assert_eq!(read(&store).await, None);
}

#[tokio::test]
async fn the_holder_of_a_url_cannot_damage_a_blob() {
    let bucket = Bucket::start().await;
    let store = blobs(&bucket);
    let signed = grant(&store).await;
    assert_eq!(upload(&signed, b"hello").await, StatusCode::OK);
    assert!(is_held(&store, NO_BOUND).await);
    assert_eq!(upload(&signed, b"wrong").await, StatusCode::OK);
    assert_eq!(read(&store).await, Some(CONTENT));
    assert!(is_held(&store, NO_BOUND).await);
    assert_eq!(read(&store).await, Some(CONTENT));
    let elsewhere = signed.url.replace("/upload/", "/blob/");
    let elsewhere = SignedUrl {
        url: elsewhere,
        ..signed
    };
    assert_eq!(upload(&elsewhere, b"wrong").await, StatusCode::FORBIDDEN);
    // What was uploaded for nothing goes when it is old.
    assert_eq!(store.expire_uploads(0).await.unwrap(), 0);
    assert_eq!(store.expire_uploads(i64::MAX).await.unwrap(), 1);
    assert!(!bucket.keys().iter().any(|key| key.contains("/upload/")));
}

/// Clients of the reference upload to the blob's own key, and nothing is known about what is there.
#[tokio::test]
async fn bytes_of_the_reference_are_verified_before_they_are_referenced() {
    for (bytes, is_right) in [(&b"hello"[..], true), (b"wrong", false)] {
        let bucket = Bucket::start().await;
        let store = blobs(&bucket);
        let path = bucket.file(&format!("tw/blob/p1/sha256/{}", hex()));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(is_held(&store, NO_BOUND).await, is_right);
        if is_right {
            let head = store.head(&partition(), &id()).await.unwrap().unwrap();
            assert_eq!(head.created_at_ms, 0, "it has a record now");
        }
        put(&store).await.unwrap();
        assert_eq!(
            read(&store).await,
            Some(CONTENT),
            "right bytes replace wrong ones"
        );
    }
}
