//! Worked responses byte for byte, the grammar, companions and commits.

use bytestring::ByteString;
use tidewater_model::{ScopeFilter, ScopeValues, StoredScopes};

use super::*;
use crate::{
    Change, ChangeRow, CommitFrame, CommitWriter, ErrorFrame, LeaseFrame, MediaType, PushResult,
    RejectionDetail, ResponseHeader, SegmentRef, SegmentWriter, SubEnd, SubStart, SubStatus,
    UnknownFrame, render,
};

fn bytes(hex: &str) -> Bytes {
    let hex: String = hex.split_whitespace().collect();
    Bytes::from(hex::decode(hex).unwrap())
}

/// The worked message decodes to `expected` and back.
#[track_caller]
fn check(hex: &str, len: usize, expected: &str) {
    let bytes = bytes(hex);
    assert_eq!(bytes.len(), len);
    let response = Response::decode(&bytes).unwrap();
    let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
    assert_eq!(render::response(&response), expected);
    assert_eq!(response.encode().unwrap(), bytes);
}

#[test]
fn a_reset_is_read_and_written() {
    check(
        "53535032 0300 02 00  10 0d000000 00 01 02000000 02000000 6531 01  00 00000000",
        31,
        r#"{"magic":"SSP2","wireVersion":3,"msgKind":"response","frames":[
            {"type":"RESP_HEADER","latestSchemaVersion":2,"logEpoch":"e1","resetRequired":true}]}"#,
    );
}

const CONFLICT: &str = "
    53535032 0300 02 00  10 0d000000 00 01 02000000 02000000 6531 00
    11 62000000 02000000 6b31 03 00 01000000 00000000 02
       15000000 73796e632e76657273696f6e5f636f6e666c696374 01000000 6d 0900000000000000
       22000000 04020000006e31020000007439030000000000000001080000007b2261223a20317d
       01000000 0c
    00 00000000";

#[test]
fn a_conflict_names_its_columns_since_version_3() {
    let record = r#""opIndex":0,"status":"conflict","code":"sync.version_conflict","message":"m",
        "serverVersion":9,"serverRow":"BAIAAABuMQIAAAB0OQMAAAAAAAAAAQgAAAB7ImEiOiAxfQ==""#;
    let response = |version: u16, record: &str| {
        format!(
            r#"{{"magic":"SSP2","wireVersion":{version},"msgKind":"response","frames":[
                {{"type":"RESP_HEADER","latestSchemaVersion":2,"logEpoch":"e1",
                  "resetRequired":false}},
                {{"type":"PUSH_RESULT","clientCommitId":"k1","status":"rejected",
                  "results":[{{{record}}}]}}]}}"#
        )
    };
    let with_columns = format!(r#"{record},"conflictColumns":"DA==""#);
    check(CONFLICT, 134, &response(3, &with_columns));
    let before = CONFLICT
        .replace("53535032 0300", "53535032 0200")
        .replace("11 62000000", "11 5d000000")
        .replace("01000000 0c", "");
    check(&before, 129, &response(2, record));
}

#[test]
fn a_floor_response_is_read_and_written() {
    check(
        "53535032 0100 02 00  10 0a000000 01 02000000 01 02000000  00 00000000",
        28,
        r#"{"magic":"SSP2","wireVersion":1,"msgKind":"response","frames":[
            {"type":"RESP_HEADER","requiredSchemaVersion":2,"latestSchemaVersion":2}]}"#,
    );
    check(
        "53535032 0200 02 00  10 11000000 01 02000000 01 02000000 02000000 6531 00  00 00000000",
        35,
        r#"{"magic":"SSP2","wireVersion":2,"msgKind":"response","frames":[
            {"type":"RESP_HEADER","requiredSchemaVersion":2,"latestSchemaVersion":2,
             "logEpoch":"e1","resetRequired":false}]}"#,
    );
}

fn header() -> ResponseFrame {
    ResponseFrame::Header(ResponseHeader {
        required_schema_version: None,
        latest_schema_version: Some(2),
        log_epoch: "e1".into(),
        reset_required: false,
    })
}

fn lease() -> ResponseFrame {
    ResponseFrame::Lease(LeaseFrame {
        lease_id: "l".into(),
        expires_at_ms: 5,
    })
}

