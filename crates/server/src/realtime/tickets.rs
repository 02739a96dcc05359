//! Tickets: what a browser shows at the upgrade in place of a header that it cannot set.
//!
//! A page asks for one over HTTP with its credentials and puts it into the address of the socket.
//! Addresses end up in logs, so a ticket works once and not for long.
//!
//! **Invariant:** a ticket stands for the identity that asked for it, its expiry included, and
//! is kept as a digest. Tickets are of this process: a socket has to reach the one that gave it.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidewater_engine::Identity;
use tidewater_model::{ActorId, PartitionId};

use crate::auth::digest;

/// Tickets that were given and not used.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Mutex<HashMap<[u8; 32], Ticket>>);

#[derive(Debug)]
struct Ticket {
    identity: Identity,
    expires_at_ms: i64,
}

impl Tickets {
    /// A ticket with this name; `false` when the actor or the process has too many.
    pub(crate) fn issue(
        &self,
        name: &str,
        identity: Identity,
        now_ms: i64,
        expires_at_ms: i64,
    ) -> bool {
        let mut tickets = self.0.lock();
        if tickets.len() >= TICKETS_MAX {
            tickets.retain(|_, ticket| ticket.expires_at_ms > now_ms);
        }
        let theirs = tickets.values().filter(|ticket| {
            ticket.expires_at_ms > now_ms
                && is_of(&ticket.identity, &identity.partition, &identity.actor)
        });
        if tickets.len() >= TICKETS_MAX || theirs.count() >= TICKETS_PER_ACTOR_MAX {
            return false;
        }
        let ticket = Ticket {
            identity,
            expires_at_ms,
        };
        tickets.insert(digest(name), ticket);
        true
    }

    /// Whom a ticket stands for. It does not work again.
    pub(crate) fn redeem(&self, name: &str, now_ms: i64) -> Option<Identity> {
        let ticket = self.0.lock().remove(&digest(name))?;
        (ticket.expires_at_ms > now_ms).then_some(ticket.identity)
    }
}

fn is_of(identity: &Identity, partition: &PartitionId, actor: &ActorId) -> bool {
    identity.actor == *actor && identity.partition == *partition
}

/// A name that nobody can guess.
pub(crate) fn fresh_name() -> Result<String, getrandom::Error> {
    let mut bytes = [0; NAME_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(hex::encode(bytes))
}

/// 192 bits.
const NAME_BYTES: usize = 24;
/// Tickets at once. Each lives for seconds.
const TICKETS_MAX: usize = 16_384;
/// Tickets of one actor at once.
const TICKETS_PER_ACTOR_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_works_once_and_not_for_long() {
        let tickets = Tickets::default();
        let alice = || Identity::new("p", "alice");
        assert!(tickets.issue("one", alice(), 0, 10));
        assert!(tickets.issue("two", alice(), 0, 10));
        assert!(tickets.redeem("three", 9).is_none());
        let identity = tickets.redeem("one", 9).unwrap();
        assert_eq!(identity.actor.as_str(), "alice");
        assert!(tickets.redeem("one", 9).is_none());
        assert!(tickets.redeem("two", 10).is_none());
    }

    #[test]
    fn nobody_can_fill_the_list() {
        let tickets = Tickets::default();
        for number in 0..TICKETS_PER_ACTOR_MAX {
            assert!(tickets.issue(&number.to_string(), Identity::new("p", "alice"), 0, 10));
        }
        assert!(!tickets.issue("more", Identity::new("p", "alice"), 0, 10));
        assert!(tickets.issue("bob's", Identity::new("p", "bob"), 0, 10));
        assert!(tickets.issue("later", Identity::new("p", "alice"), 10, 20));
    }
}
