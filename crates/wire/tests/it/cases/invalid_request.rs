//! Requests that are refused, by the entry of the closed list they violate (§1.7).

use tidewater_wire::WireVersion::{self, V1, V2, V3};

use super::{
    InvalidCase, Payload, RawMessage,
    request::{header, pull_header, push, subscription},
};

type Cases = Vec<(WireVersion, InvalidCase)>;

pub(super) fn cases() -> Cases {
    let mut cases = Vec::new();
    let mut add = |class, list: Vec<(&'static str, Vec<u8>)>| {
        cases.extend(list.into_iter().map(|(name, bytes)| {
            let case = InvalidCase { name, class, bytes };
            (V3, case)
        }));
    };
    add(1, framing());
    add(2, grammar());
    add(3, primitives());
    add(3, maps_and_json());
    add(4, headers());
    add(5, commits());
    let accept = Payload::new().i32(0).i32(0).i32(0).u8(0x10);
    add(
        6,
        vec![("accept-reserved-bit", begin().frame(0x03, accept).end())],
    );
    add(7, round_failures());
    cases.extend(older_versions());
    cases
}

/// A request up to and including its header.
fn begin() -> RawMessage {
    RawMessage::request(V3).requests(&[header(None)])
}

fn pull() -> RawMessage {
    begin().requests(&[pull_header(7)])
}

fn framing() -> Vec<(&'static str, Vec<u8>)> {
    let with_byte = |index: usize, byte| {
        let mut bytes = pull().end();
        bytes[index] = byte;
        bytes
    };
    let mut version_999 = pull().end();
    version_999[4..6].copy_from_slice(&999_u16.to_le_bytes());
    let message = || RawMessage::request(V3);
    let header_payload = || Payload::new().text("c").i32(1).u8(0);
    vec![
        ("bad-magic", with_byte(3, b'3')),
        ("unsupported-wire-version", version_999),
        ("unknown-message-kind", with_byte(6, 3)),
        ("nonzero-flags", with_byte(7, 0x80)),
        ("truncated-envelope", pull().end()[..7].to_vec()),
        ("truncated-no-end", pull().unfinished()),
        (
            "truncated-frame-header",
            pull().raw(&[0, 0, 0]).unfinished(),
        ),
        (
            "overlong-frame-length",
            pull().raw(&[0x30, 0xff, 0xff, 0xff, 0x7f]).unfinished(),
        ),
        (
            "end-with-payload",
            pull().raw(&[0, 1, 0, 0, 0, 0]).unfinished(),
        ),
        ("bytes-after-end", pull().raw(&[0; 5]).end()),
        (
            "trailing-bytes-in-frame",
            message().frame(0x01, header_payload().u8(0)).end(),
        ),
        (
            "frame-of-other-kind",
            pull().frame(0x16, Payload::new().i64(1).u8(0)).end(),
        ),
        (
            "companion-in-request",
            pull().frame(0x1b, Payload::new()).end(),
        ),
        (
            "unknown-frame-first",
            message().frame(0x17, Payload::new()).end(),
        ),
        (
            "content-first",
            message().requests(&[pull_header(7), header(None)]).end(),
        ),
        ("no-frames", message().end()),
    ]
}

fn grammar() -> Vec<(&'static str, Vec<u8>)> {
    let round_failure = |message: RawMessage| message.frame(0x05, Payload::new().text("a.b"));
    let unknown = |message: RawMessage| message.frame(0x17, Payload::new());
    vec![
        ("no-content", begin().end()),
        ("no-content-but-round-failure", round_failure(begin()).end()),
        ("no-content-but-unknown-frame", unknown(begin()).end()),
        ("header-twice", pull().requests(&[header(None)]).end()),
        ("push-after-pull", pull().requests(&[push(V3, "k")]).end()),
        (
            "pull-header-twice",
            pull().requests(&[pull_header(7)]).end(),
        ),
        (
            "subscription-before-pull",
            begin().requests(&[subscription(), pull_header(7)]).end(),
        ),
        ("round-failure-after-pull", round_failure(pull()).end()),
        (
            "round-failure-after-unknown-frame",
            round_failure(unknown(begin()))
                .requests(&[pull_header(7)])
                .end(),
        ),
        (
            "round-failure-twice",
            round_failure(round_failure(begin()))
                .requests(&[pull_header(7)])
                .end(),
        ),
    ]
}

/// A request whose commit holds one operation, given from its `op` byte on.
fn operation(rest: Payload) -> Vec<u8> {
    let payload = Payload::new().text("k").u32(1).text("notes").text("n-1");
    begin().frame(0x02, payload.raw(&rest.0)).end()
}

