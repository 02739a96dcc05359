//! Responses that are read and written, in every wire version.

use bytes::Bytes;
use tidewater_model::{ErrorCode, ScopeFilter};
use tidewater_wire::{
    Change, ChangeRow, CommitFrame, ErrorFrame, LeaseFrame, MediaType, Message, OpResult,
    PushOutcome, PushResult, PushResultDetails, RejectionDetail, RejectionDetails, Response,
    ResponseFrame, ResponseHeader, SegmentRef, SubEnd, SubStart, SubStatus, UnknownFrame,
    WireVersion, content_address, row::presence_bitmap, scope_digest,
};

use super::{MessageCase, push, request::scopes, segment};

const NOW_MS: i64 = 1_782_993_600_000;

pub(super) fn cases(version: WireVersion) -> Vec<MessageCase> {
    let mut cases = Vec::new();
    let mut add = |name, mut frames: Vec<ResponseFrame>| {
        frames.insert(0, header(version));
        let message = Message::Response(Response { version, frames });
        cases.push(MessageCase { name, message });
    };
    add("pull-empty", vec![start(false), end(44, None)]);
    add("commits-incremental", commits_incremental());
    add("commit-crdt-merge", commit_crdt_merge());
    add("bootstrap-segments", bootstrap_segments());
    add("push-applied", vec![applied(PushOutcome::Applied(43))]);
    add("push-cached", vec![applied(PushOutcome::Cached(43))]);
    add("push-conflict", vec![conflict(version)]);
    add("push-rejected-details", rejected_with_details());
    add(
        "subscription-revoked",
        refused(SubStatus::Revoked, ErrorCode::ScopeRevoked),
    );
    add(
        "cursor-reset",
        refused(SubStatus::Reset, ErrorCode::CursorExpired),
    );
    add(
        "error-mid-stream",
        vec![start(false), commit_of_two(), error()],
    );
    add("unknown-frame-skip", unknown_frames());
    add("lease-issued", vec![lease(), start(false), end(44, None)]);
    cases.extend(headers_alone(version));
    cases
}

fn headers_alone(version: WireVersion) -> Vec<MessageCase> {
    let mut cases = Vec::new();
    let mut add = |name, header: ResponseHeader, frames: Vec<ResponseFrame>| {
        let frames = [ResponseFrame::Header(header)]
            .into_iter()
            .chain(frames)
            .collect();
        let message = Message::Response(Response { version, frames });
        cases.push(MessageCase { name, message });
    };
    let log_epoch = if version.has_epoch() { "epoch-7" } else { "" };
    let base = ResponseHeader {
        log_epoch: log_epoch.into(),
        ..ResponseHeader::default()
    };
    let floor = ResponseHeader {
        required_schema_version: Some(2),
        latest_schema_version: Some(4),
        ..base.clone()
    };
    add("schema-floor", floor, Vec::new());
    add(
        "realtime-delta",
        base.clone(),
        vec![start(false), commit_of_two(), end(44, None)],
    );
    add("minimal-error", base.clone(), vec![error()]);
    if version.has_epoch() {
        let reset = ResponseHeader {
            latest_schema_version: Some(4),
            reset_required: true,
            ..base
        };
        add("epoch-reset", reset, Vec::new());
    }
    cases
}

pub(super) fn header(version: WireVersion) -> ResponseFrame {
    let log_epoch = if version.has_epoch() { "epoch-7" } else { "" };
    ResponseFrame::Header(ResponseHeader {
        latest_schema_version: Some(2),
        log_epoch: log_epoch.into(),
        ..ResponseHeader::default()
    })
}

pub(super) fn lease() -> ResponseFrame {
    ResponseFrame::Lease(LeaseFrame {
        lease_id: "lease-1".into(),
        expires_at_ms: NOW_MS + 60_000,
    })
}

pub(super) fn applied(outcome: PushOutcome) -> ResponseFrame {
    ResponseFrame::PushResult(PushResult {
        client_commit_id: "k-1".into(),
        outcome,
        results: vec![
            OpResult::Applied { op_index: 0 },
            OpResult::Applied { op_index: 1 },
        ],
    })
}

fn conflict(version: WireVersion) -> ResponseFrame {
    let columns = presence_bitmap(push::columns().len(), [2, 8]);
    ResponseFrame::PushResult(PushResult {
        client_commit_id: "k-1".into(),
        outcome: PushOutcome::Rejected,
        results: vec![OpResult::Conflict {
            op_index: 1,
            code: ErrorCode::VersionConflict.as_str().into(),
            message: "row moved on".into(),
            server_version: 7,
            server_row: push::full_row().into(),
            conflict_columns: if version.is_sparse() {
                columns.into()
            } else {
                Bytes::new()
            },
        }],
    })
}

pub(super) fn rejected(op_index: i32) -> ResponseFrame {
    ResponseFrame::PushResult(PushResult {
        client_commit_id: "k-2".into(),
        outcome: PushOutcome::Rejected,
        results: vec![OpResult::Error {
            op_index,
            code: "orders.stock_exhausted".into(),
            message: "not enough left".into(),
            retryable: false,
        }],
    })
}

pub(super) fn details(op_index: i32) -> ResponseFrame {
    let details = RejectionDetails::new()
        .field_path("lines.amount")
        .reason("stock.exhausted")
        .required_action("reload-order")
        .reference("order", "o-1 é")
        .build()
        .unwrap();
    ResponseFrame::PushResultDetails(PushResultDetails {
        client_commit_id: "k-2".into(),
        entries: vec![RejectionDetail { op_index, details }],
    })
}

