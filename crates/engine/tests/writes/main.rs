//! The write path as clients and the host see it: whole rounds on an engine.
//!
//! The suite names no database. `home` says which one it runs on, so that a crate that may know
//! other databases runs the same suite on them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod home;
mod suite;
