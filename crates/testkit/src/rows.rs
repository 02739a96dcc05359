//! Rows as JSON and back, in the convention of the published client: integers, floats, booleans
//! and strings as themselves, JSON and blob references as their raw text, bytes and CRDTs as
//! `{"$bytes": "<hex>"}`. So rows of a server and rows of a client compare as JSON values.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value as Json, json};
use tidewater_model::ColumnType;
use tidewater_schema::Table;
use tidewater_wire::row::{Column, Field, Value, decode_row, encode_row, encode_sparse_row};

/// The columns of an encoded full row by name.
pub fn row_to_json(table: &Table, payload: &[u8]) -> Result<Map<String, Json>> {
    let fields = decode_row(&table.columns, payload).context("decode a row")?;
    Ok(fields_to_json(table, &fields))
}

/// The columns of a decoded full row by name.
pub(crate) fn fields_to_json(table: &Table, fields: &[Option<Field<'_>>]) -> Map<String, Json> {
    let columns = table.columns.iter().zip(fields);
    columns
        .map(|(column, field)| {
            let value = field.map_or(Json::Null, |field| value_to_json(&field.value));
            (column.name.clone(), value)
        })
        .collect()
}

/// Encodes a full row; columns that are not named are NULL.
pub fn full_row(table: &Table, values: &Json) -> Result<Vec<u8>> {
    let encoded = encode_columns(table, values)?;
    let encoded: Vec<Option<&[u8]>> = encoded
        .iter()
        .map(|slot| slot.as_ref().and_then(|value| value.as_deref()))
        .collect();
    Ok(encode_row(&encoded))
}

/// Encodes a sparse row; columns that are not named are absent.
pub fn sparse_row(table: &Table, values: &Json) -> Result<Vec<u8>> {
    let encoded = encode_columns(table, values)?;
    let encoded: Vec<Option<Option<&[u8]>>> = encoded
        .iter()
        .map(|slot| slot.as_ref().map(|value| value.as_deref()))
        .collect();
    Ok(encode_sparse_row(&encoded))
}

/// For each column: absent, NULL or its encoding.
type EncodedColumns = Vec<Option<Option<Vec<u8>>>>;

fn encode_columns(table: &Table, values: &Json) -> Result<EncodedColumns> {
    let values = values.as_object().context("a row is a JSON object")?;
    if let Some(stranger) = values.keys().find(|name| table.column(name).is_none()) {
        bail!("table {} has no column {stranger}", table.name);
    }
    let slot = |column: &Column| match values.get(&column.name) {
        None => Ok(None),
        Some(Json::Null) => Ok(Some(None)),
        Some(value) => encode_value(column, value).map(|bytes| Some(Some(bytes))),
    };
    table.columns.iter().map(slot).collect()
}

fn encode_value(column: &Column, value: &Json) -> Result<Vec<u8>> {
    let wrong = || format!("column {} cannot hold {value}", column.name);
    let mut out = Vec::new();
    let text = || value.as_str().with_context(wrong);
    match column.kind {
        ColumnType::String => Value::String(text()?).encode(&mut out),
        ColumnType::Json => Value::Json(text()?).encode(&mut out),
        ColumnType::BlobRef => Value::BlobRef(text()?).encode(&mut out),
        ColumnType::Integer => {
            Value::Integer(value.as_i64().with_context(wrong)?).encode(&mut out);
        }
        ColumnType::Float => Value::Float(value.as_f64().with_context(wrong)?).encode(&mut out),
        ColumnType::Boolean => {
            Value::Boolean(value.as_bool().with_context(wrong)?).encode(&mut out);
        }
        ColumnType::Bytes | ColumnType::Crdt => {
            let text = value["$bytes"].as_str().with_context(wrong)?;
            let bytes = hex::decode(text).with_context(wrong)?;
            Value::Bytes(&bytes).encode(&mut out);
        }
    }
    Ok(out)
}

/// One value, in the convention of the module.
pub(crate) fn value_to_json(value: &Value<'_>) -> Json {
    match *value {
        Value::String(text) | Value::Json(text) | Value::BlobRef(text) => json!(text),
        Value::Integer(number) => json!(number),
        // JSON has no NaN and no infinity.
        Value::Float(number) => json!(number),
        Value::Boolean(flag) => json!(flag),
        Value::Bytes(bytes) | Value::Crdt(bytes) => json!({ "$bytes": hex::encode(bytes) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::notes;

    #[test]
    fn a_row_of_every_kind_of_value_reads_back_as_written() {
        let schema = notes(1).compile().unwrap();
        let table = schema.table(schema.find("notes").unwrap());
        let values = json!({
            "id": "n1", "team_id": "t1", "title": null, "stars": -3, "done": true,
            "meta": "{\"a\": 1}", "body": {"$bytes": "00ff"},
        });
        let payload = full_row(table, &values).unwrap();
        assert_eq!(Json::Object(row_to_json(table, &payload).unwrap()), values);
    }

    #[test]
    fn a_column_that_does_not_exist_is_refused() {
        let schema = notes(1).compile().unwrap();
        let table = schema.table(schema.find("notes").unwrap());
        assert!(sparse_row(table, &json!({ "id": "n1", "colour": "red" })).is_err());
        assert!(sparse_row(table, &json!({ "id": "n1", "stars": "red" })).is_err());
    }
}
