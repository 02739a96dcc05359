//! Control messages in their exact text, and what is tolerated or malformed.

use super::*;

#[track_caller]
fn check_server(message: &ServerControl, text: &str) {
    assert_eq!(message.to_text(), text);
    assert_eq!(ServerControl::parse(text).as_ref(), Ok(message));
}

#[track_caller]
fn check_client(message: &ClientControl, text: &str) {
    assert_eq!(message.to_text(), text);
    assert_eq!(ClientControl::parse(text).as_ref(), Ok(message));
}

#[test]
fn server_messages_have_their_members_in_order() {
    check_server(
        &ServerControl::Hello(Hello {
            session_id: "s-1".into(),
            actor_id: "a\"1".into(),
            client_id: "c-1".into(),
            cursor: -1,
            latest_cursor: 64,
            requires_sync: true,
            timestamp: 1_782_993_600_000,
        }),
        concat!(
            r#"{"event":"hello","data":{"protocolVersion":1,"sessionId":"s-1","actorId":"a\"1","#,
            r#""clientId":"c-1","cursor":-1,"latestCursor":64,"requiresSync":true,"#,
            r#""timestamp":1782993600000}}"#
        ),
    );
    check_server(
        &ServerControl::WakeUp(WakeUp {
            cursor: 64,
            reason: WakeReason::CatchupRequired,
            timestamp: 1_782_993_600_000,
        }),
        concat!(
            r#"{"event":"sync","data":{"cursor":64,"requiresPull":true,"#,
            r#""reason":"catchup-required","timestamp":1782993600000}}"#
        ),
    );
    check_server(
        &ServerControl::Heartbeat { timestamp: 5 },
        r#"{"event":"heartbeat","data":{"timestamp":5}}"#,
    );
}

fn fanout(change: PresenceChange) -> ServerControl {
    ServerControl::Presence(PresenceFanout {
        scope_key: "team:t1".into(),
        actor_id: "a".into(),
        client_id: "c".into(),
        change,
        timestamp: 5,
    })
}

fn fanout_with(kind: &str, doc: &str) -> String {
    format!(
        concat!(
            r#"{{"event":"presence","data":{{"scopeKey":"team:t1","kind":"{}","actorId":"a","#,
            r#""clientId":"c","doc":{},"timestamp":5}}}}"#
        ),
        kind, doc
    )
}

#[test]
fn presence_reaches_peers_with_its_document_as_written() {
    let doc = r#"{"z": 1, "a":[2]}"#;
    check_server(
        &fanout(PresenceChange::Join(doc.into())),
        &fanout_with("join", doc),
    );
    check_server(
        &fanout(PresenceChange::Update("{}".into())),
        &fanout_with("update", "{}"),
    );
    check_server(
        &fanout(PresenceChange::Leave),
        &fanout_with("leave", "null"),
    );
}

#[test]
fn a_refused_publication_is_answered_with_one_of_two_codes() {
    for (error, code) in [
        (PresenceError::Forbidden, "presence.forbidden"),
        (PresenceError::TooLarge, "presence.too_large"),
    ] {
        check_server(
            &ServerControl::PresenceError {
                scope_key: "k".into(),
                error,
                timestamp: 5,
            },
            &format!(
                r#"{{"event":"presence","data":{{"scopeKey":"k","error":"{code}","timestamp":5}}}}"#
            ),
        );
    }
}

#[test]
fn every_reason_is_read_back() {
    for reason in WakeReason::ALL {
        let wake_up = ServerControl::WakeUp(WakeUp {
            cursor: 1,
            reason,
            timestamp: 1,
        });
        assert_eq!(ServerControl::parse(&wake_up.to_text()), Ok(wake_up));
    }
}

