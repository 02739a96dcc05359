//! The store on a real PostgreSQL: the contract, databases of the reference, and what goes wrong.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod conformance;
mod failures;
mod guard;
mod jobs;
mod migration;
mod plans;
mod reference;
mod round_trips;
mod signals;
mod support;
mod volume;
