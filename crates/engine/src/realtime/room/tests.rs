//! Rules of a room that need more than one of its parts.

use tidewater_model::{ScopeFilter, ScopeValues};
use tidewater_schema::TableIndex;

use super::*;
use crate::{Outgoing, testing::SCHEMA};

fn seq(raw: u64) -> CommitSeq {
    CommitSeq::new(raw).unwrap()
}

fn epoch() -> LogEpoch {
    LogEpoch::new("e")
}

fn room() -> Room {
    let schema = Arc::new(Schema::from_json(SCHEMA).unwrap());
    Room::new(Arc::default(), schema, Arc::default())
}

fn teams(values: &[&str]) -> Registration {
    let values = ScopeValues {
        variable: "team_id".to_owned(),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    Registration {
        id: "s".into(),
        table: TableIndex(0),
        schema_version: 3,
        effective: ScopeFilter::new(vec![values]).unwrap(),
    }
}

fn enter(room: &mut Room, session: u64, client: &str) -> Arc<Mailbox> {
    let mailbox = Arc::new(Mailbox::new(Arc::default(), 10_000));
    let who = Who {
        session: SessionId(session),
        identity: Identity::new("p", "ann"),
        client: ClientId::new(client),
    };
    room.enter(who, Arc::clone(&mailbox));
    mailbox
}

fn admission(ticket: u64, cursor: Option<u64>) -> Admission {
    Admission {
        ticket: Ticket(ticket),
        epoch: epoch(),
        cursor: cursor.map(|cursor| Cursor::At(seq(cursor))),
        version: Some(WireVersion::V3),
        registrations: vec![teams(&["t1"])],
        is_complete: true,
        is_as_pulled: true,
        session_name: "s".to_owned(),
    }
}

fn pulled(ticket: u64, head: u64) -> PulledRound {
    PulledRound {
        ticket: Ticket(ticket),
        epoch: epoch(),
        version: WireVersion::V3,
        head: seq(head),
        reached: seq(head),
        acknowledged_as: seq(head),
        registrations: vec![teams(&["t1"])],
    }
}

/// The hello and its verdict.
fn hello(mailbox: &Mailbox) -> (i64, i64, bool) {
    let Some(Outgoing::Text(text)) = mailbox.try_next() else {
        panic!("nothing was said");
    };
    match ServerControl::parse(str::from_utf8(&text).unwrap()).unwrap() {
        ServerControl::Hello(hello) => (hello.cursor, hello.latest_cursor, hello.requires_sync),
        other => panic!("not a hello: {other:?}"),
    }
}

fn flow(room: &Room, session: u64) -> Flow {
    room.members[&SessionId(session)].flow
}

#[test]
fn a_hello_says_whether_the_client_must_pull_first() {
    type Change = fn(&mut Admission);
    let cases: [(Option<u64>, Change, bool); 6] = [
        (Some(5), |_| {}, false),
        (Some(4), |_| {}, true),
        (None, |_| {}, true),
        (Some(5), |admission| admission.is_complete = false, true),
        (Some(5), |admission| admission.is_as_pulled = false, true),
        (Some(5), |admission| admission.registrations.clear(), false),
    ];
    for (cursor, change, requires_sync) in cases {
        let mut room = room();
        let mailbox = enter(&mut room, 1, "c");
        let mut admission = admission(1, cursor);
        change(&mut admission);
        room.admit(SessionId(1), admission, &epoch(), seq(5), 0)
            .unwrap();
        let (said, latest, must) = hello(&mailbox);
        assert_eq!((latest, must), (5, requires_sync));
        assert_eq!(
            said,
            cursor.map_or(-1, |cursor| i64::try_from(cursor).unwrap())
        );
    }
}

#[test]
fn what_was_announced_before_the_first_admission_counts() {
    let mut room = room();
    let mailbox = enter(&mut room, 1, "c");
    assert!(!room.announce(seq(7), None));
    room.admit(SessionId(1), admission(1, Some(5)), &epoch(), seq(5), 0)
        .unwrap();
    assert_eq!(hello(&mailbox), (5, 7, true));
    assert!(room.has_work(), "6 and 7 are to be read");
}

#[test]
fn an_admission_that_was_loaded_before_a_refresh_or_in_another_log_is_stale() {
    let mut room = room();
    enter(&mut room, 1, "c");
    assert!(room.refresh_started(None, Ticket(5), 0).is_empty());
    let mut admit = |admission, epoch: &str| {
        let epoch = LogEpoch::new(epoch);
        room.admit(SessionId(1), admission, &epoch, seq(5), 0)
    };
    assert_eq!(admit(admission(4, Some(5)), "e"), Err(Stale));
    assert_eq!(admit(admission(6, Some(5)), "f"), Err(Stale));
    assert_eq!(admit(admission(6, Some(5)), "e"), Ok(()));
}

#[test]
fn a_pull_that_was_not_acknowledged_is_doubted_when_its_client_comes_back() {
    let mut room = room();
    enter(&mut room, 1, "c");
    room.admit(SessionId(1), admission(1, Some(3)), &epoch(), seq(5), 0)
        .unwrap();
    room.round_started(SessionId(1));
    room.round_ended(SessionId(1), Some(pulled(2, 5)), 0);
    // The old connection is not known to be dead.
    let second = enter(&mut room, 2, "c");
    room.admit(SessionId(2), admission(3, Some(5)), &epoch(), seq(5), 0)
        .unwrap();
    assert_eq!(hello(&second), (3, 5, true));
    assert!(flow(&room, 2).is_suppressed());
    let doubt = room.leave(SessionId(1), 0).unwrap();
    assert_eq!(doubt.confirmed, Cursor::At(seq(3)));
    assert_eq!(room.leave(SessionId(2), 0), None);
}

#[test]
fn an_acknowledged_pull_is_not_doubted() {
    let mut room = room();
    enter(&mut room, 1, "c");
    room.admit(SessionId(1), admission(1, Some(3)), &epoch(), seq(5), 0)
        .unwrap();
    room.round_started(SessionId(1));
    room.round_ended(SessionId(1), Some(pulled(2, 5)), 0);
    let news = room.ack(SessionId(1), seq(5), 0);
    assert_eq!(news, Some((epoch(), seq(5))));
    assert_eq!(room.leave(SessionId(1), 0), None);
    assert!(room.is_empty());
}

#[test]
fn of_two_answers_the_later_question_counts() {
    let mut room = room();
    enter(&mut room, 1, "c");
    room.admit(SessionId(1), admission(1, Some(5)), &epoch(), seq(5), 0)
        .unwrap();
    room.refresh_started(None, Ticket(2), 0);
    room.refresh_started(None, Ticket(3), 0);
    room.refresh_ended(SessionId(1), Ticket(3), Some(Vec::new()), 0);
    room.refresh_ended(SessionId(1), Ticket(2), Some(vec![teams(&["t1"])]), 0);
    assert!(room.registry.is_empty(), "what was taken away stays away");
}

#[test]
fn a_round_that_was_asked_after_a_refresh_outlives_the_late_answer_to_it() {
    let mut room = room();
    enter(&mut room, 1, "c");
    room.admit(SessionId(1), admission(1, Some(5)), &epoch(), seq(5), 0)
        .unwrap();
    room.refresh_started(None, Ticket(2), 0);
    room.round_started(SessionId(1));
    let after = room.round_ended(SessionId(1), Some(pulled(3, 5)), 0);
    assert_eq!(after, After::Nothing);
    // It failed, and would take everything.
    room.refresh_ended(SessionId(1), Ticket(2), None, 0);
    assert!(!room.registry.is_empty());
}

#[test]
fn a_round_that_was_asked_before_a_refresh_is_asked_again() {
    let mut room = room();
    enter(&mut room, 1, "c");
    room.admit(SessionId(1), admission(1, Some(5)), &epoch(), seq(5), 0)
        .unwrap();
    room.round_started(SessionId(1));
    room.refresh_started(None, Ticket(3), 0);
    room.refresh_ended(SessionId(1), Ticket(3), Some(Vec::new()), 0);
    let after = room.round_ended(SessionId(1), Some(pulled(2, 5)), 0);
    assert_eq!(after, After::Reload);
    assert!(room.registry.is_empty() && flow(&room, 1).is_suppressed());
}

#[test]
fn a_reload_without_an_answer_keeps_what_is_held_and_asks_the_client_to_pull() {
    let mut room = room();
    enter(&mut room, 1, "c");
    room.admit(SessionId(1), admission(1, Some(5)), &epoch(), seq(5), 0)
        .unwrap();
    assert!(room.reload_started(SessionId(1), Ticket(2), 0).is_some());
    room.reload_ended(SessionId(1), Ticket(2), None, 0);
    assert!(!room.registry.is_empty() && flow(&room, 1).is_suppressed());
}

#[test]
fn a_round_of_another_log_counts_as_failed() {
    let mut room = room();
    enter(&mut room, 1, "c");
    room.admit(SessionId(1), admission(1, Some(5)), &epoch(), seq(5), 0)
        .unwrap();
    room.round_started(SessionId(1));
    room.restart(&LogEpoch::new("f"), seq(5), 0);
    room.round_ended(SessionId(1), Some(pulled(2, 5)), 0);
    assert!(room.registry.is_empty() && flow(&room, 1).is_suppressed());
    assert_eq!(room.ack(SessionId(1), seq(5), 0), None, "of the old log");
}

#[test]
fn who_leaves_while_being_admitted_leaves_nothing() {
    let mut room = room();
    enter(&mut room, 1, "c");
    room.leave(SessionId(1), 0);
    let late = room.admit(SessionId(1), admission(1, Some(5)), &epoch(), seq(5), 0);
    assert_eq!(late, Ok(()));
    assert!(room.is_empty() && room.by_client.is_empty());
}

#[test]
fn an_admission_that_was_loaded_before_its_client_pulled_beside_it_is_stale() {
    let mut room = room();
    enter(&mut room, 1, "c");
    room.pulled_elsewhere(&ClientId::new("c"), None, &pulled(3, 4), Ticket(5), 0);
    let late = room.admit(SessionId(1), admission(4, Some(5)), &epoch(), seq(5), 0);
    assert_eq!(late, Err(Stale));
}
