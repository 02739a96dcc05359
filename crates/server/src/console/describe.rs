//! A commit as the console shows it.
//!
//! Values are decoded by the schema. What people cannot read (bytes, encrypted columns, CRDT
//! states) is shown as a size, and what is long is cut.

use bytes::Bytes;
use serde_json::{Map, Value as Json, json};
use tidewater_engine::CommitEvent;
use tidewater_schema::{Schema, Table};
use tidewater_store::{ChangeKind, ChangeWrite};
use tidewater_wire::row::{Value, decode_row};

/// The commit, as JSON.
pub(crate) fn describe(event: &CommitEvent, schema: &Schema) -> Json {
    let applied = event.commit.applied.as_ref();
    let changes = applied
        .map(|applied| &applied.changes[..])
        .unwrap_or_default();
    json!({
        "partition": event.partition().as_str(),
        "commitSeq": event.commit_seq().get(),
        "createdAtMs": applied.map(|applied| applied.created_at_ms),
        "actor": event.actor().as_str(),
        "client": event.client().as_str(),
        "changeCount": changes.len(),
        "changes": changes
            .iter()
            .take(CHANGES_SHOWN)
            .map(|change| describe_change(change, schema))
            .collect::<Vec<_>>(),
    })
}

fn describe_change(change: &ChangeWrite, schema: &Schema) -> Json {
    let table = schema.table(change.table);
    let mut described = json!({
        "table": table.name,
        "rowId": cut(&change.row_id),
        "op": match &change.kind {
            ChangeKind::Upsert { .. } => "upsert",
            ChangeKind::Delete { .. } => "delete",
        },
    });
    if let ChangeKind::Upsert { row, scopes_before } = &change.kind {
        described["rowVersion"] = json!(row.row_version);
        described["inserted"] = json!(scopes_before.is_none());
        described["row"] = describe_row(&row.payload, table);
    }
    described
}

/// The row's values by column; `null` when it does not decode, which the engine prevents.
fn describe_row(payload: &Bytes, table: &Table) -> Json {
    let Ok(fields) = decode_row(&table.columns, payload) else {
        return Json::Null;
    };
    let mut row = Map::new();
    for ((column, meta), field) in table.columns.iter().zip(&table.metas).zip(fields) {
        let value = match field {
            None => Json::Null,
            Some(field) if meta.encrypted => size("encrypted", field.encoded),
            Some(field) => describe_value(&field.value),
        };
        row.insert(column.name.clone(), value);
    }
    Json::Object(row)
}

fn describe_value(value: &Value<'_>) -> Json {
    match value {
        Value::String(text) | Value::Json(text) | Value::BlobRef(text) => json!(cut(text)),
        Value::Integer(number) => json!(number),
        // JSON has no NaN and no infinities.
        Value::Float(number) if number.is_finite() => json!(number),
        Value::Float(number) => json!(number.to_string()),
        Value::Boolean(boolean) => json!(boolean),
        Value::Bytes(bytes) => size("bytes", bytes),
        Value::Crdt(bytes) => size("crdt", bytes),
    }
}

fn size(kind: &str, bytes: &[u8]) -> Json {
    json!({ "kind": kind, "size": bytes.len() })
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(CHARACTERS_SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Changes of one commit.
const CHANGES_SHOWN: usize = 50;
/// Characters of one value.
const CHARACTERS_SHOWN: usize = 200;
