//! The connections of one partition: who they are, what they see, where each one stands (§8.1).
//!
//! Everything that happens to a connection comes through here, in one order: what it holds, the
//! commits of the log, its rounds and acknowledgments. There is no task, I/O or clock in here;
//! what is decided goes into mailboxes, and what must be read is said to the caller.
//!
//! A *ticket* is taken before anybody is asked what a client may see. Of two answers the one with
//! the later ticket counts, however late the other arrives.
//!
//! **Invariant:** what a connection holds changes only together with where it stands, so no
//! commit falls between the two.

mod delivery;
mod holding;
mod peers;
mod rounds;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use tidewater_model::{ActorId, ClientId, CommitSeq, Cursor, LogEpoch};
use tidewater_schema::Schema;
use tidewater_store::CommitWrite;
use tidewater_wire::{
    WireVersion,
    control::{Hello, ServerControl, WakeReason},
};

pub(crate) use self::{
    delivery::{Gap, Step},
    rounds::{After, PulledRound},
};
use super::{
    HubConfig,
    deliver::{Flow, Wake},
    mailbox::{Gauges, Mailbox},
    presence::{Peer, Presence, PresenceLimits},
    registrations::{Registration, RegistrationId, Registry},
    sequencer::Sequencer,
};
use crate::Identity;

/// Names a connection of this process.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct SessionId(pub(crate) u64);

/// Orders the answers to the question what a client may see.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Ticket(pub(crate) u64);

/// Who is behind a connection.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) session: SessionId,
    pub(crate) identity: Identity,
    pub(crate) client: ClientId,
}

#[derive(Debug)]
struct Member {
    identity: Identity,
    peer: Peer,
    mailbox: Arc<Mailbox>,
    flow: Flow,
    /// Of the last accepted round; without one there are no deltas.
    version: Option<WireVersion>,
    held: Vec<RegistrationId>,
    /// Sees more scope values than are indexed: every commit may be its business.
    is_unindexed: bool,
    is_admitted: bool,
    /// Whether its client has pulled from this log, and not from one before it.
    knows_log: bool,
    /// Of the answer that `held` comes from.
    applied: Ticket,
    /// Of the newest refresh that was begun.
    refreshed: Ticket,
}

#[derive(Debug)]
struct Log {
    epoch: LogEpoch,
    sequencer: Sequencer,
    /// The newest place that a pull was answered for.
    pulled: CommitSeq,
}

/// What a connection begins with.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) ticket: Ticket,
    /// Of the log that the rest was read from.
    pub(crate) epoch: LogEpoch,
    /// Of the client's record; `None` without one.
    pub(crate) cursor: Option<Cursor>,
    pub(crate) version: Option<WireVersion>,
    pub(crate) registrations: Vec<Registration>,
    /// Whether every subscription of the client's was registered.
    pub(crate) is_complete: bool,
    /// Whether the registrations are what its last pull told the client that it sees.
    pub(crate) is_as_pulled: bool,
    pub(crate) session_name: String,
}

/// A client's record may say more than it has.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Doubt {
    pub(crate) epoch: LogEpoch,
    /// What it has for certain.
    pub(crate) confirmed: Cursor,
}

/// What was loaded for an admission does not count any more: load it again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Stale;

/// All connections of a partition.
#[derive(Debug)]
pub(crate) struct Room {
    config: Arc<HubConfig>,
    schema: Arc<Schema>,
    gauges: Arc<Gauges>,
    /// While somebody is admitted.
    log: Option<Log>,
    /// What was announced before there was a log.
    announced: CommitSeq,
    registry: Registry,
    presence: Presence,
    members: BTreeMap<SessionId, Member>,
    by_client: BTreeMap<ClientId, Vec<SessionId>>,
    unindexed: BTreeSet<SessionId>,
    notices: Vec<Bytes>,
}

/// Counts over the connections of a room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoomStats {
    pub(crate) sessions: usize,
    pub(crate) suppressed: usize,
    pub(crate) in_round: usize,
    pub(crate) documents: usize,
}

impl Room {
    pub(crate) fn new(config: Arc<HubConfig>, schema: Arc<Schema>, gauges: Arc<Gauges>) -> Self {
        let window = config.presence_window.unwrap_or_default();
        let limits = PresenceLimits {
            document_bytes_max: config.presence_bytes_max,
            keys_per_session_max: config.presence_keys_max,
            documents_per_key_max: config.presence_documents_per_key_max,
            window_ms: i64::try_from(window.as_millis()).unwrap_or(i64::MAX),
        };
        Self {
            config,
            schema,
            gauges,
            log: None,
            announced: CommitSeq::START,
            registry: Registry::default(),
            presence: Presence::new(limits),
            members: BTreeMap::new(),
            by_client: BTreeMap::new(),
            unindexed: BTreeSet::new(),
            notices: Vec::new(),
        }
    }

