//! The engine's suite about writes, on PostgreSQL: `crates/engine/tests/writes` runs it in memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod home;
#[path = "../../../engine/tests/writes/suite/mod.rs"]
mod suite;
