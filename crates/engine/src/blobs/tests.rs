//! Blobs through the engine: uploads, references, downloads, sweeps, and the races between them.

mod races;
mod store;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tidewater_model::{ErrorCode, PartitionId};
use tidewater_objects::{BlobStore, NewBlob};
use tidewater_store::Store;
use tidewater_wire::{
    BlobRef, Operation, OperationAction, PushOutcome, WireVersion, content_address,
    row::{RowWriter, Value, encode_sparse_row},
};

use self::store::TestBlobs;
use super::*;
use crate::{
    EngineConfig, Transfers,
    testing::{Ask, Grants, TestServer, identity, partition},
};

const HOUR_MS: i64 = 60 * 60 * 1_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// A server with blobs in memory.
struct Blobs {
    server: TestServer,
    store: Arc<TestBlobs>,
}

async fn start() -> Blobs {
    start_with(EngineConfig::default(), Transfers::default()).await
}

async fn start_with(config: EngineConfig, transfers: Transfers) -> Blobs {
    let store = Arc::new(TestBlobs::default());
    let transfers = Transfers {
        blobs: Some(Arc::<TestBlobs>::clone(&store)),
        ..transfers
    };
    let server = TestServer::start_as(config, 1 << 20, transfers).await;
    Blobs { server, store }
}

fn id(content: &str) -> String {
    content_address(content.as_bytes())
}

fn upload_of(chunks: &[&str], byte_length: Option<u64>) -> BlobUpload {
    let chunks: Vec<Result<Bytes, BodyError>> = chunks
        .iter()
        .map(|chunk| Ok(Bytes::copy_from_slice(chunk.as_bytes())))
        .collect();
    BlobUpload {
        byte_length,
        media_type: None,
        body: stream::iter(chunks).boxed(),
    }
}

impl Blobs {
    async fn try_upload(&self, blob_id: &str, upload: BlobUpload) -> Result<(), ErrorCode> {
        let ann = identity();
        let stored = self.server.engine.upload_blob(&ann, blob_id, upload);
        stored.await.map_err(|error| error.code)
    }

    async fn upload(&self, content: &str) -> String {
        let blob_id = id(content);
        let uploaded = self.try_upload(&blob_id, upload_of(&[content], None)).await;
        assert_eq!(uploaded, Ok(()));
        blob_id
    }

    async fn push(&self, commit: &str, operations: Vec<Operation>) -> String {
        let answer = self.server.round(Ask::new().push(commit, operations)).await;
        told(&answer.results[0])
    }

    /// What an actor of the allowed scopes gets: the content, or a code.
    async fn download(&self, blob_id: &str) -> Result<Bytes, ErrorCode> {
        let ann = identity();
        let granted = self.server.engine.download_blob(&ann, blob_id);
        match granted.await.map_err(|error| error.code)? {
            BlobGrant::Bytes(bytes) => {
                assert_eq!(bytes.blob_id, blob_id);
                let stream = bytes.open(None).await.unwrap().unwrap();
                assert_eq!(stream.total_length(), bytes.byte_length);
                Ok(stream.collect(usize::MAX).await.unwrap())
            }
            BlobGrant::Url(url) => Ok(url.url.into()),
        }
    }

    async fn grant(&self, blob_id: &str, byte_length: u64) -> Result<UploadGrant, ErrorCode> {
        let ann = identity();
        let granted = self.server.engine.grant_upload(&ann, blob_id, byte_length);
        granted.await.map_err(|error| error.code)
    }

    async fn sweep(&self) -> (u64, u64, u64) {
        let swept = self.server.engine.sweep_blobs(&partition()).await.unwrap();
        (swept.looked_at, swept.referenced, swept.removed)
    }

    async fn is_there(&self, blob_id: &str) -> bool {
        self.store
            .head(&partition(), blob_id)
            .await
            .unwrap()
            .is_some()
    }
}

