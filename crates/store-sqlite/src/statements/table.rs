//! Statements about one app table, built when its schema comes into force.
//!
//! An app table is named by the schema and so by people: every name is quoted.

use std::fmt::Write;

use rusqlite::Connection;
use tidewater_schema::{Index, Table};

use super::Query;

/// The texts of a table's statements.
#[derive(Debug)]
pub(crate) struct TableSql {
    load: String,
    put: String,
    remove: String,
    scan: String,
    walk: String,
    count: String,
    /// For each declared index, if the database has them.
    scan_index: Vec<String>,
    /// For each column, if it has an index of its own.
    children: Vec<Option<String>>,
}

impl TableSql {
    /// Builds them for a table whose columns at the positions `typed` are kept beside the
    /// payload.
    pub(crate) fn new(table: &Table, typed: &[usize]) -> Self {
        let name = quoted(&table.name);
        let indexes: &[Index] = if table.materialized {
            &table.indexes
        } else {
            &[]
        };
        Self {
            load: format!(
                "SELECT _sync_server_version, _sync_scopes, _sync_payload, \
                 _sync_column_versions FROM {name} \
                 WHERE _sync_partition = ?1 AND _sync_row_id = ?2"
            ),
            put: put(table, &name, typed),
            remove: format!("DELETE FROM {name} WHERE _sync_partition = ?1 AND _sync_row_id = ?2"),
            scan: format!(
                "SELECT s.row_id, t._sync_server_version, t._sync_scopes, t._sync_payload \
                 FROM sync_row_scopes s CROSS JOIN {name} t \
                 WHERE s.partition = ?1 AND s.tbl = ?2 AND s.var = ?4 AND s.value = ?5 \
                 AND s.row_id >= ?3 \
                 AND t._sync_partition = ?1 AND t._sync_row_id = s.row_id ORDER BY s.row_id"
            ),
            walk: format!(
                "SELECT _sync_row_id, _sync_server_version, _sync_scopes, _sync_payload \
                 FROM {name} WHERE _sync_partition = ?1 AND _sync_row_id >= ?2 \
                 ORDER BY _sync_row_id"
            ),
            count: format!(
                "SELECT count(*) FROM (SELECT 1 FROM {name} \
                 WHERE _sync_partition = ?1 AND _sync_row_id >= ?2 AND _sync_row_id <= ?3 \
                 LIMIT ?4)"
            ),
            scan_index: indexes
                .iter()
                .map(|index| scan_index(table, &name, index))
                .collect(),
            children: (0..table.columns.len())
                .map(|column| {
                    let index = indexes.iter().find(|index| index.columns == [column])?;
                    Some(children(table, &name, index, column))
                })
                .collect(),
        }
    }

    /// Every statement.
    #[cfg(test)]
    pub(crate) fn texts(&self) -> Vec<&str> {
        let mut texts = vec![
            self.load.as_str(),
            &self.put,
            &self.remove,
            &self.scan,
            &self.walk,
            &self.count,
        ];
        texts.extend(self.scan_index.iter().map(String::as_str));
        texts.extend(self.children.iter().flatten().map(String::as_str));
        texts
    }
}

/// Inserts a row or replaces it in place. A replaced row keeps its entries in the primary key,
/// and a value that another row has in a unique index fails instead of replacing that row.
fn put(table: &Table, name: &str, typed: &[usize]) -> String {
    let mut columns: Vec<String> = PUT_META_COLUMNS.map(str::to_owned).to_vec();
    columns.extend(typed.iter().map(|at| quoted(&table.columns[*at].name)));
    let mut sql = format!(
        "INSERT INTO {name} (_sync_partition, _sync_row_id, {}) VALUES (?1, ?2",
        columns.join(", ")
    );
    for index in 0..columns.len() {
        write!(sql, ", ?{}", index + 3).expect("a string takes what is written to it");
    }
    sql.push_str(") ON CONFLICT (_sync_partition, _sync_row_id) DO UPDATE SET ");
    for (index, column) in columns.iter().enumerate() {
        if index > 0 {
            sql.push_str(", ");
        }
        write!(sql, "{column} = excluded.{column}").expect("a string takes what is written to it");
    }
    sql
}

/// What `put` writes between the key, `?1` and `?2`, and the typed columns, which follow.
const PUT_META_COLUMNS: [&str; 4] = [
    "_sync_server_version",
    "_sync_scopes",
    "_sync_payload",
    "_sync_column_versions",
];

/// Partition, first row id and limit, then a value for each column of the index.
fn scan_index(table: &Table, name: &str, index: &Index) -> String {
    let mut sql = format!(
        "SELECT _sync_row_id, _sync_server_version, _sync_scopes, _sync_payload, \
         _sync_column_versions FROM {name} INDEXED BY {} \
         WHERE _sync_partition = ?1 AND _sync_row_id >= ?2",
        quoted(&index.physical_name())
    );
    for (place, column) in index.columns.iter().enumerate() {
        let column = quoted(&table.columns[*column].name);
        write!(sql, " AND {column} IS ?{}", place + 4)
            .expect("a string takes what is written to it");
    }
    sql.push_str(" ORDER BY _sync_row_id LIMIT ?3");
    sql
}

/// Partition, parent and limit.
fn children(table: &Table, name: &str, index: &Index, column: usize) -> String {
    format!(
        "SELECT _sync_row_id FROM {name} INDEXED BY {} \
         WHERE _sync_partition = ?1 AND {} = ?2 ORDER BY _sync_row_id LIMIT ?3",
        quoted(&index.physical_name()),
        quoted(&table.columns[column].name)
    )
}

/// The statements of one table and one connection.
pub(crate) struct TableQueries<'c> {
    /// A row by its id: version, scopes, payload, column versions.
    pub(crate) load: Query<'c>,
    /// Writes a row: partition, row id, version, scopes, payload, column versions, typed columns.
    pub(crate) put: Query<'c>,
    /// Deletes a row by its id.
    pub(crate) remove: Query<'c>,
    /// Rows with one scope value, by id: id, version, scopes, payload.
    pub(crate) scan: Query<'c>,
    /// All rows, by id: id, version, scopes, payload.
    pub(crate) walk: Query<'c>,
    /// How many rows there are between two ids, up to a limit.
    pub(crate) count: Query<'c>,
    /// For each declared index: rows with the given values.
    pub(crate) scan_index: Vec<Query<'c>>,
    /// For each column: ids of rows with the given value.
    pub(crate) children: Vec<Option<Query<'c>>>,
}

impl<'c> TableQueries<'c> {
    pub(crate) fn new(connection: &'c Connection, sql: &TableSql) -> Self {
        let query = |text: &String| Query::new(connection, text.clone());
        Self {
            load: query(&sql.load),
            put: query(&sql.put),
            remove: query(&sql.remove),
            scan: query(&sql.scan),
            walk: query(&sql.walk),
            count: query(&sql.count),
            scan_index: sql.scan_index.iter().map(query).collect(),
            children: sql
                .children
                .iter()
                .map(|text| text.as_ref().map(query))
                .collect(),
        }
    }
}

/// A name as SQL takes it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_in_a_name_does_not_end_it() {
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