fn rejected_with_details() -> Vec<ResponseFrame> {
    let plain = |id: &'static str| {
        ResponseFrame::PushResult(PushResult {
            client_commit_id: id.into(),
            outcome: PushOutcome::Rejected,
            results: vec![OpResult::Error {
                op_index: 0,
                code: ErrorCode::IdempotencyCacheMiss.as_str().into(),
                message: String::new().into(),
                retryable: true,
            }],
        })
    };
    vec![plain("k-1"), rejected(3), details(3), plain("k-3")]
}

pub(super) fn start(bootstrap: bool) -> ResponseFrame {
    ResponseFrame::SubStart(SubStart {
        id: "sub-notes".into(),
        status: SubStatus::Active,
        reason_code: String::new().into(),
        effective_scopes: scopes(&[("team", &["t1", "t9"])]),
        bootstrap,
    })
}

fn refused(status: SubStatus, reason: ErrorCode) -> Vec<ResponseFrame> {
    let start = ResponseFrame::SubStart(SubStart {
        id: "sub-notes".into(),
        status,
        reason_code: reason.as_str().into(),
        effective_scopes: ScopeFilter::default(),
        bootstrap: false,
    });
    vec![start, end(-1, None)]
}

pub(super) fn end(next_cursor: i64, bootstrap_state: Option<&'static str>) -> ResponseFrame {
    ResponseFrame::SubEnd(SubEnd {
        next_cursor,
        bootstrap_state: bootstrap_state.map(Into::into),
    })
}

fn upsert(row_id: &'static str, row_version: i64, row: Vec<u8>) -> Change {
    Change {
        table_index: 0,
        row_id: row_id.into(),
        row: Some(ChangeRow {
            row_version,
            row: row.into(),
        }),
        scopes: vec![
            ("team".into(), "t1".into()),
            ("\u{1F600}".into(), String::new().into()),
            ("\u{E000}".into(), "x".into()),
        ],
    }
}

fn commit(commit_seq: i64, tables: &[&'static str], changes: Vec<Change>) -> ResponseFrame {
    ResponseFrame::Commit(CommitFrame {
        commit_seq,
        created_at_ms: NOW_MS,
        actor_id: "actor-1".into(),
        tables: tables.iter().map(|&table| table.into()).collect(),
        changes,
    })
}

pub(super) fn commit_of_two() -> ResponseFrame {
    let delete = Change {
        table_index: 1,
        row_id: "task-9".into(),
        row: None,
        scopes: vec![("team".into(), "t9".into())],
    };
    let upsert = upsert("n-2", 1, push::full_row());
    commit(44, &["notes", "tasks"], vec![upsert, delete])
}

fn commits_incremental() -> Vec<ResponseFrame> {
    let first = commit(43, &["notes"], vec![upsert("n-2", 1, push::full_row())]);
    let nothing = commit(45, &[], Vec::new());
    vec![start(false), first, commit_of_two(), nothing, end(45, None)]
}

fn commit_crdt_merge() -> Vec<ResponseFrame> {
    let merged = commit(46, &["notes"], vec![upsert("n-2", 2, push::full_row())]);
    vec![start(false), merged, end(46, None)]
}

pub(super) fn segment_ref(url: Option<(&'static str, i64)>) -> ResponseFrame {
    let media_type = if url.is_some() {
        MediaType::Sqlite
    } else {
        MediaType::Rows
    };
    let paged = |text: &'static str| (media_type == MediaType::Rows).then(|| text.into());
    ResponseFrame::SegmentRef(SegmentRef {
        segment_id: content_address(b"segment").into(),
        media_type,
        table: "notes".into(),
        byte_length: 7,
        row_count: 3,
        as_of_commit_seq: 64,
        scope_digest: scope_digest(&scopes(&[("team", &["t1", "t9"])])).into(),
        row_cursor: paged("n-1"),
        next_row_cursor: paged("n-4"),
        url: url.map(|(url, expires_at_ms)| (url.into(), expires_at_ms)),
    })
}

pub(super) fn segment_inline() -> ResponseFrame {
    ResponseFrame::SegmentInline(segment::two_blocks().encode().into())
}

fn bootstrap_segments() -> Vec<ResponseFrame> {
    vec![
        start(true),
        segment_inline(),
        segment_ref(None),
        end(64, Some(r#"{"pin": 64, "after":"n-4"}"#)),
        start(true),
        segment_ref(Some(("https://cdn.example/s?sig=1", NOW_MS))),
        end(64, None),
    ]
}

pub(super) fn error() -> ResponseFrame {
    let code = ErrorCode::RateLimited;
    ResponseFrame::Error(ErrorFrame {
        code: code.as_str().into(),
        message: "too many requests".into(),
        category: code.category().as_str().into(),
        retryable: code.is_retryable(),
        recommended_action: code.action().as_str().into(),
        details: Some(r#"{"retryAfterMs":1500}"#.into()),
    })
}

fn unknown_frames() -> Vec<ResponseFrame> {
    let unknown = |frame_type, payload: &'static [u8]| {
        ResponseFrame::Unknown(UnknownFrame {
            frame_type,
            payload: Bytes::from_static(payload),
        })
    };
    vec![
        unknown(0x17, b"chain"),
        applied(PushOutcome::Applied(1)),
        unknown(0x1a, b""),
        start(false),
        unknown(0x20, &[0; 5]),
        commit_of_two(),
        unknown(0xfe, b"\xff"),
        end(44, None),
        unknown(0x18, b"late"),
    ]
}
