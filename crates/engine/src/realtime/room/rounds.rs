//! Rounds of the connections' clients, over the connection or beside it (§8.7).

use tidewater_model::{ClientId, CommitSeq, LogEpoch};
use tidewater_wire::{WireVersion, control::WakeReason};

use super::{Room, SessionId, Ticket, holding::Change};
use crate::realtime::{deliver::Pulled, registrations::Registration};

/// A round that pulled and succeeded.
#[derive(Clone, Debug)]
pub(crate) struct PulledRound {
    /// Taken before its scopes were resolved.
    pub(crate) ticket: Ticket,
    /// Of the log it was answered from.
    pub(crate) epoch: LogEpoch,
    pub(crate) version: WireVersion,
    /// The head it was answered for.
    pub(crate) head: CommitSeq,
    /// The least place that a registered section reached; the head when there is none.
    pub(crate) reached: CommitSeq,
    /// What the client will acknowledge when it has applied it.
    pub(crate) acknowledged_as: CommitSeq,
    /// The sections that ended active and complete: no others may get deltas (§8.1).
    pub(crate) registrations: Vec<Registration>,
}

/// What is to be done after a round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum After {
    Nothing,
    /// Ask anew what the client may see: its answer is older than one that was asked for since.
    Reload,
}

impl Room {
    /// A request came over a connection: until its response is out, nothing else goes out but
    /// texts. What waited is taken back, because the round brings it.
    pub(crate) fn round_started(&mut self, session: SessionId) {
        if let Some(member) = self.members.get_mut(&session) {
            let is_dropped = member.mailbox.drop_deltas();
            member.flow.round_started(is_dropped);
        }
    }

    /// The response is out; `pulled` says what it brought, if it did.
    pub(crate) fn round_ended(
        &mut self,
        session: SessionId,
        pulled: Option<PulledRound>,
        now_ms: i64,
    ) -> After {
        let reason = WakeReason::CatchupRequired;
        let known = self.known();
        let Some(log) = &self.log else {
            return After::Nothing;
        };
        let looked_at = log.sequencer.contiguous();
        let pulled = pulled.filter(|pulled| pulled.epoch == log.epoch);
        let Some(member) = self.members.get_mut(&session) else {
            return After::Nothing;
        };
        let Some(pulled) = pulled else {
            if let Some(missing) = member.flow.round_failed() {
                member.miss(missing, reason, now_ms);
            }
            return After::Nothing;
        };
        member.knows_log = true;
        if pulled.ticket < member.refreshed.max(member.applied) {
            member.flow.round_outdated(pulled.acknowledged_as);
            member.miss(known.max(pulled.head), reason, now_ms);
            return After::Reload;
        }
        member.applied = pulled.ticket;
        member.version = Some(pulled.version);
        let change = self.hold(session, pulled.registrations, now_ms);
        let member = self.members.get_mut(&session).expect("it was found");
        let pulled = Pulled {
            head: pulled.head,
            reached: pulled.reached,
            acknowledged_as: pulled.acknowledged_as,
            is_wider: change == Change::Wider,
        };
        if let Some(missing) = member.flow.round_pulled(pulled, looked_at) {
            member.miss(missing, reason, now_ms);
        }
        After::Nothing
    }

    /// A client pulled, but not over these connections of its own. They hold what it asked for,
    /// and if that is more than before, nothing is sent until an acknowledgment shows that the
    /// client has applied a later pull: this one may still be on its way to it.
    ///
    /// `recorded` was taken after its client's record was written. Returns the connections to
    /// reload.
    pub(crate) fn pulled_elsewhere(
        &mut self,
        client: &ClientId,
        except: Option<SessionId>,
        pulled: &PulledRound,
        recorded: Ticket,
        now_ms: i64,
    ) -> Vec<SessionId> {
        let is_of_this_log = self.log.as_mut().is_some_and(|log| {
            log.pulled = log.pulled.max(pulled.head);
            log.epoch == pulled.epoch
        });
        let known = self.known();
        let mut reloads = Vec::new();
        for session in self.others(client, except) {
            let member = self.members.get_mut(&session).expect("it is a member");
            if !member.is_admitted {
                // What was loaded for it is from before this round was recorded.
                member.refreshed = member.refreshed.max(recorded);
                continue;
            }
            if !is_of_this_log {
                continue;
            }
            member.knows_log = true;
            if pulled.reached < pulled.head {
                member.flow.heard();
                member.miss(pulled.head, WakeReason::CatchupRequired, now_ms);
            }
            if pulled.ticket < member.refreshed.max(member.applied) {
                // The client was told of scopes that may not be those in force.
                member.flow.hold(known);
                member.wake(known, WakeReason::CatchupRequired, now_ms);
                reloads.push(session);
                continue;
            }
            member.applied = pulled.ticket;
            member.version = Some(pulled.version);
            let change = self.hold(session, pulled.registrations.clone(), now_ms);
            let member = self.members.get_mut(&session).expect("it was found");
            if change != Change::None {
                member.take_back(now_ms);
            }
            if change == Change::Wider {
                member.flow.hold(known);
            }
        }
        reloads
    }
}
