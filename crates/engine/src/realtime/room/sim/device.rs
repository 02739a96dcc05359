//! A device with one subscription, its connection, and its rounds.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use tidewater_model::Cursor;
use tidewater_wire::{
    Response, ResponseFrame,
    control::{ServerControl, WakeReason},
};

use super::{
    Dice, Teams,
    server::{Record, Server, VERSION, client, place, registration, team},
};
use crate::{
    Outgoing,
    realtime::{
        mailbox::Mailbox,
        room::{Admission, PulledRound, SessionId, Ticket},
    },
};

/// One side of a connection sees the other's messages in order.
struct Link {
    session: SessionId,
    mailbox: Arc<Mailbox>,
    /// What was loaded before the admission; `None` once admitted.
    loaded: Option<Option<Admission>>,
    down: VecDeque<Down>,
    up: VecDeque<Up>,
    round: Option<Round>,
}

enum Down {
    Message(Outgoing),
    Response(Answer),
}

enum Up {
    Ack(u64),
    Request(Ask),
}

#[derive(Clone)]
struct Ask {
    epoch: u64,
    cursor: Option<u64>,
    /// The pin of a bootstrap that goes on.
    resume: Option<u64>,
    wanted: Teams,
    /// What its author believes it sees.
    effective: Teams,
    is_pushing: bool,
}

/// A round at the server.
struct Round {
    ask: Ask,
    ticket: Ticket,
    allowed: Teams,
    outcome: Option<(Answer, Option<PulledRound>)>,
}

#[derive(Clone)]
enum Answer {
    Failed,
    /// The log is another one.
    OtherLog(u64),
    Revoked,
    Reset,
    /// A bootstrap that is not complete.
    Paused(u64),
    Pulled {
        effective: Teams,
        next_cursor: u64,
        brings: Vec<(u64, usize)>,
    },
}

pub(super) struct Device {
    number: usize,
    wanted: Teams,
    epoch: u64,
    cursor: Option<u64>,
    resume: Option<u64>,
    effective: Teams,
    /// Everything it was ever told it sees, in this log.
    ever_effective: Teams,
    has: BTreeSet<(u64, usize)>,
    wants_pull: bool,
    /// Its last pull was lost beside the connection: until the next one it applies no delta,
    /// because nobody can know that it is behind.
    distrusts: bool,
    /// It has said what is not true, and what becomes of it is its own affair.
    is_liar: bool,
    is_asking: bool,
    is_revoked: bool,
    link: Option<Link>,
    http: Option<Round>,
    /// Connections that the server does not know to be dead.
    ghosts: Vec<Link>,
    pub(super) deltas_applied: usize,
}

impl Device {
    pub(super) fn new(number: usize, wanted: Teams) -> Self {
        Self {
            number,
            wanted,
            epoch: 1,
            cursor: None,
            resume: None,
            effective: Teams::new(),
            ever_effective: Teams::new(),
            has: BTreeSet::new(),
            wants_pull: true,
            distrusts: false,
            is_liar: false,
            is_asking: false,
            is_revoked: false,
            link: None,
            http: None,
            ghosts: Vec::new(),
            deltas_applied: 0,
        }
    }

    pub(super) fn connect(&mut self, server: &mut Server) {
        if self.link.is_some() {
            return;
        }
        let (session, mailbox) = server.enter(self.number);
        self.link = Some(Link {
            session,
            mailbox,
            loaded: Some(None),
            down: VecDeque::new(),
            up: VecDeque::new(),
            round: None,
        });
    }

    /// Loads what the connection begins with, or lets it in with what was loaded.
    pub(super) fn admit(&mut self, dice: &mut Dice, server: &mut Server) {
        let Some(link) = &mut self.link else { return };
        let Some(loaded) = &mut link.loaded else {
            return;
        };
        let Some(admission) = loaded.take() else {
            *loaded = Some(load(self.number, dice, server));
            return;
        };
        let (epoch, head) = (server.epoch(), place(server.head));
        let admitted = server.room.admit(link.session, admission, &epoch, head, 0);
        if admitted.is_ok() {
            link.loaded = None;
        }
    }

    /// The connection is lost, with everything on its way.
    pub(super) fn disconnect(&mut self, dice: &mut Dice, server: &mut Server) {
        let Some(link) = self.link.take() else { return };
        if self.is_asking && self.http.is_none() {
            self.is_asking = false;
            self.wants_pull = true;
        }
        if dice.is(50) {
            self.ghosts.push(link);
        } else {
            server.leave(self.number, link.session);
        }
    }

    pub(super) fn has_ghosts(&self) -> bool {
        !self.ghosts.is_empty()
    }

