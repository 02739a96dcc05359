//! Responses that are refused, by the entry of the closed list they violate (§1.7).

use tidewater_wire::{
    PushOutcome, ResponseFrame,
    WireVersion::{self, V1, V2, V3},
};

use super::{
    InvalidCase, Payload, RawMessage,
    response::{
        applied, commit_of_two, details, end, error, header, lease, rejected, segment_inline,
        segment_ref, start,
    },
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
    add(3, results());
    add(3, changes());
    add(3, other_primitives());
    let empty_epoch = Payload::new().u8(0).u8(0).text("").u8(0);
    let empty_epoch = RawMessage::response(V3).frame(0x10, empty_epoch).end();
    add(4, vec![("empty-log-epoch", empty_epoch)]);
    add(6, ranges());
    add(8, companions());
    add(8, details_content());
    add(9, segments());
    cases.extend(older_versions());
    cases
}

/// A response up to and including its header.
fn begin() -> RawMessage {
    RawMessage::response(V3).responses(&[header(V3)])
}

fn with(frames: &[ResponseFrame]) -> Vec<u8> {
    begin().responses(frames).end()
}

fn framing() -> Vec<(&'static str, Vec<u8>)> {
    let section = Payload::new().i64(1).u8(0).u8(0);
    vec![
        ("truncated-no-end", begin().unfinished()),
        ("no-frames", RawMessage::response(V3).end()),
        (
            "content-first",
            RawMessage::response(V3).responses(&[error()]).end(),
        ),
        (
            "unknown-frame-first",
            RawMessage::response(V3).frame(0x17, Payload::new()).end(),
        ),
        (
            "frame-of-other-kind",
            begin().frame(0x05, Payload::new().text("a.b")).end(),
        ),
        (
            "trailing-bytes-in-frame",
            begin()
                .responses(&[start(false)])
                .frame(0x16, section)
                .end(),
        ),
    ]
}

fn grammar() -> Vec<(&'static str, Vec<u8>)> {
    let applied = || applied(PushOutcome::Applied(1));
    let unknown = |frames: &[ResponseFrame]| begin().responses(frames).frame(0x17, Payload::new());
    vec![
        ("header-twice", with(&[header(V3)])),
        ("lease-twice", with(&[lease(), lease()])),
        ("lease-after-result", with(&[applied(), lease()])),
        (
            "lease-after-unknown-frame",
            unknown(&[]).responses(&[lease()]).end(),
        ),
        (
            "result-after-section",
            with(&[start(false), end(1, None), applied()]),
        ),
        (
            "result-inside-section",
            with(&[start(false), applied(), end(1, None)]),
        ),
        (
            "section-inside-section",
            with(&[start(false), start(false)]),
        ),
        ("section-not-begun", with(&[end(1, None)])),
        (
            "section-ended-twice",
            with(&[start(false), end(1, None), end(1, None)]),
        ),
        (
            "section-open-at-end",
            with(&[start(false), commit_of_two()]),
        ),
        ("commit-outside-section", with(&[commit_of_two()])),
        ("segment-outside-section", with(&[segment_inline()])),
        (
            "commit-after-segment",
            with(&[start(true), segment_inline(), commit_of_two()]),
        ),
        (
            "segment-after-commit",
            with(&[start(true), commit_of_two(), segment_ref(None)]),
        ),
        (
            "frame-after-error",
            with(&[start(false), error(), end(1, None)]),
        ),
        ("error-twice", with(&[error(), error()])),
        ("unknown-frame-after-error", unknown(&[error()]).end()),
    ]
}

/// A response with one push result, given from its status on.
fn result(rest: Payload) -> Vec<u8> {
    let payload = Payload::new().text("k").raw(&rest.0);
    begin().frame(0x11, payload).end()
}

fn results() -> Vec<(&'static str, Vec<u8>)> {
    let payload = Payload::new;
    let record = |rest: Payload| result(payload().u8(3).u8(0).u32(1).i32(0).raw(&rest.0));
    let conflict = || payload().u8(2).text("c").text("m").i64(1).bytes(b"row");
    vec![
        (
            "push-status-out-of-range",
            result(payload().u8(4).u8(0).u32(0)),
        ),
        (
            "applied-without-commit-seq",
            result(payload().u8(1).u8(0).u32(0)),
        ),
        (
            "cached-without-commit-seq",
            result(payload().u8(2).u8(0).u32(0)),
        ),
        (
            "rejected-with-commit-seq",
            result(payload().u8(3).u8(1).i64(1).u32(0)),
        ),
        ("record-status-out-of-range", record(payload().u8(0))),
        ("conflict-without-columns", record(conflict())),
        (
            "bool-byte-out-of-range",
            record(payload().u8(3).text("c").text("m").u8(2)),
        ),
    ]
}

