//! Worked rows byte for byte, every rule of both codecs, and text renderings.

use super::*;
use crate::render;

fn columns(text: &str) -> Vec<Column> {
    text.split(", ")
        .map(|column| {
            let (name, kind) = column.split_once(' ').unwrap();
            Column {
                name: name.to_owned(),
                kind: ColumnType::from_name(kind.trim_end_matches('?')).unwrap(),
                nullable: kind.ends_with('?'),
            }
        })
        .collect()
}

fn notes() -> Vec<Column> {
    columns("id string, team_id string, title string?, stars integer, done boolean, meta json?")
}

fn nine() -> Vec<Column> {
    columns(
        "id string, title string?, body string, count integer?, score float, done boolean, \
         meta json?, blob bytes?, doc crdt?",
    )
}

fn bytes(hex: &str) -> Vec<u8> {
    let hex: String = hex.split_whitespace().collect();
    hex::decode(hex).unwrap()
}

const FULL: &str = "04 02000000 6e31 02000000 7439 0300000000000000 01 08000000 7b2261223a20317d";

#[test]
fn the_worked_row_is_read_and_written() {
    let payload = bytes(FULL);
    assert_eq!(payload.len(), 34);
    let fields = decode_row(&notes(), &payload).unwrap();
    let values: Vec<Option<Value<'_>>> = fields.iter().map(|f| f.map(|f| f.value)).collect();
    let expected = [
        Some(Value::String("n1")),
        Some(Value::String("t9")),
        None,
        Some(Value::Integer(3)),
        Some(Value::Boolean(true)),
        Some(Value::Json("{\"a\": 1}")),
    ];
    assert_eq!(values, expected);

    let encoded: Vec<Option<&[u8]>> = fields.iter().map(|f| f.map(|f| f.encoded)).collect();
    assert_eq!(encode_row(&encoded), payload);

    let mut writer = RowWriter::new(values.len());
    for (index, value) in values.iter().enumerate() {
        match (value, encoded[index]) {
            (None, _) => writer.null(),
            (Some(_), Some(encoded)) if index % 2 == 0 => writer.encoded(encoded),
            (Some(value), _) => writer.value(value),
        }
    }
    assert_eq!(writer.finish(), payload);
}

#[track_caller]
fn check_sparse(columns: &[Column], hex: &str, len: usize, expected: &str) {
    let payload = bytes(hex);
    assert_eq!(payload.len(), len);
    let slots = decode_sparse_row(columns, 0, &payload).unwrap();
    let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
    assert_eq!(render::sparse_row(columns, &slots)["values"], expected);
    let values: Vec<Option<Option<&[u8]>>> = slots
        .iter()
        .map(|slot| match slot {
            Slot::Absent => None,
            Slot::Null => Some(None),
            Slot::Present(field) => Some(Some(field.encoded)),
        })
        .collect();
    assert_eq!(encode_sparse_row(&values), payload);
}

#[test]
fn the_worked_sparse_rows_are_read_and_written() {
    check_sparse(
        &notes(),
        "0d 02 02000000 6e31 0400000000000000",
        16,
        r#"{"id":"n1","title":null,"stars":4}"#,
    );
    check_sparse(
        &notes(),
        "3f 04 02000000 6e31 02000000 7439 0300000000000000 01 08000000 7b2261223a20317d",
        35,
        r#"{"id":"n1","team_id":"t9","title":null,"stars":3,"done":true,"meta":{"a":1}}"#,
    );
    check_sparse(
        &nine(),
        "4300 02 030000006e2d31 0f0000007b2274616773223a205b2261225d7d",
        29,
        r#"{"id":"n-1","title":null,"meta":{"tags":["a"]}}"#,
    );
    check_sparse(
        &nine(),
        "ff01 0200 030000006e2d32 04000000626f6479 f9ffffffffffffff 000000000000c03f 00
         0a0000007b226b223a747275657d 040000000001feff 030000000102fe",
        65,
        r#"{"id":"n-2","title":null,"body":"body","count":-7,"score":0.125,"done":false,
            "meta":{"k":true},"blob":"AAH+/w==","doc":"AQL+"}"#,
    );
}

#[track_caller]
fn check_error(columns: &str, hex: &str, expected: &str) {
    let error = decode_row(&columns_or_none(columns), &bytes(hex)).unwrap_err();
    assert_eq!(error.to_string(), expected, "{hex}");
}

fn columns_or_none(text: &str) -> Vec<Column> {
    if text.is_empty() {
        Vec::new()
    } else {
        columns(text)
    }
}

#[test]
fn a_full_row_that_breaks_a_rule_is_refused() {
    check_error(
        "a boolean?",
        "02 01",
        "null bitmap names a column that does not exist at byte 0",
    );
    check_error(
        "a boolean",
        "01",
        "column that is not nullable is NULL at byte 1",
    );
    check_error("a boolean?", "01 00", "row has trailing bytes at byte 1");
    check_error("", "00", "row has trailing bytes at byte 0");
    check_error("a boolean", "", "input ends inside null bitmap at byte 0");
    check_error("a boolean", "00", "input ends inside boolean at byte 1");
    check_error(
        "a boolean",
        "00 02",
        "boolean is neither 00 nor 01 at byte 1",
    );
    check_error(
        "a integer",
        "00 0000000000002000",
        "integer is outside of ±(2^53 − 1) at byte 1",
    );
    check_error("a string", "00 01000000 ff", "text is not UTF-8 at byte 1");
    check_error(
        "a string",
        "00 02000000 61",
        "input ends inside string at byte 1",
    );
    check_error(
        "a bytes",
        "00 ffffffff 61",
        "input ends inside bytes at byte 1",
    );
    check_error(
        "a json",
        "00 01000000 7b",
        "text is not one JSON document at byte 1",
    );
    check_error(
        "a json",
        "00 00000000",
        "text is not one JSON document at byte 1",
    );
    check_error(
        "a blob_ref",
        "00 02000000 7b7d",
        "text is not a blob reference at byte 1",
    );
}

