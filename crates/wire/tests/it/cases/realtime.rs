//! Control messages, good and bad.

use tidewater_wire::control::{
    ClientControl, Hello, PresenceChange, PresenceError, PresenceFanout, ServerControl, WakeReason,
    WakeUp,
};

use super::ControlCase;

const NOW_MS: i64 = 1_782_993_600_000;

pub(crate) fn cases() -> Vec<ControlCase> {
    let fanout = |change| {
        ServerControl::Presence(PresenceFanout {
            scope_key: "team:t1".into(),
            actor_id: "actor-1".into(),
            client_id: "client-a".into(),
            change,
            timestamp: NOW_MS,
        })
    };
    let publish = |doc: Option<&'static str>| ClientControl::Presence {
        scope_key: "team:t1".into(),
        doc: doc.map(Into::into),
    };
    let server = [
        ("hello", hello()),
        ("wake", wake_up()),
        ("heartbeat", ServerControl::Heartbeat { timestamp: NOW_MS }),
        ("presence-fanout", fanout(PresenceChange::Join(DOC.into()))),
        (
            "presence-update",
            fanout(PresenceChange::Update("{}".into())),
        ),
        ("presence-leave", fanout(PresenceChange::Leave)),
        ("presence-error", presence_error()),
    ];
    let client = [
        ("ack", ClientControl::Ack { cursor: 64 }),
        ("presence-publish", publish(Some(DOC))),
        ("presence-withdraw", publish(None)),
    ];
    let server = server.map(|(name, message)| ControlCase {
        name,
        text: message.to_text(),
    });
    let client = client.map(|(name, message)| ControlCase {
        name,
        text: message.to_text(),
    });
    server.into_iter().chain(client).collect()
}

const DOC: &str = r#"{"name":"Ada","cursor":42}"#;

fn hello() -> ServerControl {
    ServerControl::Hello(Hello {
        session_id: "sess-0001".into(),
        actor_id: "actor-1".into(),
        client_id: "client-a".into(),
        cursor: 57,
        latest_cursor: 64,
        requires_sync: true,
        timestamp: NOW_MS,
    })
}

fn wake_up() -> ServerControl {
    ServerControl::WakeUp(WakeUp {
        cursor: 64,
        reason: WakeReason::CatchupRequired,
        timestamp: NOW_MS,
    })
}

fn presence_error() -> ServerControl {
    ServerControl::PresenceError {
        scope_key: "team:t9".into(),
        error: PresenceError::Forbidden,
        timestamp: NOW_MS,
    }
}

/// Messages that the receiver must call malformed.
pub(crate) fn invalid() -> Vec<ControlCase> {
    let fanout = r#"{"event":"presence","data":{"scopeKey":"k","kind":"KIND","actorId":"a","clientId":"c","doc":DOC,"timestamp":5}}"#;
    let fanout = |kind: &str, doc: &str| fanout.replace("KIND", kind).replace("DOC", doc);
    let replace = |message: ServerControl, from: &str, to: &str| {
        let text = message.to_text();
        assert!(text.contains(from));
        text.replacen(from, to, 1)
    };
    [
        (
            "wake-requires-pull-false",
            replace(
                wake_up(),
                r#""requiresPull":true"#,
                r#""requiresPull":false"#,
            ),
        ),
        (
            "wake-unknown-reason",
            replace(wake_up(), "catchup", "coffee"),
        ),
        (
            "hello-fractional-cursor",
            replace(hello(), r#""cursor":57"#, r#""cursor":57.5"#),
        ),
        (
            "hello-unsafe-cursor",
            replace(hello(), r#""cursor":57"#, r#""cursor":9007199254740992"#),
        ),
        ("presence-unknown-kind", fanout("wave", "{}")),
        ("presence-scalar-doc", fanout("join", "7")),
        ("presence-leave-with-doc", fanout("leave", "{}")),
        (
            "presence-unknown-error",
            replace(presence_error(), "forbidden", "unwanted"),
        ),
    ]
    .into_iter()
    .map(|(name, text)| ControlCase { name, text })
    .collect()
}
