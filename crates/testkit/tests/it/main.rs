//! The server as its clients see it: the published client crate and requests built by hand, over
//! real sockets, on every store.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[macro_use]
mod support;

mod bootstrap;
mod conflict;
mod control;
mod converge;
mod history;
mod kill;
mod outbox;
mod pruning;
mod raw;
mod restore;
mod schema_floor;
mod scopes;
mod segments;
mod versions;
