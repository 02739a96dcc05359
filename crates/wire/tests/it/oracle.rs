//! The published codecs, behind one function each: an independent opinion on every message.
//!
//! The current release speaks wire version 3 and nothing else; the last one that spoke versions
//! 1 and 2 is a second dependency. Where they deviate from the protocol the deviation stands in
//! `deviates`, with its reason.

use bytes::Bytes;
use serde_json::Value as Json;
use tidewater_wire::{Message, RejectionDetails, RowsSegment, WireVersion, render, row};

/// What a codec says: the rendering and the bytes written again, or the code of the error.
pub(crate) type Verdict = Result<(Json, Vec<u8>), String>;

pub(crate) fn ours(bytes: &[u8]) -> Verdict {
    let message = Message::decode(&Bytes::copy_from_slice(bytes));
    let message = message.map_err(|error| error.code().as_str().to_owned())?;
    let encoded = message
        .encode()
        .expect("a decoded message has an encoding")
        .to_vec();
    Ok((render::message(&message), encoded))
}

pub(crate) fn theirs(bytes: &[u8]) -> Verdict {
    let version = bytes
        .get(4..6)
        .and_then(|number| WireVersion::from_number(u16::from_le_bytes([number[0], number[1]])));
    match version {
        Some(WireVersion::V1 | WireVersion::V2) => {
            let message = syncular_ssp2_v2::decode_message(bytes)
                .map_err(|error| error.code.as_str().to_owned())?;
            let rendering = syncular_ssp2_v2::render_message(&message);
            Ok((rendering, syncular_ssp2_v2::encode_message(&message)))
        }
        Some(WireVersion::V3) | None => {
            let message =
                ssp2::decode_message(bytes).map_err(|error| error.code.as_str().to_owned())?;
            Ok((
                ssp2::render_message(&message),
                ssp2::encode_message(&message),
            ))
        }
    }
}

/// Fails unless both codecs say the same about a message.
#[track_caller]
pub(crate) fn compare(bytes: &[u8]) {
    let (ours, theirs) = (ours(bytes), theirs(bytes));
    if ours == theirs {
        return;
    }
    let only_we_refuse = ours.is_err() && theirs.is_ok();
    let deviation = deviates(bytes, only_we_refuse)
        .or_else(|| deviates_in_old_versions(bytes).filter(|_| only_we_refuse));
    assert!(
        deviation.is_some(),
        "the codecs disagree about {}\n ours: {ours:?}\n theirs: {theirs:?}",
        hex::encode(bytes)
    );
}

/// Fails unless both codecs say the same about a rows segment.
#[track_caller]
pub(crate) fn compare_segment(bytes: &[u8]) {
    let ours = RowsSegment::decode(bytes).map(|segment| {
        let rendering = render::rows_segment(&segment).expect("decoded rows are rows");
        (rendering, segment.encode())
    });
    let theirs = ssp2::decode_rows_segment(bytes).map(|segment| {
        let rendering = ssp2::render_rows_segment(&segment);
        (rendering, ssp2::encode_rows_segment(&segment))
    });
    assert_eq!(
        tidewater_wire::check_rows_segment(bytes).err(),
        ours.clone().err()
    );
    if ours.as_ref().ok() != theirs.as_ref().ok() {
        assert!(
            deviates(bytes, ours.is_err() && theirs.is_ok()).is_some(),
            "the codecs disagree about segment {}\n ours: {ours:?}\n theirs: {theirs:?}",
            hex::encode(bytes)
        );
    }
}

/// Fails unless both codecs say the same about a sparse row.
#[track_caller]
pub(crate) fn compare_sparse_row(columns: &[row::Column], primary_key: usize, bytes: &[u8]) {
    let ours = row::decode_sparse_row(columns, primary_key, bytes)
        .ok()
        .map(|slots| {
            let values: Vec<Option<Option<&[u8]>>> = slots
                .iter()
                .map(|slot| match slot {
                    row::Slot::Absent => None,
                    row::Slot::Null => Some(None),
                    row::Slot::Present(field) => Some(Some(field.encoded)),
                })
                .collect();
            let rendering = render::sparse_row(columns, &slots);
            (rendering, row::encode_sparse_row(&values))
        });
    let their_columns = their_columns(columns);
    let theirs = ssp2::decode_sparse_row(&their_columns, primary_key, bytes)
        .ok()
        .map(|slots| {
            let rendering = ssp2::render_sparse_row(&their_columns, &slots);
            let encoded = ssp2::encode_sparse_row(&their_columns, primary_key, &slots);
            (rendering, encoded)
        });
    if ours != theirs {
        assert!(
            deviates(bytes, ours.is_none() && theirs.is_some()).is_some(),
            "the codecs disagree about row {}\n ours: {ours:?}\n theirs: {theirs:?}",
            hex::encode(bytes)
        );
    }
}

fn their_columns(columns: &[row::Column]) -> Vec<ssp2::segment::Column> {
    columns
        .iter()
        .map(|column| ssp2::segment::Column {
            name: column.name.clone(),
            ty: ssp2::segment::ColumnType::from_tag(column.kind.tag()).expect("tags are the same"),
            nullable: column.nullable,
        })
        .collect()
}

/// Why the published codecs may say something else about these bytes than the protocol does.
fn deviates(bytes: &[u8], only_we_refuse: bool) -> Option<&'static str> {
    let contains = |mark: &str| {
        let mark = mark.as_bytes();
        bytes.windows(mark.len()).any(|part| part == mark)
    };
    if contains("$serde_json::private::") {
        return Some("serde_json gives objects with this key a meaning of its own");
    }
    if only_we_refuse && contains("\u{feff}") {
        return Some(
            "references in rejection details must not begin or end with U+FEFF (15.7), which \
             JavaScript trims and the Rust codec does not",
        );
    }
    if only_we_refuse && contains("blobId") {
        return Some(
            "a blob reference with a key that comes twice is refused (OQ-19), and accepted by a \
             codec that reads it into a map",
        );
    }
    None
}

/// Why the old codec may accept a message of version 1 or 2 that we refuse.
fn deviates_in_old_versions(bytes: &[u8]) -> Option<&'static str> {
    let bytes = Bytes::copy_from_slice(bytes);
    let offset = Message::decode(&bytes).err()?.offset;
    let (len, rest) = bytes.get(offset..)?.split_first_chunk()?;
    let text = rest.get(..usize::try_from(u32::from_le_bytes(*len)).ok()?)?;
    let refused = RejectionDetails::check(str::from_utf8(text).ok()?).is_err();
    (bytes[4] < 3 && refused).then_some(
        "the content of rejection details has rules in every version (3.7, class 8); the old \
         codec only wants JSON there",
    )
}
