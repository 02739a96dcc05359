//! Worked requests byte for byte, the grammar, and what is not written.

use super::*;
use crate::{
    Accept, Operation, OperationAction, ResponseFrame, UnknownFrame, put_response_frame, render,
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
    let request = Request::decode(&bytes).unwrap();
    let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
    assert_eq!(render::request(&request), expected);
    assert_eq!(request.encode().unwrap(), bytes);
}

#[test]
fn the_smallest_request_is_read_and_written() {
    check(
        "53535032 0100 01 00  01 0a000000 02000000 6331 02000000
         03 0d000000 00000000 00000000 00000000 07  00 00000000",
        46,
        r#"{"magic":"SSP2","wireVersion":1,"msgKind":"request","frames":[
            {"type":"REQ_HEADER","clientId":"c1","schemaVersion":2},
            {"type":"PULL_HEADER","limitCommits":0,"limitSnapshotRows":0,"maxSnapshotPages":0,
             "accept":7}]}"#,
    );
}

#[test]
fn an_epoch_acquisition_is_read_and_written() {
    check(
        "53535032 0300 01 00  01 0b000000 02000000 6331 02000000 00
         03 0d000000 00000000 00000000 00000000 07
         04 32000000 02000000 7331 05000000 6e6f746573 01000000 07000000 7465616d5f6964
            01000000 02000000 7439 00 ffffffffffffffff 00
         00 00000000",
        102,
        r#"{"magic":"SSP2","wireVersion":3,"msgKind":"request","frames":[
            {"type":"REQ_HEADER","clientId":"c1","schemaVersion":2},
            {"type":"PULL_HEADER","limitCommits":0,"limitSnapshotRows":0,"maxSnapshotPages":0,
             "accept":7},
            {"type":"SUBSCRIPTION","id":"s1","table":"notes","scopes":{"team_id":["t9"]},
             "cursor":-1}]}"#,
    );
}

const PUSH_AFTER_TIMEOUT: &str = "
    53535032 0300 01 00  01 11000000 02000000 6331 02000000 01 02000000 6531
    05 15000000 11000000 7472616e73706f72742e74696d656f7574
    02 38000000 02000000 6b31 01000000 05000000 6e6f746573 02000000 6e31 01 01 0700000000000000
       01 10000000 0d02020000006e310400000000000000
    00 00000000";

#[test]
fn a_push_after_a_timed_out_round_is_read_and_written() {
    check(
        PUSH_AFTER_TIMEOUT,
        122,
        r#"{"magic":"SSP2","wireVersion":3,"msgKind":"request","frames":[
            {"type":"REQ_HEADER","clientId":"c1","schemaVersion":2,"logEpoch":"e1"},
            {"type":"ROUND_FAILURE","code":"transport.timeout"},
            {"type":"PUSH_COMMIT","clientCommitId":"k1","operations":[
             {"table":"notes","rowId":"n1","op":"upsert","baseVersion":7,
              "payload":"DQICAAAAbjEEAAAAAAAAAA=="}]}]}"#,
    );
}

#[test]
fn the_parts_of_a_request_are_what_a_server_acts_on() {
    let parts = Request::decode(&bytes(PUSH_AFTER_TIMEOUT))
        .unwrap()
        .into_parts();
    assert_eq!(parts.version, WireVersion::V3);
    assert_eq!(parts.header.client_id, "c1");
    assert_eq!(parts.round_failure.unwrap().code, "transport.timeout");
    assert_eq!(parts.commits.len(), 1);
    assert_eq!(parts.commits[0].operations[0].base_version, Some(7));
    assert_eq!(parts.pull, None);
}

#[test]
fn decoded_fields_are_slices_of_the_message() {
    let bytes = bytes(PUSH_AFTER_TIMEOUT);
    let request = Request::decode(&bytes).unwrap();
    let RequestFrame::PushCommit(commit) = &request.frames[2] else {
        panic!("the third frame is the commit");
    };
    let OperationAction::Upsert(row) = &commit.operations[0].action else {
        panic!("the operation is an upsert");
    };
    let whole = bytes.as_ptr_range();
    assert!(whole.contains(&row.as_ptr()));
    assert!(whole.contains(&commit.client_commit_id.as_ptr()));
}