    /// Whether nobody would miss it.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.presence.is_empty()
    }

    pub(crate) fn stats(&self) -> RoomStats {
        let count = |is: fn(&Flow) -> bool| {
            let flows = self.members.values().map(|member| &member.flow);
            flows.filter(|flow| is(flow)).count()
        };
        RoomStats {
            sessions: self.members.len(),
            suppressed: count(Flow::is_suppressed),
            in_round: count(Flow::is_in_round),
            documents: self.presence.count(),
        }
    }

    /// A connection is about to be admitted: from now on, refreshes concern it.
    pub(crate) fn enter(&mut self, who: Who, mailbox: Arc<Mailbox>) {
        let Who {
            session,
            identity,
            client,
        } = who;
        let named = self.by_client.entry(client.clone()).or_default();
        named.push(session);
        let member = Member {
            peer: Peer {
                actor: identity.actor.clone(),
                client,
            },
            identity,
            mailbox,
            flow: Flow::default(),
            version: None,
            held: Vec::new(),
            is_unindexed: false,
            is_admitted: false,
            knows_log: true,
            applied: Ticket::default(),
            refreshed: Ticket::default(),
        };
        self.members.insert(session, member);
    }

    /// Lets a connection in that has entered. `epoch` and `head` are the partition's at this
    /// moment: nothing that was announced before is missing from them.
    pub(crate) fn admit(
        &mut self,
        session: SessionId,
        admission: Admission,
        epoch: &LogEpoch,
        head: CommitSeq,
        now_ms: i64,
    ) -> Result<(), Stale> {
        let Some(member) = self.members.get(&session) else {
            return Ok(());
        };
        if member.refreshed > admission.ticket || admission.epoch != *epoch {
            return Err(Stale);
        }
        let latest = self.open(epoch, head, now_ms);
        let recorded = admission.cursor.unwrap_or(Cursor::Never);
        let cursor = self.undoubted(session, recorded);
        let member = self.members.get_mut(&session).expect("it was found");
        member.is_admitted = true;
        member.applied = admission.ticket;
        member.version = admission.version;
        let place = match cursor {
            Cursor::Never => None,
            Cursor::At(place) => Some(place),
        };
        member.flow.admit(place, latest);
        if !admission.is_as_pulled {
            member.flow.hold(latest);
        }
        let hello = Hello {
            session_id: admission.session_name.into(),
            actor_id: member.peer.actor.as_str().into(),
            client_id: member.peer.client.as_str().into(),
            cursor: cursor.to_i64(),
            latest_cursor: latest.to_i64(),
            requires_sync: admission.cursor.is_none()
                || cursor < Cursor::At(latest)
                || !admission.is_complete
                || !admission.is_as_pulled,
            timestamp: now_ms,
        };
        let hello = ServerControl::Hello(hello).to_text();
        member.mailbox.post_text(hello.into());
        self.hold(session, admission.registrations, now_ms);
        Ok(())
    }

    /// A cursor of a client's record, or less if an older connection of it was sent a pull that it
    /// has not acknowledged: clients come back before their old connections are found dead.
    fn undoubted(&self, session: SessionId, recorded: Cursor) -> Cursor {
        let named = self.members.get(&session).map(|member| &member.peer.client);
        let others = named.map(|client| self.others(client, Some(session)));
        let doubts = others.into_iter().flatten().filter_map(|other| {
            let member = self.members.get(&other)?;
            member.flow.doubt()
        });
        doubts
            .map(|confirmed| confirmed.map_or(Cursor::Never, Cursor::At))
            .fold(recorded, Cursor::min)
    }

    /// Makes sure that there is a log, and that it is this one. Returns its newest place.
    fn open(&mut self, epoch: &LogEpoch, head: CommitSeq, now_ms: i64) -> CommitSeq {
        match &mut self.log {
            Some(log) if log.epoch == *epoch => log.sequencer.announce(head, None),
            Some(_) => self.restart(epoch, head, now_ms),
            None => {
                let bytes_max = self.config.pending_commits_bytes_max;
                let mut sequencer = Sequencer::new(head, bytes_max);
                sequencer.announce(self.announced, None);
                let epoch = epoch.clone();
                self.log = Some(Log {
                    epoch,
                    sequencer,
                    pulled: head,
                });
            }
        }
        self.known()
    }

    /// A connection is gone. Returns what its client has for certain, if its record may say more.
    pub(crate) fn leave(&mut self, session: SessionId, now_ms: i64) -> Option<Doubt> {
        self.let_go(session, now_ms);
        let member = self.members.remove(&session)?;
        let epoch = self.log.as_ref().map(|log| log.epoch.clone());
        let doubt = member.flow.doubt();
        let client = &member.peer.client;
        if let Some(named) = self.by_client.get_mut(client) {
            named.retain(|other| *other != session);
            if named.is_empty() {
                self.by_client.remove(client);
            }
        }
        if self.members.is_empty() {
            (self.log, self.announced) = (None, CommitSeq::START);
        }
        Some(Doubt {
            epoch: epoch?,
            confirmed: doubt?.map_or(Cursor::Never, Cursor::At),
        })
    }

    /// The newest place that is known to exist.
    pub(crate) fn known(&self) -> CommitSeq {
        let log = self.log.as_ref();
        log.map_or(self.announced, |log| log.sequencer.known().max(log.pulled))
    }

    /// Whether something is to be delivered or read.
    pub(crate) fn has_work(&self) -> bool {
        let log = self.log.as_ref();
        log.is_some_and(|log| log.sequencer.known() > log.sequencer.contiguous())
    }

    /// Takes an announcement; without a commit it says only that the place exists. Returns
    /// whether there is something to do.
    pub(crate) fn announce(&mut self, seq: CommitSeq, commit: Option<&Arc<CommitWrite>>) -> bool {
        match &mut self.log {
            Some(log) => log.sequencer.announce(seq, commit.map(Arc::clone)),
            None => self.announced = self.announced.max(seq),
        }
        self.has_work()
    }

    /// The log was replaced: what connections hold and where they stand means nothing any more.
    pub(crate) fn restart(&mut self, epoch: &LogEpoch, head: CommitSeq, now_ms: i64) {
        let Some(log) = &mut self.log else {
            self.announced = CommitSeq::START;
            return;
        };
        if log.epoch == *epoch {
            return;
        }
        log.epoch = epoch.clone();
        log.sequencer.restart(head);
        let sessions: Vec<SessionId> = self.members.keys().copied().collect();
        for session in sessions {
            self.let_go(session, now_ms);
            let member = self.members.get_mut(&session).expect("it is a member");
            if !member.is_admitted {
                continue;
            }
            member.mailbox.drop_deltas();
            member.flow.restart(head);
            member.knows_log = false;
            member.wake(head, WakeReason::ResetRequired, now_ms);
        }
    }

    /// Tells every client to pull.
    pub(crate) fn wake_all(&mut self, reason: WakeReason, now_ms: i64) {
        let known = self.known();
        for member in self
            .members
            .values_mut()
            .filter(|member| member.is_admitted)
        {
            member.wake(known, reason, now_ms);
        }
    }

    /// Takes an acknowledgment. Returns the place if it is worth being remembered, with the log
    /// it is of.
    pub(crate) fn ack(
        &mut self,
        session: SessionId,
        seq: CommitSeq,
        now_ms: i64,
    ) -> Option<(LogEpoch, CommitSeq)> {
        // Nobody has applied what does not exist (OQ-26).
        let seq = seq.min(self.known());
        let member = self.members.get_mut(&session)?;
        if !member.knows_log || !member.is_admitted {
            return None;
        }
        let (news, missed) = member.flow.ack(seq);
        if let Some(missed) = missed {
            let reason = WakeReason::CatchupRequired;
            member.mailbox.post_wake_up(missed, reason, now_ms);
        }
        let epoch = self.log.as_ref()?.epoch.clone();
        news.map(|seq| (epoch, seq))
    }

    fn matching(&self, actor: Option<&ActorId>) -> Vec<SessionId> {
        let members = self.members.iter();
        members
            .filter(|(_, member)| actor.is_none_or(|actor| member.identity.actor == *actor))
            .map(|(session, _)| *session)
            .collect()
    }
}

impl Member {
    /// The client must pull up to here, and is told unless it knows already.
    fn miss(&mut self, seq: CommitSeq, reason: WakeReason, now_ms: i64) {
        match self.flow.miss(seq) {
            Wake::Send => self.mailbox.post_wake_up(seq, reason, now_ms),
            Wake::Amend => {
                if self.mailbox.amend_wake_up(seq, reason) {
                    self.flow.amended(seq);
                }
            }
        }
    }

    /// The client must pull up to here, and is told in any case.
    fn wake(&mut self, seq: CommitSeq, reason: WakeReason, now_ms: i64) {
        self.flow.miss(seq);
        self.flow.amended(seq);
        self.mailbox.post_wake_up(seq, reason, now_ms);
    }

    /// Takes back what waits for the client; it must pull it.
    fn take_back(&mut self, now_ms: i64) {
        if self.mailbox.drop_deltas() {
            let covered = self.flow.covered();
            self.miss(covered, WakeReason::CatchupRequired, now_ms);
        }
    }
}

#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