fn result(outcome: PushOutcome, results: Vec<OpResult>) -> ResponseFrame {
    ResponseFrame::PushResult(PushResult {
        client_commit_id: "k1".into(),
        outcome,
        results,
    })
}

fn applied() -> ResponseFrame {
    result(
        PushOutcome::Applied(7),
        vec![OpResult::Applied { op_index: 0 }],
    )
}

fn rejected() -> ResponseFrame {
    result(
        PushOutcome::Rejected,
        vec![OpResult::Error {
            op_index: 3,
            code: "app.no".into(),
            message: "no".into(),
            retryable: false,
        }],
    )
}

fn details(client_commit_id: &'static str, op_index: i32, text: &'static str) -> ResponseFrame {
    ResponseFrame::PushResultDetails(PushResultDetails {
        client_commit_id: client_commit_id.into(),
        entries: vec![RejectionDetail {
            op_index,
            details: text.into(),
        }],
    })
}

const DETAILS: &str = r#"{"reason":"full"}"#;

fn sub_start() -> ResponseFrame {
    ResponseFrame::SubStart(SubStart {
        id: "s1".into(),
        status: SubStatus::Active,
        reason_code: ByteString::new(),
        effective_scopes: ScopeFilter::new(vec![ScopeValues {
            variable: "team".to_owned(),
            values: vec!["t2".to_owned(), "t1".to_owned()],
        }])
        .unwrap(),
        bootstrap: true,
    })
}

fn commit() -> ResponseFrame {
    ResponseFrame::Commit(CommitFrame {
        commit_seq: 8,
        created_at_ms: 1_000,
        actor_id: "a1".into(),
        tables: vec!["notes".into()],
        changes: vec![
            Change {
                table_index: 0,
                row_id: "n1".into(),
                row: Some(ChangeRow {
                    row_version: 4,
                    row: Bytes::from_static(b"row"),
                }),
                scopes: vec![("owner".into(), "o".into()), ("team".into(), "t1".into())],
            },
            Change {
                table_index: 0,
                row_id: "n2".into(),
                row: None,
                scopes: Vec::new(),
            },
        ],
    })
}

fn segment_ref(url: Option<(ByteString, i64)>) -> ResponseFrame {
    ResponseFrame::SegmentRef(SegmentRef {
        segment_id: "sha256:00".into(),
        media_type: MediaType::Rows,
        table: "notes".into(),
        byte_length: 1,
        row_count: 2,
        as_of_commit_seq: 3,
        scope_digest: "d".into(),
        row_cursor: None,
        next_row_cursor: Some("n1".into()),
        url,
    })
}

fn segment_inline() -> ResponseFrame {
    let segment = SegmentWriter::new("notes", 2, &[]).finish();
    ResponseFrame::SegmentInline(segment.into())
}

fn sub_end() -> ResponseFrame {
    ResponseFrame::SubEnd(SubEnd {
        next_cursor: 8,
        bootstrap_state: Some("{\"x\": 1}".into()),
    })
}

fn error() -> ResponseFrame {
    ResponseFrame::Error(ErrorFrame {
        code: "sync.internal_error".into(),
        message: "internal server error".into(),
        category: "internal".into(),
        retryable: true,
        recommended_action: "retryLater".into(),
        details: None,
    })
}

fn unknown(frame_type: u8) -> ResponseFrame {
    ResponseFrame::Unknown(UnknownFrame {
        frame_type,
        payload: Bytes::from_static(b"?"),
    })
}

/// Writes frames in any order, which [`Response::encode`] would not.
fn encode_unchecked(version: WireVersion, frames: &[ResponseFrame]) -> Bytes {
    let mut out = BytesMut::new();
    begin_response(version, &mut out);
    for frame in frames {
        put_response_frame(frame, version, &mut out).unwrap();
    }
    put_end(&mut out);
    out.freeze()
}

/// Reading and writing agree on whether a sequence of frames is a response.
#[track_caller]
fn check_order(frames: &[ResponseFrame], rule: Option<&str>) {
    let version = WireVersion::V2;
    let bytes = encode_unchecked(version, frames);
    let decoded = Response::decode(&bytes);
    let kind = decoded.err().map(|error| error.kind.to_string());
    assert_eq!(kind.as_deref(), rule);
    let frames = frames.to_vec();
    let encoded = Response { version, frames }.encode();
    let error = encoded.as_ref().err().map(ToString::to_string);
    assert_eq!(error.as_deref(), rule);
    if let Ok(encoded) = encoded {
        assert_eq!(encoded, bytes);
    }
}

