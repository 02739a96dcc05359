//! The server around the room: log, announcements, records, resolver.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use tidewater_model::{ActorId, ClientId, CommitSeq, Cursor, LogEpoch, PartitionId};
use tidewater_model::{HorizonSeq, ScopeFilter, ScopeValues, StoredScopes};
use tidewater_schema::{Schema, TableIndex};
use tidewater_store::{
    AppliedCommit, ChangeKind, ChangeWrite, CommitWrite, Gate, PushKey, PushResultRecord,
    PushStatus, RowState, Window, WindowBuilder,
};
use tidewater_wire::WireVersion;

use super::{DEVICES, Dice, Teams};
use crate::{
    HubConfig, Identity,
    realtime::{
        mailbox::{Gauges, Mailbox},
        registrations::Registration,
        room::{After, Gap, Room, SessionId, Step, Ticket, Who},
    },
    testing::SCHEMA,
};

/// A commit of the log, at the place after its index.
pub(super) struct Entry {
    pub(super) teams: Teams,
    author: Option<usize>,
    bytes: usize,
}

/// What the server remembers of a device.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) cursor: Option<u64>,
    pub(super) wanted: Teams,
    pub(super) is_complete: bool,
    /// What its last pull told it that it sees.
    pub(super) effective: Teams,
}

/// A question to the resolver that is not answered yet.
struct Load {
    who: Who,
    ticket: Ticket,
    must_answer: bool,
}

pub(super) struct Server {
    pub(super) room: Room,
    pub(super) log: Vec<Entry>,
    /// What is known in memory: all but the commits of other nodes that nobody told of.
    pub(super) head: u64,
    pub(super) epoch: u64,
    pub(super) records: BTreeMap<usize, Record>,
    pub(super) allowed: Vec<Teams>,
    /// Everything that was allowed at some time since the last refresh of a device.
    pub(super) allowed_since: Vec<Teams>,
    /// Nothing fails or gets lost any more.
    pub(super) calm: bool,
    gauges: Arc<Gauges>,
    config: Arc<HubConfig>,
    announcements: Vec<(u64, bool)>,
    gap: Option<Gap>,
    loads: Vec<Load>,
    count: u64,
}

impl Server {
    pub(super) fn new(dice: &mut Dice) -> Self {
        let config = Arc::new(HubConfig {
            delta_bytes_max: 1_000,
            unacknowledged_deltas_max: 4,
            mailbox_bytes_max: 900,
            queued_bytes_max: 4_000,
            pending_commits_bytes_max: 1_500,
            gap_changes_max: 8,
            gap_values_max: 4,
            registered_values_max: 3,
            ..HubConfig::default()
        });
        let gauges = Arc::<Gauges>::default();
        let schema = Arc::new(Schema::from_json(SCHEMA).unwrap());
        let allowed: Vec<Teams> = (0..DEVICES)
            .map(|_| {
                if dice.is(70) {
                    (0..super::TEAMS).collect()
                } else {
                    dice.teams()
                }
            })
            .collect();
        Self {
            room: Room::new(Arc::clone(&config), schema, Arc::clone(&gauges)),
            log: Vec::new(),
            head: 0,
            epoch: 1,
            records: BTreeMap::new(),
            allowed_since: allowed.clone(),
            allowed,
            calm: false,
            gauges,
            config,
            announcements: Vec::new(),
            gap: None,
            loads: Vec::new(),
            count: 0,
        }
    }

