//! Commits on their way to those who see them (§8.2).
//!
//! A commit is matched once per registration, and its frame is encoded once per distinct set of
//! registrations and wire version, whoever receives it. Where the log must be read first, it is
//! read for what all connections look for together.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidewater_model::{CommitSeq, LogEpoch};
use tidewater_schema::{Schema, TableIndex};
use tidewater_store::Window;
use tidewater_wire::{WireVersion, control::WakeReason};

use super::{Room, SessionId};
use crate::realtime::{
    HubConfig,
    deliver::Verdict,
    frame::{self, Delivery, DeliveryChange, Section},
    mailbox::Gauges,
    registrations::{Interest, RegistrationId, Registry},
    sequencer::Turn,
};

/// A stretch of the log that must be read before anything after it is delivered.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    /// Exclusive.
    pub(crate) after: CommitSeq,
    pub(crate) through: CommitSeq,
    pub(crate) epoch: LogEpoch,
    /// What to read for; `None` when it is too much to be read.
    pub(crate) interests: Option<Vec<Interest>>,
    stamp: u64,
}

/// What a registration sees of a commit, and who holds it at which place in their list.
type Receiver = (SessionId, u32, RegistrationId);

impl Room {
    /// Delivers what is there and tells what must be read; `None` when there is nothing to do.
    /// Stops after so many commits and receivers, so that others get their turn with the room.
    pub(crate) fn take_turns(&mut self, turns_max: usize, now_ms: i64) -> Option<Step> {
        let mut turns = 0;
        while turns < turns_max {
            turns += 1;
            let log = self.log.as_mut()?;
            let after = log.sequencer.contiguous();
            match log.sequencer.take_turn() {
                Turn::Deliver(commit) => {
                    if let Some(delivery) = Delivery::of(&commit) {
                        turns += self.deliver(&delivery, now_ms) / RECEIVERS_PER_TURN;
                    }
                }
                Turn::Read(through) => return Some(Step::Read(self.gap(after, through))),
                Turn::Rest => return None,
            }
        }
        Some(Step::Again)
    }

    fn gap(&self, after: CommitSeq, through: CommitSeq) -> Gap {
        let log = self.log.as_ref().expect("a gap is in a log");
        let interests = self.registry.interests(self.config.gap_values_max);
        Gap {
            after,
            through,
            epoch: log.epoch.clone(),
            stamp: self.registry.stamp(),
            interests: interests.map(|(_, interests)| interests),
        }
    }

    /// The same gap, for everybody who is here by now.
    pub(crate) fn look_again(&self, gap: &Gap) -> Gap {
        if self.is_at(gap) {
            self.gap(gap.after, gap.through)
        } else {
            gap.clone()
        }
    }

    /// Delivers what was read, one window per interest. Returns `false` when it was not read for
    /// everybody who is here by now: then it must be read again.
    #[must_use]
    pub(crate) fn deliver_gap(&mut self, gap: &Gap, windows: &[Window], now_ms: i64) -> bool {
        if !self.is_at(gap) {
            return true;
        }
        if self.registry.stamp() != gap.stamp {
            return false;
        }
        let mut commits: BTreeMap<CommitSeq, Delivery<'_>> = BTreeMap::new();
        let interests = gap.interests.iter().flatten();
        for (interest, window) in interests.zip(windows) {
            for commit in window.commits() {
                let delivery = commits
                    .entry(commit.commit_seq())
                    .or_insert_with(|| Delivery {
                        seq: commit.commit_seq(),
                        created_at_ms: commit.created_at_ms(),
                        actor: commit.actor(),
                        client: None,
                        changes: Vec::new(),
                    });
                let changes = commit.changes().map(|change| DeliveryChange {
                    table: interest.table,
                    row_id: change.row_id,
                    row: change.row,
                    scopes: change.scopes,
                    via: Some(&interest.variable),
                });
                delivery.changes.extend(changes);
            }
        }
        for delivery in commits.values() {
            self.deliver(delivery, now_ms);
        }
        self.miss_unindexed(gap.through, now_ms);
        self.advance(gap.through);
        true
    }

