//! Segments and blobs in a file: the contracts, files of the reference, and what survives.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::PathBuf;

use bytes::Bytes;
use rusqlite::Connection;
use tempfile::TempDir;
use tidewater_model::{CommitSeq, LogEpoch, PartitionId};
use tidewater_objects::{
    BlobStore, NewBlob, NewSegment, ObjectErrorKind, PublicationContext, SegmentKey, SegmentStore,
    conformance::{Fixture, segments::LIFETIME_MS},
};
use tidewater_objects_sqlite::{SegmentsConfig, SqliteBlobs, SqliteSegments};
use tidewater_wire::{MediaType, content_address};

const CONFIG: SegmentsConfig = SegmentsConfig {
    lifetime_ms: LIFETIME_MS,
    bytes_max: 64 * 1024 * 1024,
};

fn path() -> (PathBuf, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (folder.path().join("objects.db"), folder)
}

mod conformance {
    use super::*;

    tidewater_objects::segment_store_conformance!({
        let (path, folder) = path();
        Fixture::with_guard(SqliteSegments::open(&path, CONFIG).unwrap(), folder)
    });
    tidewater_objects::blob_store_conformance!({
        let (path, folder) = path();
        Fixture::with_guard(SqliteBlobs::open(&path).unwrap(), folder)
    });
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

#[tokio::test]
async fn segments_and_blobs_share_a_file_and_outlive_the_process() {
    let (path, _folder) = path();
    let bytes = Bytes::from_static(b"hello");
    let id = content_address(&bytes);
    let partition = PartitionId::new("p1");
    {
        let segments = SqliteSegments::open(&path, CONFIG).unwrap();
        let blobs = SqliteBlobs::open(&path).unwrap();
        let segment = NewSegment::from_bytes(context("p1"), 1, bytes.clone());
        segments.publish(segment, 0).await.unwrap();
        let blob = NewBlob::from_bytes(partition.clone(), &*id, bytes.clone());
        blobs.put(blob, 0).await.unwrap();
    }
    let segments = SqliteSegments::open(&path, CONFIG).unwrap();
    let blobs = SqliteBlobs::open(&path).unwrap();
    let found = segments.find(&context("p1").key, 1).await.unwrap();
    assert_eq!(found.unwrap().record.id.as_str(), id);
    let stream = blobs.open(&partition, &id, None).await.unwrap().unwrap();
    assert_eq!(stream.collect(5).await.unwrap(), bytes);
}

/// Tables as the reference makes them, the older one of segments.
const OF_THE_REFERENCE: &str = "
CREATE TABLE sync_segments(
  segment_id TEXT PRIMARY KEY, partition TEXT, tbl TEXT, schema_version INTEGER,
  media_type TEXT, scope_digest TEXT, as_of_commit_seq INTEGER, row_count INTEGER,
  row_cursor TEXT, next_row_cursor TEXT, byte_length INTEGER, created_at_ms INTEGER,
  expires_at_ms INTEGER, bytes BLOB);
CREATE TABLE sync_blobs(
  partition TEXT, blob_id TEXT, byte_length INTEGER, media_type TEXT, created_at_ms INTEGER,
  bytes BLOB, PRIMARY KEY(partition, blob_id));";

#[tokio::test]
async fn a_file_of_the_reference_is_served_as_it_is() {
    let (path, _folder) = path();
    let bytes = &b"hello"[..];
    let id = content_address(bytes);
    {
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch(OF_THE_REFERENCE).unwrap();
        connection
            .execute(
                "INSERT INTO sync_segments VALUES(?1, 'p1', 'notes', 2, 'rows', 'd1', 7, 1, NULL,
                   NULL, 5, 10, 900, ?2)",
                (&id, bytes),
            )
            .unwrap();
        connection
            .execute(
                "INSERT INTO sync_blobs VALUES('p1', ?1, 5, 'text/plain', 10, ?2)",
                (&id, bytes),
            )
            .unwrap();
    }
    let segments = SqliteSegments::open(&path, CONFIG).unwrap();
    let record = segments.record(&id).await.unwrap().unwrap();
    assert_eq!(record.publications.len(), 1);
    let publication = &record.publications[0];
    assert_eq!(publication.context.key.log_epoch.as_str(), "");
    assert_eq!(publication.expires_at_ms, 900);
    let mut key = context("p1").key;
    key.log_epoch = LogEpoch::new("");
    assert!(segments.find(&key, 20).await.unwrap().is_some());
    let segment = NewSegment::from_bytes(context("p2"), 1, Bytes::from_static(bytes));
    let record = segments.publish(segment, 20).await.unwrap();
    assert_eq!(record.publications.len(), 2);

    let blobs = SqliteBlobs::open(&path).unwrap();
    let partition = PartitionId::new("p1");
    let head = blobs.head(&partition, &id).await.unwrap().unwrap();
    assert_eq!(
        (
            head.byte_length,
            head.media_type.as_deref(),
            head.created_at_ms
        ),
        (5, Some("text/plain"), 10)
    );
    let stream = blobs.open(&partition, &id, None).await.unwrap().unwrap();
    assert_eq!(stream.collect(5).await.unwrap(), bytes);
}

#[tokio::test]
async fn segments_stay_within_their_bound_and_the_oldest_go() {
    let (path, _folder) = path();
    let config = SegmentsConfig {
        bytes_max: 250,
        ..CONFIG
    };
    let store = SqliteSegments::open(&path, config).unwrap();
    let publish = async |byte: u8, length, now_ms| {
        let bytes = Bytes::from(vec![byte; length]);
        let segment = NewSegment::from_bytes(context(&format!("p{byte}")), 1, bytes);
        store.publish(segment, now_ms).await
    };
    for byte in 0..4 {
        publish(byte, 100, i64::from(byte)).await.unwrap();
    }
    let is_there = async |partition| {
        let found = store.find(&context(partition).key, 5).await.unwrap();
        found.is_some()
    };
    assert!(!is_there("p0").await && !is_there("p1").await);
    assert!(is_there("p2").await && is_there("p3").await);
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.segments, stats.bytes, stats.evicted), (2, 200, 2));
    let error = publish(9, 251, 9).await.unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::TooLarge);
    assert!(is_there("p2").await && is_there("p3").await);
}

#[tokio::test]
async fn what_is_no_database_is_refused() {
    let (path, _folder) = path();
    std::fs::write(
        &path,
        "this is not a database, and long enough to be looked at",
    )
    .unwrap();
    let error = SqliteBlobs::open(&path).err().unwrap();
    assert_eq!(error.kind, ObjectErrorKind::Corrupt);
}
