//! Layouts: which columns the rows of a database were encoded with (§2.4).
//!
//! Stored rows are codec bytes without column names, so a database remembers the columns of the
//! last schema version applied to it, as JSON text: table → ordered `{name, type, nullable}`.
//! The text has the form that databases of the reference have.
//!
//! Types stay text here: a database written by a newer server may have some that this one does
//! not know, and the answer to that is "too new", not "unreadable".

use std::{collections::BTreeSet, fmt};

use serde::{
    Deserialize, Serialize, Serializer,
    de::{Deserializer, MapAccess, Visitor},
    ser::SerializeMap,
};
use tidewater_wire::row::Column;

use crate::{Schema, Table, identifier::identifier_fault};

/// The layouts of all tables, in declaration order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Layouts {
    tables: Vec<TableLayout>,
}

/// The layout of one table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TableLayout {
    /// The table's name.
    pub table: String,
    /// Its columns, in the order of the row codec.
    pub columns: Vec<LayoutColumn>,
}

/// One column of a layout.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LayoutColumn {
    /// Its name.
    pub name: String,
    /// The name of its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it may be NULL.
    pub nullable: bool,
}

/// The stored text is not a set of layouts.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the stored layouts are unreadable ({reason}): restore `sync_schema_meta` from a backup")]
pub struct LayoutsError {
    /// What is wrong with the text.
    pub reason: String,
}

impl Layouts {
    /// Reads the stored text.
    pub fn parse(text: &str) -> Result<Self, LayoutsError> {
        let layouts: Self = serde_json::from_str(text).map_err(|error| LayoutsError {
            reason: error.to_string(),
        })?;
        let mut names = BTreeSet::new();
        for layout in &layouts.tables {
            // A retired table is dropped by the name found here: it must be an app's own.
            if let Some(fault) = identifier_fault(&layout.table) {
                return Err(LayoutsError {
                    reason: format!("table {:?}: {fault}", layout.table),
                });
            }
            if !names.insert(layout.table.as_str()) {
                return Err(LayoutsError {
                    reason: format!("table {:?} is there twice", layout.table),
                });
            }
        }
        Ok(layouts)
    }

    /// The text to store.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("layouts are strings and booleans under string keys")
    }

    /// The tables, in order.
    pub fn tables(&self) -> &[TableLayout] {
        &self.tables
    }

    /// The columns of a table.
    pub fn find(&self, table: &str) -> Option<&[LayoutColumn]> {
        self.tables
            .iter()
            .find(|layout| layout.table == table)
            .map(|layout| layout.columns.as_slice())
    }
}

impl Schema {
    /// The layouts that a database has once this schema is applied to it.
    pub fn layouts(&self) -> Layouts {
        Layouts {
            tables: self.tables().iter().map(|table| layout(table)).collect(),
        }
    }
}

fn layout(table: &Table) -> TableLayout {
    TableLayout {
        table: table.name.clone(),
        columns: table.columns.iter().map(LayoutColumn::from).collect(),
    }
}

impl From<&Column> for LayoutColumn {
    fn from(column: &Column) -> Self {
        Self {
            name: column.name.clone(),
            kind: column.kind.name().to_owned(),
            nullable: column.nullable,
        }
    }
}

impl fmt::Display for LayoutColumn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}` {}", self.name, self.kind)?;
        if !self.nullable {
            formatter.write_str(" not null")?;
        }
        Ok(())
    }
}

impl Serialize for Layouts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.tables.len()))?;
        for layout in &self.tables {
            map.serialize_entry(&layout.table, &layout.columns)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Layouts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder)
    }
}

/// Reads the map without losing the order of its keys.
struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Layouts;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of column lists")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Layouts, A::Error> {
        let mut tables = Vec::new();
        while let Some((table, columns)) = map.next_entry()? {
            tables.push(TableLayout { table, columns });
        }
        Ok(Layouts { tables })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = concat!(
        r#"{"notes":[{"name":"id","type":"string","nullable":false},"#,
        r#"{"name":"stars","type":"integer","nullable":true}],"folders":[]}"#
    );

    #[test]
    fn the_text_is_written_as_it_was_read() {
        assert_eq!(Layouts::parse(TEXT).unwrap().to_json(), TEXT);
        assert_eq!(Layouts::parse("{}").unwrap().to_json(), "{}");
    }

    #[test]
    fn a_type_from_the_future_is_kept() {
        let text = TEXT.replace("integer", "decimal");
        let layouts = Layouts::parse(&text).unwrap();
        assert_eq!(layouts.find("notes").unwrap()[1].kind, "decimal");
    }

    #[track_caller]
    fn check_unreadable(text: &str, reason: &str) {
        let error = Layouts::parse(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn what_is_not_a_set_of_layouts_is_unreadable() {
        check_unreadable("", "EOF");
        check_unreadable("[]", "an object of column lists");
        check_unreadable(r#"{"notes":[{"name":"id"}]}"#, "missing field `type`");
        check_unreadable(r#"{"notes":[],"notes":[]}"#, "twice");
        check_unreadable("{} {}", "trailing characters");
    }

    #[test]
    fn a_layout_cannot_name_a_table_of_the_server() {
        check_unreadable(r#"{"sync_commits":[]}"#, "reserved");
        check_unreadable(r#"{"Sync_Commits":[]}"#, "reserved");
        check_unreadable(r#"{"":[]}"#, "empty");
    }
}