    /// The server finds a connection dead; until then it may answer what had arrived.
    pub(super) fn bury_ghost(&mut self, dice: &mut Dice, server: &mut Server) {
        let Some(mut ghost) = self.ghosts.pop() else {
            return;
        };
        if dice.is(50) && ghost.loaded.is_none() {
            self.hear(&mut ghost, dice, server);
            self.answer(&mut ghost, dice, server);
        }
        if server.calm || dice.is(50) {
            server.leave(self.number, ghost.session);
        } else {
            self.ghosts.push(ghost);
        }
    }

    /// The server hands the next message to the connection.
    pub(super) fn receive_mail(&mut self, server: &Server) {
        let Some(link) = &mut self.link else { return };
        let Some(message) = link.mailbox.try_next() else {
            return;
        };
        if let Outgoing::Delta(frame) = &message {
            assert!(link.round.is_none(), "a delta within a round");
            let teams = delta(frame).1;
            assert!(
                teams.is_subset(&server.allowed_since[self.number]),
                "a delta of what was taken away: {teams:?}"
            );
        }
        link.down.push_back(Down::Message(message));
    }

    /// The device takes the next message from the connection.
    pub(super) fn take_message(&mut self, server: &Server) {
        let Some(link) = &mut self.link else { return };
        match link.down.pop_front() {
            None => {}
            Some(Down::Response(answer)) => {
                self.is_asking = false;
                self.apply(answer, server);
            }
            Some(Down::Message(Outgoing::Delta(frame))) => self.apply_delta(&frame, server),
            Some(Down::Message(Outgoing::Text(text))) => {
                match ServerControl::parse(str::from_utf8(&text).unwrap()).unwrap() {
                    ServerControl::Hello(hello) => self.wants_pull |= hello.requires_sync,
                    ServerControl::WakeUp(wake_up) => {
                        self.wants_pull = true;
                        assert!(wake_up.reason != WakeReason::ResetRequired || server.epoch > 1);
                    }
                    other => panic!("not expected: {other:?}"),
                }
            }
            Some(Down::Message(Outgoing::Close(reason))) => panic!("closed: {reason:?}"),
        }
    }

    /// Pulls, over the connection or beside it.
    pub(super) fn begin_round(&mut self, dice: &mut Dice, server: &mut Server) {
        let wants = self.wants_pull || (!server.calm && dice.is(10));
        if !wants || self.is_asking {
            return;
        }
        self.is_asking = true;
        self.wants_pull = false;
        let ask = Ask {
            epoch: self.epoch,
            cursor: self.cursor,
            resume: self.resume,
            wanted: self.wanted.clone(),
            effective: self.effective.clone(),
            is_pushing: !server.calm && dice.is(30),
        };
        let is_over_link = dice.is(70);
        match &mut self.link {
            Some(link) if link.loaded.is_none() && is_over_link => {
                link.up.push_back(Up::Request(ask));
            }
            _ => {
                let is_pushing = ask.is_pushing && ask.epoch == server.epoch;
                self.http = Some(begin(self.number, ask, server));
                if is_pushing {
                    server.commit(dice, Some(self.number));
                }
            }
        }
    }

    /// Whatever is next for a round, or on the way to the server.
    pub(super) fn advance_rounds(&mut self, dice: &mut Dice, server: &mut Server) {
        if let Some(mut link) = self.link.take() {
            if link.round.is_some() {
                self.answer(&mut link, dice, server);
            } else {
                self.hear(&mut link, dice, server);
            }
            self.link = Some(link);
        }
        let Some(mut round) = self.http.take() else {
            return;
        };
        let Some((answer, _)) = round.outcome.take() else {
            self.decide(&mut round, None, dice, server);
            self.http = Some(round);
            return;
        };
        self.is_asking = false;
        if !server.calm && dice.is(20) {
            self.wants_pull = true;
            self.distrusts = true;
        } else {
            self.apply(answer, server);
        }
    }

    /// Says that it has what it has not.
    pub(super) fn lie(&mut self, dice: &mut Dice, server: &Server) {
        if let Some(link) = &mut self.link
            && dice.is(20)
        {
            self.is_liar = true;
            let beyond = u64::try_from(dice.below(5)).unwrap();
            link.up.push_back(Up::Ack(server.newest() + beyond));
        }
    }

    /// The server takes what comes next over a connection.
    fn hear(&self, link: &mut Link, dice: &mut Dice, server: &mut Server) {
        if link.loaded.is_some() || link.round.is_some() {
            return;
        }
        match link.up.pop_front() {
            None => {}
            Some(Up::Ack(seq)) => {
                let news = server.room.ack(link.session, place(seq), 0);
                let newest = server.newest();
                if let (Some((_, seq)), Some(record)) = (news, server.records.get_mut(&self.number))
                {
                    assert!(seq.get() <= newest, "beyond the log");
                    record.cursor = record.cursor.max(Some(seq.get()));
                }
            }
            Some(Up::Request(ask)) => {
                server.room.round_started(link.session);
                link.round = Some(begin(self.number, ask.clone(), server));
                if ask.is_pushing && ask.epoch == server.epoch {
                    server.commit(dice, Some(self.number));
                }
            }
        }
    }

