//! Random histories of devices of all wire versions, on both stores, against a model.
//!
//! What is checked, in one sentence each: every pushed commit ends as the model says, once; the
//! two stores answer every request with the same bytes; places in the log are dense; nobody is
//! sent a row that was not asked for or is not allowed; nobody is served across pruned history;
//! and when everything has come to rest, every device has the rows of the server that it may see.

mod model;
mod replica;
mod steps;
mod world;

use proptest::{prelude::*, test_runner::Config};

use self::world::World;

/// Histories in an ordinary run.
const CASES: u32 = 48;

/// `PROPTEST_CASES` asks for more histories, or fewer.
fn config() -> Config {
    let asked = Config::default();
    let is_asked = asked.cases != LIBRARY_CASES;
    Config {
        cases: if is_asked { asked.cases } else { CASES },
        ..asked
    }
}

/// What proptest runs when it is not asked for a number.
const LIBRARY_CASES: u32 = 256;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn devices_of_all_versions_converge_on_both_stores(history in steps::history(100)) {
        let mut world = World::new();
        for step in history {
            world.step(step);
        }
        world.settle();
    }
}
