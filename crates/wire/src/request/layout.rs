//! The fields of each request frame, read and written in the same order (§1.5, §4.2, §6.1).

use bytes::{Bytes, BytesMut};
use tidewater_model::{Op, limits::ROUND_FAILURE_CODE_BYTES_MAX};

use crate::{
    Accept, DecodeError, DecodeErrorKind, EncodeError, Operation, OperationAction, PullHeader,
    PushCommit, RequestFrame, RequestHeader, RoundFailure, Subscription, UnknownFrame, WireVersion,
    frame_type::FrameType,
    message::RawFrame,
    reader::{FrameReader, invalid_at},
    writer::FrameWriter,
};

const EMPTY_CLIENT_ID: &str = "client id is empty";
const EMPTY_COMMIT_ID: &str = "client commit id is empty";
const EMPTY_EPOCH: &str = "log epoch is empty";
const SCHEMA_VERSION: &str = "schema version is below 1";
const ROUND_FAILURE_CODE: &str = "code of a round failure breaks its grammar";

/// The type of a frame; `None` when it is unknown.
pub(super) fn frame_type(frame: &RequestFrame) -> Option<FrameType> {
    match frame {
        RequestFrame::Header(_) => Some(FrameType::RequestHeader),
        RequestFrame::RoundFailure(_) => Some(FrameType::RoundFailure),
        RequestFrame::PushCommit(_) => Some(FrameType::PushCommit),
        RequestFrame::PullHeader(_) => Some(FrameType::PullHeader),
        RequestFrame::Subscription(_) => Some(FrameType::Subscription),
        RequestFrame::Unknown(_) => None,
    }
}

pub(super) fn read(
    message: &Bytes,
    raw: RawFrame<'_>,
    version: WireVersion,
) -> Result<RequestFrame, DecodeError> {
    let mut payload = FrameReader::new(message, raw.payload);
    let Some(frame_type) = raw.frame_type else {
        return Ok(RequestFrame::Unknown(UnknownFrame {
            frame_type: raw.byte,
            payload: payload.share(payload.rest()),
        }));
    };
    let frame = match frame_type {
        FrameType::RequestHeader => RequestFrame::Header(read_header(&mut payload, version)?),
        FrameType::RoundFailure => RequestFrame::RoundFailure(read_round_failure(&mut payload)?),
        FrameType::PushCommit => RequestFrame::PushCommit(read_push_commit(&mut payload)?),
        FrameType::PullHeader => RequestFrame::PullHeader(read_pull_header(&mut payload)?),
        FrameType::Subscription => RequestFrame::Subscription(read_subscription(&mut payload)?),
        _ => return Err(invalid_at(raw.offset, DecodeErrorKind::OTHER_KIND)),
    };
    payload.finish(frame_type.name())?;
    Ok(frame)
}

pub(super) fn put(
    frame: &RequestFrame,
    version: WireVersion,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let byte = match frame {
        RequestFrame::Unknown(unknown) => unknown.frame_type,
        _ => frame_type(frame)
            .expect("every other frame has a type")
            .byte(),
    };
    let mut writer = FrameWriter::begin(out, byte);
    match frame {
        RequestFrame::Header(header) => put_header(header, version, &mut writer)?,
        RequestFrame::RoundFailure(failure) => put_round_failure(failure, version, &mut writer)?,
        RequestFrame::PushCommit(commit) => put_push_commit(commit, &mut writer)?,
        RequestFrame::PullHeader(header) => put_pull_header(*header, &mut writer),
        RequestFrame::Subscription(subscription) => put_subscription(subscription, &mut writer)?,
        RequestFrame::Unknown(unknown) => {
            if FrameType::is_registered(byte, version) {
                return Err(EncodeError::RegisteredType(byte));
            }
            writer.raw(&unknown.payload);
        }
    }
    writer.finish()
}

fn read_header(
    payload: &mut FrameReader<'_>,
    version: WireVersion,
) -> Result<RequestHeader, DecodeError> {
    let client_id = payload.filled_text("client id", EMPTY_CLIENT_ID)?;
    let start = payload.position();
    let schema_version = payload.i32("schema version")?;
    if schema_version < 1 {
        return Err(invalid_at(start, SCHEMA_VERSION));
    }
    let log_epoch = if version.has_epoch() {
        payload.optional("log epoch", |payload, what| {
            payload.filled_text(what, EMPTY_EPOCH)
        })?
    } else {
        None
    };
    Ok(RequestHeader {
        client_id,
        schema_version,
        log_epoch,
    })
}

fn put_header(
    header: &RequestHeader,
    version: WireVersion,
    writer: &mut FrameWriter<'_>,
) -> Result<(), EncodeError> {
    writer.filled_text(&header.client_id, "client id", EMPTY_CLIENT_ID)?;
    if header.schema_version < 1 {
        return Err(EncodeError::Invalid(SCHEMA_VERSION));
    }
    writer.i32(header.schema_version);
    if version.has_epoch() {
        writer.optional(header.log_epoch.as_ref(), |writer, epoch| {
            writer.filled_text(epoch, "log epoch", EMPTY_EPOCH)
        })?;
    }
    Ok(())
}

fn read_round_failure(payload: &mut FrameReader<'_>) -> Result<RoundFailure, DecodeError> {
    let start = payload.position();
    let code = payload.text("code")?;
    if !is_round_failure_code(&code) {
        return Err(invalid_at(start, ROUND_FAILURE_CODE));
    }
    Ok(RoundFailure { code })
}

