//! The storage contract on SQLite: one file, one writer, several readers.
//!
//! Every connection belongs to a thread that blocks so that async code never does. Callers send
//! closures and await answers. The writer's thread has one turn at a time, which a write
//! transaction keeps from begin to end; readers read snapshots beside it, which the write-ahead
//! log allows. A commit is in that log, on the disk, before it is acknowledged.
//!
//! SQL stores and finds; it decides nothing. The tables are those of existing Syncular databases,
//! which open, are upgraded and serve.

mod app_table;
mod apply;
mod backup;
mod blobs;
mod candidates;
mod catalog;
mod checkpoints;
mod clients;
mod config;
mod connection;
mod driver;
mod error;
mod guard;
mod home;
mod indexes;
mod infrastructure;
mod layout;
mod load;
mod migrate;
mod operator;
mod partitions;
#[cfg(test)]
mod plans;
mod prune;
mod readers;
mod rewrite;
mod rows;
mod scan;
mod scopes;
mod session;
mod statements;
mod store;
mod stream;
mod task;
mod typed;
mod window;
mod worker;
mod writer;

pub use backup::{back_up, restore};
pub use config::{Location, SqliteConfig};
pub use store::SqliteStore;

/// The least text above `after`, or the least of all: where an exclusive start begins.
fn successor(after: Option<&str>) -> String {
    let mut from = String::from(after.unwrap_or_default());
    if after.is_some() {
        from.push('\0');
    }
    from
}
