//! Random histories of devices of all wire versions, on every store, against a model.
//!
//! What is checked, in one sentence each: every pushed commit ends as the model says, once; the
//! stores answer every request with the same bytes; places in the log are dense; nobody is
//! sent a row that was not asked for or is not allowed; nobody is served across pruned history;
//! and when everything has come to rest, every device has the rows of the server that it may see.

mod model;
mod replica;
mod steps;
mod world;

use proptest::{prelude::*, test_runner::Config};

use tidewater_testkit::StoreKind;

use self::{steps::Step, world::World};

/// Histories in an ordinary run.
const CASES: u32 = 48;

/// Histories on PostgreSQL, where each takes longer.
const CASES_ON_POSTGRES: u32 = 12;

/// `PROPTEST_CASES` asks for more histories, or fewer.
fn config(cases: u32) -> Config {
    let asked = Config::default();
    let is_asked = asked.cases != LIBRARY_CASES;
    Config {
        cases: if is_asked { asked.cases } else { cases },
        ..asked
    }
}

/// What proptest runs when it is not asked for a number.
const LIBRARY_CASES: u32 = 256;

/// Lives through a history on two stores at once.
fn check(kinds: [StoreKind; 2], history: Vec<Step>) {
    let mut world = World::new(kinds);
    for step in history {
        world.step(step);
    }
    world.settle();
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn devices_of_all_versions_converge_in_memory_and_on_sqlite(history in steps::history(100)) {
        check([StoreKind::Memory, StoreKind::Sqlite], history);
    }
}

proptest! {
    #![proptest_config(config(CASES_ON_POSTGRES))]

    #[test]
    fn devices_of_all_versions_converge_in_memory_and_on_postgresql(history in steps::history(100)) {
        check([StoreKind::Memory, StoreKind::Postgres], history);
    }
}
