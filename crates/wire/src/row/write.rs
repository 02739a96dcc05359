//! Puts rows together from values that are encoded already, by copying (§2.4).

use super::Value;

/// Writes a full row from the encoding of each column's value, `None` where NULL.
pub fn encode_row(values: &[Option<&[u8]>]) -> Vec<u8> {
    let values_len: usize = values.iter().flatten().map(|value| value.len()).sum();
    let mut row = bitmap_with_room(values.len(), values_len);
    for (index, value) in values.iter().enumerate() {
        match value {
            None => set(&mut row, index),
            Some(value) => row.extend_from_slice(value),
        }
    }
    row
}

/// Writes a sparse row from the encoding of each column's value: `None` where the column is
/// absent, `Some(None)` where it is NULL.
pub fn encode_sparse_row(values: &[Option<Option<&[u8]>>]) -> Vec<u8> {
    let present = || values.iter().flatten();
    let present_indexes = (0..values.len()).filter(|&index| values[index].is_some());
    let mut row = presence_bitmap(values.len(), present_indexes);
    let nulls = present().enumerate().filter(|(_, value)| value.is_none());
    row.extend(presence_bitmap(
        present().count(),
        nulls.map(|(index, _)| index),
    ));
    for value in present().flatten() {
        row.extend_from_slice(value);
    }
    row
}

/// A bitmap over `column_count` columns in which those that `present` names are set.
///
/// # Panics
///
/// When `present` names a column that does not exist.
pub fn presence_bitmap(column_count: usize, present: impl IntoIterator<Item = usize>) -> Vec<u8> {
    let mut bitmap = bitmap_with_room(column_count, 0);
    for index in present {
        assert!(index < column_count, "column {index} does not exist");
        set(&mut bitmap, index);
    }
    bitmap
}

/// Writes a full row column by column.
///
/// # Panics
///
/// When it gets more or fewer values than the row has columns.
#[derive(Clone, Debug)]
pub struct RowWriter {
    row: Vec<u8>,
    column_count: usize,
    next: usize,
}

impl RowWriter {
    /// Starts a row of `column_count` columns.
    pub fn new(column_count: usize) -> Self {
        Self {
            row: bitmap_with_room(column_count, 0),
            column_count,
            next: 0,
        }
    }

    /// The next column is NULL.
    pub fn null(&mut self) {
        let index = self.advance();
        set(&mut self.row, index);
    }

    /// The next column has this value.
    pub fn value(&mut self, value: &Value<'_>) {
        self.advance();
        value.encode(&mut self.row);
    }

    /// The next column has the value with this encoding.
    pub fn encoded(&mut self, value: &[u8]) {
        self.advance();
        self.row.extend_from_slice(value);
    }

    /// The row.
    pub fn finish(self) -> Vec<u8> {
        assert_eq!(self.next, self.column_count, "a row has all its columns");
        self.row
    }

    fn advance(&mut self) -> usize {
        let index = self.next;
        assert!(index < self.column_count, "a row has no more columns");
        self.next += 1;
        index
    }
}

fn bitmap_with_room(bit_count: usize, additional: usize) -> Vec<u8> {
    let bitmap_len = bit_count.div_ceil(8);
    let mut bytes = Vec::with_capacity(bitmap_len + additional);
    bytes.resize(bitmap_len, 0);
    bytes
}

/// Sets a bit of the bitmap that `bytes` begin with.
fn set(bytes: &mut [u8], index: usize) {
    bytes[index / 8] |= 1 << (index % 8);
}
