//! Records that SQL databases keep as JSON text: stored scopes and a client's subscriptions.
//!
//! The shapes are those of existing Syncular databases. Reading is strict, and what cannot be
//! read is for the caller to judge: a row with unreadable scopes is corrupt, a client with
//! unreadable subscriptions has none until its next pull.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use tidewater_model::{ScopeFilter, ScopeValues, StoredScopes};

use crate::ClientSubscription;

/// Text that does not hold the record it should.
#[derive(Debug, thiserror::Error)]
#[error("unreadable {what}: {source}")]
pub struct Unreadable {
    what: &'static str,
    source: serde_json::Error,
}

/// Writes stored scopes: an object of variable to value.
pub fn encode_scopes(scopes: &StoredScopes) -> String {
    let mut out = String::with_capacity(64);
    out.push('{');
    for (index, (variable, value)) in scopes.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        push_text(&mut out, variable);
        out.push(':');
        push_text(&mut out, value);
    }
    out.push('}');
    out
}

/// Reads what [`encode_scopes`] wrote, members in any order.
pub fn decode_scopes(text: &str) -> Result<StoredScopes, Unreadable> {
    let Scopes(scopes) = serde_json::from_str(text).map_err(|source| Unreadable {
        what: "stored scopes",
        source,
    })?;
    Ok(scopes)
}

/// Writes the subscriptions of a client's last pull.
pub fn encode_subscriptions(subscriptions: &[ClientSubscription]) -> String {
    let mut out = String::with_capacity(2 + subscriptions.len() * 128);
    out.push('[');
    for (index, subscription) in subscriptions.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        push_subscription(&mut out, subscription);
    }
    out.push(']');
    out
}

fn push_subscription(out: &mut String, subscription: &ClientSubscription) {
    out.push_str("{\"id\":");
    push_text(out, &subscription.id);
    out.push_str(",\"table\":");
    push_text(out, &subscription.table);
    out.push_str(",\"scopes\":{");
    for (index, entry) in subscription.scopes.entries().iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        push_text(out, &entry.variable);
        out.push_str(":[");
        for (index, value) in entry.values.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            push_text(out, value);
        }
        out.push(']');
    }
    out.push('}');
    if let Some(complete) = subscription.complete {
        out.push_str(",\"complete\":");
        out.push_str(if complete { "true" } else { "false" });
    }
    if let Some(schema_version) = subscription.schema_version {
        out.push_str(",\"schemaVersion\":");
        push_integer(out, schema_version);
    }
    out.push('}');
}

/// Reads what [`encode_subscriptions`] wrote.
pub fn decode_subscriptions(text: &str) -> Result<Vec<ClientSubscription>, Unreadable> {
    let subscriptions: Vec<Subscription> =
        serde_json::from_str(text).map_err(|source| Unreadable {
            what: "subscriptions",
            source,
        })?;
    Ok(subscriptions
        .into_iter()
        .map(|subscription| ClientSubscription {
            id: subscription.id,
            table: subscription.table,
            scopes: subscription.scopes.0,
            complete: subscription.complete,
            schema_version: subscription.schema_version,
        })
        .collect())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subscription {
    id: String,
    table: String,
    scopes: Filter,
    complete: Option<bool>,
    schema_version: Option<i32>,
}

struct Scopes(StoredScopes);

impl<'de> Deserialize<'de> for Scopes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = deserializer.deserialize_map(Pairs::<String>::default())?;
        StoredScopes::new(pairs)
            .map(Self)
            .ok_or_else(|| Error::custom("a variable is named twice"))
    }
}

struct Filter(ScopeFilter);

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = deserializer
            .deserialize_map(Pairs::<Vec<String>>::default())?
            .into_iter()
            .map(|(variable, values)| ScopeValues { variable, values })
            .collect();
        ScopeFilter::new(entries)
            .map(Self)
            .ok_or_else(|| Error::custom("a variable is named twice"))
    }
}

/// Reads an object as a list: a map type would hide a member that is there twice.
struct Pairs<V>(Vec<(String, V)>);

impl<V> Default for Pairs<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for Pairs<V> {
    type Value = Vec<(String, V)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of scope variables")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some(pair) = map.next_entry()? {
            self.0.push(pair);
        }
        Ok(self.0)
    }
}

/// Appends a JSON string.
pub(crate) fn push_text(out: &mut String, text: &str) {
    out.push('"');
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[plain..at]);
        plain = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            control => {
                out.push_str("\\u00");
                out.push(hex_digit(control >> 4));
                out.push(hex_digit(control & 15));
            }
        }
    }
    out.push_str(&text[plain..]);
    out.push('"');
}

