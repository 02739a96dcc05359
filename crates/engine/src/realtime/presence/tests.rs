//! Who is told what of whose document, in words.

use super::*;

const LIMITS: PresenceLimits = PresenceLimits {
    document_bytes_max: 10,
    keys_per_session_max: 2,
    documents_per_key_max: 3,
    window_ms: 0,
};

fn peer(name: &str) -> Peer {
    Peer {
        actor: ActorId::new(name),
        client: ClientId::new(name),
    }
}

fn session(number: u64) -> SessionId {
    SessionId(number)
}

/// Presence in which these sessions hold key `k`.
fn held_by(limits: PresenceLimits, sessions: &[u64]) -> Presence {
    let mut presence = Presence::new(limits);
    for number in sessions {
        presence.gain("k", session(*number));
    }
    presence
}

/// `1 2: ann joins {}`: who is told, and what.
fn words(fanout: Option<Fanout>) -> String {
    let Some(fanout) = fanout else {
        return String::new();
    };
    let receivers: Vec<String> = fanout.receivers.iter().map(|to| to.0.to_string()).collect();
    format!("{}: {}", receivers.join(" "), said(&fanout.text))
}

fn said(text: &Bytes) -> String {
    let parsed = ServerControl::parse(str::from_utf8(text).unwrap()).unwrap();
    let ServerControl::Presence(fanout) = parsed else {
        panic!("not presence");
    };
    let who = fanout.actor_id;
    match fanout.change {
        PresenceChange::Join(doc) => format!("{who} joins {doc}"),
        PresenceChange::Update(doc) => format!("{who} at {doc}"),
        PresenceChange::Leave => format!("{who} leaves"),
    }
}

fn publish(presence: &mut Presence, by: u64, name: &str, doc: &'static str, at_ms: i64) -> String {
    let doc = ByteString::from_static(doc);
    match presence.publish("k", session(by), &peer(name), doc, at_ms) {
        Ok(fanout) => words(fanout),
        Err(error) => error.as_str().to_owned(),
    }
}

#[test]
fn the_first_document_joins_the_next_ones_update_and_the_author_is_not_told() {
    let mut presence = held_by(LIMITS, &[1, 2, 3]);
    assert_eq!(
        publish(&mut presence, 1, "ann", "{}", 0),
        "2 3: ann joins {}"
    );
    assert_eq!(
        publish(&mut presence, 1, "ann", "{\"n\":1}", 0),
        "2 3: ann at {\"n\":1}"
    );
    let left = presence.withdraw("k", session(1), &peer("ann"), 0).unwrap();
    assert_eq!(words(left), "2 3: ann leaves");
    let again = presence.withdraw("k", session(1), &peer("ann"), 0).unwrap();
    assert_eq!(words(again), "", "there is nothing to leave");
}

#[test]
fn documents_are_refused_by_key_by_size_and_by_number() {
    let mut presence = held_by(LIMITS, &[1, 2, 3, 4]);
    assert_eq!(
        publish(&mut presence, 9, "eve", "{}", 0),
        "presence.forbidden"
    );
    assert_eq!(
        publish(&mut presence, 1, "ann", "{\"a\":12345}", 0),
        "presence.too_large"
    );
    for (by, name) in [(1, "ann"), (2, "bob"), (3, "cid")] {
        publish(&mut presence, by, name, "{}", 0);
    }
    assert_eq!(
        publish(&mut presence, 4, "dan", "{}", 0),
        "presence.forbidden"
    );
    // Who is there already may go on.
    assert_eq!(
        publish(&mut presence, 1, "ann", "{\"n\":1}", 0),
        "2 3 4: ann at {\"n\":1}"
    );
}

#[test]
fn a_session_has_documents_on_so_many_keys_and_no_more() {
    let mut presence = held_by(LIMITS, &[1]);
    let ann = peer("ann");
    let mut put = |key: &str| {
        presence.gain(key, session(1));
        let doc = ByteString::from_static("{}");
        presence.publish(key, session(1), &ann, doc, 0).map(drop)
    };
    assert_eq!(put("k1"), Ok(()));
    assert_eq!(put("k2"), Ok(()));
    assert_eq!(put("k3"), Err(PresenceError::Forbidden));
    assert_eq!(put("k1"), Ok(()), "a replacement is not one more");
    presence.withdraw("k1", session(1), &ann, 0).unwrap();
    let doc = ByteString::from_static("{}");
    assert!(presence.publish("k3", session(1), &ann, doc, 0).is_ok());
}

#[test]
fn a_second_connection_takes_over_and_the_first_one_ends_without_a_word() {
    let mut presence = held_by(LIMITS, &[1, 2, 3]);
    publish(&mut presence, 1, "ann", "{\"n\":1}", 0);
    assert_eq!(
        publish(&mut presence, 2, "ann", "{\"n\":2}", 0),
        "1 3: ann at {\"n\":2}"
    );
    assert_eq!(words(presence.lose("k", session(1), &peer("ann"), 0)), "");
    assert_eq!(
        words(presence.lose("k", session(2), &peer("ann"), 0)),
        "3: ann leaves"
    );
    assert_eq!(words(presence.lose("k", session(3), &peer("bob"), 0)), "");
    assert!(presence.is_empty());
}

