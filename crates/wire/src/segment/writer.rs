//! Writes a rows segment by copying rows as they are stored.

use tidewater_model::limits::{SEGMENT_BLOCK_BYTES_TARGET, SEGMENT_BLOCK_ROWS_MAX};

use super::{FORMAT_VERSION, MAGIC, NULLABLE};
use crate::{row::Column, row::put_len};

/// Row count and byte length.
const BLOCK_HEAD_LEN: usize = 8;

/// Writes a rows segment from encoded rows.
///
/// Blocks are closed by the limits of the protocol. The caller vouches for the rows: each is a
/// full row of the given columns, with a version of at least 1.
///
/// # Panics
///
/// Names and blocks of 4 GiB, and tables of more than 65,535 columns, have no encoding.
#[derive(Clone, Debug)]
pub struct SegmentWriter {
    bytes: Vec<u8>,
    /// Where the rows of the last block start.
    block_at: usize,
    /// Rows in the last block; 0 when it is not begun.
    block_rows: usize,
    row_count: u64,
}

impl SegmentWriter {
    /// Starts a segment of `table` with `columns` as of `schema_version`.
    pub fn new(table: &str, schema_version: i32, columns: &[Column]) -> Self {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        put_text(&mut bytes, table);
        bytes.extend_from_slice(&schema_version.to_le_bytes());
        let column_count = u16::try_from(columns.len()).expect("a table has few columns");
        bytes.extend_from_slice(&column_count.to_le_bytes());
        for column in columns {
            put_text(&mut bytes, &column.name);
            bytes.push(column.kind.tag());
            bytes.push(if column.nullable { NULLABLE } else { 0 });
        }
        Self {
            bytes,
            block_at: 0,
            block_rows: 0,
            row_count: 0,
        }
    }

    /// Adds one full row with its version.
    pub fn push(&mut self, server_version: i64, row: &[u8]) {
        self.append(server_version, row);
        let block_len = self.bytes.len() - self.block_at;
        if self.block_rows >= SEGMENT_BLOCK_ROWS_MAX || block_len >= SEGMENT_BLOCK_BYTES_TARGET {
            self.close_block();
        }
    }

    /// Rows so far.
    pub fn row_count(&self) -> u64 {
        self.row_count
    }

    /// Bytes so far, without the end marker.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// The complete segment.
    pub fn finish(mut self) -> Vec<u8> {
        self.close_block();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes
    }

    /// Adds a row to the open block, or to a new one.
    pub(super) fn append(&mut self, server_version: i64, row: &[u8]) {
        if self.block_rows == 0 {
            self.bytes.extend_from_slice(&[0; BLOCK_HEAD_LEN]);
            self.block_at = self.bytes.len();
        }
        self.bytes.extend_from_slice(&server_version.to_le_bytes());
        self.bytes.extend_from_slice(row);
        self.block_rows += 1;
        self.row_count += 1;
    }

    /// Completes the open block, if there is one.
    pub(super) fn close_block(&mut self) {
        if self.block_rows == 0 {
            return;
        }
        let rows = u32::try_from(self.block_rows).expect("a block has few rows");
        let len = u32::try_from(self.bytes.len() - self.block_at).expect("a block is small");
        let head = self.block_at - BLOCK_HEAD_LEN;
        self.bytes[head..head + 4].copy_from_slice(&rows.to_le_bytes());
        self.bytes[head + 4..self.block_at].copy_from_slice(&len.to_le_bytes());
        self.block_rows = 0;
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend_from_slice(text.as_bytes());
}
