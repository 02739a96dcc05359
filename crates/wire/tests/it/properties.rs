//! Properties of messages, on generated and on damaged ones.

use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use proptest::{collection::vec, prelude::*};
use tidewater_model::StoredScopes;
use tidewater_wire::{
    CommitWriter, Expect, Message, MessageScanner, PushOutcome, PushResult, PushResultDetails,
    RejectionDetail, RejectionDetails, Response, ResponseFrame, ResponseHeader, WireVersion,
    put_response_frame,
};

use crate::{
    generate::{self, version},
    mutate::{byte_mutation, mutated, mutation},
    oracle,
};

fn message() -> impl Strategy<Value = Message> {
    version().prop_flat_map(|version| {
        prop_oneof![
            generate::request(version).prop_map(Message::Request),
            generate::response(version).prop_map(Message::Response),
        ]
    })
}

proptest! {
    #![proptest_config(generate::config())]

    #[test]
    fn a_message_survives_the_wire(message in message()) {
        let bytes = message.encode().unwrap();
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
        oracle::compare(&bytes);
    }

    #[test]
    fn a_damaged_message_is_judged_like_the_published_codec_does(
        message in message(),
        mutations in vec(mutation(), 1..4),
    ) {
        let bytes = message.encode().unwrap().to_vec();
        oracle::compare(&mutated(bytes, &mutations));
    }

    #[test]
    fn parts_of_two_messages_are_judged_like_the_published_codec_does(
        left in message(),
        right in message(),
        cut in any::<prop::sample::Index>(),
        splice in any::<prop::sample::Index>(),
    ) {
        let left = left.encode().unwrap();
        let right = right.encode().unwrap();
        let mut bytes = left[..cut.index(left.len())].to_vec();
        bytes.extend_from_slice(&right[splice.index(right.len())..]);
        oracle::compare(&bytes);
    }

    #[test]
    fn noise_behind_an_envelope_never_panics(
        number in 1..4_u8,
        kind in 1..3_u8,
        noise in vec(prop_oneof![0..4_u8, any::<u8>()], 0..64),
    ) {
        let mut bytes = vec![b'S', b'S', b'P', b'2', number, 0, kind, 0];
        bytes.extend(noise);
        oracle::compare(&bytes);
    }

    #[test]
    fn every_prefix_of_a_message_fails_cleanly(message in message()) {
        let bytes = message.encode().unwrap();
        for len in 0..bytes.len() {
            let error = Message::decode(&bytes.slice(..len)).unwrap_err();
            prop_assert!(error.offset <= len);
        }
    }

    #[test]
    fn a_scanner_finds_a_message_in_any_chunks(
        message in message(),
        cuts in vec(any::<prop::sample::Index>(), 0..6),
        surplus in vec(any::<u8>(), 0..4),
    ) {
        let bytes = message.encode().unwrap();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        cuts.sort_unstable();
        let mut scanner = MessageScanner::new(bytes.len(), Expect::Any);
        let mut start = 0;
        for cut in cuts {
            prop_assert_eq!(scanner.push(&bytes[start..cut]), Ok(None));
            start = cut;
        }
        let last = [&bytes[start..], &surplus[..]].concat();
        let scanned = scanner.push(&last).unwrap().unwrap();
        prop_assert_eq!(scanned.message, bytes);
        prop_assert_eq!(scanned.surplus, surplus.len());
    }

    #[test]
    fn a_commit_writer_writes_what_its_frame_would(mut commit in generate::commit_frame()) {
        commit.tables = vec!["notes".into()];
        for change in &mut commit.changes {
            change.table_index = 0;
        }
        let mut written = BytesMut::new();
        let mut writer = CommitWriter::begin(
            &mut written,
            commit.commit_seq,
            commit.created_at_ms,
            &commit.actor_id,
            &commit.tables[0],
        );
        for change in &commit.changes {
            let row = change.row.as_ref().map(|row| (row.row_version, &row.row[..]));
            let pairs = change.scopes.iter();
            let pairs = pairs.map(|(k, v)| (k.to_string(), v.to_string())).collect();
            writer.change(&change.row_id, row, &StoredScopes::new(pairs).unwrap());
        }
        writer.finish().unwrap();
        let mut expected = BytesMut::new();
        let frame = ResponseFrame::Commit(commit);
        put_response_frame(&frame, WireVersion::V3, &mut expected).unwrap();
        prop_assert_eq!(written, expected);
    }

    #[test]
    fn damaged_details_are_judged_like_the_published_codec_does(
        details in generate::rejection_details(),
        mutations in vec(byte_mutation(), 0..3),
    ) {
        let text = mutated(details.into_bytes().to_vec(), &mutations);
        if let Ok(text) = String::from_utf8(text) {
            let bytes = response_with_details(&text);
            let ours = RejectionDetails::check(&text).is_ok();
            prop_assert_eq!(Message::decode(&bytes).is_ok(), ours);
            oracle::compare(&bytes);
        }
    }
}

/// A response whose companion carries `details`, which an encoder might refuse.
fn response_with_details(details: &str) -> Bytes {
    let placeholder = r#"{"reason":"placeholder"}"#;
    let id = ByteString::from("k");
    let response = Response {
        version: WireVersion::V3,
        frames: vec![
            ResponseFrame::Header(ResponseHeader {
                log_epoch: "e".into(),
                ..ResponseHeader::default()
            }),
            ResponseFrame::PushResult(PushResult {
                client_commit_id: id.clone(),
                outcome: PushOutcome::Rejected,
                results: vec![tidewater_wire::OpResult::Error {
                    op_index: 0,
                    code: "c".into(),
                    message: "m".into(),
                    retryable: false,
                }],
            }),
            ResponseFrame::PushResultDetails(PushResultDetails {
                client_commit_id: id,
                entries: vec![RejectionDetail {
                    op_index: 0,
                    details: placeholder.into(),
                }],
            }),
        ],
    };
    let mut bytes = response.encode().unwrap().to_vec();
    // The details stand last in their frame, with their length before them.
    let at = bytes.len() - 5 - placeholder.len() - 4;
    bytes.truncate(at);
    let len = u32::try_from(details.len()).unwrap();
    bytes.extend(len.to_le_bytes());
    bytes.extend(details.as_bytes());
    let frame = bytes
        .windows(6)
        .position(|part| part[0] == 0x1b && part[5] == 1);
    let frame = frame.unwrap();
    let payload_len = u32::try_from(bytes.len() - frame - 5).unwrap();
    bytes[frame + 1..frame + 5].copy_from_slice(&payload_len.to_le_bytes());
    bytes.extend([0; 5]);
    bytes.into()
}