/// A response with a commit of one change, given from its table index on.
fn change(rest: Payload) -> Vec<u8> {
    let payload = Payload::new()
        .i64(1)
        .i64(1)
        .text("a")
        .u32(1)
        .text("notes")
        .u32(1);
    let message = begin().responses(&[start(false)]);
    message
        .frame(0x13, payload.raw(&rest.0))
        .responses(&[end(1, None)])
        .end()
}

fn changes() -> Vec<(&'static str, Vec<u8>)> {
    let op = |op: u8| Payload::new().u16(0).text("n-1").u8(op);
    let row = |payload: Payload| payload.u8(1).bytes(b"row");
    let scope = |payload: Payload, key: &str| payload.text(key).text("v");
    let unordered = scope(scope(op(2).u8(0).u32(2), "\u{E000}"), "\u{1F600}");
    vec![
        ("change-op-out-of-range", change(op(0).u8(0).u32(0).u8(0))),
        ("upsert-without-version", change(row(op(1).u8(0).u32(0)))),
        (
            "upsert-without-row",
            change(op(1).u8(1).i64(1).u32(0).u8(0)),
        ),
        (
            "upsert-without-version-and-row",
            change(op(1).u8(0).u32(0).u8(0)),
        ),
        (
            "delete-with-version",
            change(op(2).u8(1).i64(1).u32(0).u8(0)),
        ),
        ("delete-with-row", change(row(op(2).u8(0).u32(0)))),
        ("stored-scopes-unordered", change(unordered.u8(0))),
    ]
}

fn other_primitives() -> Vec<(&'static str, Vec<u8>)> {
    let payload = Payload::new;
    let section = |frame_type, payload| {
        let message = begin().responses(&[start(true)]).frame(frame_type, payload);
        message.responses(&[end(1, None)]).end()
    };
    let reference = |media: u8| {
        let head = payload()
            .text("s")
            .u8(media)
            .text("t")
            .i64(1)
            .i64(1)
            .i64(1)
            .text("d");
        head.u8(0).u8(0)
    };
    let details = payload()
        .text("c")
        .text("m")
        .text("k")
        .u8(0)
        .text("a")
        .u8(1)
        .text("nope");
    let state = payload().i64(1).u8(1).text("");
    vec![
        (
            "sub-status-out-of-range",
            begin()
                .frame(0x12, payload().text("s").u8(0).text("").u32(0).u8(0))
                .end(),
        ),
        (
            "media-type-out-of-range",
            section(0x14, reference(3).u8(0).u8(0)),
        ),
        (
            "url-without-expiry",
            section(0x14, reference(1).u8(1).text("u").u8(0)),
        ),
        (
            "expiry-without-url",
            section(0x14, reference(1).u8(0).u8(1).i64(1)),
        ),
        ("error-details-not-json", begin().frame(0x1f, details).end()),
        (
            "bootstrap-state-not-json",
            begin().responses(&[start(true)]).frame(0x16, state).end(),
        ),
    ]
}

fn ranges() -> Vec<(&'static str, Vec<u8>)> {
    let index = Payload::new().u16(1).text("n-1").u8(2).u8(0).u32(0).u8(0);
    let lease = Payload::new().text("").i64(1);
    vec![
        ("table-index-out-of-range", change(index)),
        ("empty-lease-id", begin().frame(0x19, lease).end()),
    ]
}

/// A rejected result at operation 3, then a companion with any payload.
fn companion(payload: Payload) -> Vec<u8> {
    begin().responses(&[rejected(3)]).frame(0x1b, payload).end()
}

fn companions() -> Vec<(&'static str, Vec<u8>)> {
    const DETAILS: &str = r#"{"reason":"a"}"#;
    let entries = |id: &str, indexes: &[i32]| {
        let count = u32::try_from(indexes.len()).unwrap();
        let payload = Payload::new().text(id).u32(count);
        let entry = |payload: Payload, &index: &i32| payload.i32(index).text(DETAILS);
        companion(indexes.iter().fold(payload, entry))
    };
    let after_unknown = begin()
        .responses(&[rejected(3)])
        .frame(0x17, Payload::new());
    vec![
        ("companion-without-result", with(&[details(3)])),
        (
            "companion-after-unknown-frame",
            after_unknown.responses(&[details(3)]).end(),
        ),
        (
            "companion-twice",
            with(&[rejected(3), details(3), details(3)]),
        ),
        (
            "companion-inside-section",
            with(&[rejected(3), start(false), details(3), end(1, None)]),
        ),
        (
            "companion-of-applied-result",
            begin()
                .responses(&[applied(PushOutcome::Applied(1))])
                .frame(0x1b, Payload::new().text("k-1").u32(1).i32(0).text(DETAILS))
                .end(),
        ),
        ("companion-of-other-commit", entries("k-9", &[3])),
        ("companion-without-id", entries("", &[3])),
        ("companion-without-entries", entries("k-2", &[])),
        ("companion-index-without-error", entries("k-2", &[0])),
        ("companion-index-negative", entries("k-2", &[-1])),
        ("companion-index-twice", entries("k-2", &[3, 3])),
    ]
}