fn header() -> RequestFrame {
    RequestFrame::Header(RequestHeader {
        client_id: "c1".into(),
        schema_version: 1,
        log_epoch: None,
    })
}

fn round_failure(code: &str) -> RequestFrame {
    RequestFrame::RoundFailure(RoundFailure { code: code.into() })
}

fn commit() -> RequestFrame {
    RequestFrame::PushCommit(PushCommit {
        client_commit_id: "k1".into(),
        operations: vec![Operation {
            table: "notes".into(),
            row_id: "n1".into(),
            action: OperationAction::Delete,
            base_version: Some(3),
        }],
    })
}

fn pull_header() -> RequestFrame {
    RequestFrame::PullHeader(PullHeader {
        limit_commits: 0,
        limit_snapshot_rows: -1,
        max_snapshot_pages: i32::MAX,
        accept: Accept::from_bits(3).unwrap(),
    })
}

fn subscription() -> RequestFrame {
    RequestFrame::Subscription(Subscription {
        id: "s1".into(),
        table: "notes".into(),
        scopes: tidewater_model::ScopeFilter::default(),
        params: Some("{ }".into()),
        cursor: -1,
        bootstrap_state: None,
    })
}

fn unknown(frame_type: u8) -> RequestFrame {
    RequestFrame::Unknown(UnknownFrame {
        frame_type,
        payload: Bytes::from_static(b"?"),
    })
}

/// Writes frames in any order, which [`Request::encode`] would not.
fn encode_unchecked(version: WireVersion, frames: &[RequestFrame]) -> Bytes {
    let mut out = BytesMut::new();
    begin_request(version, &mut out);
    for frame in frames {
        put_request_frame(frame, version, &mut out).unwrap();
    }
    put_end(&mut out);
    out.freeze()
}

/// Reading and writing agree on whether a sequence of frames is a request.
#[track_caller]
fn check_order(frames: &[RequestFrame], rule: Option<&str>) {
    let version = WireVersion::V3;
    let decoded = Request::decode(&encode_unchecked(version, frames));
    let kind = decoded.err().map(|error| error.kind.to_string());
    assert_eq!(kind.as_deref(), rule);
    let frames = frames.to_vec();
    let encoded = Request { version, frames }.encode();
    let error = encoded.err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), rule);
}

#[test]
fn frames_stand_in_the_order_of_the_grammar() {
    let failure = || round_failure("transport.timeout");
    check_order(&[header(), commit(), commit()], None);
    check_order(&[header(), pull_header()], None);
    check_order(
        &[
            header(),
            failure(),
            unknown(0x06),
            commit(),
            unknown(0x17),
            pull_header(),
            unknown(0xff),
            subscription(),
            subscription(),
            unknown(0x06),
        ],
        None,
    );
}

#[test]
fn frames_out_of_order_are_refused() {
    let failure = || round_failure("transport.timeout");
    let no_header = Some("first frame is not the header");
    check_order(&[], Some("message has no header"));
    check_order(&[commit()], no_header);
    check_order(&[unknown(0x06), header(), commit()], no_header);
    check_order(&[header(), header()], Some("header comes twice"));
    let no_content = Some("request has neither commits nor a pull");
    check_order(&[header()], no_content);
    check_order(&[header(), failure(), unknown(0x06)], no_content);
    let late_failure = Some("ROUND_FAILURE is not directly after the header");
    check_order(&[header(), failure(), failure(), commit()], late_failure);
    check_order(
        &[header(), unknown(0x06), failure(), commit()],
        late_failure,
    );
    check_order(&[header(), commit(), failure()], late_failure);
    check_order(&[header(), pull_header(), failure()], late_failure);
    check_order(
        &[header(), pull_header(), commit()],
        Some("PUSH_COMMIT comes after PULL_HEADER"),
    );
    check_order(
        &[header(), pull_header(), pull_header()],
        Some("PULL_HEADER comes twice"),
    );
    check_order(
        &[header(), commit(), subscription()],
        Some("SUBSCRIPTION comes before PULL_HEADER"),
    );
}

#[test]
fn a_round_failure_is_unknown_before_version_3() {
    let frames = [header(), commit(), unknown(0x05)];
    for version in [WireVersion::V1, WireVersion::V2] {
        let bytes = encode_unchecked(version, &frames);
        let request = Request::decode(&bytes).unwrap();
        assert_eq!(request.frames[2], unknown(0x05));
        assert_eq!(request.encode().unwrap(), bytes);
        let error = put_request_frame(&round_failure("a.b"), version, &mut BytesMut::new());
        assert!(error.is_err());
    }
}