    /// The server decides the round of a connection, or ends it.
    fn answer(&self, link: &mut Link, dice: &mut Dice, server: &mut Server) {
        let Some(mut round) = link.round.take() else {
            return;
        };
        let Some((answer, pulled)) = round.outcome.take() else {
            self.decide(&mut round, Some(link.session), dice, server);
            link.round = Some(round);
            return;
        };
        link.down.push_back(Down::Response(answer));
        let after = server.room.round_ended(link.session, pulled, 0);
        server.after_round(link.session, after);
    }

    /// What a round answers; its record is written.
    fn decide(
        &self,
        round: &mut Round,
        session: Option<SessionId>,
        dice: &mut Dice,
        server: &mut Server,
    ) {
        let ask = &round.ask;
        if !server.calm && dice.is(10) {
            round.outcome = Some((Answer::Failed, None));
            return;
        }
        if ask.epoch != server.epoch {
            round.outcome = Some((Answer::OtherLog(server.epoch), None));
            return;
        }
        let head = server.head;
        let effective: Teams = ask.wanted.intersection(&round.allowed).copied().collect();
        let (answer, next_cursor, reached) = self.section(ask, &effective, head, dice, server);
        let is_complete = matches!(answer, Answer::Pulled { .. });
        let held = server.records.get(&self.number);
        let cursor = match &answer {
            Answer::Pulled { .. } | Answer::Paused(_) => Some(next_cursor),
            _ => held.and_then(|record| record.cursor),
        };
        let record = Record {
            cursor,
            wanted: ask.wanted.clone(),
            is_complete,
            effective: effective.clone(),
        };
        server.records.insert(self.number, record);
        let pulled = PulledRound {
            ticket: round.ticket,
            epoch: server.epoch(),
            version: VERSION,
            head: place(head),
            reached: place(if is_complete { reached } else { head }),
            acknowledged_as: place(if is_complete { next_cursor } else { head }),
            registrations: if is_complete {
                registration(&effective).into_iter().collect()
            } else {
                Vec::new()
            },
        };
        let device = client(self.number);
        let recorded = Ticket(server.count());
        let reloads = server
            .room
            .pulled_elsewhere(&device, session, &pulled, recorded, 0);
        server.reload(&reloads);
        round.outcome = Some((answer, Some(pulled)));
    }

    /// The section, its cursor, and what it reached.
    fn section(
        &self,
        ask: &Ask,
        effective: &Teams,
        head: u64,
        dice: &mut Dice,
        server: &Server,
    ) -> (Answer, u64, u64) {
        if effective.is_empty() {
            return (Answer::Revoked, head, head);
        }
        let may_vary = !server.calm;
        let is_wider = !effective.is_subset(&ask.effective);
        let all = |through: u64| server.seen(effective, 0, through);
        let (next_cursor, reached, brings) = match (ask.cursor, ask.resume) {
            (Some(after), _) => {
                if may_vary && dice.is(5) {
                    return (Answer::Reset, head, head);
                }
                let seen = server.seen(effective, after, head);
                let next = match seen.first() {
                    Some((first, _)) if may_vary && dice.is(30) => *first,
                    // Another node has shown it more than this one knows of.
                    _ => head.max(after),
                };
                let brings = if is_wider {
                    all(next)
                } else {
                    server.seen(effective, after, next)
                };
                (next, next, brings)
            }
            (None, Some(pin)) => (pin, pin, all(pin)),
            (None, None) if may_vary && dice.is(20) => {
                return (Answer::Paused(head), head, head);
            }
            (None, None) => {
                let newest = all(head).last().map_or(0, |(seq, _)| *seq);
                let pin = if dice.is(50) { newest } else { head };
                (pin, head, all(head))
            }
        };
        let answer = Answer::Pulled {
            effective: effective.clone(),
            next_cursor,
            brings,
        };
        (answer, next_cursor, reached)
    }

    fn apply(&mut self, answer: Answer, server: &Server) {
        match answer {
            Answer::Failed => self.wants_pull = true,
            Answer::OtherLog(epoch) => {
                self.start_over();
                self.epoch = epoch;
                self.ever_effective.clear();
            }
            Answer::Revoked => {
                self.start_over();
                self.wants_pull = false;
                self.is_revoked = true;
            }
            Answer::Reset => self.start_over(),
            Answer::Paused(pin) => {
                self.resume = Some(pin);
                self.wants_pull = true;
            }
            Answer::Pulled {
                effective,
                next_cursor,
                brings,
            } => {
                (self.is_revoked, self.distrusts, self.resume) = (false, false, None);
                self.has.extend(brings);
                self.has.retain(|(_, team)| effective.contains(team));
                self.ever_effective.extend(&effective);
                self.effective = effective;
                self.cursor = Some(next_cursor);
                let seen = self.effective.clone();
                self.check_up_to_cursor(&seen, server, "a pull");
                self.ack();
            }
        }
    }