    /// Gives up a gap: everybody who may see some of it must pull.
    pub(crate) fn miss_gap(&mut self, gap: &Gap, now_ms: i64) {
        if !self.is_at(gap) {
            return;
        }
        for member in self.members.values_mut() {
            let sees_something = member.is_unindexed || !member.held.is_empty();
            if sees_something && member.flow.judge(gap.through, false) != Verdict::Covered {
                member.miss(gap.through, WakeReason::CatchupRequired, now_ms);
            }
        }
        self.advance(gap.through);
    }

    /// Whether the log still stands where the gap was found.
    fn is_at(&self, gap: &Gap) -> bool {
        self.log
            .as_ref()
            .is_some_and(|log| log.epoch == gap.epoch && log.sequencer.contiguous() == gap.after)
    }

    fn advance(&mut self, through: CommitSeq) {
        if let Some(log) = &mut self.log {
            log.sequencer.advance(through);
        }
    }

    /// Delivers one commit to all who see it. Returns how many they are, about.
    fn deliver(&mut self, delivery: &Delivery<'_>, now_ms: i64) -> usize {
        let seen = seen_changes(&self.registry, delivery);
        let mut receivers: Vec<Receiver> = seen
            .keys()
            .flat_map(|id| {
                let holders = self.registry.sessions(*id);
                holders.map(|(session, place)| (session, place, *id))
            })
            .collect();
        receivers.sort_unstable();
        let log = self.log.as_ref().expect("commits come from a log");
        let mut frames = Frames {
            schema: &self.schema,
            epoch: &log.epoch,
            config: &self.config,
            gauges: &self.gauges,
            registry: &self.registry,
            delivery,
            seen,
            encoded: BTreeMap::new(),
            encoded_bytes: 0,
        };
        for sections in receivers.chunk_by(|left, right| left.0 == right.0) {
            let Some(member) = self.members.get_mut(&sections[0].0) else {
                continue;
            };
            let is_own = delivery.client == Some(&member.peer.client);
            match member.flow.judge(delivery.seq, is_own) {
                Verdict::Covered => {}
                Verdict::Awaited => member.flow.awaits(delivery.seq),
                Verdict::Missed => {
                    member.miss(delivery.seq, WakeReason::CatchupRequired, now_ms);
                }
                Verdict::Deliverable => {
                    let has_room = member.flow.has_room(self.config.unacknowledged_deltas_max);
                    let frame = match member.version {
                        Some(version) if has_room => frames.frame(version, sections),
                        _ => Err(WakeReason::CatchupRequired),
                    };
                    let outcome = frame.and_then(|frame| {
                        let is_taken = member.mailbox.offer_delta(frame);
                        is_taken.then_some(()).ok_or(WakeReason::CatchupRequired)
                    });
                    match outcome {
                        Ok(()) => member.flow.sent(delivery.seq),
                        Err(reason) => {
                            // It will be pulled together with this commit.
                            member.mailbox.drop_deltas();
                            member.miss(delivery.seq, reason, now_ms);
                        }
                    }
                }
            }
        }
        self.miss_unindexed(delivery.seq, now_ms);
        receivers.len() + self.unindexed.len()
    }

    /// Tells those whose scopes are not indexed that there may be something for them.
    fn miss_unindexed(&mut self, seq: CommitSeq, now_ms: i64) {
        for session in &self.unindexed {
            if let Some(member) = self.members.get_mut(session)
                && member.flow.judge(seq, false) != Verdict::Covered
            {
                member.miss(seq, WakeReason::CatchupRequired, now_ms);
            }
        }
    }
}

/// What comes after some turns.
#[derive(Debug)]
pub(crate) enum Step {
    /// There is more.
    Again,
    /// Something must be read first.
    Read(Gap),
}

