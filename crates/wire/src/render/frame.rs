//! Renders single frames, with fields in layout order (§11.1).

use serde_json::{Map, Value as Json};
use tidewater_model::{Op, ScopeFilter};

use super::{Members, binary, embedded};
use crate::{
    Change, CommitFrame, ErrorFrame, OpResult, Operation, OperationAction, PushCommit, PushOutcome,
    PushResult, PushResultDetails, RequestFrame, RequestHeader, ResponseFrame, ResponseHeader,
    SegmentRef, SubStart, Subscription, UnknownFrame, WireVersion, frame_type::FrameType,
};

pub(super) fn request(frame: &RequestFrame, version: WireVersion) -> Json {
    match frame {
        RequestFrame::Header(frame) => request_header(frame, version),
        RequestFrame::RoundFailure(frame) => {
            named(FrameType::RoundFailure).with("code", &*frame.code)
        }
        RequestFrame::PushCommit(frame) => push_commit(frame),
        RequestFrame::PullHeader(frame) => named(FrameType::PullHeader)
            .with("limitCommits", frame.limit_commits)
            .with("limitSnapshotRows", frame.limit_snapshot_rows)
            .with("maxSnapshotPages", frame.max_snapshot_pages)
            .with("accept", frame.accept.bits()),
        RequestFrame::Subscription(frame) => subscription(frame),
        RequestFrame::Unknown(frame) => unknown(frame),
    }
    .into_json()
}

pub(super) fn response(frame: &ResponseFrame, version: WireVersion) -> Json {
    match frame {
        ResponseFrame::Header(frame) => response_header(frame, version),
        ResponseFrame::Lease(frame) => named(FrameType::Lease)
            .with("leaseId", &*frame.lease_id)
            .with("expiresAtMs", frame.expires_at_ms),
        ResponseFrame::PushResult(frame) => push_result(frame, version),
        ResponseFrame::PushResultDetails(frame) => push_result_details(frame),
        ResponseFrame::SubStart(frame) => sub_start(frame),
        ResponseFrame::Commit(frame) => commit(frame),
        ResponseFrame::SegmentRef(frame) => segment_ref(frame),
        ResponseFrame::SegmentInline(payload) => {
            named(FrameType::SegmentInline).with("payload", binary(payload))
        }
        ResponseFrame::SubEnd(frame) => named(FrameType::SubEnd)
            .with("nextCursor", frame.next_cursor)
            .with_some(
                "bootstrapState",
                json_text(frame.bootstrap_state.as_deref()),
            ),
        ResponseFrame::Error(frame) => error(frame),
        ResponseFrame::Unknown(frame) => unknown(frame),
    }
    .into_json()
}

fn named(frame_type: FrameType) -> Members {
    Members::default().with("type", frame_type.name())
}

fn unknown(frame: &UnknownFrame) -> Members {
    Members::default()
        .with("type", "UNKNOWN")
        .with("frameType", frame.frame_type)
        .with("payload", binary(&frame.payload))
}

fn request_header(frame: &RequestHeader, version: WireVersion) -> Members {
    let log_epoch = frame.log_epoch.as_deref().filter(|_| version.has_epoch());
    named(FrameType::RequestHeader)
        .with("clientId", &*frame.client_id)
        .with("schemaVersion", frame.schema_version)
        .with_some("logEpoch", log_epoch)
}

fn push_commit(frame: &PushCommit) -> Members {
    let operations: Json = frame.operations.iter().map(operation).collect();
    named(FrameType::PushCommit)
        .with("clientCommitId", &*frame.client_commit_id)
        .with("operations", operations)
}

fn operation(operation: &Operation) -> Json {
    let (op, payload) = match &operation.action {
        OperationAction::Upsert(payload) => (Op::Upsert, Some(binary(payload))),
        OperationAction::Delete => (Op::Delete, None),
    };
    Members::default()
        .with("table", &*operation.table)
        .with("rowId", &*operation.row_id)
        .with("op", op.name())
        .with_some("baseVersion", operation.base_version)
        .with_some("payload", payload)
        .into_json()
}

fn subscription(frame: &Subscription) -> Members {
    named(FrameType::Subscription)
        .with("id", &*frame.id)
        .with("table", &*frame.table)
        .with("scopes", scopes(&frame.scopes))
        .with_some("params", json_text(frame.params.as_deref()))
        .with("cursor", frame.cursor)
        .with_some(
            "bootstrapState",
            json_text(frame.bootstrap_state.as_deref()),
        )
}

fn response_header(frame: &ResponseHeader, version: WireVersion) -> Members {
    let members = named(FrameType::ResponseHeader)
        .with_some("requiredSchemaVersion", frame.required_schema_version)
        .with_some("latestSchemaVersion", frame.latest_schema_version);
    if !version.has_epoch() {
        return members;
    }
    members
        .with("logEpoch", &*frame.log_epoch)
        .with("resetRequired", frame.reset_required)
}

