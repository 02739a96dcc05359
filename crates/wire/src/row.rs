//! Rows: full ones, and the sparse ones that wire version 3 pushes (§2.4, §6.2).
//!
//! Columns are positional and come from the caller. Decoding borrows everything from the
//! payload, and a [`Field`] keeps the bytes its value was read from, so that a changed row is
//! put together by copying (see [`encode_row`]) and an unchanged value never changes its bytes.

#[cfg(test)]
mod tests;
mod value;
mod write;

use tidewater_model::ColumnType;

pub use value::Value;
pub use write::{RowWriter, encode_row, encode_sparse_row, presence_bitmap};

pub(crate) use value::put_len;

use crate::{
    DecodeError,
    reader::{Reader, invalid_at},
};

const NULL_REFUSED: &str = "column that is not nullable is NULL";

/// One column of a table, as the codec needs to know it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Column {
    /// Its name; on the wire in segments only.
    pub name: String,
    /// Its type.
    pub kind: ColumnType,
    /// Whether it may be NULL.
    pub nullable: bool,
}

impl Column {
    fn shape(&self) -> Shape {
        Shape {
            kind: self.kind,
            nullable: self.nullable,
        }
    }
}

/// A column without its name: what decides how its value is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) kind: ColumnType,
    pub(crate) nullable: bool,
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
    /// The row does not mention the column: it stays as it is.
    Absent,
    /// The column becomes NULL.
    Null,
    /// The column gets this value.
    Present(Field<'a>),
}

/// Reads a full row: a field for each column, `None` where NULL.
pub fn decode_row<'a>(
    columns: &[Column],
    payload: &'a [u8],
) -> Result<Vec<Option<Field<'a>>>, DecodeError> {
    let mut reader = Reader::new(payload);
    let mut fields = Vec::with_capacity(columns.len());
    let shapes = columns.iter().map(Column::shape);
    walk_row(&mut reader, shapes, |field| fields.push(field))?;
    reader.finish("row")?;
    Ok(fields)
}

/// Reads a sparse row: a slot for each column. The one at index `primary_key` must be present.
pub fn decode_sparse_row<'a>(
    columns: &[Column],
    primary_key: usize,
    payload: &'a [u8],
) -> Result<Vec<Slot<'a>>, DecodeError> {
    let mut reader = Reader::new(payload);
    let presence = Bitmap::read(
        &mut reader,
        columns.len(),
        "presence bitmap",
        "presence bitmap names a column that does not exist",
    )?;
    if primary_key >= columns.len() || !presence.is_set(primary_key) {
        return Err(invalid_at(0, "primary key is absent"));
    }
    let nulls = Bitmap::read(
        &mut reader,
        presence.count(),
        "null bitmap",
        "null bitmap names a column that is absent",
    )?;
    let mut present = 0;
    let mut slots = Vec::with_capacity(columns.len());
    for (index, column) in columns.iter().enumerate() {
        if !presence.is_set(index) {
            slots.push(Slot::Absent);
            continue;
        }
        let is_null = nulls.is_set(present);
        present += 1;
        slots.push(match read_field(&mut reader, column.shape(), is_null)? {
            None => Slot::Null,
            Some(field) => Slot::Present(field),
        });
    }
    reader.finish("row")?;
    Ok(slots)
}

/// Reads one full row and shows `field` every column, `None` where NULL.
pub(crate) fn walk_row<'a>(
    reader: &mut Reader<'a>,
    shapes: impl ExactSizeIterator<Item = Shape>,
    mut field: impl FnMut(Option<Field<'a>>),
) -> Result<(), DecodeError> {
    let nulls = Bitmap::read(
        reader,
        shapes.len(),
        "null bitmap",
        "null bitmap names a column that does not exist",
    )?;
    for (index, shape) in shapes.enumerate() {
        field(read_field(reader, shape, nulls.is_set(index))?);
    }
    Ok(())
}

fn read_field<'a>(
    reader: &mut Reader<'a>,
    shape: Shape,
    is_null: bool,
) -> Result<Option<Field<'a>>, DecodeError> {
    let start = reader.position();
    if is_null {
        return if shape.nullable {
            Ok(None)
        } else {
            Err(invalid_at(start, NULL_REFUSED))
        };
    }
    let value = Value::read(reader, shape.kind)?;
    let encoded = reader.since(start);
    Ok(Some(Field { encoded, value }))
}

/// Bits in order, the lowest of the first byte first; unused bits of the last byte are zero.
#[derive(Clone, Copy, Debug)]
struct Bitmap<'a>(&'a [u8]);

impl<'a> Bitmap<'a> {
    fn read(
        reader: &mut Reader<'a>,
        bit_count: usize,
        what: &'static str,
        padding_rule: &'static str,
    ) -> Result<Self, DecodeError> {
        let start = reader.position();
        let bytes = reader.take(bit_count.div_ceil(8), what)?;
        let used = bit_count % 8;
        if used != 0 && bytes.last().is_some_and(|last| last >> used != 0) {
            return Err(invalid_at(start, padding_rule));
        }
        Ok(Self(bytes))
    }

    fn is_set(self, index: usize) -> bool {
        self.0[index / 8] & (1 << (index % 8)) != 0
    }

    fn count(self) -> usize {
        self.0
            .iter()
            .map(|byte| usize::from(byte.count_ones().to_le_bytes()[0]))
            .sum()
    }
}
