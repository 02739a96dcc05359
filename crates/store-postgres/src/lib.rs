//! The storage contract on PostgreSQL: one database, as many nodes as use it.
//!
//! Everything happens in transactions that say themselves how long they may take, so that nothing
//! is left on a connection for the next one to find, and a pooler between us may hand connections
//! out per transaction. What is asked together is sent together: a batch of commits costs the same
//! few round trips whatever its size ([`PostgresStore::round_trips`] counts them).
//!
//! A write transaction locks the rows of its partitions. Readers see snapshots and wait for
//! nobody. Whoever is dropped halfway leaves a transaction behind that is rolled back before its
//! connection serves anybody else.
//!
//! SQL stores and finds; it decides nothing. The tables are those of existing Syncular databases,
//! which open, are upgraded and serve.

mod announce;
mod app_table;
mod apply;
mod batch;
mod blobs;
mod candidates;
mod catalog;
mod checkpoints;
mod clients;
mod config;
mod dialect;
mod driver;
mod error;
mod gate;
mod guard;
mod indexes;
mod infrastructure;
mod lanes;
mod layout;
mod link;
mod load;
mod migrate;
mod operator;
mod params;
mod partitions;
mod pooler;
mod prune;
mod query;
mod rewrite;
mod scan;
mod scopes;
mod side;
mod signals;
mod statements;
mod store;
mod stream;
mod tls;
mod typed;
mod verify;
mod window;
mod writer;

pub use config::{ConfigError, PostgresConfig};
pub use store::PostgresStore;

/// The least text above `after`, or the least of all: where an exclusive start begins.
///
/// No text here holds U+0000, so U+0001 is the least that can follow, and a start that does hold
/// one lies between the text before it and everything that goes on from there.
fn successor(after: Option<&str>) -> String {
    let Some(after) = after else {
        return String::new();
    };
    let held = after.split('\0').next().unwrap_or_default();
    format!("{held}\u{1}")
}