#[test]
fn a_frame_of_the_other_kind_is_refused() {
    let mut out = BytesMut::new();
    begin_request(WireVersion::V3, &mut out);
    put_request_frame(&header(), WireVersion::V3, &mut out).unwrap();
    let foreign = ResponseFrame::SubEnd(crate::SubEnd {
        next_cursor: 1,
        bootstrap_state: None,
    });
    put_response_frame(&foreign, WireVersion::V3, &mut out).unwrap();
    put_end(&mut out);
    let error = Request::decode(&out.freeze()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "frame type belongs to the other message kind at byte 24"
    );
}

#[test]
fn a_response_is_no_request() {
    let error = Request::decode(&bytes("53535032 0300 02 00 00 00000000")).unwrap_err();
    assert_eq!(error.to_string(), "message is not a request at byte 6");
}

#[test]
fn an_unknown_frame_under_a_registered_type_is_not_written() {
    for (version, byte) in [
        (WireVersion::V1, 0x00),
        (WireVersion::V1, 0x02),
        (WireVersion::V2, 0x1f),
        (WireVersion::V3, 0x05),
    ] {
        let mut out = BytesMut::new();
        let error = put_request_frame(&unknown(byte), version, &mut out);
        assert_eq!(error, Err(EncodeError::RegisteredType(byte)));
        assert!(out.is_empty());
    }
}

#[test]
fn what_a_decoder_refuses_is_not_written() {
    let mut frames = Vec::new();
    for (client_id, schema_version, log_epoch) in
        [("", 1, None), ("c", 0, None), ("c", 1, Some("".into()))]
    {
        frames.push(RequestFrame::Header(RequestHeader {
            client_id: client_id.into(),
            schema_version,
            log_epoch,
        }));
    }
    frames.push(RequestFrame::PushCommit(PushCommit {
        client_commit_id: "k".into(),
        operations: Vec::new(),
    }));
    if let (RequestFrame::PushCommit(mut push), RequestFrame::Subscription(mut pull)) =
        (commit(), subscription())
    {
        push.client_commit_id = "".into();
        frames.push(RequestFrame::PushCommit(push.clone()));
        push.client_commit_id = "k".into();
        push.operations[0].base_version = Some(1 << 53);
        frames.push(RequestFrame::PushCommit(push));
        pull.params = Some("{".into());
        frames.push(RequestFrame::Subscription(pull));
    }
    frames.push(round_failure("timeout"));
    for frame in &frames {
        let mut out = BytesMut::from(&b"before"[..]);
        let error = put_request_frame(frame, WireVersion::V3, &mut out);
        assert!(matches!(error, Err(EncodeError::Invalid(_))), "{frame:?}");
        assert_eq!(&out[..], b"before");
    }
    assert_eq!(frames.len(), 8);
}

#[test]
fn the_code_of_a_round_failure_has_a_grammar() {
    let long = format!("a.{}", "b".repeat(62));
    for (code, valid) in [
        ("transport.timeout", true),
        ("a.b_9.c", true),
        (&*long, true),
        (&*format!("{long}b"), false),
        ("", false),
        ("a", false),
        ("a.", false),
        (".a", false),
        ("a..b", false),
        ("a.9", false),
        ("a._b", false),
        ("A.b", false),
        ("a.b-c", false),
        ("a.é", false),
    ] {
        let put = put_request_frame(&round_failure(code), WireVersion::V3, &mut BytesMut::new());
        assert_eq!(put.is_ok(), valid, "{code}");
    }
}

#[test]
fn a_commit_without_operations_has_a_code_of_its_own() {
    let error = Request::decode(&bytes(
        "53535032 0100 01 00  01 0a000000 02000000 6331 02000000
         02 0a000000 02000000 6b31 00000000  00 00000000",
    ))
    .unwrap_err();
    assert_eq!(error.kind, DecodeErrorKind::EmptyCommit);
    assert_eq!(error.offset, 34);
    assert_eq!(error.code(), tidewater_model::ErrorCode::EmptyCommit);
}
