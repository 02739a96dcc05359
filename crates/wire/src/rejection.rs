//! Details of a rejection: what a client may show beside its own text (§6.3.1).
//!
//! Clients treat a bad companion frame as an error of the whole response, so nothing that breaks
//! a rule is ever sent: hosts build details here, and stored ones are checked again when they
//! are encoded.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use bytestring::ByteString;
use tidewater_model::limits::{
    REJECTION_DETAILS_BYTES_MAX, REJECTION_PATH_BYTES_MAX, REJECTION_PATHS_MAX,
    REJECTION_REFERENCE_KEY_BYTES_MAX, REJECTION_REFERENCE_VALUE_BYTES_MAX,
    REJECTION_REFERENCES_MAX, REJECTION_TOKEN_BYTES_MAX,
};

use crate::json::{self, put_string};

const FIELD_PATHS: &str = "fieldPaths";
const REASON: &str = "reason";
const REQUIRED_ACTION: &str = "requiredAction";
const REFERENCES: &str = "references";

/// Details of a rejection, built by the host.
///
/// Never prose, row content or personal data: all of it is stored with the result.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RejectionDetails {
    field_paths: Vec<String>,
    reason: Option<String>,
    required_action: Option<String>,
    references: BTreeMap<String, String>,
}

impl RejectionDetails {
    /// Starts with nothing, which is not yet valid.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field that is wrong: identifiers joined by dots, such as `address.street`.
    #[must_use]
    pub fn field_path(mut self, path: impl Into<String>) -> Self {
        self.field_paths.push(path.into());
        self
    }

    /// Sets the reason: a token, such as `stock.exhausted`.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Sets what the client must do: a token, such as `reload-order`.
    #[must_use]
    pub fn required_action(mut self, action: impl Into<String>) -> Self {
        self.required_action = Some(action.into());
        self
    }

    /// Sets a reference: a token, and a short text such as an id.
    #[must_use]
    pub fn reference(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.references.insert(key.into(), value.into());
        self
    }

    /// The JSON text as it travels, if every rule holds; otherwise the broken rule.
    pub fn build(self) -> Result<ByteString, &'static str> {
        let text = self.to_text();
        Self::check(&text)?;
        Ok(text.into())
    }

    /// Checks a JSON text; the error is the broken rule.
    pub fn check(text: &str) -> Result<(), &'static str> {
        if text.len() > REJECTION_DETAILS_BYTES_MAX {
            return Err("details are too long");
        }
        let members = json::members(text).ok_or("details are not a JSON object")?;
        if members.is_empty() {
            return Err("details have no members");
        }
        for (key, value) in members {
            match key.as_str() {
                FIELD_PATHS => check_paths(value)?,
                REASON | REQUIRED_ACTION => check_token_value(value)?,
                REFERENCES => check_references(value)?,
                _ => return Err("details have an unknown member"),
            }
        }
        Ok(())
    }

    fn to_text(&self) -> String {
        let mut members = Vec::new();
        if !self.field_paths.is_empty() {
            members.push((FIELD_PATHS, list(&self.field_paths)));
        }
        for (key, value) in [
            (REASON, &self.reason),
            (REQUIRED_ACTION, &self.required_action),
        ] {
            members.extend(value.as_ref().map(|value| (key, string(value))));
        }
        if !self.references.is_empty() {
            let references = self.references.iter();
            let references = references.map(|(key, value)| (key.as_str(), string(value)));
            members.push((REFERENCES, object(references)));
        }
        object(members)
    }
}

fn check_paths(value: &str) -> Result<(), &'static str> {
    let paths: Vec<Cow<'_, str>> =
        json::read_as(value).ok_or("fieldPaths are not a list of strings")?;
    if paths.is_empty() || paths.len() > REJECTION_PATHS_MAX {
        return Err("fieldPaths are too few or too many");
    }
    if !paths.iter().all(|path| is_path(path)) {
        return Err("a field path breaks its grammar");
    }
    let unique: BTreeSet<&str> = paths.iter().map(|path| &**path).collect();
    if unique.len() != paths.len() {
        return Err("a field path comes twice");
    }
    Ok(())
}

