//! Push results and their companions (§6.3, §6.3.1).

use std::collections::BTreeSet;

use crate::{
    DecodeError, EncodeError, OpResult, PushOutcome, PushResult, PushResultDetails,
    RejectionDetail, RejectionDetails, WireVersion,
    reader::{FrameReader, invalid_at},
    writer::FrameWriter,
};

const APPLIED: u8 = 1;
const CACHED: u8 = 2;
const REJECTED: u8 = 3;

const RECORD_APPLIED: u8 = 1;
const RECORD_CONFLICT: u8 = 2;
const RECORD_ERROR: u8 = 3;

const EMPTY_COMMIT_ID: &str = "client commit id is empty";
const NO_ENTRIES: &str = "PUSH_RESULT_DETAILS has no entries";
const BAD_OP_INDEX: &str = "operation index is negative or comes twice";

pub(super) fn read(
    payload: &mut FrameReader<'_>,
    version: WireVersion,
) -> Result<PushResult, DecodeError> {
    let client_commit_id = payload.text("client commit id")?;
    let outcome = read_outcome(payload)?;
    let results = payload.shared_list("results", |payload| read_record(payload, version))?;
    Ok(PushResult {
        client_commit_id,
        outcome,
        results,
    })
}

pub(super) fn put(
    result: &PushResult,
    version: WireVersion,
    writer: &mut FrameWriter<'_>,
) -> Result<(), EncodeError> {
    writer.text(&result.client_commit_id, "client commit id")?;
    let (status, commit_seq) = match result.outcome {
        PushOutcome::Applied(seq) => (APPLIED, Some(seq)),
        PushOutcome::Cached(seq) => (CACHED, Some(seq)),
        PushOutcome::Rejected => (REJECTED, None),
    };
    writer.u8(status);
    writer.optional(commit_seq, FrameWriter::i64)?;
    writer.count(result.results.len(), "results")?;
    for record in &result.results {
        put_record(record, version, writer)?;
    }
    Ok(())
}

fn read_outcome(payload: &mut FrameReader<'_>) -> Result<PushOutcome, DecodeError> {
    let status_at = payload.position();
    let status = payload.u8("push status")?;
    if ![APPLIED, CACHED, REJECTED].contains(&status) {
        return Err(invalid_at(status_at, "push status is none of the three"));
    }
    let seq_at = payload.position();
    let commit_seq = payload.optional("commit sequence", |payload, what| payload.i64(what))?;
    match (status, commit_seq) {
        (APPLIED, Some(seq)) => Ok(PushOutcome::Applied(seq)),
        (CACHED, Some(seq)) => Ok(PushOutcome::Cached(seq)),
        (REJECTED, None) => Ok(PushOutcome::Rejected),
        (REJECTED, Some(_)) => Err(invalid_at(seq_at, "rejected result has a commit sequence")),
        _ => Err(invalid_at(seq_at, "result has no commit sequence")),
    }
}

fn read_record(
    payload: &mut FrameReader<'_>,
    version: WireVersion,
) -> Result<OpResult, DecodeError> {
    let op_index = payload.i32("operation index")?;
    let start = payload.position();
    match payload.u8("record status")? {
        RECORD_APPLIED => Ok(OpResult::Applied { op_index }),
        RECORD_CONFLICT => Ok(OpResult::Conflict {
            op_index,
            code: payload.text("code")?,
            message: payload.text("message")?,
            server_version: payload.i64("server version")?,
            server_row: payload.shared_bytes("server row")?,
            conflict_columns: if version.is_sparse() {
                payload.shared_bytes("conflict columns")?
            } else {
                bytes::Bytes::new()
            },
        }),
        RECORD_ERROR => Ok(OpResult::Error {
            op_index,
            code: payload.text("code")?,
            message: payload.text("message")?,
            retryable: payload.bool("retryable")?,
        }),
        _ => Err(invalid_at(start, "record status is none of the three")),
    }
}

fn put_record(
    record: &OpResult,
    version: WireVersion,
    writer: &mut FrameWriter<'_>,
) -> Result<(), EncodeError> {
    match record {
        OpResult::Applied { op_index } => {
            writer.i32(*op_index);
            writer.u8(RECORD_APPLIED);
            Ok(())
        }
        OpResult::Conflict {
            op_index,
            code,
            message,
            server_version,
            server_row,
            conflict_columns,
        } => {
            writer.i32(*op_index);
            writer.u8(RECORD_CONFLICT);
            writer.text(code, "code")?;
            writer.text(message, "message")?;
            writer.i64(*server_version)?;
            writer.bytes(server_row, "server row")?;
            if version.is_sparse() {
                writer.bytes(conflict_columns, "conflict columns")?;
            }
            Ok(())
        }
        OpResult::Error {
            op_index,
            code,
            message,
            retryable,
        } => {
            writer.i32(*op_index);
            writer.u8(RECORD_ERROR);
            writer.text(code, "code")?;
            writer.text(message, "message")?;
            writer.bool(*retryable);
            Ok(())
        }
    }
}

pub(super) fn read_details(
    payload: &mut FrameReader<'_>,
) -> Result<PushResultDetails, DecodeError> {
    let client_commit_id = payload.filled_text("client commit id", EMPTY_COMMIT_ID)?;
    let start = payload.position();
    let mut seen = BTreeSet::new();
    let entries = payload.shared_list("entries", |payload| {
        let start = payload.position();
        let op_index = payload.i32("operation index")?;
        if op_index < 0 || !seen.insert(op_index) {
            return Err(invalid_at(start, BAD_OP_INDEX));
        }
        let start = payload.position();
        let details = payload.text("details")?;
        RejectionDetails::check(&details).map_err(|rule| invalid_at(start, rule))?;
        Ok(RejectionDetail { op_index, details })
    })?;
    if entries.is_empty() {
        return Err(invalid_at(start, NO_ENTRIES));
    }
    Ok(PushResultDetails {
        client_commit_id,
        entries,
    })
}

pub(super) fn put_details(
    details: &PushResultDetails,
    writer: &mut FrameWriter<'_>,
) -> Result<(), EncodeError> {
    writer.filled_text(
        &details.client_commit_id,
        "client commit id",
        EMPTY_COMMIT_ID,
    )?;
    if details.entries.is_empty() {
        return Err(EncodeError::Invalid(NO_ENTRIES));
    }
    writer.count(details.entries.len(), "entries")?;
    let mut seen = BTreeSet::new();
    for entry in &details.entries {
        if entry.op_index < 0 || !seen.insert(entry.op_index) {
            return Err(EncodeError::Invalid(BAD_OP_INDEX));
        }
        RejectionDetails::check(&entry.details).map_err(EncodeError::Invalid)?;
        writer.i32(entry.op_index);
        writer.text(&entry.details, "details")?;
    }
    Ok(())
}