fn hex_digit(value: u8) -> char {
    char::from_digit(u32::from(value), 16).expect("four bits")
}

/// Appends a JSON number.
pub(crate) fn push_integer(out: &mut String, value: impl Into<i64>) {
    let value = value.into();
    // 19 digits and the sign; `format!` would allocate for each number.
    let mut digits = [0_u8; 20];
    let mut start = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        start -= 1;
        digits[start] = b'0' + u8::try_from(rest % 10).expect("a digit");
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        start -= 1;
        digits[start] = b'-';
    }
    out.push_str(str::from_utf8(&digits[start..]).expect("digits are ASCII"));
}

/// Appends bytes as a JSON string of base64.
pub(crate) fn push_bytes(out: &mut String, bytes: &[u8]) {
    out.push('"');
    STANDARD.encode_string(bytes, out);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes(pairs: &[(&str, &str)]) -> StoredScopes {
        let pairs = pairs
            .iter()
            .map(|&(variable, value)| (variable.to_owned(), value.to_owned()))
            .collect();
        StoredScopes::new(pairs).unwrap()
    }

    fn filter(entries: &[(&str, &[&str])]) -> ScopeFilter {
        let entries = entries
            .iter()
            .map(|&(variable, values)| ScopeValues {
                variable: variable.to_owned(),
                values: values.iter().map(|&value| value.to_owned()).collect(),
            })
            .collect();
        ScopeFilter::new(entries).unwrap()
    }

    #[track_caller]
    fn check_text(text: &str) {
        let mut out = String::new();
        push_text(&mut out, text);
        assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
    }

    #[test]
    fn any_text_reads_back_from_its_json_string() {
        check_text("");
        check_text("plain");
        check_text("\"quoted\" \\ and\nbroken\tlines\r");
        check_text("ü\u{2028}\u{1F600}");
        check_text(&(0..0x80_u8).map(char::from).collect::<String>());
    }

    #[test]
    fn every_integer_is_written_in_full() {
        for value in [0, 7, -1, 10, i64::MAX, i64::MIN] {
            let mut out = String::new();
            push_integer(&mut out, value);
            assert_eq!(out, value.to_string());
        }
    }

    #[test]
    fn stored_scopes_are_an_object_of_texts() {
        let stored = scopes(&[("team", "t\"1"), ("owner", "")]);
        let text = encode_scopes(&stored);
        assert_eq!(text, r#"{"owner":"","team":"t\"1"}"#);
        assert_eq!(decode_scopes(&text).unwrap(), stored);
        assert_eq!(
            decode_scopes(r#"{ "team": "t\"1", "owner": "" }"#).unwrap(),
            stored
        );
        assert_eq!(decode_scopes("{}").unwrap(), StoredScopes::default());
    }

    #[test]
    fn scopes_that_are_not_an_object_of_texts_are_unreadable() {
        for text in ["", "[]", "null", r#"{"a":1}"#, r#"{"a":"1","a":"2"}"#] {
            assert!(decode_scopes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn subscriptions_read_back_as_written() {
        let subscriptions = vec![
            ClientSubscription {
                id: "s1".to_owned(),
                table: "notes".to_owned(),
                scopes: filter(&[("team", &["t2", "t1"]), ("owner", &[])]),
                complete: Some(true),
                schema_version: Some(3),
            },
            ClientSubscription {
                id: String::new(),
                table: "tags".to_owned(),
                scopes: ScopeFilter::default(),
                complete: None,
                schema_version: None,
            },
        ];
        let text = encode_subscriptions(&subscriptions);
        assert_eq!(
            text,
            r#"[{"id":"s1","table":"notes","scopes":{"owner":[],"team":["t2","t1"]},"complete":true,"schemaVersion":3},{"id":"","table":"tags","scopes":{}}]"#
        );
        assert_eq!(decode_subscriptions(&text).unwrap(), subscriptions);
    }

    #[test]
    fn subscriptions_with_a_missing_or_repeated_member_are_unreadable() {
        for text in [
            "{}",
            r#"[{"id":"s","table":"t"}]"#,
            r#"[{"id":"s","id":"s","table":"t","scopes":{}}]"#,
            r#"[{"id":"s","table":"t","scopes":{"a":["1"],"a":[]}}]"#,
            r#"[{"id":"s","table":"t","scopes":{"a":"1"}}]"#,
        ] {
            assert!(decode_subscriptions(text).is_err(), "{text}");
        }
    }
}
