//! The store on real files: the contract, databases of the reference, and what goes wrong.

mod conformance;
mod failures;
mod migration;
mod reference;
mod support;
