//! How many sockets there may be: in the process, of a partition, of an actor, of a client.
//!
//! **Invariant:** a seat counts until it is dropped, and what nobody holds is not remembered.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tidewater_engine::Identity;
use tidewater_model::{ActorId, ClientId, PartitionId};

use crate::RealtimeConfig;

/// Seats for sockets.
#[derive(Debug)]
pub(crate) struct Seats {
    /// In the order of [`places`].
    limits: [usize; 4],
    taken: Mutex<HashMap<Place, usize>>,
}

/// What has a limit of its own.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum Place {
    Process,
    Partition(PartitionId),
    Actor(PartitionId, ActorId),
    Client(PartitionId, ClientId),
}

/// One socket's place in each of them.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    partition: PartitionId,
    actor: ActorId,
    client: ClientId,
}

impl Seats {
    /// Nobody sits yet.
    pub(crate) fn new(config: &RealtimeConfig) -> Arc<Self> {
        Arc::new(Self {
            limits: [
                config.sockets_max,
                config.sockets_per_partition_max,
                config.sockets_per_actor_max,
                config.sockets_per_client_max,
            ],
            taken: Mutex::default(),
        })
    }

    /// A seat, unless one of the limits is reached.
    pub(crate) fn take(self: &Arc<Self>, identity: &Identity, client: &ClientId) -> Option<Seat> {
        let places = places(&identity.partition, &identity.actor, client);
        let mut taken = self.taken.lock();
        let fits = places.iter().zip(self.limits).all(|(place, limit)| {
            let taken = taken.get(place).copied().unwrap_or_default();
            taken < limit
        });
        if !fits {
            return None;
        }
        for place in places {
            *taken.entry(place).or_default() += 1;
        }
        drop(taken);
        Some(Seat {
            seats: Arc::clone(self),
            partition: identity.partition.clone(),
            actor: identity.actor.clone(),
            client: client.clone(),
        })
    }

    /// Sockets in the process.
    pub(crate) fn used(&self) -> usize {
        let taken = self.taken.lock();
        taken.get(&Place::Process).copied().unwrap_or_default()
    }
}

fn places(partition: &PartitionId, actor: &ActorId, client: &ClientId) -> [Place; 4] {
    [
        Place::Process,
        Place::Partition(partition.clone()),
        Place::Actor(partition.clone(), actor.clone()),
        Place::Client(partition.clone(), client.clone()),
    ]
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock();
        for place in places(&self.partition, &self.actor, &self.client) {
            if let Some(count) = taken.get_mut(&place) {
                *count -= 1;
                if *count == 0 {
                    taken.remove(&place);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(limits: [usize; 4]) -> Arc<Seats> {
        Seats::new(&RealtimeConfig {
            sockets_max: limits[0],
            sockets_per_partition_max: limits[1],
            sockets_per_actor_max: limits[2],
            sockets_per_client_max: limits[3],
            ..RealtimeConfig::default()
        })
    }

    #[track_caller]
    fn check(limits: [usize; 4], second: (&str, &str, &str), expected: bool) {
        let seats = seats(limits);
        let first = seats
            .take(&Identity::new("p", "a"), &ClientId::new("c"))
            .unwrap();
        let (partition, actor, client) = second;
        let take = || seats.take(&Identity::new(partition, actor), &ClientId::new(client));
        let taken = take();
        assert_eq!(taken.is_some(), expected);
        drop((first, taken));
        assert_eq!(seats.used(), 0);
        assert!(seats.taken.lock().is_empty());
        assert!(take().is_some());
    }

    #[test]
    fn each_limit_counts_what_it_names_and_nothing_else() {
        check([2, 2, 2, 2], ("p", "a", "c"), true);
        check([1, 2, 2, 2], ("q", "b", "d"), false);
        check([2, 1, 2, 2], ("p", "b", "d"), false);
        check([2, 1, 2, 2], ("q", "a", "c"), true);
        check([2, 2, 1, 2], ("p", "a", "d"), false);
        check([2, 2, 1, 2], ("p", "b", "c"), true);
        check([2, 2, 2, 1], ("p", "b", "c"), false);
        check([2, 2, 2, 1], ("p", "a", "d"), true);
    }
}