fn primitives() -> Vec<(&'static str, Vec<u8>)> {
    let payload = Payload::new;
    let commit = |payload| begin().frame(0x02, payload).end();
    vec![
        (
            "op-enum-out-of-range",
            operation(payload().u8(3).u8(0).u8(0)),
        ),
        (
            "upsert-without-payload",
            operation(payload().u8(1).u8(0).u8(0)),
        ),
        (
            "delete-with-payload",
            operation(payload().u8(2).u8(0).u8(1).text("x")),
        ),
        (
            "presence-byte-out-of-range",
            operation(payload().u8(2).u8(2).u8(0)),
        ),
        (
            "integer-above-safe-range",
            operation(payload().u8(2).u8(1).i64(1 << 53).u8(0)),
        ),
        (
            "integer-below-safe-range",
            operation(payload().u8(2).u8(1).i64(i64::MIN).u8(0)),
        ),
        ("operation-truncated", operation(payload().u8(2))),
        (
            "payload-past-end",
            operation(payload().u8(1).u8(0).u8(1).u32(5).raw(b"four")),
        ),
        (
            "text-not-utf-8",
            commit(payload().bytes(&[0xc3, 0x28]).u32(1)),
        ),
        ("text-past-end", commit(payload().u32(u32::MAX))),
        ("count-past-end", commit(payload().text("k").u32(u32::MAX))),
        ("frame-empty", begin().frame(0x03, payload()).end()),
    ]
}

/// A request with one subscription, given from its scopes on.
fn subscribed(rest: Payload) -> Vec<u8> {
    let payload = Payload::new().text("s").text("notes").raw(&rest.0);
    pull().frame(0x04, payload).end()
}

fn maps_and_json() -> Vec<(&'static str, Vec<u8>)> {
    let map = |keys: &[&str]| {
        let count = u32::try_from(keys.len()).unwrap();
        let map = keys
            .iter()
            .fold(Payload::new().u32(count), |map, key| map.text(key).u32(0));
        subscribed(map.u8(0).i64(-1).u8(0))
    };
    let params = |text: &str| subscribed(Payload::new().u32(0).u8(1).text(text).i64(-1).u8(0));
    let state = subscribed(Payload::new().u32(0).u8(0).i64(-1).u8(1).text("{"));
    let deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
    vec![
        ("map-keys-unordered", map(&["b", "a"])),
        ("map-key-twice", map(&["a", "a"])),
        ("map-keys-in-utf-8-order", map(&["\u{E000}", "\u{1F600}"])),
        ("params-not-json", params("{nope")),
        ("params-empty", params("")),
        ("params-two-documents", params("1 2")),
        ("params-byte-order-mark", params("\u{feff}1")),
        ("params-infinite-number", params("[1e999]")),
        ("params-lone-surrogate", params(r#""\ud800""#)),
        ("params-too-deep", params(&deep)),
        ("bootstrap-state-not-json", state),
    ]
}

fn headers() -> Vec<(&'static str, Vec<u8>)> {
    let header = |payload| {
        let message = RawMessage::request(V3).frame(0x01, payload);
        message.requests(&[pull_header(7)]).end()
    };
    let payload = Payload::new;
    vec![
        ("empty-client-id", header(payload().text("").i32(1).u8(0))),
        (
            "schema-version-zero",
            header(payload().text("c").i32(0).u8(0)),
        ),
        (
            "schema-version-negative",
            header(payload().text("c").i32(-1).u8(0)),
        ),
        (
            "empty-log-epoch",
            header(payload().text("c").i32(1).u8(1).text("")),
        ),
    ]
}

fn commits() -> Vec<(&'static str, Vec<u8>)> {
    let operation = Payload::new().text("t").text("r").u8(2).u8(0).u8(0);
    let without_id = Payload::new().text("").u32(1).raw(&operation.0);
    let without_operations = Payload::new().text("k").u32(0);
    vec![
        (
            "empty-client-commit-id",
            begin().frame(0x02, without_id).end(),
        ),
        (
            "empty-commit",
            begin().frame(0x02, without_operations).end(),
        ),
    ]
}

fn round_failures() -> Vec<(&'static str, Vec<u8>)> {
    let failure = |code: &str| {
        let message = begin().frame(0x05, Payload::new().text(code));
        message.requests(&[pull_header(7)]).end()
    };
    vec![
        ("round-failure-one-segment", failure("timeout")),
        ("round-failure-upper-case", failure("transport.Timeout")),
        ("round-failure-empty-segment", failure("transport..timeout")),
        ("round-failure-digit-first", failure("transport.5xx")),
        (
            "round-failure-too-long",
            failure(&format!("a.{}", "b".repeat(63))),
        ),
    ]
}

fn older_versions() -> Cases {
    let header = |version, payload| {
        let message = RawMessage::request(version).frame(0x01, payload);
        message.requests(&[pull_header(7)]).end()
    };
    let with_epoch = Payload::new().text("c").i32(1).u8(1).text("e1");
    let without_epoch = Payload::new().text("c").i32(1);
    let case = |name, class, bytes| InvalidCase { name, class, bytes };
    vec![
        (V1, case("header-with-epoch", 1, header(V1, with_epoch))),
        (
            V2,
            case("header-without-epoch", 3, header(V2, without_epoch)),
        ),
        (
            V2,
            case(
                "unknown-frame-without-content",
                2,
                RawMessage::request(V2)
                    .requests(&[super::request::header(None)])
                    .frame(0x05, Payload::new().text("a.b"))
                    .end(),
            ),
        ),
    ]
}