fn told(result: &tidewater_wire::PushResult) -> String {
    match (&result.outcome, result.results.first()) {
        (PushOutcome::Applied(_), _) => "applied".to_owned(),
        (PushOutcome::Rejected, Some(tidewater_wire::OpResult::Error { op_index, code, .. })) => {
            format!("{op_index}:{code}")
        }
        other => format!("{other:?}"),
    }
}

fn reference(blob_id: &str) -> String {
    let blob = BlobRef {
        blob_id: blob_id.to_owned(),
        byte_length: 1,
        media_type: None,
        name: None,
    };
    blob.to_text()
}

fn encoded(value: &Value<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// A whole row of `photos`.
fn photo(row_id: &str, team: &str, image: Option<&str>, thumb: Option<&str>) -> Operation {
    let image = image.map(|id| encoded(&Value::BlobRef(&reference(id))));
    let thumb = thumb.map(|id| encoded(&Value::BlobRef(&reference(id))));
    let (key, team) = (
        encoded(&Value::String(row_id)),
        encoded(&Value::String(team)),
    );
    let cells = [
        Some(Some(&key[..])),
        Some(Some(&team[..])),
        Some(image.as_deref()),
        Some(thumb.as_deref()),
    ];
    operation(row_id, encode_sparse_row(&cells))
}

/// Changes one column of a photo and presents no other.
fn change(row_id: &str, column: usize, blob_id: Option<&str>) -> Operation {
    let key = encoded(&Value::String(row_id));
    let value = blob_id.map(|id| encoded(&Value::BlobRef(&reference(id))));
    let mut cells = [Some(Some(&key[..])), None, None, None];
    cells[column] = Some(value.as_deref());
    operation(row_id, encode_sparse_row(&cells))
}

fn operation(row_id: &str, payload: Vec<u8>) -> Operation {
    Operation {
        table: "photos".into(),
        row_id: row_id.into(),
        action: OperationAction::Upsert(payload.into()),
        base_version: None,
    }
}

#[tokio::test]
async fn an_upload_is_checked_before_and_while_it_streams() {
    let config = EngineConfig {
        blob_bytes_max: 10,
        ..EngineConfig::default()
    };
    let blobs = start_with(config, Transfers::default()).await;
    let good = id("0123456789");
    let check = async |blob_id: &str, upload: BlobUpload, expected: Result<(), ErrorCode>| {
        assert_eq!(blobs.try_upload(blob_id, upload).await, expected);
    };
    for malformed in ["", "x", "sha256:", &good.to_uppercase(), &good[..70]] {
        check(
            malformed,
            upload_of(&["0123456789"], None),
            Err(ErrorCode::BlobHashMismatch),
        )
        .await;
    }
    check(
        &good,
        upload_of(&[], Some(11)),
        Err(ErrorCode::BlobTooLarge),
    )
    .await;
    let long = id("01234567890");
    check(
        &long,
        upload_of(&["01234", "567890"], None),
        Err(ErrorCode::BlobTooLarge),
    )
    .await;
    check(
        &good,
        upload_of(&["012345678"], Some(10)),
        Err(ErrorCode::BlobHashMismatch),
    )
    .await;
    let broken = BlobUpload {
        body: stream::iter([Ok(Bytes::from_static(b"01")), Err(BodyError::from("gone"))]).boxed(),
        ..upload_of(&[], Some(10))
    };
    check(&good, broken, Err(ErrorCode::InvalidRequest)).await;
    assert!(!blobs.is_there(&good).await);
    for _ in 0..2 {
        check(&good, upload_of(&["01234", "", "56789"], Some(10)), Ok(())).await;
    }
    assert!(blobs.is_there(&good).await);
    check(&id(""), upload_of(&[], Some(0)), Ok(())).await;
    let usage = blobs.server.engine.blob_usage(&partition()).await.unwrap();
    assert_eq!((usage.blobs, usage.bytes), (2, 10));
}

#[tokio::test]
async fn without_a_store_there_are_no_blobs() {
    let server = TestServer::start().await;
    let (engine, ann, blob_id) = (&server.engine, identity(), id("a"));
    let code = |error: RoundError| error.code;
    let not_found = ErrorCode::BlobNotFound;
    let stored = engine.upload_blob(&ann, "x", upload_of(&[], None)).await;
    assert_eq!(stored.map_err(code), Err(not_found));
    assert_eq!(
        engine.grant_upload(&ann, &blob_id, 1).await.map_err(code),
        Err(not_found)
    );
    let granted = engine.download_blob(&ann, &blob_id).await;
    assert_eq!(granted.map(|_| ()).map_err(code), Err(not_found));
    let push = async |commit: &str, operation| {
        let answer = server.round(Ask::new().push(commit, vec![operation])).await;
        told(&answer.results[0])
    };
    assert_eq!(
        push("m1", photo("p", "t1", Some(&blob_id), None)).await,
        "0:blob.not_found"
    );
    assert_eq!(push("m2", photo("p", "t1", None, None)).await, "applied");
}

#[tokio::test]
async fn a_reference_needs_its_blob_and_the_whole_commit_waits_for_none() {
    let blobs = start().await;
    let (a, b) = (id("a"), id("b"));
    blobs.upload("a").await;
    let operations = vec![
        photo("p", "t1", Some(&a), None),
        photo("q", "t1", Some(&a), Some(&b)),
    ];
    assert_eq!(
        blobs.push("m1", operations.clone()).await,
        "1:blob.not_found"
    );
    let rows = blobs
        .server
        .store
        .are_referenced(&partition(), vec![a.clone()])
        .await;
    assert_eq!(rows.unwrap(), [false], "nothing of it was written");
    blobs.upload("b").await;
    assert_eq!(blobs.push("m2", operations).await, "applied");
    // In another partition the blob is not there.
    let other = Identity::new("p2", "ann");
    let ask = Ask::new().push("m3", vec![photo("p", "t1", Some(&a), None)]);
    let answer = blobs.server.try_round(&other, ask).await.unwrap();
    assert_eq!(told(&answer.results[0]), "0:blob.not_found");
}

#[tokio::test]
async fn only_references_that_are_new_are_checked() {
    let blobs = start().await;
    let (a, b) = (blobs.upload("a").await, id("b"));
    assert_eq!(
        blobs
            .push("m1", vec![photo("p", "t1", Some(&a), None)])
            .await,
        "applied"
    );
    blobs.store.lose(&a).await;
    assert_eq!(
        blobs.push("m2", vec![change("p", 3, None)]).await,
        "applied"
    );
    assert_eq!(
        blobs
            .push("m3", vec![photo("p", "t1", Some(&a), None)])
            .await,
        "applied"
    );
    assert_eq!(
        blobs.push("m4", vec![change("p", 3, Some(&b))]).await,
        "0:blob.not_found"
    );
    assert_eq!(
        blobs
            .push("m5", vec![photo("q", "t1", Some(&a), None)])
            .await,
        "0:blob.not_found"
    );
    assert_eq!(
        blobs.push("m6", vec![change("p", 2, None)]).await,
        "applied"
    );
    assert_eq!(
        blobs.push("m7", vec![change("p", 2, Some(&a))]).await,
        "0:blob.not_found"
    );
}

#[tokio::test]
async fn references_of_full_rows_are_held_like_those_of_sparse_ones() {
    let blobs = start().await;
    let a = blobs.upload("a").await;
    for (version, blob_id, expected) in [
        (WireVersion::V1, a.clone(), "applied"),
        (WireVersion::V2, a.clone(), "applied"),
        (WireVersion::V2, id("b"), "0:blob.not_found"),
    ] {
        let mut row = RowWriter::new(4);
        row.value(&Value::String("p"));
        row.value(&Value::String("t1"));
        row.value(&Value::BlobRef(&reference(&blob_id)));
        row.null();
        let ask = Ask::new().in_version(version).push(
            &format!("{version:?}{blob_id}"),
            vec![operation("p", row.finish())],
        );
        let answer = blobs.server.round(ask).await;
        assert_eq!(told(&answer.results[0]), expected);
    }
}

#[tokio::test]
async fn whoever_may_read_a_row_may_read_its_blobs_and_nobody_else() {
    let blobs = start().await;
    let (a, b, unused) = (
        blobs.upload("a").await,
        blobs.upload("b").await,
        blobs.upload("u").await,
    );
    let rows = vec![
        photo("p", "t1", Some(&a), None),
        photo("q", "t2", Some(&b), Some(&a)),
    ];
    assert_eq!(blobs.push("m1", rows).await, "applied");
    let forbidden = Err(ErrorCode::BlobForbidden);
    let may = async |teams: &[&str]| {
        blobs.server.resolver.allow(&[("team_id", teams)]);
        let got = [blobs.download(&a).await, blobs.download(&b).await];
        got.map(|content| content.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()))
    };
    let ok = |content: &str| Ok(content.to_owned());
    assert_eq!(may(&["t1"]).await, [ok("a"), forbidden.clone()]);
    assert_eq!(may(&["t2"]).await, [ok("a"), ok("b")]);
    assert_eq!(may(&["*"]).await, [ok("a"), ok("b")]);
    assert_eq!(may(&["t3"]).await, [forbidden.clone(), forbidden.clone()]);
    assert_eq!(may(&[]).await, [forbidden.clone(), forbidden.clone()]);

    // What is not theirs, what nobody references and what never was are one answer.
    blobs.server.resolver.allow(&[("team_id", &["t1"])]);
    for blob_id in [&b, &unused, &id("never")] {
        assert_eq!(blobs.download(blob_id).await, Err(ErrorCode::BlobForbidden));
    }
    assert_eq!(blobs.download("x").await, Err(ErrorCode::BlobNotFound));
    let elsewhere = Identity::new("p2", "ann");
    let granted = blobs.server.engine.download_blob(&elsewhere, &a).await;
    assert_eq!(granted.unwrap_err().code, ErrorCode::BlobForbidden);

    // A grant ends with its row.
    let delete = Operation {
        action: OperationAction::Delete,
        ..photo("p", "t1", None, None)
    };
    assert_eq!(blobs.push("m2", vec![delete]).await, "applied");
    assert_eq!(blobs.download(&a).await, Err(ErrorCode::BlobForbidden));
}

