//! What the database says about its own tables and indexes.

use rusqlite::{Connection, Result};

use crate::statements::quoted;

/// The tables and indexes of a database, as they are now.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    tables: Vec<TableInfo>,
}

/// A table.
#[derive(Debug)]
pub(crate) struct TableInfo {
    pub(crate) name: String,
    pub(crate) columns: Vec<ColumnInfo>,
    pub(crate) indexes: Vec<IndexInfo>,
    /// Whether it has triggers or CHECK constraints.
    pub(crate) has_rules: bool,
}

/// A column of a table.
#[derive(Debug)]
pub(crate) struct ColumnInfo {
    pub(crate) name: String,
    pub(crate) sql_type: String,
    pub(crate) not_null: bool,
    /// Its place in the primary key, from 1; 0 for none.
    pub(crate) key_place: i64,
}

/// An index of a table.
#[derive(Debug)]
pub(crate) struct IndexInfo {
    pub(crate) name: String,
    pub(crate) unique: bool,
    /// Whether it was created by a statement of its own, and not by a constraint.
    pub(crate) free_standing: bool,
    /// Whether it covers only some rows.
    pub(crate) partial: bool,
    /// Its columns; `None` for an expression.
    pub(crate) columns: Vec<Option<String>>,
}

impl Catalog {
    /// Reads it.
    pub(crate) fn read(connection: &Connection) -> Result<Self> {
        let tables = connection
            .prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<Vec<(String, Option<String>)>>>()?;
        let tables = tables
            .into_iter()
            .map(|(name, sql)| read_table(connection, name, &sql.unwrap_or_default()))
            .collect::<Result<_>>()?;
        Ok(Self { tables })
    }

    /// A table by its name, in any case: SQLite does not tell them apart.
    pub(crate) fn find(&self, name: &str) -> Option<&TableInfo> {
        self.tables
            .iter()
            .find(|table| table.name.eq_ignore_ascii_case(name))
    }

    /// Every table.
    pub(crate) fn tables(&self) -> &[TableInfo] {
        &self.tables
    }
}

impl TableInfo {
    /// A column by its name, in any case.
    pub(crate) fn column(&self, name: &str) -> Option<&ColumnInfo> {
        self.columns
            .iter()
            .find(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Whether it has an index of this name.
    pub(crate) fn has_index(&self, name: &str) -> bool {
        self.indexes
            .iter()
            .any(|index| index.name.eq_ignore_ascii_case(name))
    }

    /// Whether a row can be refused for a reason beyond its primary key and NOT NULL.
    pub(crate) fn is_constrained(&self) -> bool {
        self.has_rules
            || self
                .indexes
                .iter()
                .any(|index| index.unique && !self.is_primary_key(index))
    }

    fn is_primary_key(&self, index: &IndexInfo) -> bool {
        !index.free_standing
            && index.columns.iter().enumerate().all(|(place, name)| {
                let column = name.as_deref().and_then(|name| self.column(name));
                column.is_some_and(|column| usize::try_from(column.key_place) == Ok(place + 1))
            })
    }
}

fn read_table(connection: &Connection, name: String, sql: &str) -> Result<TableInfo> {
    let columns = connection
        .prepare(&format!("PRAGMA table_xinfo({})", quoted(&name)))?
        .query_map([], |row| {
            Ok(ColumnInfo {
                name: row.get(1)?,
                sql_type: row.get(2)?,
                not_null: row.get(3)?,
                key_place: row.get(5)?,
            })
        })?
        .collect::<Result<Vec<_>>>()?;
    let mut indexes = connection
        .prepare(&format!("PRAGMA index_list({})", quoted(&name)))?
        .query_map([], |row| {
            Ok(IndexInfo {
                name: row.get(1)?,
                unique: row.get(2)?,
                free_standing: row.get::<_, String>(3)? == "c",
                partial: row.get(4)?,
                columns: Vec::new(),
            })
        })?
        .collect::<Result<Vec<_>>>()?;
    for index in &mut indexes {
        index.columns = connection
            .prepare(&format!("PRAGMA index_info({})", quoted(&index.name)))?
            .query_map([], |row| row.get(2))?
            .collect::<Result<_>>()?;
    }
    let triggers: i64 = connection.query_row(
        "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?1",
        [&name],
        |row| row.get(0),
    )?;
    Ok(TableInfo {
        has_rules: triggers > 0 || sql.to_ascii_uppercase().contains("CHECK"),
        name,
        columns,
        indexes,
    })
}
