//! Worked segments byte for byte, block limits and every structural rule.

use tidewater_model::limits::{SEGMENT_BLOCK_BYTES_TARGET, SEGMENT_BLOCK_ROWS_MAX};

use super::*;
use crate::{content_address, render};

fn todo_columns() -> Vec<Column> {
    vec![
        Column {
            name: "id".to_owned(),
            kind: ColumnType::String,
            nullable: false,
        },
        Column {
            name: "done".to_owned(),
            kind: ColumnType::Boolean,
            nullable: true,
        },
    ]
}

fn bytes(hex: &str) -> Vec<u8> {
    let hex: String = hex.split_whitespace().collect();
    hex::decode(hex).unwrap()
}

const HEAD: &str = "53534732 0100 0000 04000000 746f646f 02000000 0200
    02000000 6964 01 00  04000000 646f6e65 04 01";
const BLOCKS: &str = "
    02000000 1d000000  0100000000000000 00 01000000 61 01  0500000000000000 02 01000000 62
    01000000 0f000000  ffffffffffff1f00 00 01000000 63 00";
const MARKER: &str = "00000000";

#[test]
fn the_worked_segment_is_read_and_written() {
    let segment = bytes(&format!("{HEAD}{BLOCKS}{MARKER}"));
    assert_eq!(segment.len(), 104);
    assert_eq!(
        content_address(&segment),
        "sha256:a799d3713865ca3fbb3421784ff278745672e8e1b89cf81b3bdeac7f1611abe7"
    );
    check_rows_segment(&segment).unwrap();
    let decoded = RowsSegment::decode(&segment).unwrap();
    assert_eq!(decoded.encode(), segment);
    let expected: serde_json::Value = serde_json::from_str(
        r#"{"magic":"SSG2","formatVersion":1,"table":"todo","schemaVersion":2,
            "columns":[{"name":"id","type":"string","nullable":false},
                       {"name":"done","type":"boolean","nullable":true}],
            "blocks":[[{"serverVersion":1,"values":{"id":"a","done":true}},
                       {"serverVersion":5,"values":{"id":"b","done":null}}],
                      [{"serverVersion":9007199254740991,"values":{"id":"c","done":false}}]]}"#,
    )
    .unwrap();
    assert_eq!(render::rows_segment(&decoded).unwrap(), expected);
}

#[test]
fn a_page_without_rows_has_no_blocks() {
    let segment = SegmentWriter::new("todo", 2, &todo_columns()).finish();
    assert_eq!(segment, bytes(&format!("{HEAD}{MARKER}")));
    assert_eq!(segment.len(), 44);
    assert_eq!(
        content_address(&segment),
        "sha256:a228f7ba466d2807b71a61f553290adec34df23cb068e765ea77f6231fe9d491"
    );
    assert_eq!(RowsSegment::decode(&segment).unwrap().encode(), segment);
}

#[track_caller]
fn check_blocks(rows: usize, id_len: usize, expected: &[usize]) {
    let id = "x".repeat(id_len);
    let mut row = vec![0x02];
    put_text(&mut row, &id);
    let mut writer = SegmentWriter::new("todo", 2, &todo_columns());
    for _ in 0..rows {
        writer.push(1, &row);
    }
    assert_eq!(writer.row_count(), u64::try_from(rows).unwrap());
    let len = writer.byte_len();
    let bytes = writer.finish();
    assert_eq!(bytes.len(), len + 4);
    let segment = RowsSegment::decode(&bytes).unwrap();
    let blocks: Vec<usize> = segment.blocks.iter().map(Vec::len).collect();
    assert_eq!(blocks, expected);
    assert_eq!(segment.encode(), bytes);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    crate::row::Value::String(text).encode(out);
}

#[test]
fn a_block_is_closed_by_rows_or_by_bytes() {
    let max = SEGMENT_BLOCK_ROWS_MAX;
    check_blocks(max, 1, &[max]);
    check_blocks(max + 1, 1, &[max, 1]);
    check_blocks(2 * max, 1, &[max, max]);
    let half = SEGMENT_BLOCK_BYTES_TARGET / 2;
    check_blocks(5, half, &[2, 2, 1]);
    check_blocks(3, SEGMENT_BLOCK_BYTES_TARGET, &[1, 1, 1]);
}

#[track_caller]
fn check_error(hex: &str, expected: &str) {
    let error = check_rows_segment(&bytes(hex)).unwrap_err();
    assert_eq!(error.to_string(), expected);
    assert_eq!(RowsSegment::decode(&bytes(hex)), Err(error));
}

#[test]
fn a_segment_that_is_not_structurally_valid_is_refused() {
    let head = |from: &str, to: &str| format!("{}{MARKER}", HEAD.replacen(from, to, 1));
    check_error("", "input ends inside segment at byte 0");
    check_error(
        &head("53534732", "53534731"),
        "segment does not begin with SSG2 at byte 0",
    );
    check_error(
        &head("0100 0000", "0200 0000"),
        "segment format version is not 1 at byte 4",
    );
    check_error(
        &head("0100 0000", "0100 0001"),
        "segment flags are not zero at byte 6",
    );
    check_error(
        &head("6964 01 00", "6964 09 00"),
        "column type is unknown at byte 28",
    );
    check_error(
        &head("6964 01 00", "6964 00 00"),
        "column type is unknown at byte 28",
    );
    check_error(
        &head("6964 01 00", "6964 01 02"),
        "column flags have undefined bits at byte 29",
    );
    check_error(HEAD, "input ends inside row count at byte 40");
    check_error(
        &format!("{HEAD}{MARKER}00"),
        "segment has trailing bytes at byte 44",
    );
}

#[test]
fn a_block_holds_exactly_its_rows() {
    let block = |hex: &str| format!("{HEAD}{hex}{MARKER}");
    let row = "0100000000000000 00 01000000 61 01";
    check_rows_segment(&bytes(&block(&format!("01000000 0f000000 {row}")))).unwrap();
    check_error(
        &block(&format!("01000000 10000000 {row}")),
        "block has trailing bytes at byte 63",
    );
    check_error(
        &block(&format!("01000000 0e000000 {row}")),
        "input ends inside boolean at byte 62",
    );
    check_error(
        &block(&format!("02000000 0f000000 {row}")),
        "input ends inside server version at byte 63",
    );
    check_error(
        &block(&format!("01000000 ff000000 {row}")),
        "input ends inside block at byte 48",
    );
    check_error(
        &block("01000000 0f000000 0000000000000000 00 01000000 61 01"),
        "server version is below 1 at byte 48",
    );
    check_error(
        &block("01000000 0f000000 0100000000000000 01 01000000 61 01"),
        "column that is not nullable is NULL at byte 57",
    );
}

#[test]
fn rows_without_columns_are_versions_alone() {
    let mut writer = SegmentWriter::new("t", -1, &[]);
    writer.push(7, &[]);
    let bytes = writer.finish();
    let segment = RowsSegment::decode(&bytes).unwrap();
    assert_eq!(segment.schema_version, -1);
    assert_eq!(segment.blocks[0][0].server_version, 7);
}