#[tokio::test]
async fn a_resolver_that_fails_denies_and_a_blob_that_is_lost_is_not_found() {
    let blobs = start().await;
    let a = blobs.upload("a").await;
    assert_eq!(
        blobs
            .push("m1", vec![photo("p", "t1", Some(&a), None)])
            .await,
        "applied"
    );
    for grants in [Grants::Fails, Grants::IsOut] {
        blobs.server.resolver.switch(grants);
        assert_eq!(blobs.download(&a).await, Err(ErrorCode::BlobForbidden));
    }
    blobs.server.resolver.allow(&[("team_id", &["t1"])]);
    blobs.store.lose(&a).await;
    assert_eq!(blobs.download(&a).await, Err(ErrorCode::BlobNotFound));
    blobs.server.resolver.allow(&[("team_id", &["t2"])]);
    assert_eq!(blobs.download(&a).await, Err(ErrorCode::BlobForbidden));
}

fn with_urls() -> Transfers {
    Transfers {
        blob_urls: Some(Duration::from_secs(60)),
        upload_urls: Some(Duration::from_secs(60)),
        ..Transfers::default()
    }
}

#[tokio::test]
async fn a_url_is_made_after_the_check_and_never_for_who_is_refused() {
    let blobs = start_with(EngineConfig::default(), with_urls()).await;
    blobs.store.presign();
    let a = blobs.upload("a").await;
    assert_eq!(
        blobs
            .push("m1", vec![photo("p", "t1", Some(&a), None)])
            .await,
        "applied"
    );
    assert_eq!(blobs.download(&a).await.unwrap(), format!("get:p1:{a}"));
    assert_eq!(blobs.store.presigned(), 1);
    blobs.server.resolver.allow(&[("team_id", &["t2"])]);
    assert_eq!(blobs.download(&a).await, Err(ErrorCode::BlobForbidden));
    assert_eq!(blobs.store.presigned(), 1);
}

