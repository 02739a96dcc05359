//! Rows segments, format SSG2 (§5.2).

use crate::{DecodeError, row::Column};

/// Writes a rows segment from encoded rows.
#[derive(Clone, Debug)]
pub struct SegmentWriter(());

impl SegmentWriter {
    /// Starts a segment.
    pub fn new(_table: &str, _schema_version: i32, _columns: &[Column]) -> Self {
        unimplemented!()
    }

    /// Adds one full row with its version.
    pub fn push(&mut self, _server_version: i64, _row: &[u8]) {
        unimplemented!()
    }

    /// Rows so far.
    pub fn row_count(&self) -> u64 {
        unimplemented!()
    }

    /// Bytes so far.
    pub fn byte_len(&self) -> usize {
        unimplemented!()
    }

    /// The complete segment.
    pub fn finish(self) -> Vec<u8> {
        unimplemented!()
    }
}

/// A decoded rows segment, for tests and tools.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RowsSegment {
    /// The table.
    pub table: String,
    /// The schema version of the columns.
    pub schema_version: i32,
    /// The columns of each row.
    pub columns: Vec<Column>,
    /// The rows, block by block.
    pub blocks: Vec<Vec<SegmentRow>>,
}

/// One row of a segment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SegmentRow {
    /// The row's version, at least 1.
    pub server_version: i64,
    /// The full row, encoded.
    pub row: Vec<u8>,
}

impl RowsSegment {
    /// Reads a complete segment.
    pub fn decode(_bytes: &[u8]) -> Result<Self, DecodeError> {
        unimplemented!()
    }

    /// Writes the segment, block by block as it is.
    pub fn encode(&self) -> Vec<u8> {
        unimplemented!()
    }
}

/// Checks that `bytes` are one complete segment, without keeping any of it.
pub fn check_rows_segment(_bytes: &[u8]) -> Result<(), DecodeError> {
    unimplemented!()
}
