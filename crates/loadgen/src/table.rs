//! The table under load: its columns, its scopes, its schema document, and its rows.
//!
//! Everything about a row is a function of where it stands and of a *stamp*, so what a commit
//! wrote can be written down again later instead of being remembered. A default row has about 67
//! encoded bytes, like the rows of the figures we compare with.

use bytes::Bytes;
use bytestring::ByteString;
use serde_json::{Value as Json, json};
use tidewater_model::{ColumnType, ScopeFilter, ScopeValues};
use tidewater_wire::{
    WireVersion,
    row::{Column, Value, encode_row, encode_sparse_row},
};

/// `id`, `list_id`, `title`, `done`, `position`.
const COLUMNS_MIN: usize = 5;
const TITLE_BYTES: usize = 24;
/// Every eighth row has a note.
const NOTE_EVERY: u64 = 8;

/// A table of tasks, with more columns and scopes when asked for.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) name: ByteString,
    pub(crate) schema_version: i32,
    pub(crate) columns: Vec<Column>,
    /// Scope variable of each of the columns after `id`.
    variables: Vec<String>,
    /// How many values each scope variable has.
    lists: u32,
}

/// A row's values, encoded; `None` is NULL. Column for column.
pub(crate) type Cells = Vec<Option<Vec<u8>>>;

impl Table {
    /// A table with this many columns, the first of which after the key are scopes.
    pub(crate) fn new(columns: usize, scopes: usize, lists: u32) -> anyhow::Result<Self> {
        anyhow::ensure!(scopes >= 1, "a row has at least one scope");
        anyhow::ensure!(lists >= 1, "there is at least one list");
        let columns_min = COLUMNS_MIN + scopes - 1;
        anyhow::ensure!(
            columns >= columns_min,
            "{scopes} scopes need at least {columns_min} columns"
        );
        let variables: Vec<String> = (1..=scopes).map(variable).collect();
        let mut all = vec![column("id".to_owned(), ColumnType::String, false)];
        let scope_columns = variables.iter().cloned();
        all.extend(scope_columns.map(|name| column(name, ColumnType::String, false)));
        all.push(column("title".to_owned(), ColumnType::String, false));
        all.push(column("done".to_owned(), ColumnType::Boolean, false));
        all.push(column("position".to_owned(), ColumnType::Integer, false));
        let extras = [
            ColumnType::String,
            ColumnType::Integer,
            ColumnType::Float,
            ColumnType::Boolean,
        ];
        let mut kinds = extras.into_iter().cycle();
        while all.len() < columns {
            let name = match all.len() == columns_min {
                true => "note".to_owned(),
                false => format!("extra_{}", all.len()),
            };
            all.push(column(
                name,
                kinds.next().unwrap_or(ColumnType::String),
                true,
            ));
        }
        Ok(Self {
            name: "tasks".into(),
            schema_version: 1,
            columns: all,
            variables,
            lists,
        })
    }

    /// The schema document a server must be configured with.
    pub(crate) fn schema_document(&self) -> Json {
        let columns: Vec<Json> = self
            .columns
            .iter()
            .map(|column| {
                json!({
                    "name": column.name,
                    "type": column.kind.name(),
                    "nullable": column.nullable,
                })
            })
            .collect();
        let scopes: Vec<Json> = self
            .variables
            .iter()
            .map(|variable| {
                let prefix = variable.trim_end_matches("_id");
                json!({
                    "pattern": format!("{prefix}:{{{variable}}}"),
                    "variable": variable,
                    "column": variable,
                })
            })
            .collect();
        json!({
            "irVersion": 1,
            "schemaVersion": self.schema_version,
            "schemaVersions": [{"version": self.schema_version, "migrations": ["0001_init"]}],
            "tables": [{
                "name": &*self.name,
                "primaryKey": "id",
                "columns": columns,
                "scopes": scopes,
                "indexes": [],
                "references": [],
            }],
            "subscriptions": [],
            "extensions": {},
        })
    }

    pub(crate) fn lists(&self) -> u32 {
        self.lists
    }

    /// The name of the variable that subscriptions ask for.
    pub(crate) fn list_variable(&self) -> &str {
        &self.variables[0]
    }

    /// A filter for one list, or for all of them.
    pub(crate) fn filter(&self, list: Option<u32>) -> ScopeFilter {
        let values = match list {
            Some(list) => vec![list_value(list)],
            None => (0..self.lists).map(list_value).collect(),
        };
        let entry = ScopeValues {
            variable: self.list_variable().to_owned(),
            values,
        };
        ScopeFilter::new(vec![entry]).expect("one variable is named once")
    }

    /// The values of a row in `list`.
    pub(crate) fn cells(&self, row_id: &str, list: u32, stamp: u64) -> Cells {
        let mut random = fastrand::Rng::with_seed(stamp);
        let mut cells = Vec::with_capacity(self.columns.len());
        cells.push(cell(&Value::String(row_id)));
        for _ in &self.variables {
            cells.push(cell(&Value::String(&list_value(list))));
        }
        cells.push(cell(&Value::String(&words(&mut random, TITLE_BYTES))));
        cells.push(cell(&Value::Boolean(random.bool())));
        cells.push(cell(&Value::Integer(random.i64(0..1_000_000))));
        let is_null = !stamp.is_multiple_of(NOTE_EVERY);
        for column in &self.columns[cells.len()..] {
            let is_note = cells.len() == COLUMNS_MIN + self.variables.len() - 1;
            cells.push(match column.kind {
                _ if is_note && is_null => None,
                ColumnType::Integer => cell(&Value::Integer(random.i64(-1_000..1_000))),
                ColumnType::Float => cell(&Value::Float(random.f64())),
                ColumnType::Boolean => cell(&Value::Boolean(random.bool())),
                _ => cell(&Value::String(&words(&mut random, TITLE_BYTES / 2))),
            });
        }
        cells
    }