fn details_content() -> Vec<(&'static str, Vec<u8>)> {
    let details = |text: &str| companion(Payload::new().text("k-2").u32(1).i32(3).text(text));
    let long = format!("{:4097}", r#"{"reason":"a"}"#);
    let references: Vec<String> = (0..17).map(|index| format!(r#""k{index}":"v""#)).collect();
    let references = format!(r#"{{"references":{{{}}}}}"#, references.join(","));
    vec![
        ("details-not-json", details("{")),
        ("details-not-an-object", details("[]")),
        ("details-empty", details("{}")),
        (
            "details-unknown-member",
            details(r#"{"reason":"a","prose":"b"}"#),
        ),
        ("details-too-long", details(&long)),
        (
            "details-token-upper-case",
            details(r#"{"reason":"Sold Out"}"#),
        ),
        (
            "details-token-double-separator",
            details(r#"{"requiredAction":"a..b"}"#),
        ),
        ("details-paths-empty", details(r#"{"fieldPaths":[]}"#)),
        (
            "details-path-malformed",
            details(r#"{"fieldPaths":["a.9"]}"#),
        ),
        ("details-path-twice", details(r#"{"fieldPaths":["a","a"]}"#)),
        ("details-too-many-references", details(&references)),
        (
            "details-reference-with-space",
            details(r#"{"references":{"k":" v"}}"#),
        ),
        (
            "details-reference-with-control",
            details(r#"{"references":{"k":"a\u0085b"}}"#),
        ),
        (
            "details-reference-with-mark",
            details("{\"references\":{\"k\":\"\u{feff}v\"}}"),
        ),
    ]
}

fn segments() -> Vec<(&'static str, Vec<u8>)> {
    let ResponseFrame::SegmentInline(good) = segment_inline() else {
        unreachable!("it is an inline segment");
    };
    let inline = |bytes: &[u8]| {
        let message = begin().responses(&[start(true)]);
        let message = message.frame(0x15, Payload::new().raw(bytes));
        message.responses(&[end(1, None)]).end()
    };
    let mut bad_magic = good.to_vec();
    bad_magic[0] = b'X';
    let mut bad_row = good.to_vec();
    let row = good
        .windows(8)
        .position(|bytes| bytes == 7_i64.to_le_bytes())
        .unwrap();
    bad_row[row..row + 8].copy_from_slice(&[0; 8]);
    let mut trailing = good.to_vec();
    trailing.push(0);
    vec![
        ("segment-empty", inline(&[])),
        ("segment-bad-magic", inline(&bad_magic)),
        ("segment-server-version-zero", inline(&bad_row)),
        ("segment-without-marker", inline(&good[..good.len() - 4])),
        ("segment-trailing-bytes", inline(&trailing)),
    ]
}

fn older_versions() -> Cases {
    let header = |version, payload| RawMessage::response(version).frame(0x10, payload).end();
    let with_epoch = Payload::new().u8(0).u8(0).text("e1").u8(0);
    let without_epoch = Payload::new().u8(0).u8(0);
    let conflict = Payload::new().text("k").u8(3).u8(0).u32(1).i32(0);
    let conflict = conflict
        .u8(2)
        .text("c")
        .text("m")
        .i64(1)
        .bytes(b"row")
        .bytes(b"\x01");
    let conflict = |version: WireVersion| {
        let message = RawMessage::response(version).responses(&[super::response::header(version)]);
        message.frame(0x11, conflict.clone()).end()
    };
    let details = Payload::new().text("k-2").u32(1).i32(3).text("{}");
    let details = RawMessage::response(V1)
        .responses(&[super::response::header(V1), rejected(3)])
        .frame(0x1b, details)
        .end();
    let case = |name, class, bytes| InvalidCase { name, class, bytes };
    vec![
        (V1, case("details-empty", 8, details)),
        (V1, case("header-with-epoch", 1, header(V1, with_epoch))),
        (V1, case("conflict-with-columns", 1, conflict(V1))),
        (
            V2,
            case("header-without-epoch", 3, header(V2, without_epoch)),
        ),
        (V2, case("conflict-with-columns", 1, conflict(V2))),
    ]
}
