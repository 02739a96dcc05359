//! Reading the schema document: JSON objects that know their place in it.
//!
//! A generic deserializer says "line 40, column 12"; a person needs `tables.notes.columns.body`.
//! So the document is read as a tree, and every object carries the place it stands at into the
//! errors about it. Unknown members are never looked at, which is what lets newer generators add
//! some (§2.4).
//!
//! Not here: what the members may say; `compile` holds the rules.

use serde_json::{Map, Value};

use crate::{SchemaCode, SchemaError};

/// One JSON object and the place it stands at.
pub(crate) struct Object<'a> {
    pub(crate) place: String,
    members: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    pub(crate) fn new(value: &'a Value, place: impl Into<String>) -> Result<Self, SchemaError> {
        let place = place.into();
        match value {
            Value::Object(members) => Ok(Self { place, members }),
            other => Err(invalid(
                place,
                format!("expected an object, found {}", kind(other)),
            )),
        }
    }

    /// The same object at a place that names it.
    pub(crate) fn at(self, place: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            members: self.members,
        }
    }

    /// The member, `None` when it is absent or null.
    pub(crate) fn find(&self, member: &str) -> Option<&'a Value> {
        self.members.get(member).filter(|value| !value.is_null())
    }

    pub(crate) fn find_text(&self, member: &str) -> Result<Option<&'a str>, SchemaError> {
        match self.find(member) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.mistyped(member, "a string", other)),
        }
    }

    pub(crate) fn text(&self, member: &str) -> Result<&'a str, SchemaError> {
        self.find_text(member)?
            .ok_or_else(|| self.missing(member, "a string"))
    }

    pub(crate) fn find_flag(&self, member: &str) -> Result<Option<bool>, SchemaError> {
        match self.find(member) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.mistyped(member, "true or false", other)),
        }
    }

    pub(crate) fn flag(&self, member: &str) -> Result<bool, SchemaError> {
        self.find_flag(member)?
            .ok_or_else(|| self.missing(member, "true or false"))
    }

    /// The list's items; none when it is absent.
    pub(crate) fn find_list(&self, member: &str) -> Result<&'a [Value], SchemaError> {
        match self.find(member) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(self.mistyped(member, "a list", other)),
        }
    }

    pub(crate) fn list(&self, member: &str) -> Result<&'a [Value], SchemaError> {
        if self.find(member).is_none() {
            return Err(self.missing(member, "a list"));
        }
        self.find_list(member)
    }

    fn missing(&self, member: &str, wanted: &str) -> SchemaError {
        invalid(
            self.place.clone(),
            format!("`{member}` is missing: add it as {wanted}"),
        )
    }

    fn mistyped(&self, member: &str, wanted: &str, found: &Value) -> SchemaError {
        invalid(
            self.place.clone(),
            format!("`{member}` must be {wanted}, found {}", kind(found)),
        )
    }
}

/// Reads the text of an item of a list of names.
pub(crate) fn item_text<'a>(value: &'a Value, place: &str) -> Result<&'a str, SchemaError> {
    value
        .as_str()
        .ok_or_else(|| invalid(place, format!("expected a string, found {}", kind(value))))
}

/// The document's members or items do not have the form of a schema document.
pub(crate) fn invalid(place: impl Into<String>, message: impl Into<String>) -> SchemaError {
    SchemaError::new(SchemaCode::InvalidDocument, place, message)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