#[test]
fn client_messages_are_read_and_written() {
    check_client(
        &ClientControl::Ack { cursor: 7 },
        r#"{"type":"ack","cursor":7}"#,
    );
    check_client(
        &ClientControl::Presence {
            scope_key: "team:t1".into(),
            doc: Some(r#"{"name": "Ada"}"#.into()),
        },
        r#"{"event":"presence","data":{"scopeKey":"team:t1","doc":{"name": "Ada"}}}"#,
    );
    check_client(
        &ClientControl::Presence {
            scope_key: "team:t1".into(),
            doc: None,
        },
        r#"{"event":"presence","data":{"scopeKey":"team:t1","doc":null}}"#,
    );
}

#[test]
fn a_client_is_ignored_rather_than_refused() {
    for text in [
        "",
        "nonsense",
        "[]",
        "7",
        "{}",
        r#"{"type":"subscribe"}"#,
        r#"{"type":7}"#,
        r#"{"event":"future","data":{}}"#,
        r#"{"event":["presence"]}"#,
        r#"{"type":"ack"}"#,
        r#"{"type":"ack","cursor":"7"}"#,
        r#"{"type":"ack","cursor":7.5}"#,
        r#"{"type":"ack","cursor":1e999}"#,
        r#"{"type":"ack","cursor":9007199254740992}"#,
        r#"{"type":"ack","cursor":null}"#,
    ] {
        assert_eq!(
            ClientControl::parse(text),
            Ok(ClientControl::Unknown),
            "{text}"
        );
    }
}

#[test]
fn a_malformed_presence_is_an_error() {
    for text in [
        r#"{"event":"presence"}"#,
        r#"{"event":"presence","data":null}"#,
        r#"{"event":"presence","data":[]}"#,
        r#"{"event":"presence","data":{}}"#,
        r#"{"event":"presence","data":{"doc":{}}}"#,
        r#"{"event":"presence","data":{"scopeKey":"","doc":{}}}"#,
        r#"{"event":"presence","data":{"scopeKey":7,"doc":{}}}"#,
        r#"{"event":"presence","data":{"scopeKey":"k"}}"#,
        r#"{"event":"presence","data":{"scopeKey":"k","doc":7}}"#,
        r#"{"event":"presence","data":{"scopeKey":"k","doc":"{}"}}"#,
        r#"{"event":"presence","data":{"scopeKey":"k","doc":[]}}"#,
    ] {
        assert!(ClientControl::parse(text).is_err(), "{text}");
    }
}

#[test]
fn unknown_events_of_a_server_are_tolerated() {
    for text in [r#"{"event":"future"}"#, r#"{"event":"future","data":7}"#] {
        assert_eq!(ServerControl::parse(text), Ok(ServerControl::Unknown));
    }
}

#[track_caller]
fn check_malformed(from: &str, to: &str, rule: &str) {
    let texts = [
        r#"{"event":"hello","data":{"protocolVersion":1,"sessionId":"s","actorId":"a","clientId":"c","cursor":57,"latestCursor":64,"requiresSync":true,"timestamp":5}}"#.to_owned(),
        r#"{"event":"sync","data":{"cursor":64,"requiresPull":true,"reason":"catchup-required","timestamp":5}}"#.to_owned(),
        r#"{"event":"heartbeat","data":{"timestamp":5}}"#.to_owned(),
        fanout_with("join", "{}"),
        fanout_with("leave", "null"),
    ];
    let mut seen = 0;
    for text in texts.iter().filter(|text| text.contains(from)) {
        seen += 1;
        ServerControl::parse(text).unwrap();
        let text = text.replacen(from, to, 1);
        let error = ServerControl::parse(&text).unwrap_err();
        assert_eq!(error.0, rule, "{text}");
    }
    assert!(seen > 0, "{from}");
}

#[test]
fn known_events_with_wrong_data_are_malformed() {
    check_malformed(
        r#""cursor":57"#,
        r#""cursor":57.5"#,
        "cursor is no safe integer",
    );
    check_malformed(
        r#""protocolVersion":1"#,
        r#""protocolVersion":2"#,
        "protocol version is not 1",
    );
    check_malformed(
        r#""sessionId":"s""#,
        r#""sessionId":7"#,
        "session id is no text",
    );
    check_malformed(
        r#""requiresSync":true"#,
        r#""requiresSync":1"#,
        "requiresSync is no boolean",
    );
    check_malformed(
        r#""requiresPull":true"#,
        r#""requiresPull":false"#,
        "requiresPull is not true",
    );
    check_malformed("catchup-required", "bored", "reason is none of the three");
    check_malformed(r#""timestamp":5"#, r#""timestamp":null"#, NO_TIMESTAMP);
    check_malformed(
        r#""kind":"join""#,
        r#""kind":"wave""#,
        "presence kind is none of the three",
    );
    check_malformed(r#""doc":{}"#, r#""doc":7"#, NO_DOC);
    check_malformed(r#""doc":null"#, r#""doc":{}"#, "leave has a document");
    check_malformed(r#""scopeKey":"team:t1""#, r#""scopeKey":"""#, NO_SCOPE_KEY);
    check_malformed(
        r#""kind":"join""#,
        r#""error":"presence.bored""#,
        "presence error is none of the two",
    );
    check_malformed(
        r#""data":{"timestamp":5}"#,
        r#""data":[]"#,
        "event has no data",
    );
}

#[test]
fn of_duplicate_members_the_last_one_counts() {
    let text = r#"{"type":"ack","cursor":1,"cursor":2}"#;
    assert_eq!(
        ClientControl::parse(text),
        Ok(ClientControl::Ack { cursor: 2 })
    );
}
