//! Canonical debug rendering of messages, segments and sparse rows (§11.1).
//!
//! For tests and tools only: servers never read it back. Members stand in wire order, absent
//! fields are left out, binary fields are base64, JSON fields are embedded as JSON.

mod frame;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value as Json};

use crate::{
    DecodeError, Message, Request, Response, RowsSegment, WireVersion,
    frame_type::MessageKind,
    json,
    row::{Column, Field, Slot, Value, decode_row},
};

/// Renders a message of either kind.
pub fn message(message: &Message) -> Json {
    match message {
        Message::Request(message) => request(message),
        Message::Response(message) => response(message),
    }
}

/// Renders a request.
pub fn request(request: &Request) -> Json {
    let frames = request.frames.iter();
    envelope(
        request.version,
        MessageKind::Request,
        frames
            .map(|frame| frame::request(frame, request.version))
            .collect(),
    )
}

/// Renders a response.
pub fn response(response: &Response) -> Json {
    let frames = response.frames.iter();
    envelope(
        response.version,
        MessageKind::Response,
        frames
            .map(|frame| frame::response(frame, response.version))
            .collect(),
    )
}

/// Renders a rows segment, if its rows are rows of its columns.
pub fn rows_segment(segment: &RowsSegment) -> Result<Json, DecodeError> {
    let mut blocks = Vec::new();
    for block in &segment.blocks {
        let mut rows = Vec::new();
        for row in block {
            let values = full_row(&segment.columns, &row.row)?;
            rows.push(
                Members::default()
                    .with("serverVersion", row.server_version)
                    .with("values", values)
                    .into_json(),
            );
        }
        blocks.push(Json::Array(rows));
    }
    Ok(Members::default()
        .with("magic", "SSG2")
        .with("formatVersion", 1)
        .with("table", segment.table.as_str())
        .with("schemaVersion", segment.schema_version)
        .with("columns", columns(&segment.columns))
        .with("blocks", blocks)
        .into_json())
}

/// Renders a sparse row together with its columns.
pub fn sparse_row(row_columns: &[Column], row: &[Slot<'_>]) -> Json {
    let mut values = Map::new();
    for (column, slot) in row_columns.iter().zip(row) {
        let value = match slot {
            Slot::Absent => continue,
            Slot::Null => Json::Null,
            Slot::Present(field) => field_value(field),
        };
        values.insert(column.name.clone(), value);
    }
    Members::default()
        .with("columns", columns(row_columns))
        .with("values", values)
        .into_json()
}

fn envelope(version: WireVersion, kind: MessageKind, frames: Vec<Json>) -> Json {
    Members::default()
        .with("magic", "SSP2")
        .with("wireVersion", version.number())
        .with("msgKind", kind.name())
        .with("frames", frames)
        .into_json()
}

fn full_row(columns: &[Column], row: &[u8]) -> Result<Json, DecodeError> {
    let mut values = Map::new();
    for (column, field) in columns.iter().zip(decode_row(columns, row)?) {
        let value = field.as_ref().map_or(Json::Null, field_value);
        values.insert(column.name.clone(), value);
    }
    Ok(Json::Object(values))
}

fn columns(columns: &[Column]) -> Json {
    columns
        .iter()
        .map(|column| {
            Members::default()
                .with("name", column.name.as_str())
                .with("type", column.kind.name())
                .with("nullable", column.nullable)
                .into_json()
        })
        .collect()
}

fn field_value(field: &Field<'_>) -> Json {
    match field.value {
        Value::String(text) => Json::from(text),
        Value::Integer(value) => Json::from(value),
        // NaN and the infinities become null.
        Value::Float(value) => Json::from(value),
        Value::Boolean(value) => Json::from(value),
        Value::Json(text) | Value::BlobRef(text) => embedded(text),
        Value::Bytes(bytes) | Value::Crdt(bytes) => binary(bytes),
    }
}

fn binary(bytes: &[u8]) -> Json {
    Json::from(BASE64_STANDARD.encode(bytes))
}

/// JSON text as JSON; what is no JSON, which a decoder does not let through, as text.
fn embedded(text: &str) -> Json {
    json::parse(text).unwrap_or_else(|| Json::from(text))
}

/// The members of an object, in the order they are added.
#[derive(Debug, Default)]
struct Members(Map<String, Json>);

impl Members {
    fn with(mut self, key: &str, value: impl Into<Json>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    fn with_some(self, key: &str, value: Option<impl Into<Json>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    fn into_json(self) -> Json {
        Json::Object(self.0)
    }
}