#[tokio::test]
async fn an_upload_is_granted_within_the_bound_and_not_for_what_is_there() {
    let config = EngineConfig {
        blob_bytes_max: 10,
        ..EngineConfig::default()
    };
    let blobs = start_with(config, with_urls()).await;
    let a = id("a");
    assert_eq!(
        blobs.grant(&a, 1).await,
        Ok(UploadGrant::Direct),
        "the store makes no URLs"
    );
    blobs.store.presign();
    assert_eq!(blobs.grant("x", 1).await, Err(ErrorCode::BlobHashMismatch));
    assert_eq!(blobs.grant(&a, 11).await, Err(ErrorCode::BlobTooLarge));
    let granted = blobs.grant(&a, 1).await.unwrap();
    assert!(matches!(&granted, UploadGrant::Url(url) if url.url == format!("put:p1:{a}:1")));
    blobs.upload("a").await;
    assert_eq!(blobs.grant(&a, 1).await, Ok(UploadGrant::Present));
    // Referenced by rows of others, it is nobody's business whether it is there.
    assert_eq!(
        blobs
            .push("m1", vec![photo("p", "t1", Some(&a), None)])
            .await,
        "applied"
    );
    assert_eq!(blobs.grant(&a, 1).await, Ok(UploadGrant::Present));
    for grants in [Grants::Fails, Grants::IsOut] {
        blobs.server.resolver.switch(grants);
        assert!(matches!(blobs.grant(&a, 1).await, Ok(UploadGrant::Url(_))));
    }
    blobs.server.resolver.allow(&[("team_id", &["t2"])]);
    assert!(matches!(blobs.grant(&a, 1).await, Ok(UploadGrant::Url(_))));
}