fn put_round_failure(
    failure: &RoundFailure,
    version: WireVersion,
    writer: &mut FrameWriter<'_>,
) -> Result<(), EncodeError> {
    if FrameType::find(FrameType::RoundFailure.byte(), version).is_none() {
        return Err(EncodeError::Invalid(
            "wire version has no ROUND_FAILURE frame",
        ));
    }
    if !is_round_failure_code(&failure.code) {
        return Err(EncodeError::Invalid(ROUND_FAILURE_CODE));
    }
    writer.text(&failure.code, "code")
}

/// Two or more names joined by dots, such as `transport.timeout`.
fn is_round_failure_code(code: &str) -> bool {
    code.len() <= ROUND_FAILURE_CODE_BYTES_MAX
        && code.contains('.')
        && code.split('.').all(|name| {
            name.starts_with(|first: char| first.is_ascii_lowercase())
                && name
                    .bytes()
                    .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        })
}

fn read_push_commit(payload: &mut FrameReader<'_>) -> Result<PushCommit, DecodeError> {
    let client_commit_id = payload.filled_text("client commit id", EMPTY_COMMIT_ID)?;
    let start = payload.position();
    let operations = payload.shared_list("operations", read_operation)?;
    if operations.is_empty() {
        return Err(DecodeError {
            offset: start,
            kind: DecodeErrorKind::EmptyCommit,
        });
    }
    Ok(PushCommit {
        client_commit_id,
        operations,
    })
}

fn put_push_commit(commit: &PushCommit, writer: &mut FrameWriter<'_>) -> Result<(), EncodeError> {
    writer.filled_text(
        &commit.client_commit_id,
        "client commit id",
        EMPTY_COMMIT_ID,
    )?;
    if commit.operations.is_empty() {
        return Err(EncodeError::Invalid("commit has no operations"));
    }
    writer.count(commit.operations.len(), "operations")?;
    for operation in &commit.operations {
        put_operation(operation, writer)?;
    }
    Ok(())
}

fn read_operation(payload: &mut FrameReader<'_>) -> Result<Operation, DecodeError> {
    let table = payload.text("table")?;
    let row_id = payload.text("row id")?;
    let start = payload.position();
    let op = Op::from_tag(payload.u8("operation")?)
        .ok_or_else(|| invalid_at(start, "operation is neither upsert nor delete"))?;
    let base_version = payload.optional("base version", |payload, what| payload.i64(what))?;
    let start = payload.position();
    let row = payload.optional("payload", FrameReader::shared_bytes)?;
    let action = match (op, row) {
        (Op::Upsert, Some(row)) => OperationAction::Upsert(row),
        (Op::Delete, None) => OperationAction::Delete,
        (Op::Upsert, None) => return Err(invalid_at(start, "upsert has no payload")),
        (Op::Delete, Some(_)) => return Err(invalid_at(start, "delete has a payload")),
    };
    Ok(Operation {
        table,
        row_id,
        action,
        base_version,
    })
}

fn put_operation(operation: &Operation, writer: &mut FrameWriter<'_>) -> Result<(), EncodeError> {
    writer.text(&operation.table, "table")?;
    writer.text(&operation.row_id, "row id")?;
    let (op, row) = match &operation.action {
        OperationAction::Upsert(row) => (Op::Upsert, Some(row)),
        OperationAction::Delete => (Op::Delete, None),
    };
    writer.u8(op.tag());
    writer.optional(operation.base_version, FrameWriter::i64)?;
    writer.optional(row, |writer, row| writer.bytes(row, "payload"))
}

fn read_pull_header(payload: &mut FrameReader<'_>) -> Result<PullHeader, DecodeError> {
    let limit_commits = payload.i32("commit limit")?;
    let limit_snapshot_rows = payload.i32("row limit")?;
    let max_snapshot_pages = payload.i32("page limit")?;
    let start = payload.position();
    let accept = Accept::from_bits(payload.u8("accept")?)
        .ok_or_else(|| invalid_at(start, "accept has undefined bits"))?;
    Ok(PullHeader {
        limit_commits,
        limit_snapshot_rows,
        max_snapshot_pages,
        accept,
    })
}

fn put_pull_header(header: PullHeader, writer: &mut FrameWriter<'_>) {
    writer.i32(header.limit_commits);
    writer.i32(header.limit_snapshot_rows);
    writer.i32(header.max_snapshot_pages);
    writer.u8(header.accept.bits());
}

fn read_subscription(payload: &mut FrameReader<'_>) -> Result<Subscription, DecodeError> {
    Ok(Subscription {
        id: payload.text("subscription id")?,
        table: payload.text("table")?,
        scopes: payload.scopes("scopes")?,
        params: payload.optional("params", FrameReader::json)?,
        cursor: payload.i64("cursor")?,
        bootstrap_state: payload.optional("bootstrap state", FrameReader::json)?,
    })
}

fn put_subscription(
    subscription: &Subscription,
    writer: &mut FrameWriter<'_>,
) -> Result<(), EncodeError> {
    writer.text(&subscription.id, "subscription id")?;
    writer.text(&subscription.table, "table")?;
    writer.scopes(&subscription.scopes, "scopes")?;
    writer.optional(subscription.params.as_ref(), |writer, params| {
        writer.json(params, "params")
    })?;
    writer.i64(subscription.cursor)?;
    writer.optional(subscription.bootstrap_state.as_ref(), |writer, state| {
        writer.json(state, "bootstrap state")
    })
}