    /// The index of the first column a patch may write; it writes that one and `position`.
    pub(crate) fn patched_columns(&self) -> [usize; 2] {
        let title = 1 + self.variables.len();
        [title, title + 2]
    }

    /// A push payload: of all columns, or of the key and those a patch writes.
    pub(crate) fn payload(&self, cells: &Cells, patch: bool, version: WireVersion) -> Bytes {
        if !version.is_sparse() {
            let values: Vec<Option<&[u8]>> = cells.iter().map(Option::as_deref).collect();
            return encode_row(&values).into();
        }
        let patched = self.patched_columns();
        let values: Vec<Option<Option<&[u8]>>> = cells
            .iter()
            .enumerate()
            .map(|(index, cell)| {
                let is_present = !patch || index == 0 || patched.contains(&index);
                is_present.then_some(cell.as_deref())
            })
            .collect();
        encode_sparse_row(&values).into()
    }
}

fn variable(number: usize) -> String {
    match number {
        1 => "list_id".to_owned(),
        _ => format!("scope{number}_id"),
    }
}

fn column(name: String, kind: ColumnType, nullable: bool) -> Column {
    Column {
        name,
        kind,
        nullable,
    }
}

/// The value that the rows of `list` carry in each of their scope columns.
pub(crate) fn list_value(list: u32) -> String {
    format!("list-{list:04}")
}

/// The id of the `index`th row of a filled table.
pub(crate) fn row_id(index: u32) -> ByteString {
    format!("task-{index:07}").into()
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "cells of a row are all of one type"
)]
fn cell(value: &Value<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    value.encode(&mut out);
    Some(out)
}

/// Text that compresses like text: words of a small vocabulary, cut to a length.
fn words(random: &mut fastrand::Rng, len: usize) -> String {
    const WORDS: [&str; 16] = [
        "water", "tide", "paint", "call", "the", "harbor", "write", "letter", "boat", "mend",
        "net", "before", "noon", "again", "check", "rope",
    ];
    let mut text = String::with_capacity(len + 8);
    while text.len() < len {
        text.push_str(WORDS[random.usize(0..WORDS.len())]);
        text.push(' ');
    }
    text.truncate(len);
    text
}

#[cfg(test)]
mod tests {
    use tidewater_wire::row::decode_row;

    use super::*;

    fn row_len(table: &Table, stamp: u64) -> usize {
        let cells = table.cells(&row_id(1), 0, stamp);
        let values: Vec<Option<&[u8]>> = cells.iter().map(Option::as_deref).collect();
        let row = encode_row(&values);
        decode_row(&table.columns, &row).unwrap();
        row.len()
    }

    #[test]
    fn a_default_row_has_67_bytes_and_sometimes_a_note() {
        let table = Table::new(6, 1, 1).unwrap();
        assert_eq!(row_len(&table, 1), 67);
        assert_eq!(row_len(&table, 8), 67 + 4 + 12);
    }

    #[test]
    fn every_width_makes_rows_that_decode() {
        for (columns, scopes) in [(5, 1), (6, 1), (30, 3), (50, 10), (14, 10)] {
            let table = Table::new(columns, scopes, 4).unwrap();
            assert_eq!(table.columns.len(), columns);
            row_len(&table, 3);
        }
        assert!(Table::new(5, 3, 1).is_err());
        assert!(Table::new(6, 0, 1).is_err());
        assert!(Table::new(6, 1, 0).is_err());
    }

    #[test]
    fn the_schema_document_names_columns_and_scopes() {
        let document = Table::new(8, 3, 1).unwrap().schema_document();
        let table = &document["tables"][0];
        assert_eq!(table["columns"][0]["name"], "id");
        assert_eq!(table["columns"][7]["name"], "note");
        assert_eq!(table["scopes"][0]["pattern"], "list:{list_id}");
        assert_eq!(table["scopes"][2]["pattern"], "scope3:{scope3_id}");
    }

    #[test]
    fn the_same_stamp_makes_the_same_row() {
        let table = Table::new(30, 1, 1).unwrap();
        assert_eq!(table.cells("a", 0, 5), table.cells("a", 0, 5));
        assert_ne!(table.cells("a", 0, 5), table.cells("a", 0, 6));
    }

    #[test]
    fn a_patch_presents_the_key_and_two_columns() {
        let table = Table::new(6, 1, 1).unwrap();
        let cells = table.cells("a", 0, 5);
        let patch = table.payload(&cells, true, WireVersion::V3);
        assert_eq!(patch[0], 0b01_0101);
        let full = table.payload(&cells, true, WireVersion::V2);
        assert_eq!(full, table.payload(&cells, false, WireVersion::V2));
    }
}