#[tokio::test]
async fn a_partition_takes_no_more_than_its_bound() {
    let config = EngineConfig {
        blob_partition_bytes_max: 10,
        ..EngineConfig::default()
    };
    let blobs = start_with(config, with_urls()).await;
    blobs.store.presign();
    blobs.upload("0123").await;
    assert_eq!(
        blobs.try_upload(&id("x"), upload_of(&[], Some(7))).await,
        Err(ErrorCode::BlobTooLarge)
    );
    let long = id("0123456");
    let streamed = upload_of(&["0123456"], None);
    assert_eq!(
        blobs.try_upload(&long, streamed).await,
        Err(ErrorCode::BlobTooLarge)
    );
    // A granted URL counts while it may be used.
    assert!(matches!(
        blobs.grant(&id("y"), 5).await,
        Ok(UploadGrant::Url(_))
    ));
    assert_eq!(blobs.grant(&id("z"), 2).await, Err(ErrorCode::BlobTooLarge));
    blobs.server.clock.advance_ms(60_000);
    assert!(matches!(
        blobs.grant(&id("z"), 2).await,
        Ok(UploadGrant::Url(_))
    ));
    blobs.upload("abcd").await;
    assert_eq!(blobs.grant(&id("w"), 1).await, Err(ErrorCode::BlobTooLarge));
    // Another partition has room of its own.
    let other = Identity::new("p2", "ann");
    let upload = blobs
        .server
        .engine
        .upload_blob(&other, &long, upload_of(&["0123456"], None));
    assert_eq!(upload.await.map_err(|error| error.code), Ok(()));
    // What the sweep removed is room again.
    blobs.server.clock.advance_ms(DAY_MS + 1);
    assert_eq!(blobs.sweep().await, (2, 0, 2));
    blobs.upload("0123456789").await;
}

