//! Which layout a response frame has, and those that fill few lines (§1.6, §4.4, §5.4, §7.3.2).
//!
//! Results and commits, the long ones, are in `result` and `commit`.

pub(super) mod commit;
mod result;

use bytes::{Bytes, BytesMut};

use crate::{
    DecodeError, DecodeErrorKind, EncodeError, ErrorFrame, LeaseFrame, MediaType, ResponseFrame,
    ResponseHeader, SegmentRef, SubEnd, SubStart, SubStatus, UnknownFrame, WireVersion,
    frame_type::FrameType,
    message::RawFrame,
    reader::{FrameReader, invalid_at},
    segment::check_segment,
    writer::FrameWriter,
};

const EMPTY_EPOCH: &str = "log epoch is empty";
const EMPTY_LEASE_ID: &str = "lease id is empty";

/// The type of a frame; `None` when it is unknown.
pub(super) fn frame_type(frame: &ResponseFrame) -> Option<FrameType> {
    match frame {
        ResponseFrame::Header(_) => Some(FrameType::ResponseHeader),
        ResponseFrame::Lease(_) => Some(FrameType::Lease),
        ResponseFrame::PushResult(_) => Some(FrameType::PushResult),
        ResponseFrame::PushResultDetails(_) => Some(FrameType::PushResultDetails),
        ResponseFrame::SubStart(_) => Some(FrameType::SubStart),
        ResponseFrame::Commit(_) => Some(FrameType::Commit),
        ResponseFrame::SegmentRef(_) => Some(FrameType::SegmentRef),
        ResponseFrame::SegmentInline(_) => Some(FrameType::SegmentInline),
        ResponseFrame::SubEnd(_) => Some(FrameType::SubEnd),
        ResponseFrame::Error(_) => Some(FrameType::Error),
        ResponseFrame::Unknown(_) => None,
    }
}

pub(super) fn read(
    message: &Bytes,
    raw: RawFrame<'_>,
    version: WireVersion,
) -> Result<ResponseFrame, DecodeError> {
    let mut payload = FrameReader::new(message, raw.payload);
    let Some(frame_type) = raw.frame_type else {
        return Ok(ResponseFrame::Unknown(UnknownFrame {
            frame_type: raw.byte,
            payload: payload.share(payload.rest()),
        }));
    };
    let payload_ref = &mut payload;
    let frame = match frame_type {
        FrameType::ResponseHeader => ResponseFrame::Header(read_header(payload_ref, version)?),
        FrameType::Lease => ResponseFrame::Lease(read_lease(payload_ref)?),
        FrameType::PushResult => ResponseFrame::PushResult(result::read(payload_ref, version)?),
        FrameType::PushResultDetails => {
            ResponseFrame::PushResultDetails(result::read_details(payload_ref)?)
        }
        FrameType::SubStart => ResponseFrame::SubStart(read_sub_start(payload_ref)?),
        FrameType::Commit => ResponseFrame::Commit(commit::read(payload_ref)?),
        FrameType::SegmentRef => ResponseFrame::SegmentRef(read_segment_ref(payload_ref)?),
        FrameType::SegmentInline => {
            let segment = payload_ref.share(payload_ref.rest());
            check_segment(payload_ref)?;
            ResponseFrame::SegmentInline(segment)
        }
        FrameType::SubEnd => ResponseFrame::SubEnd(read_sub_end(payload_ref)?),
        FrameType::Error => ResponseFrame::Error(read_error(payload_ref)?),
        _ => return Err(invalid_at(raw.offset, DecodeErrorKind::OTHER_KIND)),
    };
    payload.finish(frame_type.name())?;
    Ok(frame)
}