#[test]
fn frames_stand_in_the_order_of_the_grammar() {
    check_order(&[header()], None);
    check_order(&[header(), lease()], None);
    check_order(&[header(), error()], None);
    check_order(&[header(), sub_start(), error()], None);
    check_order(
        &[header(), sub_start(), sub_end(), sub_start(), sub_end()],
        None,
    );
    check_order(
        &[
            header(),
            lease(),
            unknown(0x17),
            applied(),
            rejected(),
            details("k1", 3, DETAILS),
            unknown(0x1a),
            applied(),
            sub_start(),
            commit(),
            unknown(0x20),
            commit(),
            sub_end(),
            unknown(0x05),
            sub_start(),
            segment_inline(),
            segment_ref(None),
            segment_ref(Some(("https://x".into(), 9))),
            sub_end(),
            unknown(0x05),
            error(),
        ],
        None,
    );
}

#[test]
fn frames_out_of_order_are_refused() {
    let no_header = Some("first frame is not the header");
    check_order(&[], Some("message has no header"));
    check_order(&[applied()], no_header);
    check_order(&[unknown(0x17), header()], no_header);
    check_order(&[header(), header()], Some("header comes twice"));
    let late_lease = Some("LEASE is not directly after the header");
    check_order(&[header(), lease(), lease()], late_lease);
    check_order(&[header(), unknown(0x17), lease()], late_lease);
    check_order(&[header(), applied(), lease()], late_lease);
    check_order(
        &[header(), sub_start(), sub_end(), applied()],
        Some("PUSH_RESULT comes after a section"),
    );
    check_order(
        &[header(), sub_start(), applied()],
        Some("PUSH_RESULT comes after a section"),
    );
    let open = Some("message ends inside a section");
    check_order(&[header(), sub_start()], open);
    check_order(&[header(), sub_start(), commit(), unknown(0x17)], open);
    check_order(
        &[header(), sub_start(), sub_start()],
        Some("section begins inside another"),
    );
    let outside = Some("content is outside of a section");
    check_order(&[header(), commit()], outside);
    check_order(&[header(), segment_ref(None)], outside);
    check_order(
        &[header(), sub_start(), sub_end(), segment_inline()],
        outside,
    );
    let no_start = Some("section ends that did not begin");
    check_order(&[header(), sub_end()], no_start);
    check_order(&[header(), sub_start(), sub_end(), sub_end()], no_start);
    let mixed = Some("section mixes commits and segments");
    check_order(&[header(), sub_start(), commit(), segment_ref(None)], mixed);
    check_order(&[header(), sub_start(), segment_inline(), commit()], mixed);
    let failed = Some("frame comes after ERROR");
    check_order(&[header(), error(), error()], failed);
    check_order(&[header(), error(), unknown(0x17)], failed);
    check_order(&[header(), sub_start(), error(), sub_end()], failed);
}

#[test]
fn a_companion_belongs_to_the_rejection_before_it() {
    let ok = || details("k1", 3, DETAILS);
    check_order(&[header(), rejected(), ok()], None);
    let alone = Some("PUSH_RESULT_DETAILS is not directly after a PUSH_RESULT");
    check_order(&[header(), ok()], alone);
    check_order(&[header(), unknown(0x17), ok()], alone);
    check_order(&[header(), rejected(), unknown(0x17), ok()], alone);
    check_order(&[header(), rejected(), ok(), ok()], alone);
    check_order(&[header(), sub_start(), sub_end(), ok()], alone);
    check_order(
        &[header(), rejected(), details("k2", 3, DETAILS)],
        Some("PUSH_RESULT_DETAILS names another commit than its result"),
    );
    check_order(
        &[header(), applied(), details("k1", 0, DETAILS)],
        Some("PUSH_RESULT_DETAILS belongs to a result that is not rejected"),
    );
    check_order(
        &[header(), rejected(), details("k1", 0, DETAILS)],
        Some("PUSH_RESULT_DETAILS speaks of an operation without an error record"),
    );
}

