//! The server as its clients see it: the published client crate and requests built by hand, over
//! real sockets, on every store.

// Tells clippy that helpers outside of test functions are tests, too.
#![cfg(test)]

#[macro_use]
mod support;

mod blobs;
mod bootstrap;
mod conflict;
mod control;
mod converge;
mod crdt;
mod encrypted;
mod history;
mod images;
mod kill;
mod lanes;
mod outbox;
#[expect(dead_code, reason = "devices move only where there are several nodes")]
#[path = "../party/mod.rs"]
mod party;
mod pruning;
mod raw;
mod realtime;
mod restore;
mod schema_floor;
mod scopes;
mod segments;
mod signed_urls;
mod storm;
mod validators;
mod versions;
mod window;