    pub(super) fn count(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    pub(super) fn epoch(&self) -> LogEpoch {
        LogEpoch::new(self.epoch.to_string())
    }

    pub(super) fn newest(&self) -> u64 {
        u64::try_from(self.log.len()).unwrap()
    }

    /// The commits of a span that these teams see.
    pub(super) fn seen(&self, teams: &Teams, after: u64, through: u64) -> Vec<(u64, usize)> {
        let entries = (1..).zip(&self.log);
        let span = entries.filter(|(seq, _)| after < *seq && *seq <= through);
        span.flat_map(|(seq, entry)| {
            let seen = entry.teams.intersection(teams);
            seen.map(move |team| (seq, *team))
        })
        .collect()
    }

    pub(super) fn enter(&mut self, device: usize) -> (SessionId, Arc<Mailbox>) {
        let session = SessionId(self.count());
        let mailbox = Mailbox::new(Arc::clone(&self.gauges), self.config.mailbox_bytes_max);
        let mailbox = Arc::new(mailbox);
        let who = Who {
            session,
            identity: Identity::new("p", format!("a{device}")),
            client: client(device),
        };
        self.room.enter(who, Arc::clone(&mailbox));
        (session, mailbox)
    }

    /// A commit becomes durable: of a device, or of another node.
    pub(super) fn commit(&mut self, dice: &mut Dice, author: Option<usize>) {
        let mut teams = dice.teams();
        teams.insert(dice.below(super::TEAMS));
        let bytes = if dice.is(10) { 1_200 } else { 60 };
        self.log.push(Entry {
            teams,
            author,
            bytes,
        });
        let seq = self.newest();
        if author.is_some() {
            self.head = seq;
            self.announcements.push((seq, true));
        } else if !dice.is(15) {
            let is_here = dice.is(50);
            if is_here {
                self.head = seq;
            }
            self.announcements.push((seq, is_here));
        }
        if dice.is(15) {
            self.announcements.push((seq, false));
        }
    }

    pub(super) fn deliver_announcement(&mut self, dice: &mut Dice) {
        if self.announcements.is_empty() {
            return;
        }
        // Mostly in order.
        let index = if dice.is(70) {
            0
        } else {
            dice.below(self.announcements.len())
        };
        let (seq, is_here) = self.announcements.remove(index);
        self.head = self.head.max(seq);
        let commit = is_here.then(|| self.write(seq));
        self.room.announce(place(seq), commit.as_ref());
    }

    /// Everything that exists is known.
    pub(super) fn catch_up(&mut self) {
        self.head = self.newest();
        self.room.announce(place(self.head), None);
    }

    pub(super) fn take_turn(&mut self, dice: &mut Dice) {
        if self.gap.is_none()
            && let Some(Step::Read(gap)) = self.room.take_turns(1 + dice.below(3), 0)
        {
            self.gap = Some(gap);
        }
    }

    pub(super) fn finish_gap(&mut self, dice: &mut Dice) {
        let Some(gap) = self.gap.take() else { return };
        if !self.calm && dice.is(15) {
            return self.room.miss_gap(&gap, 0);
        }
        let Some(windows) = self.windows(&gap) else {
            return self.room.miss_gap(&gap, 0);
        };
        if !self.room.deliver_gap(&gap, &windows, 0) {
            self.gap = Some(self.room.look_again(&gap));
        }
    }

    /// Asks anew for a device, or for everybody.
    pub(super) fn begin_refresh(&mut self, dice: &mut Dice) {
        let device = dice.is(70).then(|| dice.below(DEVICES));
        self.refresh(device);
    }

    pub(super) fn begin_refresh_of_all(&mut self) {
        self.refresh(None);
    }

    fn refresh(&mut self, device: Option<usize>) {
        let ticket = Ticket(self.count());
        for (number, allowed) in self.allowed.iter().enumerate() {
            if device.is_none_or(|device| device == number) {
                self.allowed_since[number] = allowed.clone();
            }
        }
        let actor = device.map(|number| ActorId::new(format!("a{number}")));
        let whos = self.room.refresh_started(actor.as_ref(), ticket, 0);
        self.ask(whos, ticket, true);
    }

    pub(super) fn reload(&mut self, sessions: &[SessionId]) {
        let ticket = Ticket(self.count());
        let whos = sessions
            .iter()
            .filter_map(|session| self.room.reload_started(*session, ticket, 0))
            .collect();
        self.ask(whos, ticket, false);
    }

    fn ask(&mut self, whos: Vec<Who>, ticket: Ticket, must_answer: bool) {
        self.loads.extend(whos.into_iter().map(|who| Load {
            who,
            ticket,
            must_answer,
        }));
    }

    pub(super) fn answer_load(&mut self, dice: &mut Dice) {
        if self.loads.is_empty() {
            return;
        }
        let load = self.loads.swap_remove(dice.below(self.loads.len()));
        let device = number(&load.who.client);
        let fails = !self.calm && dice.is(15);
        let answer = if fails {
            None
        } else {
            self.registrations(device)
        };
        let session = load.who.session;
        if load.must_answer {
            self.room.refresh_ended(session, load.ticket, answer, 0);
        } else {
            self.room.reload_ended(session, load.ticket, answer, 0);
        }
    }

    /// What a device's record says it may be registered for now.
    pub(super) fn registrations(&self, device: usize) -> Option<Vec<Registration>> {
        let record = self.records.get(&device)?;
        if !record.is_complete {
            return Some(Vec::new());
        }
        let teams: Teams = record
            .wanted
            .intersection(&self.allowed[device])
            .copied()
            .collect();
        Some(registration(&teams).into_iter().collect())
    }

    pub(super) fn change_allowed(&mut self, dice: &mut Dice) {
        let device = dice.below(DEVICES);
        self.allowed[device] = dice.teams();
        let allowed = self.allowed[device].clone();
        self.allowed_since[device].extend(allowed);
    }

    pub(super) fn rotate(&mut self) {
        self.epoch += 1;
        self.records.clear();
        self.head = self.newest();
        let epoch = self.epoch();
        self.room.restart(&epoch, place(self.head), 0);
    }

    pub(super) fn leave(&mut self, device: usize, session: SessionId) {
        let doubt = self.room.leave(session, 0);
        let record = self.records.get_mut(&device);
        if let (Some(doubt), Some(record)) = (doubt, record)
            && doubt.epoch.as_str() == self.epoch.to_string()
        {
            let confirmed = match doubt.confirmed {
                Cursor::Never => None,
                Cursor::At(place) => Some(place.get()),
            };
            record.cursor = record.cursor.min(confirmed);
        }
    }

    pub(super) fn after_round(&mut self, session: SessionId, after: After) {
        if after == After::Reload {
            self.reload(&[session]);
        }
    }

    fn windows(&self, gap: &Gap) -> Option<Vec<Window>> {
        if gap.epoch != self.epoch() {
            return None;
        }
        let mut left = self.config.gap_changes_max;
        let interests = gap.interests.as_ref()?;
        let mut windows = Vec::new();
        for interest in interests {
            let teams: Teams = interest.values.iter().map(|value| team(value)).collect();
            let mut builder = WindowBuilder::default();
            let mut last = 0;
            for (seq, team) in self.seen(&teams, gap.after.get(), gap.through.get()) {
                if seq != last {
                    builder.commit(place(seq), 0, "a");
                    last = seq;
                }
                left = left.checked_sub(1)?;
                let payload = vec![0; self.entry(seq).bytes];
                builder.change(&row_id(seq, team), Some((1, &payload)), &scopes(team));
            }
            let gate = Gate {
                log_epoch: Some(self.epoch()),
                schema_version: 3,
                head: place(self.newest()),
                horizon: HorizonSeq::START,
                writer_fence: None,
                pending_checkpoints: Vec::new(),
            };
            windows.push(builder.finish(gate, true));
        }
        Some(windows)
    }

    fn entry(&self, seq: u64) -> &Entry {
        &self.log[usize::try_from(seq).unwrap() - 1]
    }

    fn write(&self, seq: u64) -> Arc<CommitWrite> {
        let entry = self.entry(seq);
        let change = |team: &usize| ChangeWrite {
            table: TableIndex(0),
            row_id: row_id(seq, *team).into(),
            op_index: 0,
            kind: ChangeKind::Upsert {
                row: RowState {
                    row_version: 1,
                    scopes: scopes(*team),
                    payload: Bytes::from(vec![0; entry.bytes]),
                    column_versions: None,
                    blob_ids: None,
                },
                scopes_before: None,
            },
        };
        Arc::new(CommitWrite {
            key: PushKey {
                partition: PartitionId::new("p"),
                client: entry.author.map_or_else(|| ClientId::new("x"), client),
                client_commit_id: seq.to_string().into(),
            },
            actor: ActorId::new("a"),
            result: PushResultRecord {
                status: PushStatus::Applied(place(seq)),
                results: Vec::new(),
                recorded_at_ms: None,
                actor: None,
                schema_version: None,
                content_digest: None,
            },
            applied: Some(AppliedCommit {
                commit_seq: place(seq),
                created_at_ms: 0,
                changes: entry.teams.iter().map(change).collect(),
                tombstones: Vec::new(),
                tombstones_cleared: Vec::new(),
                reactions: Vec::new(),
            }),
            bind_client_at_ms: None,
        })
    }
}

pub(super) const VERSION: WireVersion = WireVersion::V3;

pub(super) fn place(seq: u64) -> CommitSeq {
    CommitSeq::new(seq).unwrap()
}

pub(super) fn client(device: usize) -> ClientId {
    ClientId::new(device.to_string())
}

fn number(client: &ClientId) -> usize {
    client.as_str().parse().unwrap()
}

pub(super) fn team(value: &str) -> usize {
    value.strip_prefix('t').unwrap().parse().unwrap()
}

fn row_id(seq: u64, team: usize) -> String {
    format!("{seq}:{team}")
}

fn scopes(team: usize) -> StoredScopes {
    StoredScopes::new(vec![("team_id".to_owned(), format!("t{team}"))]).unwrap()
}

/// The one subscription of a device, as far as these teams; `None` when it is revoked.
pub(super) fn registration(teams: &Teams) -> Option<Registration> {
    if teams.is_empty() {
        return None;
    }
    let values = ScopeValues {
        variable: "team_id".to_owned(),
        values: teams.iter().map(|team| format!("t{team}")).collect(),
    };
    Some(Registration {
        id: "s".into(),
        table: TableIndex(0),
        schema_version: 3,
        effective: ScopeFilter::new(vec![values]).unwrap(),
    })
}
