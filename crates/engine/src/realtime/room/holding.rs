//! What a connection holds: its registrations, and the presence keys that follow from them.
//!
//! A refresh asks anew what a client may see. From the moment it begins, nothing is sent to the
//! connections it concerns; what its answer takes away is gone before anything is sent again.

use std::collections::{BTreeMap, BTreeSet};

use tidewater_model::{ActorId, ClientId};
use tidewater_schema::Schema;
use tidewater_wire::control::WakeReason;

use super::{Room, SessionId, Ticket, Who};
use crate::realtime::registrations::{Registration, RegistrationId};

/// How what a connection holds has changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    None,
    /// Nothing that was not held before.
    Narrower,
    /// Something that was not held before.
    Wider,
}

impl Room {
    /// Begins a refresh of an actor's connections, or of all. Returns those to ask for; one that
    /// is being admitted asks for itself, and sees that its answer is too old.
    pub(crate) fn refresh_started(
        &mut self,
        actor: Option<&ActorId>,
        ticket: Ticket,
        now_ms: i64,
    ) -> Vec<Who> {
        let sessions = self.matching(actor);
        let begun = sessions.into_iter();
        begun
            .filter_map(|session| self.reload_started(session, ticket, now_ms))
            .collect()
    }

    /// Begins to ask anew for one connection.
    pub(crate) fn reload_started(
        &mut self,
        session: SessionId,
        ticket: Ticket,
        now_ms: i64,
    ) -> Option<Who> {
        let member = self.members.get_mut(&session)?;
        member.refreshed = member.refreshed.max(ticket);
        if !member.is_admitted {
            return None;
        }
        member.flow.refresh_started();
        member.take_back(now_ms);
        Some(Who {
            session,
            identity: member.identity.clone(),
            client: member.peer.client.clone(),
        })
    }

    /// The answer to a refresh. `None` is that there is none: then nothing is held, because
    /// whoever asked wanted something taken away.
    pub(crate) fn refresh_ended(
        &mut self,
        session: SessionId,
        ticket: Ticket,
        answer: Option<Vec<Registration>>,
        now_ms: i64,
    ) {
        let Some(member) = self.members.get_mut(&session) else {
            return;
        };
        member.flow.refresh_ended();
        if ticket < member.applied {
            return;
        }
        member.applied = ticket;
        let answer = if member.knows_log { answer } else { None };
        self.replace(session, answer.unwrap_or_default(), now_ms);
    }

    /// The answer to a reload that no host asked for. Without one, what is held stays, and the
    /// client pulls again.
    pub(crate) fn reload_ended(
        &mut self,
        session: SessionId,
        ticket: Ticket,
        answer: Option<Vec<Registration>>,
        now_ms: i64,
    ) {
        if answer.is_some() {
            return self.refresh_ended(session, ticket, answer, now_ms);
        }
        let known = self.known();
        if let Some(member) = self.members.get_mut(&session) {
            member.flow.refresh_ended();
            member.miss(known, WakeReason::CatchupRequired, now_ms);
        }
    }

    /// Replaces what a connection holds outside of its rounds: whatever has changed, its client
    /// must pull before it gets deltas again. Rows it does not see any more are purged by that,
    /// rows it sees now come with it.
    fn replace(&mut self, session: SessionId, registrations: Vec<Registration>, now_ms: i64) {
        let change = self.hold(session, registrations, now_ms);
        let known = self.known();
        let member = self.members.get_mut(&session);
        if change != Change::None
            && let Some(member) = member
        {
            member.mailbox.drop_deltas();
            member.flow.hold(known);
            // A wake-up on its way was for something else: it may be answered with a pull that
            // began before this.
            member.wake(known, WakeReason::CatchupRequired, now_ms);
        }
    }

    /// Gives a connection these registrations and no others.
    pub(super) fn hold(
        &mut self,
        session: SessionId,
        registrations: Vec<Registration>,
        now_ms: i64,
    ) -> Change {
        let Some(member) = self.members.get(&session) else {
            return Change::None;
        };
        let held = || member.held.iter().map(|id| self.registry.registration(*id));
        let value_count: usize = registrations.iter().map(Registration::value_count).sum();
        let is_unindexed = value_count > self.config.registered_values_max;
        if !is_unindexed && !member.is_unindexed && held().eq(registrations.iter()) {
            return Change::None;
        }
        let by_id: BTreeMap<&str, &Registration> = held().map(|held| (&*held.id, held)).collect();
        let is_held = |wanted: &Registration| {
            let held = by_id.get(&*wanted.id);
            held.is_some_and(|held| wanted.is_within(held))
        };
        let is_wider = is_unindexed || member.is_unindexed || !registrations.iter().all(is_held);
        let keys_before = self.keys(&member.held);
        let before = member.held.clone();
        let registrations = if is_unindexed {
            Vec::new()
        } else {
            registrations
        };
        let after: Vec<RegistrationId> = (0..)
            .zip(registrations)
            .map(|(place, wanted)| self.registry.add(wanted, session, place))
            .collect();
        let kept: BTreeSet<RegistrationId> = after.iter().copied().collect();
        for id in before.into_iter().filter(|id| !kept.contains(id)) {
            self.registry.remove(id, session);
        }
        let keys_after = self.keys(&after);
        let member = self.members.get_mut(&session).expect("it was found");
        member.held = after;
        member.is_unindexed = is_unindexed;
        if is_unindexed {
            self.unindexed.insert(session);
        } else {
            self.unindexed.remove(&session);
        }
        self.reconcile(session, &keys_before, &keys_after, now_ms);
        if is_wider {
            Change::Wider
        } else {
            Change::Narrower
        }
    }

    /// Takes everything from a connection.
    pub(super) fn let_go(&mut self, session: SessionId, now_ms: i64) {
        self.hold(session, Vec::new(), now_ms);
    }

    /// Other connections of a client.
    pub(super) fn others(&self, client: &ClientId, except: Option<SessionId>) -> Vec<SessionId> {
        let named = self.by_client.get(client).into_iter().flatten();
        named
            .copied()
            .filter(|session| Some(*session) != except)
            .collect()
    }

    fn keys(&self, held: &[RegistrationId]) -> BTreeSet<String> {
        let registrations = held.iter().map(|id| self.registry.registration(*id));
        registrations
            .flat_map(|registration| keys(&self.schema, registration))
            .collect()
    }

    /// Leaves the keys that are held no more, and tells of the peers on those held now (§8.6).
    fn reconcile(
        &mut self,
        session: SessionId,
        before: &BTreeSet<String>,
        after: &BTreeSet<String>,
        now_ms: i64,
    ) {
        let Some(member) = self.members.get(&session) else {
            return;
        };
        let (peer, mailbox) = (&member.peer, &member.mailbox);
        let mut leaves = Vec::new();
        for key in before.difference(after) {
            leaves.extend(self.presence.lose(key, session, peer, now_ms));
        }
        for key in after.difference(before) {
            for join in self.presence.gain(key, session) {
                mailbox.post_snapshot(join);
            }
        }
        self.send(leaves);
    }
}

fn keys(schema: &Schema, registration: &Registration) -> impl Iterator<Item = String> {
    let patterns = &schema.table(registration.table).scopes;
    let entries = registration.effective.entries().iter();
    entries.flat_map(move |entry| {
        let patterns = patterns
            .iter()
            .filter(|pattern| pattern.variable == entry.variable);
        patterns.flat_map(|pattern| entry.values.iter().map(|value| pattern.key(value)))
    })
}
