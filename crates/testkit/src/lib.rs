//! What tests stand on, and nothing that is shipped depends on.
//!
//! An [`Instance`] is a real engine behind the real routes, with a switch for everything around
//! it: a [`VirtualClock`], [`SeededIds`], a [`SwitchResolver`], a [`SwitchValidator`], a database
//! that can be backed up and put back. A [`Host`] serves many of them on one port, each under a
//! path of its own, with its switches beside it as JSON; [`TestServer`] is a host on a thread of a
//! test. The program `testhost` is a host for harnesses in other languages; the README beside this
//! crate says how to talk to it.
//!
//! [`schema`] builds schema documents and [`rows`] rows, in the forms that the published client
//! uses too. [`message`] builds requests of any wire version, and [`HttpClient`] sends them.

#![warn(missing_docs)]

mod auth;
mod bucket;
mod clock;
mod control;
pub mod crash;
mod database;
mod dice;
mod host;
mod http_client;
mod ids;
mod instance;
pub mod message;
mod probe;
mod resolver;
pub mod rows;
pub mod schema;
mod spec;
mod test_server;
mod validators;

pub use auth::NameIsToken;
pub use clock::VirtualClock;
pub use database::StoreKind;
pub use dice::Dice;
pub use host::{Host, INSTANCES_MAX};
pub use http_client::{HttpClient, Refusal};
pub use ids::SeededIds;
pub use instance::{Instance, InstanceCounts, RowView};
pub use resolver::{ResolverMode, ScopeLists, SwitchResolver, scopes};
pub use spec::{InstanceLimits, InstanceSpec};
pub use test_server::TestServer;
pub use validators::{CommitRule, RowRule, Rule, RuleError, SwitchValidator, TableRule};