#[test]
fn a_newcomer_is_told_of_everybody_but_itself() {
    let mut presence = held_by(LIMITS, &[1, 2]);
    publish(&mut presence, 1, "ann", "{\"n\":1}", 0);
    publish(&mut presence, 2, "bob", "{\"n\":2}", 0);
    let told: Vec<String> = presence.gain("k", session(3)).iter().map(said).collect();
    assert_eq!(told, ["ann joins {\"n\":1}", "bob joins {\"n\":2}"]);
    let told: Vec<String> = presence.gain("k", session(1)).iter().map(said).collect();
    assert_eq!(told, ["bob joins {\"n\":2}"]);
}

#[test]
fn inside_the_window_the_newest_document_waits_and_the_others_are_forgotten() {
    let limits = PresenceLimits {
        window_ms: 100,
        ..LIMITS
    };
    let mut presence = held_by(limits, &[1, 2]);
    assert_eq!(
        publish(&mut presence, 1, "ann", "{\"n\":1}", 0),
        "2: ann joins {\"n\":1}"
    );
    assert_eq!(publish(&mut presence, 1, "ann", "{\"n\":2}", 10), "");
    assert_eq!(publish(&mut presence, 1, "ann", "{\"n\":3}", 20), "");
    assert_eq!(presence.next_due_ms(), Some(100));
    assert_eq!(presence.take_due(99), []);
    let due = presence.take_due(100);
    assert_eq!(due.len(), 1);
    assert_eq!(words(due.into_iter().next()), "2: ann at {\"n\":3}");
    assert_eq!(presence.next_due_ms(), None);
    // A late timer does not send twice.
    publish(&mut presence, 1, "ann", "{\"n\":4}", 150);
    assert_eq!(
        publish(&mut presence, 1, "ann", "{\"n\":5}", 250),
        "2: ann at {\"n\":5}"
    );
    assert_eq!(presence.take_due(500), []);
    // What waits leaves with its author.
    publish(&mut presence, 1, "ann", "{\"n\":6}", 260);
    presence.lose("k", session(1), &peer("ann"), 270);
    assert_eq!(presence.take_due(500), []);
}

fn shared(sessions: &[u64]) -> Presence {
    let mut presence = held_by(LIMITS, sessions);
    presence.share();
    presence
}

fn notice_of(presence: &mut Presence, by: u64, name: &str, doc: &'static str, at_ms: i64) -> Bytes {
    let doc = ByteString::from_static(doc);
    let fanout = presence.publish("k", session(by), &peer(name), doc, at_ms);
    fanout.unwrap().unwrap().notice.unwrap()
}

#[test]
fn of_two_nodes_the_younger_document_wins_whatever_comes_first() {
    let there: Arc<str> = "there".into();
    let mut here = shared(&[1, 2]);
    let mut elsewhere = shared(&[1]);
    let old = notice_of(&mut elsewhere, 1, "ann", "{\"n\":1}", 5);
    let new = notice_of(&mut elsewhere, 1, "ann", "{\"n\":2}", 5);
    assert_eq!(
        words(here.hear(&there, &new, 9)),
        "1 2: ann joins {\"n\":2}"
    );
    assert_eq!(words(here.hear(&there, &old, 9)), "", "it comes late");
    assert_eq!(words(here.hear(&there, &new, 9)), "", "it comes twice");
    assert_eq!(
        here.notices(),
        Vec::<Bytes>::new(),
        "it is not ours to tell"
    );
}

#[test]
fn a_takeover_beats_the_clock_of_the_other_node() {
    let (here_id, there_id): (Arc<str>, Arc<str>) = ("here".into(), "there".into());
    let (mut here, mut there) = (shared(&[1, 2]), shared(&[1]));
    let first = notice_of(&mut there, 1, "ann", "{\"n\":1}", 9_000);
    here.hear(&there_id, &first, 0);
    // The clock here is far behind.
    let second = notice_of(&mut here, 1, "ann", "{\"n\":2}", 10);
    assert_eq!(
        words(there.hear(&here_id, &second, 9_001)),
        "1: ann at {\"n\":2}"
    );
    let left = there.lose("k", session(1), &peer("ann"), 9_002);
    assert_eq!(left, None, "it was taken over");
    let gone = here.lose("k", session(1), &peer("ann"), 11).unwrap();
    assert_eq!(there.count(), 1);
    there.hear(&here_id, &gone.notice.unwrap(), 9_003);
    assert_eq!(there.count(), 0);
}

#[test]
fn documents_of_other_nodes_are_bounded_too() {
    let there: Arc<str> = "there".into();
    let mut here = held_by(LIMITS, &[1]);
    let mut elsewhere = Presence::new(PresenceLimits {
        documents_per_key_max: 100,
        ..LIMITS
    });
    elsewhere.share();
    elsewhere.gain("k", session(1));
    for name in ["a", "b", "c", "d", "e"] {
        let notice = notice_of(&mut elsewhere, 1, name, "{}", 0);
        here.hear(&there, &notice, 0);
        if name == "b" {
            // The session may have two keys only; another one goes on.
            elsewhere.owned.clear();
        }
        if name == "d" {
            elsewhere.owned.clear();
        }
    }
    assert_eq!(here.count(), 3);
    assert_eq!(here.lose_node(&there, 0).len(), 3);
}