pub(super) fn put(
    frame: &ResponseFrame,
    version: WireVersion,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let byte = match frame {
        ResponseFrame::Unknown(unknown) => unknown.frame_type,
        _ => frame_type(frame)
            .expect("every other frame has a type")
            .byte(),
    };
    let mut writer = FrameWriter::begin(out, byte);
    match frame {
        ResponseFrame::Header(header) => put_header(header, version, &mut writer)?,
        ResponseFrame::Lease(lease) => put_lease(lease, &mut writer)?,
        ResponseFrame::PushResult(result) => result::put(result, version, &mut writer)?,
        ResponseFrame::PushResultDetails(details) => result::put_details(details, &mut writer)?,
        ResponseFrame::SubStart(start) => put_sub_start(start, &mut writer)?,
        ResponseFrame::Commit(commit) => commit::put(commit, &mut writer)?,
        ResponseFrame::SegmentRef(segment) => put_segment_ref(segment, &mut writer)?,
        ResponseFrame::SegmentInline(segment) => writer.raw(segment),
        ResponseFrame::SubEnd(end) => put_sub_end(end, &mut writer)?,
        ResponseFrame::Error(error) => put_error(error, &mut writer)?,
        ResponseFrame::Unknown(unknown) => {
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
) -> Result<ResponseHeader, DecodeError> {
    let mut header = ResponseHeader {
        required_schema_version: payload
            .optional("required schema version", |payload, what| payload.i32(what))?,
        latest_schema_version: payload
            .optional("latest schema version", |payload, what| payload.i32(what))?,
        ..ResponseHeader::default()
    };
    if version.has_epoch() {
        header.log_epoch = payload.filled_text("log epoch", EMPTY_EPOCH)?;
        header.reset_required = payload.bool("reset required")?;
    }
    Ok(header)
}

fn put_header(
    header: &ResponseHeader,
    version: WireVersion,
    writer: &mut FrameWriter<'_>,
) -> Result<(), EncodeError> {
    for schema_version in [header.required_schema_version, header.latest_schema_version] {
        writer.optional(schema_version, |writer, version| {
            writer.i32(version);
            Ok(())
        })?;
    }
    if version.has_epoch() {
        writer.filled_text(&header.log_epoch, "log epoch", EMPTY_EPOCH)?;
        writer.bool(header.reset_required);
    }
    Ok(())
}

fn read_lease(payload: &mut FrameReader<'_>) -> Result<LeaseFrame, DecodeError> {
    Ok(LeaseFrame {
        lease_id: payload.filled_text("lease id", EMPTY_LEASE_ID)?,
        expires_at_ms: payload.i64("lease expiry")?,
    })
}

fn put_lease(lease: &LeaseFrame, writer: &mut FrameWriter<'_>) -> Result<(), EncodeError> {
    writer.filled_text(&lease.lease_id, "lease id", EMPTY_LEASE_ID)?;
    writer.i64(lease.expires_at_ms)
}

fn read_sub_start(payload: &mut FrameReader<'_>) -> Result<SubStart, DecodeError> {
    let id = payload.text("subscription id")?;
    let start = payload.position();
    let status = SubStatus::from_tag(payload.u8("subscription status")?)
        .ok_or_else(|| invalid_at(start, "subscription status is none of the three"))?;
    Ok(SubStart {
        id,
        status,
        reason_code: payload.text("reason")?,
        effective_scopes: payload.scopes("effective scopes")?,
        bootstrap: payload.bool("bootstrap")?,
    })
}

fn put_sub_start(start: &SubStart, writer: &mut FrameWriter<'_>) -> Result<(), EncodeError> {
    writer.text(&start.id, "subscription id")?;
    writer.u8(start.status.tag());
    writer.text(&start.reason_code, "reason")?;
    writer.scopes(&start.effective_scopes, "effective scopes")?;
    writer.bool(start.bootstrap);
    Ok(())
}

fn read_segment_ref(payload: &mut FrameReader<'_>) -> Result<SegmentRef, DecodeError> {
    let segment_id = payload.text("segment id")?;
    let start = payload.position();
    let media_type = MediaType::from_tag(payload.u8("media type")?)
        .ok_or_else(|| invalid_at(start, "media type is neither rows nor sqlite"))?;
    let table = payload.text("table")?;
    let byte_length = payload.i64("byte length")?;
    let row_count = payload.i64("row count")?;
    let as_of_commit_seq = payload.i64("pin")?;
    let scope_digest = payload.text("scope digest")?;
    let row_cursor = payload.optional("row cursor", FrameReader::text)?;
    let next_row_cursor = payload.optional("next row cursor", FrameReader::text)?;
    let url = payload.optional("url", FrameReader::text)?;
    let start = payload.position();
    let url_expires_at_ms = payload.optional("url expiry", |payload, what| payload.i64(what))?;
    let url = match (url, url_expires_at_ms) {
        (Some(url), Some(expires_at_ms)) => Some((url, expires_at_ms)),
        (None, None) => None,
        (Some(_), None) => return Err(invalid_at(start, "url has no expiry")),
        (None, Some(_)) => return Err(invalid_at(start, "expiry has no url")),
    };
    Ok(SegmentRef {
        segment_id,
        media_type,
        table,
        byte_length,
        row_count,
        as_of_commit_seq,
        scope_digest,
        row_cursor,
        next_row_cursor,
        url,
    })
}

fn put_segment_ref(segment: &SegmentRef, writer: &mut FrameWriter<'_>) -> Result<(), EncodeError> {
    writer.text(&segment.segment_id, "segment id")?;
    writer.u8(segment.media_type.tag());
    writer.text(&segment.table, "table")?;
    writer.i64(segment.byte_length)?;
    writer.i64(segment.row_count)?;
    writer.i64(segment.as_of_commit_seq)?;
    writer.text(&segment.scope_digest, "scope digest")?;
    for cursor in [&segment.row_cursor, &segment.next_row_cursor] {
        writer.optional(cursor.as_ref(), |writer, cursor| {
            writer.text(cursor, "row cursor")
        })?;
    }
    let url = segment.url.as_ref();
    writer.optional(url, |writer, (url, _)| writer.text(url, "url"))?;
    writer.optional(url, |writer, (_, expires_at_ms)| writer.i64(*expires_at_ms))
}

fn read_sub_end(payload: &mut FrameReader<'_>) -> Result<SubEnd, DecodeError> {
    Ok(SubEnd {
        next_cursor: payload.i64("next cursor")?,
        bootstrap_state: payload.optional("bootstrap state", FrameReader::json)?,
    })
}

fn put_sub_end(end: &SubEnd, writer: &mut FrameWriter<'_>) -> Result<(), EncodeError> {
    writer.i64(end.next_cursor)?;
    writer.optional(end.bootstrap_state.as_ref(), |writer, state| {
        writer.json(state, "bootstrap state")
    })
}

fn read_error(payload: &mut FrameReader<'_>) -> Result<ErrorFrame, DecodeError> {
    Ok(ErrorFrame {
        code: payload.text("code")?,
        message: payload.text("message")?,
        category: payload.text("category")?,
        retryable: payload.bool("retryable")?,
        recommended_action: payload.text("recommended action")?,
        details: payload.optional("details", FrameReader::json)?,
    })
}

fn put_error(error: &ErrorFrame, writer: &mut FrameWriter<'_>) -> Result<(), EncodeError> {
    writer.text(&error.code, "code")?;
    writer.text(&error.message, "message")?;
    writer.text(&error.category, "category")?;
    writer.bool(error.retryable);
    writer.text(&error.recommended_action, "recommended action")?;
    writer.optional(error.details.as_ref(), |writer, details| {
        writer.json(details, "details")
    })
}