    fn start_over(&mut self) {
        (self.cursor, self.resume) = (None, None);
        self.has.clear();
        self.effective.clear();
        (self.wants_pull, self.is_revoked, self.distrusts) = (true, false, false);
    }

    fn apply_delta(&mut self, frame: &bytes::Bytes, server: &Server) {
        let (seq, teams, changes) = delta(frame);
        // What was on its way when it started over means nothing to it.
        let Some(cursor) = self.cursor else { return };
        if self.distrusts {
            return;
        }
        if !self.is_liar {
            assert!(
                teams.is_subset(&self.ever_effective),
                "a delta of what was never pulled: {teams:?}"
            );
        }
        self.deltas_applied += 1;
        let effective = &self.effective;
        self.has
            .extend(changes.iter().filter(|(_, team)| effective.contains(team)));
        self.cursor = Some(cursor.max(seq));
        let seen = teams.intersection(effective).copied().collect();
        self.check_up_to_cursor(&seen, server, "a delta");
        self.ack();
    }

    fn ack(&mut self) {
        if let (Some(cursor), Some(link)) = (self.cursor, &mut self.link) {
            link.up.push_back(Up::Ack(cursor));
        }
    }

    fn check_up_to_cursor(&self, teams: &Teams, server: &Server, after: &str) {
        let Some(cursor) = self.cursor else { return };
        if self.is_liar || self.epoch != server.epoch {
            return;
        }
        for seen in server.seen(teams, 0, cursor) {
            assert!(
                self.has.contains(&seen),
                "device {} has a hole at {seen:?} below {cursor} after {after}",
                self.number
            );
        }
    }

    pub(super) fn check_that_nothing_is_missing(&self, server: &Server) {
        let allowed = &server.allowed[self.number];
        let expected: Teams = self.wanted.intersection(allowed).copied().collect();
        // A client that was told "revoked" has given its subscription up.
        if self.is_liar || self.is_revoked {
            return;
        }
        assert_eq!(self.effective, expected, "device {}", self.number);
        for seen in server.seen(&expected, 0, server.newest()) {
            assert!(
                self.has.contains(&seen),
                "device {} never gets {seen:?}, cursor {:?}",
                self.number,
                self.cursor
            );
        }
    }
}

/// Begins a round at the server: what comes later is answered with what is allowed now.
fn begin(device: usize, ask: Ask, server: &mut Server) -> Round {
    Round {
        ask,
        ticket: Ticket(server.count()),
        allowed: server.allowed[device].clone(),
        outcome: None,
    }
}

fn load(device: usize, dice: &mut Dice, server: &mut Server) -> Admission {
    let ticket = Ticket(server.count());
    let record = server.records.get(&device);
    let cursor = record.map(|record| {
        let cursor = record.cursor;
        cursor.map_or(Cursor::Never, |cursor| Cursor::At(place(cursor)))
    });
    let fails = !server.calm && dice.is(10);
    let registrations = server.registrations(device).filter(|_| !fails);
    let registrations = registrations.unwrap_or_default();
    let told = server.records.get(&device);
    let told = told.and_then(|record| registration(&record.effective));
    Admission {
        ticket,
        is_as_pulled: registrations.first() == told.as_ref(),
        epoch: server.epoch(),
        cursor,
        version: Some(VERSION),
        is_complete: !registrations.is_empty(),
        registrations,
        session_name: String::new(),
    }
}

/// Place, effective teams and changes of a delta.
fn delta(frame: &bytes::Bytes) -> (u64, Teams, Vec<(u64, usize)>) {
    let (mut place, mut teams, mut changes) = (0, Teams::new(), Vec::new());
    for frame in Response::decode(frame).unwrap().frames {
        match frame {
            ResponseFrame::SubStart(start) => {
                let entries = start.effective_scopes.entries().iter();
                teams
                    .extend(entries.flat_map(|entry| entry.values.iter().map(|value| team(value))));
            }
            ResponseFrame::Commit(commit) => {
                for change in commit.changes {
                    let (seq, team) = change.row_id.split_once(':').unwrap();
                    changes.push((seq.parse().unwrap(), team.parse().unwrap()));
                }
            }
            ResponseFrame::SubEnd(end) => place = u64::try_from(end.next_cursor).unwrap(),
            _ => {}
        }
    }
    (place, teams, changes)
}
