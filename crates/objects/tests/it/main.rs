//! Every implementation against its contract, and a bucket over HTTP that misbehaves.

mod bucket;
mod contracts;
mod s3;
