//! Connections are cut at random, and in the end everybody holds the same.

use tidewater_testkit::{Dice, StoreKind};

use super::cable::Cable;
use crate::{party::Party, support::World};

on_each_database!(whoever_is_cut_off_and_when_everything_converges);

/// Edits and cuts of one run.
const STEPS: u32 = 120;

fn whoever_is_cut_off_and_when_everything_converges(kind: StoreKind) {
    for seed in 1..=3 {
        converges(kind, seed);
    }
}

fn converges(kind: StoreKind, seed: u64) {
    let world = World::of_notes(kind);
    let mut dice = Dice::new(seed);
    let cables: Vec<_> = (0..3).map(|_| Cable::lay(&world.url)).collect();
    let mut party = Party::new(&world);
    for (number, cable) in cables.iter().enumerate() {
        let actor = ["alice", "bob"][number % 2];
        party.join(
            &cable.url(&world.url),
            actor,
            &format!("d{number}"),
            &["t1"],
        );
    }
    for step in 0..STEPS {
        let who = usize::try_from(dice.below(3)).unwrap();
        match dice.below(10) {
            0 | 1 => cables[who].cut(),
            2 => party.devices[who].go_offline(),
            3 => party.devices[who].is_online = true,
            _ => {
                let id = format!("n{}", dice.below(5));
                party.devices[who].put(&id, "t1", &format!("{seed}-{step}"));
            }
        }
        // A turn for everybody, and no more: they are cut in the middle of what they do.
        party.until("somebody had a turn", |_| true);
    }
    for device in &mut party.devices {
        device.is_online = true;
    }
    party.until_converged(&world);
}
