//! Segments and blobs in a SQLite file, for those who want one file to copy.
//!
//! The tables are those of existing deployments of the reference, which are opened as they are;
//! what is ours is beside them: publications of segments, and when a blob was last held.
//!
//! **Invariant:** bytes are read and written in chunks, through SQLite's incremental blobs, and
//! no statement stays open between two chunks: a slow reader holds no snapshot.
//!
//! SQLite blocks, so every call runs on a thread for blocking work.

#![warn(missing_docs)]

mod blobs;
mod database;
mod publications;
mod segments;
mod spool;

pub use blobs::SqliteBlobs;
pub use segments::{SegmentsConfig, SqliteSegments};
