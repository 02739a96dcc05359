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
