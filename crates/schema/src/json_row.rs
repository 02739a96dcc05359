//! Rows as JSON objects and back, for people and for files.
//!
//! Every value survives the round trip: text, numbers and booleans as themselves; JSON and blob
//! references as their raw text, because the text is the value; bytes and CRDT states as
//! `{"$bytes": "<hex>"}`; floats that JSON lacks as `{"$float": "NaN"}`.

use serde_json::{Map, Value as Json, json};
use tidewater_model::ColumnType;
use tidewater_wire::{
    DecodeError,
    row::{Column, Value, decode_row, encode_row},
};

use crate::Table;

/// A JSON object that is no row of its table.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JsonRowError {
    /// A member names no column.
    #[error("there is no column {0:?}")]
    UnknownColumn(String),
    /// A column that may not be NULL has no value.
    #[error("column {0:?} needs a value")]
    Missing(String),
    /// A value does not fit its column.
    #[error("column {column:?} is of type {kind} and cannot hold {value}")]
    Mismatch {
        /// The column.
        column: String,
        /// Its type.
        kind: &'static str,
        /// The value, as JSON, cut short.
        value: String,
    },
}

/// The columns of a full row, by name, in declaration order.
pub fn row_to_json(table: &Table, payload: &[u8]) -> Result<Map<String, Json>, DecodeError> {
    let fields = decode_row(&table.columns, payload)?;
    let columns = table.columns.iter().zip(fields);
    Ok(columns
        .map(|(column, field)| {
            let value = field.map_or(Json::Null, |field| value_to_json(&field.value));
            (column.name.clone(), value)
        })
        .collect())
}

/// A full row from its columns by name; a nullable column that is not named is NULL.
pub fn row_from_json(table: &Table, row: &Map<String, Json>) -> Result<Vec<u8>, JsonRowError> {
    if let Some(stranger) = row.keys().find(|name| table.column(name).is_none()) {
        return Err(JsonRowError::UnknownColumn(stranger.clone()));
    }
    let mut encoded = Vec::with_capacity(table.columns.len());
    for column in &table.columns {
        let value = match row.get(&column.name) {
            None | Some(Json::Null) if column.nullable => None,
            None | Some(Json::Null) => return Err(JsonRowError::Missing(column.name.clone())),
            Some(value) => Some(encode_value(column, value)?),
        };
        encoded.push(value);
    }
    let encoded: Vec<Option<&[u8]>> = encoded.iter().map(Option::as_deref).collect();
    Ok(encode_row(&encoded))
}

/// One value as JSON.
pub fn value_to_json(value: &Value<'_>) -> Json {
    match *value {
        Value::String(text) | Value::Json(text) | Value::BlobRef(text) => json!(text),
        Value::Integer(number) => json!(number),
        Value::Float(number) if number.is_finite() => json!(number),
        Value::Float(number) if number.is_nan() => json!({ "$float": "NaN" }),
        Value::Float(number) if number > 0.0 => json!({ "$float": "Infinity" }),
        Value::Float(_) => json!({ "$float": "-Infinity" }),
        Value::Boolean(flag) => json!(flag),
        Value::Bytes(bytes) | Value::Crdt(bytes) => json!({ "$bytes": hex::encode(bytes) }),
    }
}