fn push_result(frame: &PushResult, version: WireVersion) -> Members {
    let (status, commit_seq) = match frame.outcome {
        PushOutcome::Applied(seq) => ("applied", Some(seq)),
        PushOutcome::Cached(seq) => ("cached", Some(seq)),
        PushOutcome::Rejected => ("rejected", None),
    };
    let results = frame.results.iter();
    let results: Json = results.map(|record| op_result(record, version)).collect();
    named(FrameType::PushResult)
        .with("clientCommitId", &*frame.client_commit_id)
        .with("status", status)
        .with_some("commitSeq", commit_seq)
        .with("results", results)
}

fn op_result(record: &OpResult, version: WireVersion) -> Json {
    match record {
        OpResult::Applied { op_index } => Members::default()
            .with("opIndex", *op_index)
            .with("status", "applied"),
        OpResult::Conflict {
            op_index,
            code,
            message,
            server_version,
            server_row,
            conflict_columns,
        } => {
            let conflict_columns = version.is_sparse().then(|| binary(conflict_columns));
            Members::default()
                .with("opIndex", *op_index)
                .with("status", "conflict")
                .with("code", &**code)
                .with("message", &**message)
                .with("serverVersion", *server_version)
                .with("serverRow", binary(server_row))
                .with_some("conflictColumns", conflict_columns)
        }
        OpResult::Error {
            op_index,
            code,
            message,
            retryable,
        } => Members::default()
            .with("opIndex", *op_index)
            .with("status", "error")
            .with("code", &**code)
            .with("message", &**message)
            .with("retryable", *retryable),
    }
    .into_json()
}

fn push_result_details(frame: &PushResultDetails) -> Members {
    let entries: Json = frame
        .entries
        .iter()
        .map(|entry| {
            Members::default()
                .with("opIndex", entry.op_index)
                .with("details", embedded(&entry.details))
                .into_json()
        })
        .collect();
    named(FrameType::PushResultDetails)
        .with("clientCommitId", &*frame.client_commit_id)
        .with("entries", entries)
}

fn sub_start(frame: &SubStart) -> Members {
    named(FrameType::SubStart)
        .with("id", &*frame.id)
        .with("status", frame.status.name())
        .with("reasonCode", &*frame.reason_code)
        .with("effectiveScopes", scopes(&frame.effective_scopes))
        .with("bootstrap", frame.bootstrap)
}

fn commit(frame: &CommitFrame) -> Members {
    let tables: Json = frame.tables.iter().map(|table| &**table).collect();
    let changes: Json = frame.changes.iter().map(change).collect();
    named(FrameType::Commit)
        .with("commitSeq", frame.commit_seq)
        .with("createdAtMs", frame.created_at_ms)
        .with("actorId", &*frame.actor_id)
        .with("tables", tables)
        .with("changes", changes)
}

fn change(change: &Change) -> Json {
    let row = change.row.as_ref();
    let op = if row.is_some() {
        Op::Upsert
    } else {
        Op::Delete
    };
    let mut scopes = Map::new();
    for (variable, value) in &change.scopes {
        scopes.insert(variable.to_string(), Json::from(&**value));
    }
    Members::default()
        .with("tableIndex", change.table_index)
        .with("rowId", &*change.row_id)
        .with("op", op.name())
        .with_some("rowVersion", row.map(|row| row.row_version))
        .with("scopes", scopes)
        .with_some("row", row.map(|row| binary(&row.row)))
        .into_json()
}

fn segment_ref(frame: &SegmentRef) -> Members {
    let (url, expires_at_ms) = match &frame.url {
        Some((url, expires_at_ms)) => (Some(&**url), Some(*expires_at_ms)),
        None => (None, None),
    };
    named(FrameType::SegmentRef)
        .with("segmentId", &*frame.segment_id)
        .with("mediaType", frame.media_type.name())
        .with("table", &*frame.table)
        .with("byteLength", frame.byte_length)
        .with("rowCount", frame.row_count)
        .with("asOfCommitSeq", frame.as_of_commit_seq)
        .with("scopeDigest", &*frame.scope_digest)
        .with_some("rowCursor", frame.row_cursor.as_deref())
        .with_some("nextRowCursor", frame.next_row_cursor.as_deref())
        .with_some("url", url)
        .with_some("urlExpiresAtMs", expires_at_ms)
}

fn error(frame: &ErrorFrame) -> Members {
    named(FrameType::Error)
        .with("code", &*frame.code)
        .with("message", &*frame.message)
        .with("category", &*frame.category)
        .with("retryable", frame.retryable)
        .with("recommendedAction", &*frame.recommended_action)
        .with_some("details", json_text(frame.details.as_deref()))
}

fn scopes(filter: &ScopeFilter) -> Json {
    let mut scopes = Map::new();
    for entry in filter.entries() {
        scopes.insert(entry.variable.clone(), Json::from(entry.values.as_slice()));
    }
    Json::Object(scopes)
}

fn json_text(text: Option<&str>) -> Option<Json> {
    text.map(embedded)
}
