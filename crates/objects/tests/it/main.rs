//! Every implementation against its contract, and a bucket over HTTP that misbehaves.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod bucket;
mod contracts;
mod files;
mod history;
mod s3;
