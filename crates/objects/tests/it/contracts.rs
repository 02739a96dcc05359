//! The conformance suites on everything that keeps segments or blobs.

use tidewater_objects::{
    Backend, BackendLimits, MemoryBlobs, MemorySegments, RemoteBlobs, RemoteSegments,
    conformance::{Fixture, segments::LIFETIME_MS},
};

/// Room for everything that a case stores.
const PLENTY: usize = 64 * 1024 * 1024;

fn directory() -> (Backend, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let limits = BackendLimits::default();
    let backend = Backend::directory(&folder.path().join("objects"), false, limits).unwrap();
    (backend, folder)
}

mod memory {
    use super::*;

    tidewater_objects::segment_store_conformance!(Fixture::new(MemorySegments::new(
        PLENTY,
        LIFETIME_MS
    )));
    tidewater_objects::blob_store_conformance!(Fixture::new(MemoryBlobs::new(
        u64::try_from(PLENTY).unwrap()
    )));
}

/// What a provider with conditional writes does, without a network.
mod provider {
    use super::*;

    tidewater_objects::segment_store_conformance!(Fixture::new(RemoteSegments::new(
        Backend::in_memory(),
        LIFETIME_MS
    )));
    tidewater_objects::blob_store_conformance!(Fixture::new(
        RemoteBlobs::new(Backend::in_memory())
    ));
}

mod files {
    use super::*;

    tidewater_objects::segment_store_conformance!({
        let (backend, folder) = directory();
        Fixture::with_guard(RemoteSegments::new(backend, LIFETIME_MS), folder)
    });
    tidewater_objects::blob_store_conformance!({
        let (backend, folder) = directory();
        Fixture::with_guard(RemoteBlobs::new(backend), folder)
    });
}
