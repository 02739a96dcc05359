//! JSON text that is carried and not understood (Conventions, OQ-18).
//!
//! What passes here can be read by every client: RFC 8259 with numbers that fit a double, no lone
//! surrogate escapes and at most 127 levels. That is what `serde_json` accepts for its own
//! `Value`, so the same parser walks the text, without building anything from it.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, value::RawValue};

/// Whether `text` is one JSON document that every client can read.
pub(crate) fn is_valid(text: &str) -> bool {
    read(text, Walk).is_some()
}

/// The document as a value; of duplicate keys the last one counts.
///
/// Not `serde_json::from_str::<Value>`: with the feature `raw_value` that gives a member of one
/// certain name a meaning of its own.
pub(crate) fn parse(text: &str) -> Option<Value> {
    read(text, Build)
}

/// The members of a JSON object, each as its text; `None` when `text` is anything else.
///
/// Of duplicate keys the last one counts.
pub(crate) fn members(text: &str) -> Option<BTreeMap<String, &str>> {
    if !is_valid(text) {
        return None;
    }
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    Some(
        members
            .into_iter()
            .map(|(key, value)| (key, value.get()))
            .collect(),
    )
}

/// Appends `text` as a JSON string, escaped as JavaScript's `JSON.stringify` does.
pub(crate) fn put_string(out: &mut String, text: &str) {
    out.push_str(&serde_json::to_string(text).expect("a string always has a JSON form"));
}

/// Reads the whole text as one `T`.
pub(crate) fn read_as<'de, T: Deserialize<'de>>(text: &'de str) -> Option<T> {
    read(text, PhantomData)
}

fn read<'de, S: DeserializeSeed<'de>>(text: &'de str, seed: S) -> Option<S::Value> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = seed.deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(value)
}

/// Visits every number and string of a document, because skipping does not check them.
#[derive(Clone, Copy)]
struct Walk;

impl<'de> DeserializeSeed<'de> for Walk {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON document")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while members.next_key_seed(self)?.is_some() {
            members.next_value_seed(self)?;
        }
        Ok(())
    }
}

/// Builds a value from a document.
#[derive(Clone, Copy)]
struct Build;

impl<'de> DeserializeSeed<'de> for Build {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Build {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON document")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            map.insert(key, members.next_value_seed(self)?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, valid: bool) {
        assert_eq!(is_valid(text), valid, "{text:.80}");
        assert_eq!(parse(text).is_some(), valid, "{text:.80}");
    }

    #[test]
    fn any_document_passes_and_nothing_else_does() {
        for text in [
            "null",
            " true ",
            "0",
            "-0.5e-3",
            "\"\\ud83d\\ude00\"",
            "[]",
            "{\"a\":1,\"a\":2}",
            "123456789012345678901234567890",
            "{\"$serde_json::private::RawValue\":1}",
            "{\"$serde_json::private::Number\":1}",
        ] {
            check(text, true);
        }
        for text in [
            "",
            " ",
            "nul",
            "01",
            "1.",
            "+1",
            ".5",
            "NaN",
            "[1,]",
            "{\"a\":1,}",
            "{a:1}",
            "'a'",
            "\"\t\"",
            "1 2",
            "\u{feff}1",
            "\u{a0}1",
        ] {
            check(text, false);
        }
    }

    #[test]
    fn what_one_client_family_cannot_read_is_refused() {
        check("1e308", true);
        check("1e999", false);
        check("[-1e999]", false);
        check("{\"a\":1e999}", false);
        check("\"\\ud800\"", false);
        check("\"\\udc00\\ud800\"", false);
        check("{\"\\ud800\":1}", false);
    }

    #[test]
    fn the_deepest_document_has_127_levels() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check(&nested(tidewater_model::limits::JSON_DEPTH_MAX), true);
        check(&nested(tidewater_model::limits::JSON_DEPTH_MAX + 1), false);
    }

    #[test]
    fn of_duplicate_members_the_last_one_counts() {
        let members = members("{\"a\": 1, \"b\":[ 2 ], \"a\":\"x\"}").unwrap();
        let expected = [("a", "\"x\""), ("b", "[ 2 ]")];
        assert!(members.iter().map(|(k, v)| (k.as_str(), *v)).eq(expected));
        assert_eq!(super::members("[]"), None);
        assert_eq!(super::members("{\"a\":1e999}"), None);
    }
}
