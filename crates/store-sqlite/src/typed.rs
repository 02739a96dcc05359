//! Typed columns: an app's values as SQL sees them, beside the payload they come from.

use rusqlite::{
    Result, ToSql,
    types::{ToSqlOutput, ValueRef},
};
use tidewater_model::ColumnType;
use tidewater_wire::row::{Column, Field, Value};

/// The type of a column in the database.
pub(crate) fn sql_type(kind: ColumnType) -> &'static str {
    match kind {
        ColumnType::String | ColumnType::Json | ColumnType::BlobRef => "TEXT",
        ColumnType::Integer | ColumnType::Boolean => "INTEGER",
        ColumnType::Float => "REAL",
        ColumnType::Bytes | ColumnType::Crdt => "BLOB",
    }
}

/// A value to store in a typed column.
pub(crate) struct Typed<'a> {
    value: Option<Value<'a>>,
    nullable: bool,
}

impl<'a> Typed<'a> {
    pub(crate) fn new(column: &Column, field: Option<&Field<'a>>) -> Self {
        Self::of_value(column, field.map(|field| field.value))
    }

    pub(crate) fn of_value(column: &Column, value: Option<Value<'a>>) -> Self {
        Self {
            value,
            nullable: column.nullable,
        }
    }
}

impl ToSql for Typed<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        let Some(value) = self.value else {
            return Ok(ToSqlOutput::Borrowed(ValueRef::Null));
        };
        Ok(ToSqlOutput::Borrowed(match value {
            Value::String(text) | Value::Json(text) | Value::BlobRef(text) => {
                ValueRef::Text(text.as_bytes())
            }
            Value::Integer(number) => ValueRef::Integer(number),
            // SQLite stores NaN as NULL, which a column may forbid and the codec does not.
            // As text it is one value: found by an index, and taken once where it is unique.
            Value::Float(number) if number.is_nan() && !self.nullable => ValueRef::Text(b"NaN"),
            Value::Float(number) => ValueRef::Real(number),
            Value::Boolean(value) => ValueRef::Integer(i64::from(value)),
            Value::Bytes(bytes) | Value::Crdt(bytes) => ValueRef::Blob(bytes),
        }))
    }
}
