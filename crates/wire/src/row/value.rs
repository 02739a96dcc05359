//! One value of a column: its encoding and its text (§2.4).

use std::borrow::Cow;

use tidewater_model::ColumnType;

use crate::{
    BlobRef, DecodeError, json,
    reader::{Reader, invalid_at},
};

/// A value that is not NULL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// UTF-8 text.
    String(&'a str),
    /// A whole number in ±(2^53 − 1).
    Integer(i64),
    /// A double.
    Float(f64),
    /// True or false.
    Boolean(bool),
    /// JSON text as written.
    Json(&'a str),
    /// Raw bytes.
    Bytes(&'a [u8]),
    /// The text of a [`BlobRef`] as written.
    BlobRef(&'a str),
    /// The state of a CRDT.
    Crdt(&'a [u8]),
}

impl<'a> Value<'a> {
    pub(super) fn read(reader: &mut Reader<'a>, kind: ColumnType) -> Result<Self, DecodeError> {
        let start = reader.position();
        match kind {
            ColumnType::String => reader.str("string").map(Self::String),
            ColumnType::Integer => reader.i64("integer").map(Self::Integer),
            ColumnType::Float => reader.f64("float").map(Self::Float),
            ColumnType::Boolean => reader.bool("boolean").map(Self::Boolean),
            ColumnType::Bytes => reader.bytes("bytes").map(Self::Bytes),
            ColumnType::Crdt => reader.bytes("crdt").map(Self::Crdt),
            ColumnType::Json => {
                let text = reader.str("json")?;
                if json::is_valid(text) {
                    Ok(Self::Json(text))
                } else {
                    Err(invalid_at(start, "text is not one JSON document"))
                }
            }
            ColumnType::BlobRef => {
                let text = reader.str("blob reference")?;
                if BlobRef::is_valid(text) {
                    Ok(Self::BlobRef(text))
                } else {
                    Err(invalid_at(start, "text is not a blob reference"))
                }
            }
        }
    }

    /// Appends the encoding of the value: what [`super::Field::encoded`] is after decoding.
    ///
    /// The caller vouches for the rules that the types do not express: an integer is in the safe
    /// range, JSON and blob references are what they say.
    ///
    /// # Panics
    ///
    /// At 4 GiB, which no row holds.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::String(text) | Self::Json(text) | Self::BlobRef(text) => {
                put_len(out, text.len());
                out.extend_from_slice(text.as_bytes());
            }
            Self::Bytes(bytes) | Self::Crdt(bytes) => {
                put_len(out, bytes.len());
                out.extend_from_slice(bytes);
            }
            Self::Integer(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::Float(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::Boolean(value) => out.push(u8::from(value)),
        }
    }

    /// The value as the text of a row id, a scope value or a reference.
    ///
    /// `None` for empty text, bytes and CRDTs, which count as missing there. Floats are written
    /// as JavaScript does.
    pub fn render(&self) -> Option<Cow<'a, str>> {
        match *self {
            Self::String(text) | Self::Json(text) | Self::BlobRef(text) => {
                (!text.is_empty()).then_some(Cow::Borrowed(text))
            }
            Self::Integer(value) => Some(Cow::Owned(value.to_string())),
            Self::Float(value) => {
                let mut buffer = ryu_js::Buffer::new();
                Some(Cow::Owned(buffer.format(value).to_owned()))
            }
            Self::Boolean(true) => Some(Cow::Borrowed("true")),
            Self::Boolean(false) => Some(Cow::Borrowed("false")),
            Self::Bytes(_) | Self::Crdt(_) => None,
        }
    }
}

/// Appends a length as it travels.
pub(crate) fn put_len(out: &mut Vec<u8>, len: usize) {
    let len = u32::try_from(len).expect("text and bytes are below 4 GiB");
    out.extend_from_slice(&len.to_le_bytes());
}
