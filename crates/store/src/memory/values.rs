//! Declared indexes: rows by the values of some of their columns, and which values are unique.
//!
//! A database indexes typed columns, which only materialized tables have; so it is here. Values
//! are compared by their encoding, which says where it ends, so that no two lists of values read
//! alike. NULL is a value that is equal to itself in a lookup and unique never. What is not a number is
//! NULL where that is allowed, and elsewhere a value like others: the row is legal, and a
//! database whose floats have no such value must keep it somehow.

use std::sync::Arc;

use bytestring::ByteString;
use imbl::{OrdMap, OrdSet};
use tidewater_model::ColumnType;
use tidewater_schema::Table;
use tidewater_wire::row::{Column, Field, Value, decode_row};

use crate::{SqlValue, StoreError, StoreErrorKind};

/// The declared indexes of one table, in declaration order.
#[derive(Clone, Debug)]
pub(super) struct ValueIndexes(Vec<ValueIndex>);

#[derive(Clone, Debug)]
struct ValueIndex {
    columns: Vec<usize>,
    unique: bool,
    rows: OrdMap<Arc<[u8]>, OrdSet<ByteString>>,
}

/// The keys of one row, one for each index.
pub(super) struct RowKeys(Vec<ValueKey>);

#[derive(Eq, PartialEq)]
struct ValueKey {
    bytes: Arc<[u8]>,
    has_null: bool,
}

/// Why a row cannot be stored.
pub(super) enum RowFault {
    /// Another row has a value that must be unique.
    Taken,
    Store(StoreError),
}

impl From<StoreError> for RowFault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl ValueIndexes {
    pub(super) fn declared(table: &Table) -> Self {
        if !table.materialized {
            return Self(Vec::new());
        }
        let indexes = table.indexes.iter().map(|index| ValueIndex {
            columns: index.columns.clone(),
            unique: index.unique,
            rows: OrdMap::new(),
        });
        Self(indexes.collect())
    }

    /// The keys of a row with this payload.
    pub(super) fn keys(&self, table: &Table, payload: &[u8]) -> Result<RowKeys, StoreError> {
        if self.0.is_empty() {
            return Ok(RowKeys(Vec::new()));
        }
        let fields = decode_row(&table.columns, payload).map_err(|error| {
            StoreError::new(StoreErrorKind::Corrupt, "read a stored row").with_source(error)
        })?;
        let keys = self.0.iter().map(|index| {
            let values = index
                .columns
                .iter()
                .map(|column| (&table.columns[*column], fields[*column]));
            ValueKey::of_fields(values)
        });
        Ok(RowKeys(keys.collect()))
    }

    pub(super) fn insert(&mut self, keys: &RowKeys, row_id: &ByteString) -> Result<(), RowFault> {
        for (index, key) in self.0.iter_mut().zip(&keys.0) {
            let rows = index.rows.entry(Arc::clone(&key.bytes)).or_default();
            if index.unique && !key.has_null && !rows.is_empty() {
                return Err(RowFault::Taken);
            }
            rows.insert(row_id.clone());
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, keys: &RowKeys, row_id: &ByteString) {
        for (index, key) in self.0.iter_mut().zip(&keys.0) {
            let Some(rows) = index.rows.get_mut(&key.bytes) else {
                continue;
            };
            rows.remove(row_id);
            if rows.is_empty() {
                index.rows.remove(&key.bytes);
            }
        }
    }

    /// The rows with exactly these values in the index at this place; `None` when the table has
    /// no indexes in the database.
    pub(super) fn lookup(
        &self,
        table: &Table,
        place: usize,
        values: &[SqlValue],
    ) -> Option<OrdSet<ByteString>> {
        let index = self.0.get(place)?;
        assert_eq!(
            index.columns.len(),
            values.len(),
            "one value for each column of the index"
        );
        let columns = index.columns.iter().map(|column| &table.columns[*column]);
        let Some(key) = ValueKey::of_values(columns.zip(values)) else {
            return Some(OrdSet::new());
        };
        Some(index.rows.get(&key.bytes).cloned().unwrap_or_default())
    }

    /// The rows whose reference at this column has this text; `None` without an index on it.
    pub(super) fn lookup_text(
        &self,
        table: &Table,
        column: usize,
        text: &str,
    ) -> Option<OrdSet<ByteString>> {
        let index = self.0.iter().find(|index| index.columns == [column])?;
        let value = match table.columns[column].kind {
            ColumnType::Integer => text
                .parse()
                .ok()
                .filter(|value: &i64| value.to_string() == text)
                .map(SqlValue::Integer),
            ColumnType::Boolean => text
                .parse()
                .ok()
                .map(|value: bool| SqlValue::Integer(value.into())),
            _ => Some(SqlValue::Text(text.to_owned())),
        };
        let key = value.and_then(|value| {
            ValueKey::of_values(std::iter::once((&table.columns[column], &value)))
        });
        let rows = key.and_then(|key| index.rows.get(&key.bytes).cloned());
        Some(rows.unwrap_or_default())
    }
}

impl ValueKey {
    fn of_fields<'a>(fields: impl Iterator<Item = (&'a Column, Option<Field<'a>>)>) -> Self {
        let mut key = KeyWriter::default();
        for (column, field) in fields {
            match field {
                Some(field) => key.value(column, &field.value),
                None => key.null(),
            }
        }
        key.finish()
    }

    /// `None` when a value cannot be one of its column.
    fn of_values<'a>(values: impl Iterator<Item = (&'a Column, &'a SqlValue)>) -> Option<Self> {
        let mut key = KeyWriter::default();
        for (column, value) in values {
            match (column.kind, value) {
                (_, SqlValue::Null) => key.null(),
                (ColumnType::Integer, SqlValue::Integer(value)) => {
                    key.value(column, &Value::Integer(*value));
                }
                (ColumnType::Boolean, SqlValue::Integer(value @ (0 | 1))) => {
                    key.value(column, &Value::Boolean(*value == 1));
                }
                (ColumnType::Float, SqlValue::Real(value)) => {
                    key.value(column, &Value::Float(*value))
                }
                (
                    ColumnType::String | ColumnType::Json | ColumnType::BlobRef,
                    SqlValue::Text(text),
                ) => key.value(column, &Value::String(text)),
                (ColumnType::Bytes | ColumnType::Crdt, SqlValue::Blob(bytes)) => {
                    key.value(column, &Value::Bytes(bytes));
                }
                _ => return None,
            }
        }
        Some(key.finish())
    }
}

/// Puts the values of a key together. Text of any type is encoded alike, and so are bytes.
#[derive(Default)]
struct KeyWriter {
    bytes: Vec<u8>,
    has_null: bool,
}

impl KeyWriter {
    fn null(&mut self) {
        self.has_null = true;
        self.bytes.push(0);
    }

    fn value(&mut self, column: &Column, value: &Value<'_>) {
        match value {
            // Databases hold the two zeros equal, and whatever is not a number as well.
            Value::Float(number) if number.is_nan() && column.nullable => self.null(),
            Value::Float(number) if number.is_nan() => {
                self.bytes.push(1);
                Value::Float(f64::NAN).encode(&mut self.bytes);
            }
            Value::Float(0.0) => {
                self.bytes.push(1);
                Value::Float(0.0).encode(&mut self.bytes);
            }
            value => {
                self.bytes.push(1);
                value.encode(&mut self.bytes);
            }
        }
    }

    fn finish(self) -> ValueKey {
        ValueKey {
            bytes: Arc::from(self.bytes),
            has_null: self.has_null,
        }
    }
}