#[tokio::test]
async fn a_sweep_removes_what_is_old_and_unreferenced_and_nothing_else() {
    let blobs = start().await;
    let (used, unused) = (blobs.upload("used").await, blobs.upload("unused").await);
    assert_eq!(
        blobs
            .push("m1", vec![photo("p", "t1", Some(&used), None)])
            .await,
        "applied"
    );
    let other = PartitionId::new("p2");
    let elsewhere = NewBlob::from_bytes(other.clone(), id("x"), Bytes::from_static(b"x"));
    blobs
        .store
        .put(elsewhere, crate::testing::START_MS)
        .await
        .unwrap();
    blobs.server.clock.advance_ms(DAY_MS);
    let young = blobs.upload("young").await;
    assert_eq!(
        blobs.sweep().await,
        (3, 0, 0),
        "at the grace period nothing is old yet"
    );
    blobs.server.clock.advance_ms(1);
    assert_eq!(blobs.sweep().await, (3, 1, 1));
    assert!(blobs.is_there(&used).await && blobs.is_there(&young).await);
    assert!(!blobs.is_there(&unused).await);
    assert!(blobs.store.head(&other, &id("x")).await.unwrap().is_some());
    // However old, what a row references stays; without the row it goes.
    blobs.server.clock.advance_ms(1_000 * DAY_MS);
    assert_eq!(blobs.sweep().await, (2, 1, 1));
    assert_eq!(
        blobs.push("m2", vec![change("p", 2, None)]).await,
        "applied"
    );
    assert_eq!(blobs.sweep().await, (1, 0, 1));
}

#[tokio::test]
async fn a_sweep_goes_on_over_many_pages() {
    let blobs = start().await;
    let contents: Vec<String> = (0..600).map(|number| number.to_string()).collect();
    for content in &contents {
        blobs.upload(content).await;
    }
    let rows = contents
        .iter()
        .take(100)
        .map(|content| photo(content, "t1", Some(&id(content)), None));
    assert_eq!(blobs.push("m1", rows.collect()).await, "applied");
    blobs.server.clock.advance_ms(DAY_MS + 1);
    assert_eq!(blobs.sweep().await, (600, 100, 500));
}

#[tokio::test]
async fn no_grace_of_an_operator_takes_away_what_protects_a_push() {
    let config = EngineConfig {
        blob_grace_ms: 0,
        ..EngineConfig::default()
    };
    let blobs = start_with(config, Transfers::default()).await;
    blobs.upload("a").await;
    blobs.server.clock.advance_ms(2 * HOUR_MS);
    assert_eq!(blobs.sweep().await, (1, 0, 0));
    blobs.server.clock.advance_ms(1);
    assert_eq!(blobs.sweep().await, (1, 0, 1));
}

#[tokio::test]
async fn a_blob_that_is_uploaded_again_is_young_again() {
    let blobs = start().await;
    let a = blobs.upload("a").await;
    blobs.server.clock.advance_ms(DAY_MS);
    blobs.upload("a").await;
    blobs.server.clock.advance_ms(HOUR_MS);
    assert_eq!(blobs.sweep().await, (1, 0, 0));
    assert_eq!(
        blobs
            .push("m1", vec![photo("p", "t1", Some(&a), None)])
            .await,
        "applied"
    );
}

#[tokio::test(start_paused = true)]
async fn maintenance_sweeps_every_partition_by_itself() {
    let blobs = start().await;
    let a = blobs.upload("a").await;
    blobs.server.clock.advance_ms(DAY_MS + 1);
    let engine = Arc::clone(&blobs.server.engine);
    let maintenance = tokio::spawn(engine.run_maintenance());
    while blobs.is_there(&a).await {
        tokio::task::yield_now().await;
    }
    maintenance.abort();
}
