//! What is wrong with a schema document, where, and what to change.
//!
//! These codes are for operators and for the tools that generate schemas. They never travel to a
//! client: to a client a schema that does not compile is a server that is not ready.

use std::fmt;

/// The first thing found wrong with a schema document.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{place}: {message} ({code})")]
pub struct SchemaError {
    /// Which rule is broken.
    pub code: SchemaCode,
    /// Where, for example `tables.notes.columns.body`.
    pub place: String,
    /// What is wrong and what to change.
    pub message: String,
}

impl SchemaError {
    pub(crate) fn new(
        code: SchemaCode,
        place: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            code,
            place: place.into(),
            message: message.into(),
        }
    }
}

/// The rules of a schema document, by the part of it they are about.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum SchemaCode {
    /// Not JSON, or a member is missing or of the wrong JSON type.
    InvalidDocument,
    /// The document has another format than `irVersion` 1.
    UnsupportedIrVersion,
    /// The schema version is missing, ambiguous or out of range.
    InvalidVersion,
    /// A name that is empty, too long, reserved or cannot be written in SQL.
    InvalidIdentifier,
    /// Two tables, columns or indexes that a database cannot tell apart.
    DuplicateName,
    /// A column's type is unknown, or there are more columns than a segment can describe.
    InvalidColumn,
    /// The primary key cannot identify a row.
    InvalidPrimaryKey,
    /// A scope pattern is malformed or cannot be evaluated, or a table has none.
    InvalidScope,
    /// A `crdt` column without a merger's name.
    InvalidCrdt,
    /// An encrypted column where the server must read the value, or not declared in full.
    InvalidEncryption,
    /// An index without columns or over unknown ones.
    InvalidIndex,
    /// A reference that cannot be enforced.
    InvalidReference,
}

impl SchemaCode {
    /// The code as an operator sees it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidDocument => "schema.invalid_document",
            Self::UnsupportedIrVersion => "schema.unsupported_ir_version",
            Self::InvalidVersion => "schema.invalid_version",
            Self::InvalidIdentifier => "schema.invalid_identifier",
            Self::DuplicateName => "schema.duplicate_name",
            Self::InvalidColumn => "schema.invalid_column",
            Self::InvalidPrimaryKey => "schema.invalid_primary_key",
            Self::InvalidScope => "schema.invalid_scope",
            Self::InvalidCrdt => "schema.invalid_crdt",
            Self::InvalidEncryption => "schema.invalid_encryption",
            Self::InvalidIndex => "schema.invalid_index",
            Self::InvalidReference => "schema.invalid_reference",
        }
    }
}

impl fmt::Display for SchemaCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