fn encode_value(column: &Column, value: &Json) -> Result<Vec<u8>, JsonRowError> {
    let mut out = Vec::new();
    let text = value.as_str();
    let fits = match column.kind {
        ColumnType::String => text.map(|text| Value::String(text).encode(&mut out)),
        ColumnType::Json => text.map(|text| Value::Json(text).encode(&mut out)),
        ColumnType::BlobRef => text.map(|text| Value::BlobRef(text).encode(&mut out)),
        ColumnType::Integer => value
            .as_i64()
            .map(|number| Value::Integer(number).encode(&mut out)),
        ColumnType::Float => float(value).map(|number| Value::Float(number).encode(&mut out)),
        ColumnType::Boolean => value
            .as_bool()
            .map(|flag| Value::Boolean(flag).encode(&mut out)),
        ColumnType::Bytes | ColumnType::Crdt => value["$bytes"]
            .as_str()
            .and_then(|text| hex::decode(text).ok())
            .map(|bytes| Value::Bytes(&bytes).encode(&mut out)),
    };
    // What JSON can say and a column cannot hold, such as text that is no JSON, is found by
    // reading the value back.
    let sound = fits.is_some() && is_sound(column, &out);
    if sound {
        return Ok(out);
    }
    let mut shown = value.to_string();
    if let Some((cut, _)) = shown.char_indices().nth(SHOWN_CHARS_MAX) {
        shown.truncate(cut);
        shown.push('…');
    }
    let kind = column.kind.name();
    Err(JsonRowError::Mismatch {
        column: column.name.clone(),
        kind,
        value: shown,
    })
}

/// Characters of a wrong value in an error.
const SHOWN_CHARS_MAX: usize = 80;

fn is_sound(column: &Column, encoded: &[u8]) -> bool {
    let row = encode_row(&[Some(encoded)]);
    decode_row(std::slice::from_ref(column), &row).is_ok()
}

fn float(value: &Json) -> Option<f64> {
    if let Some(number) = value.as_f64() {
        return Some(number);
    }
    match value["$float"].as_str()? {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Schema;

    fn schema() -> Schema {
        Schema::from_json(
            r#"{"version": 1, "tables": [{"name": "t", "primaryKey": "id", "scopes": ["s:{s}"],
                "columns": [
                  {"name": "id", "type": "string", "nullable": false},
                  {"name": "s", "type": "string", "nullable": false},
                  {"name": "n", "type": "integer", "nullable": true},
                  {"name": "f", "type": "float", "nullable": true},
                  {"name": "b", "type": "boolean", "nullable": true},
                  {"name": "j", "type": "json", "nullable": true},
                  {"name": "raw", "type": "bytes", "nullable": true}]}]}"#,
        )
        .unwrap()
    }

    fn row(value: Json) -> Map<String, Json> {
        value.as_object().unwrap().clone()
    }

    #[track_caller]
    fn check_round_trip(value: Json) {
        let schema = schema();
        let table = &schema.tables()[0];
        let payload = row_from_json(table, &row(value.clone())).unwrap();
        assert_eq!(Json::Object(row_to_json(table, &payload).unwrap()), value);
    }

    #[test]
    fn every_kind_of_value_survives_the_round_trip() {
        check_round_trip(json!({
            "id": "1", "s": "x", "n": -3, "f": 0.5, "b": true, "j": "{\"a\": 1}",
            "raw": {"$bytes": "00ff"},
        }));
        for float in ["NaN", "Infinity", "-Infinity"] {
            check_round_trip(json!({
                "id": "1", "s": "x", "n": null, "f": {"$float": float}, "b": null, "j": null,
                "raw": null,
            }));
        }
    }

    #[track_caller]
    fn check_refused(value: Json, expected: &str) {
        let schema = schema();
        let error = row_from_json(&schema.tables()[0], &row(value)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn what_is_no_row_is_refused_with_a_sentence() {
        check_refused(
            json!({"id": "1", "s": "x", "hue": 1}),
            "there is no column \"hue\"",
        );
        check_refused(json!({"id": "1"}), "column \"s\" needs a value");
        let wrong = "column \"n\" is of type integer and cannot hold 1.5";
        check_refused(json!({"id": "1", "s": "x", "n": 1.5}), wrong);
        let huge = "column \"n\" is of type integer and cannot hold 9007199254740992";
        check_refused(
            json!({"id": "1", "s": "x", "n": 9_007_199_254_740_992_i64}),
            huge,
        );
        let not_json = "column \"j\" is of type json and cannot hold \"{\"";
        check_refused(json!({"id": "1", "s": "x", "j": "{"}), not_json);
    }
}