fn check_token_value(value: &str) -> Result<(), &'static str> {
    let token: Cow<'_, str> = json::read_as(value).ok_or("a token is not a string")?;
    if is_token(&token, REJECTION_TOKEN_BYTES_MAX) {
        Ok(())
    } else {
        Err("a token breaks its grammar")
    }
}

fn check_references(value: &str) -> Result<(), &'static str> {
    let references = json::members(value).ok_or("references are not an object")?;
    if references.is_empty() || references.len() > REJECTION_REFERENCES_MAX {
        return Err("references are too few or too many");
    }
    for (key, value) in references {
        if !is_token(&key, REJECTION_REFERENCE_KEY_BYTES_MAX) {
            return Err("the key of a reference breaks its grammar");
        }
        let value: Cow<'_, str> = json::read_as(value).ok_or("a reference is not a string")?;
        if !is_reference(&value) {
            return Err("a reference breaks its grammar");
        }
    }
    Ok(())
}

/// Identifiers joined by dots.
fn is_path(path: &str) -> bool {
    path.len() <= REJECTION_PATH_BYTES_MAX
        && path.split('.').all(|name| {
            name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        })
}

/// Words of lower case letters and digits with single separators between them; the first
/// begins with a letter.
fn is_token(token: &str, bytes_max: usize) -> bool {
    let is_word = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9'))
    };
    token.len() <= bytes_max
        && token.starts_with(|first: char| first.is_ascii_lowercase())
        && token.split(['.', '_', '-']).all(is_word)
}

fn is_reference(value: &str) -> bool {
    /// JavaScript trims the byte order mark, Rust does not.
    const BYTE_ORDER_MARK: char = '\u{feff}';
    let is_space = |c: char| c.is_whitespace() || c == BYTE_ORDER_MARK;
    !value.is_empty()
        && value.len() <= REJECTION_REFERENCE_VALUE_BYTES_MAX
        && !value.starts_with(is_space)
        && !value.ends_with(is_space)
        && !value.chars().any(char::is_control)
}

fn string(text: &str) -> String {
    let mut out = String::new();
    put_string(&mut out, text);
    out
}

fn list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| string(item)).collect();
    format!("[{}]", items.join(","))
}

