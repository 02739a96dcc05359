//! The database under the suite: PostgreSQL, one server for all tests.
//!
//! Each store has a schema of its own in one database. That is made and dropped sooner than a
//! database is, and there are hundreds.

use std::{
    cell::RefCell,
    fmt::Write,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use tidewater_pgtest::{Database, Server};
use tidewater_store::Store;
use tidewater_store_postgres::{PostgresConfig, PostgresStore};

/// An empty database that nobody else has.
pub(crate) fn open() -> Arc<dyn Store> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = format!("store_{}", COUNTER.fetch_add(1, Ordering::Relaxed));
    database().run(&format!("CREATE SCHEMA {name}"));
    let url = format!("{}&options=-csearch_path%3D{name}", database().url());
    let mut config = PostgresConfig::from_url(&url).expect("its own URL");
    config.connections_max = 4;
    let store = PostgresStore::new(config).expect("no certificates are read");
    SCHEMAS.with_borrow_mut(|schemas| schemas.0.push(name));
    Arc::new(store)
}

fn database() -> &'static Database<'static> {
    static DATABASE: OnceLock<Database<'static>> = OnceLock::new();
    DATABASE.get_or_init(|| Server::shared().database())
}

/// Dropped with the thread of the test that asked for them.
struct Schemas(Vec<String>);

thread_local! {
    static SCHEMAS: RefCell<Schemas> = const { RefCell::new(Schemas(Vec::new())) };
}

impl Drop for Schemas {
    fn drop(&mut self) {
        let mut sql = String::new();
        for name in &self.0 {
            writeln!(sql, "DROP SCHEMA {name} CASCADE;").expect("a string takes what is written");
        }
        database().run(&sql);
    }
}

/// Leaves time as it is: answers come through a socket, which a paused clock does not wait for.
pub(crate) fn pause_time() -> bool {
    false
}

/// Random histories to run.
pub(crate) const CASES: u32 = 8;

/// Where each call to the database fails in turn: every one of so many.
pub(crate) const FAULTS_STEP: usize = 5;
