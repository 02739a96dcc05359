//! Typed columns: an app's values as SQL sees them, beside the payload they come from.
//!
//! A JSON value that PostgreSQL cannot hold (a number without end, a text with U+0000) is NULL in
//! its column, as in databases of the reference; the payload has it.

use std::borrow::Cow;

use tidewater_model::ColumnType;
use tidewater_wire::row::{Column, Field, Value};
use tokio_postgres::types::Type;

use crate::params::Param;

/// The type of a column in the database.
pub(crate) fn sql_type(kind: ColumnType) -> &'static str {
    match kind {
        ColumnType::String | ColumnType::BlobRef => "text",
        ColumnType::Json => "jsonb",
        ColumnType::Integer => "bigint",
        ColumnType::Boolean => "boolean",
        ColumnType::Float => "double precision",
        ColumnType::Bytes | ColumnType::Crdt => "bytea",
    }
}

/// The type as it is created: texts are compared byte by byte.
pub(crate) fn created_type(kind: ColumnType) -> &'static str {
    match sql_type(kind) {
        "text" => "text COLLATE \"C\"",
        other => other,
    }
}

/// The type in which values are sent.
pub(crate) fn sent_type(kind: ColumnType) -> &'static str {
    match sql_type(kind) {
        "jsonb" => "text",
        "double precision" => "float8",
        other => other,
    }
}

/// What makes a column's value of a value that was sent.
pub(crate) fn conversion(kind: ColumnType) -> &'static str {
    if kind == ColumnType::Json {
        "::jsonb"
    } else {
        ""
    }
}

/// NaN is NULL where there may be one, as in the databases that know no NaN: what a rule sees and
/// what is unique must not depend on where the rows are kept.
pub(crate) fn is_null(number: f64, nullable: bool) -> bool {
    nullable && number.is_nan()
}

/// The values of one column, row by row.
pub(crate) enum TypedColumn<'a> {
    Texts(Vec<Option<Cow<'a, str>>>),
    Integers(Vec<Option<i64>>),
    Floats {
        list: Vec<Option<f64>>,
        nullable: bool,
    },
    Booleans(Vec<Option<bool>>),
    Bytes(Vec<Option<&'a [u8]>>),
}

impl<'a> TypedColumn<'a> {
    pub(crate) fn new(column: &Column) -> Self {
        match column.kind {
            ColumnType::String | ColumnType::Json | ColumnType::BlobRef => Self::Texts(Vec::new()),
            ColumnType::Integer => Self::Integers(Vec::new()),
            ColumnType::Boolean => Self::Booleans(Vec::new()),
            ColumnType::Float => Self::Floats {
                list: Vec::new(),
                nullable: column.nullable,
            },
            ColumnType::Bytes | ColumnType::Crdt => Self::Bytes(Vec::new()),
        }
    }

    /// Adds the next row's value.
    ///
    /// # Panics
    ///
    /// When the value is not one of the column's type, which the row codec does not give.
    pub(crate) fn push(&mut self, field: Option<&Field<'a>>) {
        let value = field.map(|field| field.value);
        match (self, value) {
            (Self::Texts(list), None) => list.push(None),
            (Self::Integers(list), None) => list.push(None),
            (Self::Floats { list, .. }, None) => list.push(None),
            (Self::Booleans(list), None) => list.push(None),
            (Self::Bytes(list), None) => list.push(None),
            (Self::Texts(list), Some(Value::String(text) | Value::BlobRef(text))) => {
                list.push(Some(Cow::Borrowed(text)));
            }
            (Self::Texts(list), Some(Value::Json(text))) => {
                list.push(is_held(text).then_some(Cow::Borrowed(text)));
            }
            (Self::Integers(list), Some(Value::Integer(number))) => list.push(Some(number)),
            (Self::Floats { list, nullable }, Some(Value::Float(number))) => {
                list.push(Some(number).filter(|number| !is_null(*number, *nullable)));
            }
            (Self::Booleans(list), Some(Value::Boolean(value))) => list.push(Some(value)),
            (Self::Bytes(list), Some(Value::Bytes(bytes) | Value::Crdt(bytes))) => {
                list.push(Some(bytes));
            }
            (_, Some(value)) => unreachable!("{value:?} is of another type than its column"),
        }
    }

    pub(crate) fn into_param(self) -> Param<'a> {
        match self {
            Self::Texts(list) => Param::texts_or_null(list),
            Self::Integers(list) => Param::integers_or_null(list),
            Self::Floats { list, .. } => Param::new(list, Type::FLOAT8_ARRAY),
            Self::Booleans(list) => Param::new(list, Type::BOOL_ARRAY),
            Self::Bytes(list) => Param::bytes(list),
        }
    }
}

/// The columns of a table at some positions, for rows to come.
pub(crate) fn columns<'a>(columns: &[Column], positions: &[usize]) -> Vec<TypedColumn<'a>> {
    let columns = positions.iter().map(|at| &columns[*at]);
    columns.map(TypedColumn::new).collect()
}

/// Whether PostgreSQL takes a JSON text.
fn is_held(text: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(text).is_ok() && has_plain_tokens(text.as_bytes())
}

/// Whether no text has U+0000 and no number is too long or too large.
fn has_plain_tokens(mut rest: &[u8]) -> bool {
    let mut number_length = 0;
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'"' => {
                number_length = 0;
                let Some(after) = after_string(rest) else {
                    return false;
                };
                rest = after;
            }
            b'0'..=b'9' | b'.' | b'-' | b'+' => number_length += 1,
            // With an exponent of three digits a number stays within what the database takes.
            b'e' | b'E' if number_length > 0 => {
                let digits = rest.iter().filter(|byte| !matches!(byte, b'+' | b'-'));
                if digits.take_while(|byte| byte.is_ascii_digit()).count() > 3 {
                    return false;
                }
            }
            _ => number_length = 0,
        }
        if number_length > NUMBER_LENGTH_MAX {
            return false;
        }
    }
    true
}

const NUMBER_LENGTH_MAX: usize = 1_000;

/// What follows a string, unless it has U+0000.
fn after_string(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        match rest {
            [b'"', after @ ..] => return Some(after),
            [b'\\', b'u', b'0', b'0', b'0', b'0', ..] => return None,
            [b'\\', _, after @ ..] | [_, after @ ..] => rest = after,
            [] => return Some(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_postgres_cannot_hold_is_known() {
        for text in [
            "1",
            "\"\\\\u0000\"",
            "[1.5e3, -2, \"e99999\"]",
            "{\"a\\n\": null}",
        ] {
            assert!(is_held(text), "{text}");
        }
        let long = format!("0.{}1", "0".repeat(20_000));
        for text in [
            "",
            "{",
            "\"\\u0000\"",
            "{\"\\u0000\":1}",
            "1e-20000",
            "\"\\ud800\"",
            &long,
        ] {
            assert!(!is_held(text), "{text}");
        }
    }
}
