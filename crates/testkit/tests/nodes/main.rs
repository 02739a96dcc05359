//! Several processes on one PostgreSQL, and the published client going from one to another.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod chaos;
mod cluster;
mod device;
#[expect(
    dead_code,
    reason = "what its interruptions do is tested where the signals are"
)]
#[path = "../../../signals-nats/tests/it/server.rs"]
mod nats;
mod news;
#[path = "../party/mod.rs"]
mod party;
mod realtime;
