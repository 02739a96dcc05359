//! Rows segments: bootstrap data for one table, format SSG2 (§5.2).
//!
//! Writing copies rows as they are stored. Checking walks over every value and keeps none.
//! Block boundaries are part of the bytes (a receiver commits block by block), so they are part
//! of a decoded segment too.

#[cfg(test)]
mod tests;
mod writer;

use tidewater_model::ColumnType;

pub use writer::SegmentWriter;

use crate::{
    DecodeError,
    reader::{Reader, invalid_at},
    row::{Column, Shape, walk_row},
};

const MAGIC: &[u8; 4] = b"SSG2";
const FORMAT_VERSION: u16 = 1;
const NULLABLE: u8 = 1;

/// A decoded rows segment, for tests and tools. Servers use [`SegmentWriter`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RowsSegment {
    /// The table.
    pub table: String,
    /// The schema version the columns are from.
    pub schema_version: i32,
    /// The columns of each row.
    pub columns: Vec<Column>,
    /// The rows, block by block. No block is empty.
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
    /// Reads a complete segment. Its rows are checked and stay encoded.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut blocks: Vec<Vec<SegmentRow>> = Vec::new();
        let head = read_segment(&mut Reader::new(bytes), |block, server_version, row| {
            if block == blocks.len() {
                blocks.push(Vec::new());
            }
            blocks[block].push(SegmentRow {
                server_version,
                row: row.to_vec(),
            });
        })?;
        let columns = head
            .columns
            .iter()
            .map(|&(name, shape)| Column {
                name: name.to_owned(),
                kind: shape.kind,
                nullable: shape.nullable,
            })
            .collect();
        Ok(Self {
            table: head.table.to_owned(),
            schema_version: head.schema_version,
            columns,
            blocks,
        })
    }

    /// Writes the segment with its blocks as they are.
    ///
    /// # Panics
    ///
    /// As [`SegmentWriter`] does, and when a block is empty.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = SegmentWriter::new(&self.table, self.schema_version, &self.columns);
        for block in &self.blocks {
            assert!(!block.is_empty(), "a block has rows");
            for row in block {
                writer.append(row.server_version, &row.row);
            }
            writer.close_block();
        }
        writer.finish()
    }
}

/// Checks that `bytes` are one complete segment, without keeping any of it.
pub fn check_rows_segment(bytes: &[u8]) -> Result<(), DecodeError> {
    check_segment(&mut Reader::new(bytes))
}

/// Like [`check_rows_segment`], inside of something larger.
pub(crate) fn check_segment(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    read_segment(reader, |_, _, _| {}).map(|_| ())
}

struct Head<'a> {
    table: &'a str,
    schema_version: i32,
    columns: Vec<(&'a str, Shape)>,
}

/// Reads a segment up to its end and shows `row` every row: block, version, encoding.
fn read_segment<'a>(
    reader: &mut Reader<'a>,
    mut row: impl FnMut(usize, i64, &'a [u8]),
) -> Result<Head<'a>, DecodeError> {
    let head = read_head(reader)?;
    for block in 0.. {
        let row_count = reader.u32("row count")?;
        if row_count == 0 {
            break;
        }
        let byte_len = reader.count("block length")?;
        let mut rows = reader.part(byte_len, "block")?;
        for _ in 0..row_count {
            let start = rows.position();
            let server_version = rows.i64("server version")?;
            if server_version < 1 {
                return Err(invalid_at(start, "server version is below 1"));
            }
            let start = rows.position();
            walk_row(
                &mut rows,
                head.columns.iter().map(|&(_, shape)| shape),
                |_| {},
            )?;
            row(block, server_version, rows.since(start));
        }
        rows.finish("block")?;
    }
    reader.finish("segment")?;
    Ok(head)
}

fn read_head<'a>(reader: &mut Reader<'a>) -> Result<Head<'a>, DecodeError> {
    let start = reader.position();
    if reader.take(MAGIC.len(), "segment")? != MAGIC {
        return Err(invalid_at(start, "segment does not begin with SSG2"));
    }
    let start = reader.position();
    if reader.u16("format version")? != FORMAT_VERSION {
        return Err(invalid_at(start, "segment format version is not 1"));
    }
    let start = reader.position();
    if reader.u16("segment flags")? != 0 {
        return Err(invalid_at(start, "segment flags are not zero"));
    }
    let table = reader.str("table")?;
    let schema_version = reader.i32("schema version")?;
    let column_count = reader.u16("column count")?;
    let mut columns = Vec::new();
    for _ in 0..column_count {
        columns.push(read_column(reader)?);
    }
    Ok(Head {
        table,
        schema_version,
        columns,
    })
}

fn read_column<'a>(reader: &mut Reader<'a>) -> Result<(&'a str, Shape), DecodeError> {
    let name = reader.str("column name")?;
    let start = reader.position();
    let kind = ColumnType::from_tag(reader.u8("column type")?)
        .ok_or_else(|| invalid_at(start, "column type is unknown"))?;
    let start = reader.position();
    let flags = reader.u8("column flags")?;
    if flags & !NULLABLE != 0 {
        return Err(invalid_at(start, "column flags have undefined bits"));
    }
    let nullable = flags & NULLABLE != 0;
    Ok((name, Shape { kind, nullable }))
}
