//! Control messages against the published codec, and where we differ on purpose.

use tidewater_wire::control::{ClientControl, ServerControl};

use crate::cases;

#[test]
fn the_published_codec_reads_and_writes_the_same_messages() {
    for case in cases::control_messages() {
        let theirs = ssp2::parse_control(&case.text).unwrap_or_else(|error| {
            panic!("{}: {error}", case.name);
        });
        assert_eq!(ssp2::render_control(&theirs).to_string(), case.text);
    }
}

#[test]
fn the_published_codec_refuses_the_same_messages() {
    for case in cases::invalid_control_messages() {
        assert!(ssp2::parse_control(&case.text).is_err(), "{}", case.name);
    }
}

/// The protocol calls a known event with missing data malformed (19.1); the published codec lets
/// these pass. No server sends them.
#[test]
fn we_insist_on_data_that_the_published_codec_does_not_need() {
    for text in [
        r#"{"event":"presence","data":{"scopeKey":"k","error":"presence.forbidden"}}"#,
        r#"{"event":"presence","data":{"scopeKey":"k","kind":"leave","actorId":"a","clientId":"c","timestamp":5}}"#,
        r#"{"event":"hello","data":{"protocolVersion":2,"sessionId":"s","actorId":"a","clientId":"c","cursor":1,"latestCursor":1,"requiresSync":true,"timestamp":5}}"#,
    ] {
        assert!(ssp2::parse_control(text).is_ok(), "{text}");
        assert!(ServerControl::parse(text).is_err(), "{text}");
    }
}

/// A server ignores what it cannot read from a client (19.4); the published codec is a client's
/// and has no reason to.
#[test]
fn we_ignore_from_clients_what_the_published_codec_refuses() {
    for text in ["nonsense", "[]", "{}", r#"{"type":"ack","cursor":1.5}"#] {
        assert!(ssp2::parse_control(text).is_err(), "{text}");
        assert_eq!(
            ClientControl::parse(text),
            Ok(ClientControl::Unknown),
            "{text}"
        );
    }
}
