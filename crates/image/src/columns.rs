//! The table of an image, and values as it holds them (§5.3, OQ-14).

use rusqlite::{
    Result, ToSql,
    types::{ToSqlOutput, ValueRef},
};
use tidewater_model::ColumnType;
use tidewater_schema::Table;
use tidewater_wire::row::{Field, Value};

/// What follows the columns of the table.
const VERSION_COLUMN: &str = "_syncular_version";

/// The statement that creates the table.
///
/// A text key makes it a table without rowids: one tree in the order of the rows, which are
/// appended, instead of one for the rows and one for the key. An integer key is the rowid.
pub(crate) fn create(table: &Table) -> String {
    let mut columns: Vec<String> = Vec::with_capacity(table.columns.len() + 1);
    for (place, column) in table.columns.iter().enumerate() {
        let not_null = if column.nullable { "" } else { " NOT NULL" };
        let key = if place == table.primary_key {
            " PRIMARY KEY"
        } else {
            ""
        };
        let kind = affinity(column.kind);
        columns.push(format!("{} {kind}{not_null}{key}", quoted(&column.name)));
    }
    columns.push(format!("{VERSION_COLUMN} INTEGER NOT NULL"));
    let is_rowid = table.columns[table.primary_key].kind == ColumnType::Integer;
    let rowids = if is_rowid { "" } else { " WITHOUT ROWID" };
    format!(
        "CREATE TABLE {} ({}){rowids}",
        quoted(&table.name),
        columns.join(", ")
    )
}

/// The statement that writes a row: its columns in their order, then its version.
pub(crate) fn insert(table: &Table) -> String {
    let places = vec!["?"; table.columns.len() + 1].join(", ");
    format!("INSERT INTO {} VALUES ({places})", quoted(&table.name))
}

fn affinity(kind: ColumnType) -> &'static str {
    match kind {
        ColumnType::String | ColumnType::Json | ColumnType::BlobRef => "TEXT",
        ColumnType::Integer | ColumnType::Boolean => "INTEGER",
        ColumnType::Float => "REAL",
        ColumnType::Bytes | ColumnType::Crdt => "BLOB",
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A value to bind.
pub(crate) struct Cell<'a>(pub(crate) Option<Field<'a>>);

impl Cell<'_> {
    /// Whether SQLite would store something else: it takes NaN for NULL.
    pub(crate) fn is_unsuited(&self) -> bool {
        matches!(self.0, Some(Field { value: Value::Float(number), .. }) if number.is_nan())
    }
}

impl ToSql for Cell<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        let Some(field) = &self.0 else {
            return Ok(ToSqlOutput::Borrowed(ValueRef::Null));
        };
        Ok(ToSqlOutput::Borrowed(match field.value {
            Value::String(text) | Value::Json(text) | Value::BlobRef(text) => {
                ValueRef::Text(text.as_bytes())
            }
            Value::Integer(number) => ValueRef::Integer(number),
            Value::Float(number) => ValueRef::Real(number),
            Value::Boolean(value) => ValueRef::Integer(i64::from(value)),
            Value::Bytes(bytes) | Value::Crdt(bytes) => ValueRef::Blob(bytes),
        }))
    }
}