/// The changes that each registration sees, by their place in the commit.
fn seen_changes(
    registry: &Registry,
    delivery: &Delivery<'_>,
) -> BTreeMap<RegistrationId, Vec<usize>> {
    let mut seen: BTreeMap<RegistrationId, Vec<usize>> = BTreeMap::new();
    for (index, change) in delivery.changes.iter().enumerate() {
        registry.find(change.table, change.scopes, change.via, |id| {
            seen.entry(id).or_default().push(index);
        });
    }
    seen
}

/// The frames of one commit.
struct Frames<'a> {
    schema: &'a Schema,
    epoch: &'a LogEpoch,
    config: &'a HubConfig,
    gauges: &'a std::sync::Arc<Gauges>,
    registry: &'a Registry,
    delivery: &'a Delivery<'a>,
    seen: BTreeMap<RegistrationId, Vec<usize>>,
    encoded: BTreeMap<(WireVersion, Vec<RegistrationId>), Option<Bytes>>,
    encoded_bytes: usize,
}

impl Frames<'_> {
    /// The frame for who holds these, or why there is none.
    fn frame(&mut self, version: WireVersion, sections: &[Receiver]) -> Result<Bytes, WakeReason> {
        let ids: Vec<RegistrationId> = sections.iter().map(|(.., id)| *id).collect();
        if self.is_out_of_order(&ids) {
            return Err(WakeReason::CatchupRequired);
        }
        let key = (version, ids);
        let frame = match self.encoded.get(&key) {
            Some(frame) => frame.clone(),
            None => {
                let frame = self.encode(version, &key.1);
                let bytes = frame.as_ref().map_or(0, Bytes::len);
                if !self.gauges.has_room(bytes, self.config.queued_bytes_max) {
                    return Err(WakeReason::CatchupRequired);
                }
                let frame = frame.map(|frame| self.gauges.frame(frame));
                // What is remembered only to be shared must not outgrow what is shared.
                self.encoded_bytes += bytes;
                if self.encoded_bytes > ENCODED_BYTES_MAX {
                    self.encoded.clear();
                    self.encoded_bytes = bytes;
                }
                self.encoded.insert(key, frame.clone());
                frame
            }
        };
        frame.ok_or(WakeReason::DeltaTooLarge)
    }

    /// `None` when it is too large.
    fn encode(&self, version: WireVersion, ids: &[RegistrationId]) -> Option<Bytes> {
        let sections: Vec<Section<'_>> = ids
            .iter()
            .map(|id| Section {
                registration: self.registry.registration(*id),
                changes: &self.seen[id],
            })
            .collect();
        let bytes_max = self.config.delta_bytes_max;
        let encoded = frame::encode(
            self.schema,
            self.epoch,
            version,
            self.delivery,
            &sections,
            bytes_max,
        );
        encoded.unwrap_or_else(|error| {
            tracing::error!(%error, "a commit cannot be encoded as a delta");
            None
        })
    }

    /// Whether the order of changes between two sections of one table matters and is not known,
    /// because they were read one after the other: a row that moves must not be lost (OQ-35).
    fn is_out_of_order(&self, ids: &[RegistrationId]) -> bool {
        let is_read = self
            .delivery
            .changes
            .iter()
            .any(|change| change.via.is_some());
        if !is_read || ids.len() < 2 {
            return false;
        }
        let mut variables: BTreeMap<TableIndex, &str> = BTreeMap::new();
        ids.iter().any(|id| {
            let (table, variable) = (
                self.registry.registration(*id).table,
                self.registry.indexed_by(*id),
            );
            *variables.entry(table).or_insert(variable) != variable
        })
    }
}

/// As many receivers take as long as another commit.
const RECEIVERS_PER_TURN: usize = 64;

/// Frames of one commit that are kept to be shared.
const ENCODED_BYTES_MAX: usize = 32 * 1024 * 1024;
