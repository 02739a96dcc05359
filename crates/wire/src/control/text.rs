//! Reads and writes the JSON objects that control messages are made of.

use std::collections::BTreeMap;

use bytestring::ByteString;

use super::ControlError;
use crate::{
    json::{self, put_string},
    reader::is_safe_integer,
};

/// The members of a JSON object, each as its text. Every `rule` is the error of its member.
pub(super) struct Data<'a>(BTreeMap<String, &'a str>);

impl<'a> Data<'a> {
    pub(super) fn read(text: &'a str, rule: &'static str) -> Result<Self, ControlError> {
        json::members(text).map(Self).ok_or(ControlError(rule))
    }

    /// The object that an event carries.
    pub(super) fn data(&self) -> Result<Self, ControlError> {
        const RULE: &str = "event has no data";
        Self::read(self.raw("data").unwrap_or_default(), RULE)
    }

    pub(super) fn raw(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).copied()
    }

    /// Whether a member is this text.
    pub(super) fn is(&self, key: &str, text: &str) -> bool {
        self.text(key, "").is_ok_and(|value| value == text)
    }

    pub(super) fn text(&self, key: &str, rule: &'static str) -> Result<ByteString, ControlError> {
        let text: Option<String> = self.raw(key).and_then(json::read_as);
        text.map(ByteString::from).ok_or(ControlError(rule))
    }

    pub(super) fn filled_text(
        &self,
        key: &str,
        rule: &'static str,
    ) -> Result<ByteString, ControlError> {
        let text = self.text(key, rule)?;
        if text.is_empty() {
            return Err(ControlError(rule));
        }
        Ok(text)
    }

    pub(super) fn integer(&self, key: &str, rule: &'static str) -> Result<i64, ControlError> {
        self.raw(key)
            .and_then(json::read_as)
            .filter(|&value| is_safe_integer(value))
            .ok_or(ControlError(rule))
    }

    pub(super) fn boolean(&self, key: &str, rule: &'static str) -> Result<bool, ControlError> {
        self.raw(key)
            .and_then(json::read_as)
            .ok_or(ControlError(rule))
    }

    /// The text of a member that is an object.
    pub(super) fn object(&self, key: &str, rule: &'static str) -> Result<ByteString, ControlError> {
        self.raw(key)
            .filter(|text| text.starts_with('{'))
            .map(ByteString::from)
            .ok_or(ControlError(rule))
    }
}

/// A JSON object under construction, with its members in the order they are added.
pub(super) struct Object(String);

impl Object {
    pub(super) fn new() -> Self {
        Self(String::from("{"))
    }

    /// The text of an event with its data.
    pub(super) fn event(name: &str, data: Self) -> String {
        Self::new()
            .text("event", name)
            .json("data", &data.finish())
            .finish()
    }

    pub(super) fn text(self, key: &str, text: &str) -> Self {
        let mut object = self.key(key);
        put_string(&mut object.0, text);
        object
    }

    pub(super) fn integer(self, key: &str, value: i64) -> Self {
        self.json(key, &value.to_string())
    }

    pub(super) fn boolean(self, key: &str, value: bool) -> Self {
        self.json(key, if value { "true" } else { "false" })
    }

    /// Adds a member that is JSON text already.
    pub(super) fn json(self, key: &str, text: &str) -> Self {
        let mut object = self.key(key);
        object.0.push_str(text);
        object
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }

    fn key(mut self, key: &str) -> Self {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        put_string(&mut self.0, key);
        self.0.push(':');
        self
    }
}