fn object<'a>(members: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let members: Vec<String> = members
        .into_iter()
        .map(|(key, value)| format!("{}:{value}", string(key)))
        .collect();
    format!("{{{}}}", members.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, valid: bool) {
        let result = RejectionDetails::check(text);
        assert_eq!(result.is_ok(), valid, "{text:.120}: {result:?}");
    }

    #[test]
    fn a_builder_writes_its_members_in_order() {
        let details = RejectionDetails::new()
            .reference("order", "o-1")
            .reference("cart", "é 1")
            .required_action("reload-order")
            .reason("stock.exhausted")
            .field_path("lines.amount")
            .field_path("total")
            .build()
            .unwrap();
        let expected = concat!(
            r#"{"fieldPaths":["lines.amount","total"],"reason":"stock.exhausted","#,
            r#""requiredAction":"reload-order","references":{"cart":"é 1","order":"o-1"}}"#
        );
        assert_eq!(details, expected);
    }

    #[test]
    fn a_builder_refuses_what_must_not_be_sent() {
        assert!(RejectionDetails::new().build().is_err());
        assert!(RejectionDetails::new().reason("No Prose").build().is_err());
        let twice = RejectionDetails::new().field_path("a").field_path("a");
        assert!(twice.build().is_err());
    }

    #[test]
    fn details_are_an_object_with_known_members() {
        check(r#"{"reason":"a"}"#, true);
        check(" { \"reason\" : \"a\" } ", true);
        check("{}", false);
        check("[]", false);
        check("null", false);
        check(r#"{"reason":"a","other":1}"#, false);
        check(r#"{"reason":1}"#, false);
        check(r#"{"reason":null}"#, false);
        check(r#"{"reason":"B","reason":"b"}"#, true);
        check(r#"{"reason":"b","reason":"B"}"#, false);
    }

    #[test]
    fn details_have_a_length_on_the_wire() {
        let padded = |len: usize| format!("{:len$}", r#"{"reason":"a"}"#);
        check(&padded(REJECTION_DETAILS_BYTES_MAX), true);
        check(&padded(REJECTION_DETAILS_BYTES_MAX + 1), false);
    }

    #[test]
    fn tokens_have_single_separators() {
        for (token, valid) in [
            ("a", true),
            ("a1.b_c-d", true),
            ("", false),
            ("1a", false),
            ("A", false),
            ("a.", false),
            ("a..b", false),
            ("a._b", false),
            (".a", false),
            ("a b", false),
            ("é", false),
        ] {
            check(&format!(r#"{{"reason":"{token}"}}"#), valid);
            check(&format!(r#"{{"requiredAction":"{token}"}}"#), valid);
            check(&format!(r#"{{"references":{{"{token}":"v"}}}}"#), valid);
        }
        let long = |len: usize| "a".repeat(len);
        check(&format!(r#"{{"reason":"{}"}}"#, long(96)), true);
        check(&format!(r#"{{"reason":"{}"}}"#, long(97)), false);
        check(&format!(r#"{{"references":{{"{}":"v"}}}}"#, long(64)), true);
        check(
            &format!(r#"{{"references":{{"{}":"v"}}}}"#, long(65)),
            false,
        );
    }

    #[test]
    fn paths_are_identifiers_joined_by_dots() {
        for (paths, valid) in [
            (r#""a""#, true),
            (r#""_A9.b.C""#, true),
            (r#""\u0061""#, true),
            ("", false),
            (r#""""#, false),
            (r#""a.""#, false),
            (r#""9a""#, false),
            (r#""a-b""#, false),
            (r#""a","a""#, false),
            ("1", false),
        ] {
            check(&format!(r#"{{"fieldPaths":[{paths}]}}"#), valid);
        }
        let many = |count: usize| -> String {
            let paths: Vec<String> = (0..count).map(|index| format!("\"p{index}\"")).collect();
            format!(r#"{{"fieldPaths":[{}]}}"#, paths.join(","))
        };
        check(&many(32), true);
        check(&many(33), false);
        check(
            &format!(r#"{{"fieldPaths":["{}"]}}"#, "a".repeat(160)),
            true,
        );
        check(
            &format!(r#"{{"fieldPaths":["{}"]}}"#, "a".repeat(161)),
            false,
        );
    }

    #[test]
    fn references_are_short_texts_without_control_characters() {
        for (value, valid) in [
            ("v", true),
            ("a b", true),
            ("a\u{feff}b", true),
            ("", false),
            (" a", false),
            ("a\u{a0}", false),
            ("\u{feff}a", false),
            ("a\u{feff}", false),
            ("a\\u0000b", false),
            ("a\u{7f}b", false),
            ("a\u{85}b", false),
        ] {
            check(&format!(r#"{{"references":{{"k":"{value}"}}}}"#), valid);
        }
        check(
            &format!(r#"{{"references":{{"k":"{}"}}}}"#, "é".repeat(128)),
            true,
        );
        check(
            &format!(r#"{{"references":{{"k":"{}a"}}}}"#, "é".repeat(128)),
            false,
        );
        check(r#"{"references":{}}"#, false);
        check(r#"{"references":[]}"#, false);
        check(r#"{"references":{"k":1}}"#, false);
        let many = |count: usize| -> String {
            let entries: Vec<String> = (0..count).map(|i| format!("\"k{i}\":\"v\"")).collect();
            format!(r#"{{"references":{{{}}}}}"#, entries.join(","))
        };
        check(&many(16), true);
        check(&many(17), false);
    }
}