#[test]
fn every_bit_pattern_is_a_float() {
    for bits in [0, 1 << 63, 0x7ff0_0000_0000_0000, 0xfff8_dead_beef_0001_u64] {
        let mut payload = vec![0];
        payload.extend(bits.to_le_bytes());
        let fields = decode_row(&columns("a float"), &payload).unwrap();
        let Some(Field { encoded, value }) = fields[0] else {
            panic!("it is not NULL");
        };
        let mut again = Vec::new();
        value.encode(&mut again);
        assert_eq!(again, encoded);
    }
}

#[track_caller]
fn check_sparse_error(hex: &str, expected: &str) {
    let error = decode_sparse_row(&notes(), 0, &bytes(hex)).unwrap_err();
    assert_eq!(error.to_string(), expected, "{hex}");
}

#[test]
fn a_sparse_row_that_breaks_a_rule_is_refused() {
    let padding = "presence bitmap names a column that does not exist at byte 0";
    check_sparse_error("41 00", padding);
    check_sparse_error("40", padding);
    check_sparse_error("02 00", "primary key is absent at byte 0");
    check_sparse_error("", "input ends inside presence bitmap at byte 0");
    check_sparse_error("01", "input ends inside null bitmap at byte 1");
    check_sparse_error(
        "01 02 02000000 6e31",
        "null bitmap names a column that is absent at byte 1",
    );
    check_sparse_error("01 01", "column that is not nullable is NULL at byte 2");
    check_sparse_error("01 00 02000000 6e", "input ends inside string at byte 2");
    check_sparse_error("01 00 02000000 6e31 00", "row has trailing bytes at byte 8");
    check_sparse_error(
        "11 00 02000000 6e31 02",
        "boolean is neither 00 nor 01 at byte 8",
    );
}

#[test]
fn bitmaps_grow_at_eight_columns() {
    for (count, presence_len) in [(1, 1), (7, 1), (8, 1), (9, 2), (16, 2), (17, 3)] {
        let columns: Vec<Column> = (0..count)
            .map(|index| Column {
                name: format!("c{index}"),
                kind: ColumnType::Boolean,
                nullable: true,
            })
            .collect();
        let one: &[u8] = &[1];
        let all = vec![Some(Some(one)); count];
        let row = encode_sparse_row(&all);
        assert_eq!(row.len(), 2 * presence_len + count);
        let slots = decode_sparse_row(&columns, count - 1, &row).unwrap();
        assert!(slots.iter().all(|slot| matches!(slot, Slot::Present(_))));
        let full = encode_row(&vec![None; count]);
        assert_eq!(full.len(), presence_len);
        assert_eq!(decode_row(&columns, &full).unwrap(), vec![None; count]);
    }
}

#[test]
fn a_primary_key_that_does_not_exist_is_absent() {
    let row =
        bytes("3f 04 02000000 6e31 02000000 7439 0300000000000000 01 08000000 7b2261223a20317d");
    assert!(decode_sparse_row(&notes(), 6, &row).is_err());
    assert!(decode_sparse_row(&[], 0, &[]).is_err());
}

#[track_caller]
fn check_text(value: &Value<'_>, expected: Option<&str>) {
    assert_eq!(value.render().as_deref(), expected, "{value:?}");
}

#[test]
fn values_are_rendered_as_javascript_does() {
    check_text(&Value::String("é"), Some("é"));
    check_text(&Value::Json("{ }"), Some("{ }"));
    check_text(&Value::BlobRef("{}"), Some("{}"));
    check_text(
        &Value::Integer(-9_007_199_254_740_991),
        Some("-9007199254740991"),
    );
    check_text(&Value::Boolean(true), Some("true"));
    check_text(&Value::Boolean(false), Some("false"));
    for (number, text) in [
        (2.0, "2"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (1e-7, "1e-7"),
        (1e-6, "0.000001"),
        (123_456.789, "123456.789"),
        (5e-324, "5e-324"),
        (f64::NAN, "NaN"),
        (f64::INFINITY, "Infinity"),
        (f64::NEG_INFINITY, "-Infinity"),
    ] {
        check_text(&Value::Float(number), Some(text));
    }
}

#[test]
fn empty_text_and_bytes_have_no_rendering() {
    check_text(&Value::String(""), None);
    check_text(&Value::Bytes(b"a"), None);
    check_text(&Value::Crdt(b"a"), None);
}

#[test]
fn a_presence_bitmap_sets_what_is_named() {
    assert_eq!(presence_bitmap(6, [2, 3]), [0x0c]);
    assert_eq!(presence_bitmap(9, [8, 0, 0]), [0x01, 0x01]);
    assert_eq!(presence_bitmap(8, []), [0]);
    assert_eq!(presence_bitmap(0, []), [0_u8; 0]);
}
