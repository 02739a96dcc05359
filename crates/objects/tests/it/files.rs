//! A directory of objects: who may have it, and what outlives the process.

use bytes::Bytes;
use tidewater_model::PartitionId;
use tidewater_objects::{
    Backend, BackendLimits, BlobStore, NewBlob, ObjectError, ObjectErrorKind, RemoteBlobs,
};
use tidewater_wire::content_address;

fn open(folder: &tempfile::TempDir, durable: bool) -> Result<Backend, ObjectError> {
    Backend::directory(folder.path(), durable, BackendLimits::default())
}

#[test]
fn a_directory_belongs_to_one_backend_until_that_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(&folder, true).unwrap();
    let clone = first.clone();
    let error = open(&folder, true).unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::Refused);
    assert!(
        error.to_string().contains(folder.path().to_str().unwrap()),
        "{error}"
    );
    // Segments and blobs can share one.
    let _cache = open(&folder, false).unwrap();
    drop(first);
    assert!(open(&folder, true).is_err());
    drop(clone);
    open(&folder, true).unwrap();
}

#[test]
fn a_directory_that_cannot_be_made_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, "in the way").unwrap();
    let error = Backend::directory(&path, true, BackendLimits::default()).unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::Refused);
}

#[tokio::test]
async fn blobs_outlive_the_process_with_what_is_known_about_them() {
    let folder = tempfile::tempdir().unwrap();
    let partition = PartitionId::new("p1");
    let bytes = Bytes::from_static(b"hello");
    let id = content_address(&bytes);
    let record = {
        let store = RemoteBlobs::new(open(&folder, true).unwrap());
        let mut blob = NewBlob::from_bytes(partition.clone(), &*id, bytes.clone());
        blob.media_type = Some("text/plain".to_owned());
        store.put(blob, 7).await.unwrap().record
    };
    let store = RemoteBlobs::new(open(&folder, true).unwrap());
    assert_eq!(store.head(&partition, &id).await.unwrap(), Some(record));
    let stream = store.open(&partition, &id, None).await.unwrap().unwrap();
    assert_eq!(stream.collect(5).await.unwrap(), bytes);
    // Nothing is left of content that was refused.
    let wrong = NewBlob::from_bytes(partition.clone(), content_address(b"x"), bytes);
    store.put(wrong, 7).await.unwrap_err();
    let place = folder.path().join("blob/p1/sha256");
    assert_eq!(std::fs::read_dir(place).unwrap().count(), 1);
}

/// The number of a file on its disk.
#[cfg(unix)]
#[tokio::test]
async fn an_image_becomes_a_segment_without_being_copied() {
    use std::os::unix::fs::MetadataExt;

    use tidewater_model::{CommitSeq, LogEpoch};
    use tidewater_objects::{
        NewSegment, PublicationContext, RemoteSegments, SegmentId, SegmentKey, SegmentStore,
    };
    use tidewater_wire::MediaType;

    let folder = tempfile::tempdir().unwrap();
    let store = RemoteSegments::new(open(&folder, false).unwrap(), 1_000);
    let file = tempfile::NamedTempFile::new_in(folder.path()).unwrap();
    std::fs::write(file.path(), "image").unwrap();
    let number = file.as_file().metadata().unwrap().ino();
    let context = PublicationContext {
        key: SegmentKey {
            partition: PartitionId::new("p1"),
            log_epoch: LogEpoch::new("e1"),
            table: "notes".to_owned(),
            schema_version: 2,
            media_type: MediaType::Sqlite,
            scope_digest: "d1".to_owned(),
            as_of: CommitSeq::new(7).unwrap(),
        },
        row_cursor: None,
        next_row_cursor: None,
    };
    let id = SegmentId::new(content_address(b"image"));
    let segment = NewSegment::from_file(context, 1, file.into_temp_path(), id.clone(), 5);
    store.publish(segment, 0).await.unwrap();
    let hex = id.as_str().trim_start_matches("sha256:");
    let path = folder.path().join("seg/sha256").join(hex);
    assert_eq!(std::fs::metadata(path).unwrap().ino(), number);
    let stream = store.open(id.as_str(), None).await.unwrap().unwrap();
    assert_eq!(stream.collect(5).await.unwrap(), &b"image"[..]);
}
