//! Holds the pages of a bootstrap against what was asked for.
//!
//! Rows must come once each, in the bytewise order of their ids over all pages, from the lists
//! that were asked for, and with the columns of the table.

use std::collections::BTreeSet;

use tidewater_model::ScopeFilter;
use tidewater_wire::{
    RowsSegment, SegmentRow,
    row::{Value, decode_row},
};

use super::{ProblemKind, Problems};
use crate::table::Table;

/// Rows of a page by the headers of its blocks, without reading them; `None` if it has other
/// parts than a page has.
pub(crate) fn count_rows(page: &[u8]) -> Option<u64> {
    let mut rest = Skip(page.strip_prefix(b"SSG2")?);
    // Format version and flags, then table and schema version.
    rest.take(4)?;
    rest.text()?;
    rest.take(4)?;
    for _ in 0..u16::from_le_bytes(rest.take(2)?.try_into().ok()?) {
        rest.text()?;
        rest.take(2)?;
    }
    let mut rows = 0;
    loop {
        let block = rest.number()?;
        if block == 0 {
            return rest.0.is_empty().then_some(rows);
        }
        rows += u64::from(block);
        rest.text()?;
    }
}

/// What of a page was not looked at yet.
struct Skip<'a>(&'a [u8]);

impl<'a> Skip<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    /// Anything with its length in front.
    fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        self.take(length)
    }
}

/// Reads the pages of one bootstrap.
#[derive(Debug)]
pub(crate) struct RowsCheck<'a> {
    table: &'a Table,
    lists: BTreeSet<&'a str>,
    last_row_id: Option<String>,
    rows: u64,
    problems: Problems,
}

impl<'a> RowsCheck<'a> {
    pub(crate) fn new(table: &'a Table, asked: &'a ScopeFilter) -> Self {
        let lists = asked
            .entries()
            .iter()
            .filter(|entry| entry.variable == table.list_variable())
            .flat_map(|entry| entry.values.iter().map(String::as_str))
            .collect();
        Self {
            table,
            lists,
            last_row_id: None,
            rows: 0,
            problems: Problems::default(),
        }
    }

    /// Takes the next page and shows `row` each of its rows: id, version, encoding.
    pub(crate) fn page(&mut self, bytes: &[u8], mut row: impl FnMut(&str, i64, &[u8])) {
        let segment = match RowsSegment::decode(bytes) {
            Ok(segment) => segment,
            Err(error) => {
                self.problems.add(ProblemKind::BadSegment, error);
                return;
            }
        };
        if segment.table != *self.table.name || segment.columns != self.table.columns {
            let text = format!("segment of {} has other columns", segment.table);
            self.problems.add(ProblemKind::BadSegment, text);
            return;
        }
        for found in segment.blocks.iter().flatten() {
            if let Some(row_id) = self.check_row(found) {
                row(&row_id, found.server_version, &found.row);
                self.last_row_id = Some(row_id);
            }
        }
    }

    /// How many rows there were, and what was wrong with them.
    pub(crate) fn finish(self) -> (u64, Problems) {
        (self.rows, self.problems)
    }

    fn check_row(&mut self, found: &SegmentRow) -> Option<String> {
        self.rows += 1;
        let fields = decode_row(&self.table.columns, &found.row).ok()?;
        let text = |index: usize| match fields[index].map(|field| field.value) {
            Some(Value::String(text)) => text,
            _ => "",
        };
        let (row_id, list) = (text(0), text(1));
        if !self.lists.contains(list) {
            let text = format!("{row_id} is in {list:?}");
            self.problems.add(ProblemKind::ForeignRow, text);
        }
        if let Some(last) = &self.last_row_id
            && row_id <= last.as_str()
        {
            let text = format!("{row_id} comes after {last}");
            self.problems.add(ProblemKind::RowOrder, text);
        }
        Some(row_id.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use tidewater_model::ColumnType;
    use tidewater_wire::{SegmentWriter, row::Column};

    use super::*;

    #[test]
    fn rows_are_counted_by_the_headers_of_their_blocks() {
        let columns = [Column {
            name: "id".to_owned(),
            kind: ColumnType::String,
            nullable: false,
        }];
        for rows in [0, 1, 999, 1_000, 1_001, 3_000] {
            let mut writer = SegmentWriter::new("tasks", 1, &columns);
            for _ in 0..rows {
                writer.push(1, b"\0\x01\0\0\0a");
            }
            let page: Vec<u8> = writer.finish();
            assert_eq!(count_rows(&page), Some(rows));
            assert_eq!(count_rows(&page[..page.len() - 1]), None);
            assert_eq!(count_rows(&[&page[..], b"x"].concat()), None);
        }
        assert_eq!(count_rows(b"SQLite format 3\0"), None);
    }
}
