//! Requests that are read and written, in every wire version.

use bytes::Bytes;
use tidewater_model::{ScopeFilter, ScopeValues};
use tidewater_wire::{
    Accept, Message, Operation, OperationAction, PullHeader, PushCommit, Request, RequestFrame,
    RequestHeader, RoundFailure, Subscription, UnknownFrame, WireVersion,
};

use super::{MessageCase, push};

pub(super) fn cases(version: WireVersion) -> Vec<MessageCase> {
    let mut cases = Vec::new();
    let mut add = |name, frames| {
        let message = Message::Request(Request { version, frames });
        cases.push(MessageCase { name, message });
    };
    add("pull-minimal", vec![header(None), pull_header(7)]);
    add("pull-bootstrap", pull_bootstrap());
    add("push-multi-commit", push_multi_commit(version));
    add("combined", combined(version));
    add("unknown-frame-skip", unknown_frames(version));
    add("extremes", extremes(version));
    if version.has_epoch() {
        add(
            "epoch-bound",
            vec![
                header(Some("epoch-7")),
                push(version, "k-1"),
                pull_header(15),
            ],
        );
        add(
            "epoch-acquisition",
            vec![header(None), pull_header(7), subscription()],
        );
    }
    if version == WireVersion::V3 {
        add(
            "round-failure",
            vec![
                header(Some("epoch-7")),
                RequestFrame::RoundFailure(RoundFailure {
                    code: "transport.timeout".into(),
                }),
                push(version, "k-1"),
            ],
        );
    }
    cases
}

pub(super) fn header(log_epoch: Option<&'static str>) -> RequestFrame {
    RequestFrame::Header(RequestHeader {
        client_id: "client-a".into(),
        schema_version: 2,
        log_epoch: log_epoch.map(Into::into),
    })
}

pub(super) fn pull_header(accept: u8) -> RequestFrame {
    RequestFrame::PullHeader(PullHeader {
        limit_commits: 0,
        limit_snapshot_rows: 0,
        max_snapshot_pages: 0,
        accept: Accept::from_bits(accept).unwrap(),
    })
}

pub(super) fn subscription() -> RequestFrame {
    RequestFrame::Subscription(Subscription {
        id: "sub-notes".into(),
        table: "notes".into(),
        scopes: scopes(&[("team", &["t9", "t1", "t9"])]),
        params: None,
        cursor: -1,
        bootstrap_state: None,
    })
}

pub(super) fn push(version: WireVersion, client_commit_id: &'static str) -> RequestFrame {
    RequestFrame::PushCommit(PushCommit {
        client_commit_id: client_commit_id.into(),
        operations: vec![Operation {
            table: "notes".into(),
            row_id: "n-1".into(),
            action: OperationAction::Upsert(payload(version)),
            base_version: Some(7),
        }],
    })
}

pub(super) fn scopes(entries: &[(&str, &[&str])]) -> ScopeFilter {
    let entries = entries
        .iter()
        .map(|&(variable, values)| ScopeValues {
            variable: variable.to_owned(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
        })
        .collect();
    ScopeFilter::new(entries).unwrap()
}

/// A row as the version pushes it: full, and sparse in version 3.
fn payload(version: WireVersion) -> Bytes {
    if version.is_sparse() {
        push::partial().into()
    } else {
        push::full_row().into()
    }
}

fn pull_bootstrap() -> Vec<RequestFrame> {
    let second = RequestFrame::Subscription(Subscription {
        id: "sub-tasks".into(),
        table: "tasks".into(),
        scopes: scopes(&[("owner", &["é"]), ("team", &[])]),
        params: Some(r#"{"window": [1,  2.50], "open":true}"#.into()),
        cursor: 41,
        bootstrap_state: Some(r#"{"pin":64,"after":"n-1"}"#.into()),
    });
    vec![header(None), pull_header(3), subscription(), second]
}

fn push_multi_commit(version: WireVersion) -> Vec<RequestFrame> {
    let delete = RequestFrame::PushCommit(PushCommit {
        client_commit_id: "k-2".into(),
        operations: vec![
            Operation {
                table: "notes".into(),
                row_id: "n-1".into(),
                action: OperationAction::Delete,
                base_version: None,
            },
            Operation {
                table: "notes".into(),
                row_id: "n-2".into(),
                action: OperationAction::Delete,
                base_version: Some(3),
            },
            Operation {
                table: "tasks".into(),
                row_id: String::new().into(),
                action: OperationAction::Upsert(Bytes::new()),
                base_version: Some(0),
            },
        ],
    });
    vec![header(Some("epoch-7")), push(version, "k-1"), delete]
        .into_iter()
        .map(|frame| without_epoch_in_v1(frame, version))
        .collect()
}

fn combined(version: WireVersion) -> Vec<RequestFrame> {
    let header = without_epoch_in_v1(header(Some("epoch-7")), version);
    vec![
        header,
        push(version, "k-3"),
        pull_header(15),
        subscription(),
    ]
}

fn unknown_frames(version: WireVersion) -> Vec<RequestFrame> {
    let unknown = |frame_type, payload: &'static [u8]| {
        RequestFrame::Unknown(UnknownFrame {
            frame_type,
            payload: Bytes::from_static(payload),
        })
    };
    // Version 3 gives type 05 a layout.
    let first = if version == WireVersion::V3 {
        0x06
    } else {
        0x05
    };
    vec![
        header(None),
        unknown(first, b"\x07\x00\x00\x00any.one"),
        pull_header(7),
        unknown(0x17, b""),
        subscription(),
        unknown(0xff, &[0, 1, 2]),
    ]
}

/// Values at the ends of their ranges, and map keys that UTF-8 would order otherwise.
fn extremes(version: WireVersion) -> Vec<RequestFrame> {
    let limit = (1 << 53) - 1;
    let header = RequestFrame::Header(RequestHeader {
        client_id: "\u{1F600}".into(),
        schema_version: i32::MAX,
        log_epoch: version.has_epoch().then(|| " ".into()),
    });
    let pull_header = RequestFrame::PullHeader(PullHeader {
        limit_commits: i32::MIN,
        limit_snapshot_rows: -1,
        max_snapshot_pages: i32::MAX,
        accept: Accept::from_bits(0).unwrap(),
    });
    let subscription = |cursor| {
        RequestFrame::Subscription(Subscription {
            id: String::new().into(),
            table: String::new().into(),
            scopes: scopes(&[
                ("\u{E000}", &["*", ""]),
                ("\u{1F600}", &["\u{0}"]),
                ("", &[]),
            ]),
            params: Some(" null ".into()),
            cursor,
            bootstrap_state: Some(r#""\u0000""#.into()),
        })
    };
    vec![
        header,
        pull_header,
        subscription(limit),
        subscription(-limit),
    ]
}

fn without_epoch_in_v1(frame: RequestFrame, version: WireVersion) -> RequestFrame {
    match frame {
        RequestFrame::Header(header) if !version.has_epoch() => {
            RequestFrame::Header(RequestHeader {
                log_epoch: None,
                ..header
            })
        }
        frame => frame,
    }
}