#[test]
fn a_companion_that_breaks_its_rules_is_not_written() {
    let mut frames = vec![
        details("", 3, DETAILS),
        details("k1", -1, DETAILS),
        details("k1", 3, "{}"),
    ];
    let entry = RejectionDetail {
        op_index: 3,
        details: DETAILS.into(),
    };
    for entries in [vec![], vec![entry.clone(), entry]] {
        frames.push(ResponseFrame::PushResultDetails(PushResultDetails {
            client_commit_id: "k1".into(),
            entries,
        }));
    }
    for frame in &frames {
        let put = put_response_frame(frame, WireVersion::V3, &mut BytesMut::new());
        assert!(put.is_err(), "{frame:?}");
    }
}

#[test]
fn fields_that_a_version_does_not_have_are_left_out() {
    let bytes = encode_unchecked(WireVersion::V1, &[header()]);
    let response = Response::decode(&bytes).unwrap();
    let ResponseFrame::Header(read) = &response.frames[0] else {
        panic!("the first frame is the header");
    };
    assert_eq!(read.log_epoch, "");
    assert_eq!(read.latest_schema_version, Some(2));
}

#[test]
fn an_inline_segment_is_checked_where_it_stands() {
    let frames = [header(), sub_start(), segment_inline(), sub_end()];
    let good = encode_unchecked(WireVersion::V3, &frames);
    let magic = good.windows(4).position(|part| part == b"SSG2").unwrap();
    let mut bad = good.to_vec();
    bad[magic + 4] = 9;
    let error = Response::decode(&bad.into()).unwrap_err();
    assert_eq!(error.offset, magic + 4);
    assert_eq!(error.kind.to_string(), "segment format version is not 1");

    let mut frames = frames.to_vec();
    frames[2] = ResponseFrame::SegmentInline(Bytes::from_static(b"SSG1"));
    let version = WireVersion::V3;
    assert!(Response { version, frames }.encode().is_err());
}

#[test]
fn a_table_index_must_be_in_the_dictionary() {
    let ResponseFrame::Commit(mut frame) = commit() else {
        panic!("it is a commit");
    };
    frame.changes[1].table_index = 1;
    let frame = ResponseFrame::Commit(frame);
    let put = put_response_frame(&frame, WireVersion::V3, &mut BytesMut::new());
    assert_eq!(
        put,
        Err(EncodeError::Invalid("table index is out of range"))
    );
}

#[test]
fn stored_scopes_are_written_in_order_or_not_at_all() {
    let ResponseFrame::Commit(mut frame) = commit() else {
        panic!("it is a commit");
    };
    frame.changes[0].scopes.reverse();
    let frame = ResponseFrame::Commit(frame);
    let put = put_response_frame(&frame, WireVersion::V3, &mut BytesMut::new());
    assert_eq!(put, Err(EncodeError::Invalid("map keys do not ascend")));
}

fn stored(pairs: &[(&str, &str)]) -> StoredScopes {
    let pairs = pairs
        .iter()
        .map(|&(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
    StoredScopes::new(pairs).unwrap()
}

#[test]
fn a_commit_writer_writes_the_bytes_of_the_frame() {
    let mut expected = BytesMut::from(&b"before"[..]);
    put_response_frame(&commit(), WireVersion::V3, &mut expected).unwrap();

    let mut out = BytesMut::from(&b"before"[..]);
    let mut writer = CommitWriter::begin(&mut out, 8, 1_000, "a1", "notes");
    let scopes = stored(&[("team", "t1"), ("owner", "o")]);
    writer.change("n1", Some((4, b"row")), &scopes);
    writer.change("n2", None, &StoredScopes::default());
    assert_eq!(writer.change_count(), 2);
    writer.finish().unwrap();
    assert_eq!(out, expected);
}

#[test]
fn a_commit_writer_that_fails_leaves_nothing_behind() {
    let mut out = BytesMut::from(&b"before"[..]);
    let mut writer = CommitWriter::begin(&mut out, 8, 1_000, "a1", "notes");
    writer.change("n1", Some((i64::MAX, b"row")), &StoredScopes::default());
    writer.change("n2", None, &StoredScopes::default());
    assert_eq!(writer.change_count(), 0);
    assert!(writer.finish().is_err());
    assert_eq!(&out[..], b"before");

    assert!(
        CommitWriter::begin(&mut out, -(1 << 53), 0, "", "")
            .finish()
            .is_err()
    );
    drop(CommitWriter::begin(&mut out, 1, 1, "a", "t"));
    assert_eq!(&out[..], b"before");
}
