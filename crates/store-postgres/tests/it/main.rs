//! The store on a real PostgreSQL: the contract, databases of the reference, and what goes wrong.

mod conformance;
mod failures;
mod migration;
mod plans;
mod reference;
mod round_trips;
mod support;
mod volume;
