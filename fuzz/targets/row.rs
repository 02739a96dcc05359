//! Any bytes as a full and as a sparse row: no panic, and what is accepted is written back byte
//! for byte. The columns are those of the golden rows, and others that the input asks for.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidewater_model::ColumnType;
use tidewater_wire::row::{
    Column, Slot, Value, decode_row, decode_sparse_row, encode_row, encode_sparse_row,
};

fuzz_target!(|data: &[u8]| {
    check(&golden_columns(), data);
    if let Some((columns, row)) = asked_columns(data) {
        check(&columns, row);
    }
});

fn check(columns: &[Column], row: &[u8]) {
    if let Ok(fields) = decode_row(columns, row) {
        let values: Vec<Option<&[u8]>> = fields.iter().map(|f| f.map(|f| f.encoded)).collect();
        assert_eq!(encode_row(&values), row, "one row has one encoding");
        for field in fields.into_iter().flatten() {
            check_value(&field.value, field.encoded);
        }
    }
    if let Ok(slots) = decode_sparse_row(columns, 0, row) {
        let values: Vec<Option<Option<&[u8]>>> = slots
            .iter()
            .map(|slot| match slot {
                Slot::Absent => None,
                Slot::Null => Some(None),
                Slot::Present(field) => Some(Some(field.encoded)),
            })
            .collect();
        assert_eq!(encode_sparse_row(&values), row, "one row has one encoding");
    }
}

fn check_value(value: &Value<'_>, encoded: &[u8]) {
    let mut again = Vec::new();
    value.encode(&mut again);
    assert_eq!(again, encoded, "one value has one encoding");
    value.render();
}

/// The columns of the rows in `vectors/push`.
fn golden_columns() -> Vec<Column> {
    columns([
        (ColumnType::String, false),
        (ColumnType::String, true),
        (ColumnType::String, false),
        (ColumnType::Integer, true),
        (ColumnType::Float, false),
        (ColumnType::Boolean, false),
        (ColumnType::Json, true),
        (ColumnType::Bytes, true),
        (ColumnType::Crdt, true),
    ])
}

/// A count, then a byte for each column: its type, and in the highest bit whether it is nullable.
fn asked_columns(data: &[u8]) -> Option<(Vec<Column>, &[u8])> {
    let (count, rest) = data.split_first()?;
    let (kinds, row) = rest.split_at_checked(usize::from(count % 20))?;
    let kinds: Option<Vec<(ColumnType, bool)>> = kinds
        .iter()
        .map(|byte| Some((ColumnType::from_tag(byte & 0x7f)?, byte & 0x80 != 0)))
        .collect();
    Some((columns(kinds?), row))
}

fn columns(kinds: impl IntoIterator<Item = (ColumnType, bool)>) -> Vec<Column> {
    let column = |(kind, nullable)| Column {
        name: String::new(),
        kind,
        nullable,
    };
    kinds.into_iter().map(column).collect()
}
