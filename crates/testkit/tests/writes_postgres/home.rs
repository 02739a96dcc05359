//! The database under the suite: PostgreSQL, one server for all tests.

use std::{cell::RefCell, sync::Arc};

use tidewater_pgtest::{Database, Server};
use tidewater_store::Store;
use tidewater_store_postgres::{PostgresConfig, PostgresStore};

thread_local! {
    /// Dropped with the thread of the test that asked for them.
    static DATABASES: RefCell<Vec<Database<'static>>> = const { RefCell::new(Vec::new()) };
}

/// An empty database that nobody else has.
pub(crate) fn open() -> Arc<dyn Store> {
    let database = Server::shared().database();
    let mut config = PostgresConfig::from_url(&database.url()).expect("its own URL");
    config.connections_max = 4;
    let store = PostgresStore::new(config).expect("no certificates are read");
    DATABASES.with_borrow_mut(|databases| databases.push(database));
    Arc::new(store)
}

/// Leaves time as it is: answers come through a socket, which a paused clock does not wait for.
pub(crate) fn pause_time() {}

/// Random histories to run.
pub(crate) const CASES: u32 = 16;
