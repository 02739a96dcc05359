//! Segments and blobs on any backend of the `object_store` crate: S3 and what speaks like it,
//! Google Cloud Storage, Azure, a directory, memory.
//!
//! Keys and documents are those of existing deployments of the reference, so its buckets go on
//! being served; `keys` has the layout. Objects that change are small JSON documents that are
//! written conditionally and merged again when somebody was faster. Bytes never change.
//!
//! **Invariant:** every call to the backend has a deadline, and every retry a bound.

mod backend;
mod blobs;
mod cleaning;
mod documents;
mod keys;
mod s3;
mod segments;
mod sigv4;
mod upload;
mod usage;

pub use backend::{Backend, BackendLimits, Conditions};
pub use blobs::RemoteBlobs;
pub use s3::S3Config;
pub use segments::RemoteSegments;
