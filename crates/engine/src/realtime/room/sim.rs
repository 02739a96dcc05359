//! Thousands of seeded schedules of one room: connections that come and go, rounds over them and
//! beside them, announcements out of order, twice or lost, gaps read late or not at all, scopes
//! taken away and given back, mailboxes that overflow, logs that are replaced.
//!
//! **What must hold:** a device that applies what it is sent and what it pulls has every commit
//! up to its cursor that its scopes see. It is sent nothing of a scope that was taken away before
//! a refresh. And when everything has come to rest, it has everything.
//!
//! Devices do as the protocol says (§8.2, §8.7): they apply in order, pull when they are told to,
//! and say what they have applied. What a pull brings is taken as right here; `pull` has its own
//! tests.

mod device;
mod server;

use std::collections::BTreeSet;

use self::{device::Device, server::Server};

type Teams = BTreeSet<usize>;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    fn is(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Each of the teams with an even chance.
    fn teams(&mut self) -> Teams {
        (0..TEAMS).filter(|_| self.is(50)).collect()
    }
}

const TEAMS: usize = 4;
const DEVICES: usize = 3;
const SCHEDULES: u64 = 1_500;
const STEPS: usize = 300;

struct World {
    dice: Dice,
    server: Server,
    devices: Vec<Device>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let devices = (0..DEVICES)
            .map(|number| {
                let mut wanted = dice.teams();
                wanted.insert(number);
                Device::new(number, wanted)
            })
            .collect();
        Self {
            server: Server::new(&mut dice),
            dice,
            devices,
        }
    }

    fn step(&mut self) {
        let (dice, server) = (&mut self.dice, &mut self.server);
        let number = dice.below(DEVICES);
        let device = &mut self.devices[number];
        match dice.below(100) {
            0..6 => server.commit(dice, None),
            6..14 => server.deliver_announcement(dice),
            14..24 => server.take_turn(dice),
            24..27 => server.finish_gap(dice),
            27..30 => device.connect(server),
            30..36 => device.admit(dice, server),
            36 if dice.is(50) => device.disconnect(dice, server),
            36..39 => device.bury_ghost(dice, server),
            39..55 => device.receive_mail(server),
            55..70 => device.take_message(server),
            70..74 => device.begin_round(dice, server),
            74..94 => device.advance_rounds(dice, server),
            94 if dice.is(40) => server.begin_refresh(dice),
            94..97 => server.answer_load(dice),
            97 if dice.is(30) => server.change_allowed(dice),
            98 if dice.is(5) => server.rotate(),
            _ => device.lie(dice, server),
        }
    }

    /// Everything that is under way ends, and what is there is known and checked.
    fn rest(&mut self) {
        for _ in 0..120 {
            let server = &mut self.server;
            server.catch_up();
            server.take_turn(&mut self.dice);
            server.finish_gap(&mut self.dice);
            server.answer_load(&mut self.dice);
            for device in &mut self.devices {
                device.bury_ghost(&mut self.dice, server);
                device.admit(&mut self.dice, server);
                device.receive_mail(server);
                device.take_message(server);
                device.begin_round(&mut self.dice, server);
                device.advance_rounds(&mut self.dice, server);
            }
        }
        for device in &self.devices {
            device.check_that_nothing_is_missing(&self.server);
        }
    }

    /// Nothing new happens; everything that is under way ends well.
    fn settle(&mut self) {
        self.server.calm = true;
        self.server.begin_refresh_of_all();
        for device in &mut self.devices {
            device.connect(&mut self.server);
        }
        self.rest();
        // And goes on as if nothing had been.
        for _ in 0..3 {
            self.server.commit(&mut self.dice, None);
            self.rest();
        }
        for device in &mut self.devices {
            device.disconnect(&mut self.dice, &mut self.server);
            while device.has_ghosts() {
                device.bury_ghost(&mut self.dice, &mut self.server);
            }
        }
        assert!(self.server.room.is_empty() && self.server.room.registry.is_empty());
    }
}

#[test]
fn no_schedule_leaves_a_hole() {
    let mut deltas = 0;
    for seed in 0..SCHEDULES {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..STEPS {
                world.step();
            }
            world.settle();
            let applied = world.devices.iter().map(|device| device.deltas_applied);
            applied.sum::<usize>()
        });
        match outcome {
            Ok(applied) => deltas += applied,
            Err(cause) => {
                // The assertion has said what; this says where.
                panic!("seed {seed}: {:?}", cause.downcast_ref::<String>());
            }
        }
    }
    // Wake-ups alone would be without holes, too.
    assert!(deltas > 5_000, "{deltas}");
}
