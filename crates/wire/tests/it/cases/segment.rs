//! Rows segments, good and bad.

use tidewater_model::ColumnType;
use tidewater_wire::{
    RowsSegment, SegmentRow,
    row::{Column, Value},
};

use super::{InvalidCase, Payload, SegmentCase, notes_columns, push};

pub(crate) fn cases() -> Vec<SegmentCase> {
    let case = |name, segment| SegmentCase { name, segment };
    vec![
        case("rows-two-blocks", two_blocks()),
        case("crdt-column", crdt_column()),
        case("blob-ref-column", blob_ref_column()),
        case(
            "no-rows",
            RowsSegment {
                blocks: Vec::new(),
                ..two_blocks()
            },
        ),
    ]
}

pub(super) fn two_blocks() -> RowsSegment {
    let rows = push::full_rows();
    let row = |server_version, index: usize| SegmentRow {
        server_version,
        row: rows[index].clone(),
    };
    RowsSegment {
        table: "notes".to_owned(),
        schema_version: 2,
        columns: notes_columns(),
        blocks: vec![vec![row(7, 0), row(4, 1)], vec![row((1 << 53) - 1, 2)]],
    }
}

fn one_column(kind: ColumnType, values: &[Value<'_>]) -> RowsSegment {
    let rows = values.iter().map(|value| {
        let mut row = vec![0];
        value.encode(&mut row);
        SegmentRow {
            server_version: 1,
            row,
        }
    });
    RowsSegment {
        table: "docs".to_owned(),
        schema_version: 1,
        columns: vec![Column {
            name: "value".to_owned(),
            kind,
            nullable: false,
        }],
        blocks: vec![rows.collect()],
    }
}

fn crdt_column() -> RowsSegment {
    let values = [Value::Crdt(&[1, 2, 0xfe]), Value::Crdt(&[])];
    one_column(ColumnType::Crdt, &values)
}

const BLOB_ID: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn blob_ref_column() -> RowsSegment {
    let texts = [
        format!(r#"{{"blobId":"{BLOB_ID}","byteLength":3}}"#),
        format!(r#"{{"blobId": "{BLOB_ID}", "byteLength": 3, "name": "a.txt"}}"#),
    ];
    one_column(
        ColumnType::BlobRef,
        &texts.each_ref().map(|text| Value::BlobRef(text)),
    )
}

fn head() -> Payload {
    Payload::new()
        .raw(b"SSG2")
        .u16(1)
        .u16(0)
        .text("todo")
        .i32(2)
        .u16(2)
        .text("id")
        .u8(1)
        .u8(0)
        .text("meta")
        .u8(5)
        .u8(1)
}

fn block(rows: u32, payload: &Payload) -> Payload {
    head().u32(rows).bytes(&payload.0)
}

fn row(server_version: i64, nulls: u8) -> Payload {
    Payload::new().i64(server_version).u8(nulls)
}

pub(crate) fn invalid() -> Vec<InvalidCase> {
    let good = |version| row(version, 2).text("a");
    let column = |tag, flags| {
        let head = Payload::new()
            .raw(b"SSG2")
            .u16(1)
            .u16(0)
            .text("todo")
            .i32(2);
        head.u16(1).text("id").u8(tag).u8(flags).u32(0)
    };
    let blob_ref = Payload::new().raw(b"SSG2").u16(1).u16(0).text("t").i32(1);
    let blob_ref = blob_ref.u16(1).text("b").u8(7).u8(0).u32(1);
    let blob_row = row(1, 0).text(r#"{"byteLength":3,"blobId":"x"}"#);
    let cases = [
        ("bad-magic", Payload::new().raw(b"SSG1").u16(1).u16(0)),
        (
            "bad-format-version",
            Payload::new().raw(b"SSG2").u16(2).u16(0),
        ),
        ("nonzero-flags", Payload::new().raw(b"SSG2").u16(1).u16(1)),
        ("column-type-unknown", column(9, 0)),
        ("column-flags-reserved-bit", column(1, 2)),
        ("null-bit-on-non-nullable", block(1, &row(1, 1)).u32(0)),
        (
            "null-bitmap-padding",
            block(1, &row(1, 0x82).text("a")).u32(0),
        ),
        ("missing-end-marker", block(1, &good(1))),
        (
            "json-column-not-json",
            block(1, &row(1, 0).text("a").text("{nope")).u32(0),
        ),
        ("blob-ref-not-canonical", blob_ref.bytes(&blob_row.0).u32(0)),
        ("server-version-zero", block(1, &good(0)).u32(0)),
        ("block-too-long", block(1, &good(1).u8(0)).u32(0)),
        ("block-too-short", block(2, &good(1)).u32(0)),
        ("trailing-bytes", block(1, &good(1)).u32(0).u8(0)),
        ("truncated-header", Payload::new().raw(b"SSG2").u16(1)),
    ];
    cases
        .into_iter()
        .map(|(name, payload)| InvalidCase {
            name,
            class: 9,
            bytes: payload.0,
        })
        .collect()
}
