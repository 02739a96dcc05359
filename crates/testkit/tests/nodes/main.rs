//! Several processes on one PostgreSQL, and the published client going from one to another.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod chaos;
mod cluster;
mod device;
mod news;
