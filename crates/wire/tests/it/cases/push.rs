//! Rows of one table, and the sparse ones that wire version 3 pushes.

use tidewater_model::ColumnType;
use tidewater_wire::row::{Column, Value, encode_row, encode_sparse_row};

use super::{Payload, RowCase};

/// Nine columns, one of almost every type; the first is the primary key.
pub(crate) fn columns() -> Vec<Column> {
    [
        ("id", ColumnType::String, false),
        ("title", ColumnType::String, true),
        ("body", ColumnType::String, false),
        ("count", ColumnType::Integer, true),
        ("score", ColumnType::Float, false),
        ("done", ColumnType::Boolean, false),
        ("meta", ColumnType::Json, true),
        ("blob", ColumnType::Bytes, true),
        ("doc", ColumnType::Crdt, true),
    ]
    .into_iter()
    .map(|(name, kind, nullable)| Column {
        name: name.to_owned(),
        kind,
        nullable,
    })
    .collect()
}

fn encoded(values: &[Option<Value<'_>>]) -> Vec<Option<Vec<u8>>> {
    values
        .iter()
        .map(|value| {
            value.map(|value| {
                let mut out = Vec::new();
                value.encode(&mut out);
                out
            })
        })
        .collect()
}

const FULL: [Option<Value<'_>>; 9] = [
    Some(Value::String("n-2")),
    None,
    Some(Value::String("body")),
    Some(Value::Integer(-7)),
    Some(Value::Float(0.125)),
    Some(Value::Boolean(false)),
    Some(Value::Json(r#"{"k":true}"#)),
    Some(Value::Bytes(&[0, 1, 0xfe, 0xff])),
    Some(Value::Crdt(&[1, 2, 0xfe])),
];

const UNICODE: [Option<Value<'_>>; 9] = [
    Some(Value::String("n-1")),
    Some(Value::String("\u{1F4DD} déjà \u{E000}")),
    Some(Value::String("")),
    None,
    Some(Value::Float(f64::INFINITY)),
    Some(Value::Boolean(true)),
    Some(Value::Json(" [1.50, \"\\u00e9\"]  ")),
    None,
    None,
];

const LIMITS: [Option<Value<'_>>; 9] = [
    Some(Value::String("n-3")),
    Some(Value::String("\u{0}")),
    Some(Value::String("boundary")),
    Some(Value::Integer((1 << 53) - 1)),
    Some(Value::Float(-0.0)),
    Some(Value::Boolean(true)),
    None,
    Some(Value::Bytes(&[])),
    Some(Value::Crdt(&[])),
];

/// Three full rows.
pub(super) fn full_rows() -> [Vec<u8>; 3] {
    [&FULL, &UNICODE, &LIMITS].map(|values| {
        let values = encoded(values);
        let values: Vec<Option<&[u8]>> = values.iter().map(Option::as_deref).collect();
        encode_row(&values)
    })
}

pub(super) fn full_row() -> Vec<u8> {
    let [row, _, _] = full_rows();
    row
}

/// A patch: the title becomes NULL, the meta data changes.
pub(super) fn partial() -> Vec<u8> {
    let id = encoded(&[Some(Value::String("n-1"))]);
    let meta = encoded(&[Some(Value::Json(r#"{"tags": ["a"]}"#))]);
    let mut slots = [None; 9];
    slots[0] = Some(id[0].as_deref());
    slots[1] = Some(None);
    slots[6] = Some(meta[0].as_deref());
    encode_sparse_row(&slots)
}

fn all_present(values: &[Option<Value<'_>>]) -> Vec<u8> {
    let values = encoded(values);
    let slots: Vec<Option<Option<&[u8]>>> =
        values.iter().map(|value| Some(value.as_deref())).collect();
    encode_sparse_row(&slots)
}

fn key_only() -> Vec<u8> {
    let id = encoded(&[Some(Value::String("n-1"))]);
    let mut slots = [None; 9];
    slots[0] = Some(id[0].as_deref());
    encode_sparse_row(&slots)
}

pub(crate) fn cases() -> Vec<RowCase> {
    let case = |name, bytes| RowCase { name, bytes };
    vec![
        case("sparse-row", partial()),
        case("sparse-row-full", all_present(&FULL)),
        case("sparse-row-key-only", key_only()),
        case("sparse-row-limits", all_present(&LIMITS)),
    ]
}

pub(crate) fn invalid() -> Vec<RowCase> {
    let presence = |low, high| Payload::new().u8(low).u8(high);
    [
        ("presence-padding-bit", presence(0x01, 0x02)),
        (
            "absent-primary-key",
            presence(0x02, 0x00).u8(0).text("unnamed"),
        ),
        ("null-bit-for-absent-column", presence(0x01, 0x00).u8(0x08)),
        ("null-bit-on-non-nullable", presence(0x03, 0x00).u8(0x01)),
        (
            "trailing-bytes",
            presence(0x01, 0x00).u8(0).text("n-1").u8(0),
        ),
        ("truncated", presence(0x03, 0x00).u8(0).text("n-1")),
        (
            "json-not-json",
            presence(0x41, 0x00).u8(0).text("n-1").text("{nope"),
        ),
        (
            "integer-out-of-range",
            presence(0x09, 0x00).u8(0).text("n-1").i64(1 << 53),
        ),
    ]
    .into_iter()
    .map(|(name, payload)| RowCase {
        name,
        bytes: payload.0,
    })
    .collect()
}
