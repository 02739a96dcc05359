//! Rows (§2.4).

use std::borrow::Cow;

use tidewater_model::ColumnType;

use crate::DecodeError;

/// One column of a table, as the codec needs to know it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Column {
    /// Its name; never on the wire in rows.
    pub name: String,
    /// Its type.
    pub kind: ColumnType,
    /// Whether it may be NULL.
    pub nullable: bool,
}

/// A value that is not NULL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// UTF-8 text.
    String(&'a str),
    /// A whole number in ±(2^53 − 1).
    Integer(i64),
    /// A double.
    Float(f64),
    /// True or false.
    Boolean(bool),
    /// JSON text as written.
    Json(&'a str),
    /// Raw bytes.
    Bytes(&'a [u8]),
    /// The text of a [`crate::BlobRef`] as written.
    BlobRef(&'a str),
    /// The state of a CRDT.
    Crdt(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Appends the encoding of the value.
    pub fn encode(&self, _out: &mut Vec<u8>) {
        unimplemented!()
    }

    /// The value as text of a row id, a scope value or a reference; `None` when it has none.
    pub fn render(&self) -> Option<Cow<'a, str>> {
        unimplemented!()
    }
}

/// A value together with the bytes it was decoded from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field<'a> {
    /// The value's bytes on the wire, with any length in front.
    pub encoded: &'a [u8],
    /// The value.
    pub value: Value<'a>,
}

/// One column of a sparse row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slot<'a> {
    /// The row does not mention the column.
    Absent,
    /// The column becomes NULL.
    Null,
    /// The column gets this value.
    Present(Field<'a>),
}

/// Reads a full row: a field for each column, `None` where NULL.
pub fn decode_row<'a>(
    _columns: &[Column],
    _payload: &'a [u8],
) -> Result<Vec<Option<Field<'a>>>, DecodeError> {
    unimplemented!()
}

/// Reads a sparse row: a slot for each column.
pub fn decode_sparse_row<'a>(
    _columns: &[Column],
    _primary_key: usize,
    _payload: &'a [u8],
) -> Result<Vec<Slot<'a>>, DecodeError> {
    unimplemented!()
}

/// Writes a full row from encoded values, `None` where NULL.
pub fn encode_row(_values: &[Option<&[u8]>]) -> Vec<u8> {
    unimplemented!()
}

/// Writes a sparse row from encoded values: `None` where absent, `Some(None)` where NULL.
pub fn encode_sparse_row(_values: &[Option<Option<&[u8]>>]) -> Vec<u8> {
    unimplemented!()
}

/// Writes a full row value by value.
#[derive(Clone, Debug)]
pub struct RowWriter(());

impl RowWriter {
    /// Starts a row of `column_count` columns.
    pub fn new(_column_count: usize) -> Self {
        unimplemented!()
    }

    /// The next column is NULL.
    pub fn null(&mut self) {
        unimplemented!()
    }

    /// The next column has this value.
    pub fn value(&mut self, _value: &Value<'_>) {
        unimplemented!()
    }

    /// The next column has the value with this encoding.
    pub fn encoded(&mut self, _value: &[u8]) {
        unimplemented!()
    }

    /// The row.
    pub fn finish(self) -> Vec<u8> {
        unimplemented!()
    }
}

/// A bitmap over `column_count` columns with the `present` ones set.
pub fn presence_bitmap(
    _column_count: usize,
    _present: impl IntoIterator<Item = usize>,
) -> Vec<u8> {
    unimplemented!()
}
