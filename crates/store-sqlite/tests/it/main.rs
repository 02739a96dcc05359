//! The store on real files: the contract, databases of the reference, and what goes wrong.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod conformance;
mod failures;
mod migration;
mod reference;
mod restored;
mod support;
mod volume;
