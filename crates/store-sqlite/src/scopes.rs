//! Stored scopes between their JSON text and a filter.
//!
//! Rows share their scopes with many others, so a text is parsed, matched or encoded once for a
//! run of equal ones.

use std::collections::{HashMap, HashSet};

use tidewater_model::{ScopeFilter, StoredScopes};
use tidewater_store::{StoreError, json};

use crate::error::corrupt;

/// Reads scopes from their text.
#[derive(Debug, Default)]
pub(crate) struct ScopesReader {
    text: Vec<u8>,
    scopes: StoredScopes,
    is_read: bool,
}

impl ScopesReader {
    /// The scopes that a text says; whether they are others than those before.
    pub(crate) fn read(
        &mut self,
        text: &[u8],
        during: &'static str,
    ) -> Result<Read<'_>, StoreError> {
        let is_new = !self.is_read || self.text != text;
        if is_new {
            self.is_read = false;
            self.scopes = parse(text, during)?;
            self.text.clear();
            self.text.extend_from_slice(text);
            self.is_read = true;
        }
        Ok(Read {
            scopes: &self.scopes,
            is_new,
        })
    }
}

/// Scopes that were read.
pub(crate) struct Read<'a> {
    pub(crate) scopes: &'a StoredScopes,
    /// Whether they are others than those read before.
    pub(crate) is_new: bool,
}

fn parse(text: &[u8], during: &'static str) -> Result<StoredScopes, StoreError> {
    let parsed = str::from_utf8(text)
        .map_err(|error| error.to_string())
        .and_then(|text| json::decode_scopes(text).map_err(|error| error.to_string()));
    parsed.map_err(|error| corrupt(during, error))
}

/// Reads scopes and says whether a filter selects them.
///
/// Rows in the order of their ids have few different scopes in no order: the last texts are
/// remembered, and not only the very last one.
pub(crate) struct ScopesMatcher<'a> {
    variables: Vec<(&'a str, Wanted<'a>)>,
    /// The scopes of a text, where the filter selects them.
    known: HashMap<Vec<u8>, Option<StoredScopes>>,
}

enum Wanted<'a> {
    Few(&'a [String]),
    Many(HashSet<&'a str>),
}

/// Up to here, looking at each costs less than a hash.
const FEW_MAX: usize = 8;

/// Texts remembered. More different ones than this rarely come again soon.
const KNOWN_MAX: usize = 1_024;

impl<'a> ScopesMatcher<'a> {
    pub(crate) fn new(filter: &'a ScopeFilter) -> Self {
        let variables = filter.entries().iter().map(|entry| {
            let wanted = if entry.values.len() <= FEW_MAX {
                Wanted::Few(&entry.values)
            } else {
                Wanted::Many(entry.values.iter().map(String::as_str).collect())
            };
            (entry.variable.as_str(), wanted)
        });
        Self {
            variables: variables.collect(),
            known: HashMap::new(),
        }
    }

    /// The scopes that a text says, if the filter selects them.
    pub(crate) fn select(
        &mut self,
        text: &[u8],
        during: &'static str,
    ) -> Result<Option<&StoredScopes>, StoreError> {
        if !self.known.contains_key(text) {
            let scopes = parse(text, during)?;
            let selected = selects(&self.variables, &scopes).then_some(scopes);
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(text.to_vec(), selected);
        }
        Ok(self.known.get(text).and_then(Option::as_ref))
    }
}

fn selects(variables: &[(&str, Wanted<'_>)], stored: &StoredScopes) -> bool {
    !variables.is_empty()
        && variables.iter().all(|(variable, wanted)| {
            stored.value(variable).is_some_and(|value| match wanted {
                Wanted::Few(values) => values.iter().any(|wanted| wanted == value),
                Wanted::Many(values) => values.contains(value),
            })
        })
}

/// Writes scopes as their text.
#[derive(Default)]
pub(crate) struct ScopesWriter<'a> {
    last: Option<&'a StoredScopes>,
    text: String,
}

impl<'a> ScopesWriter<'a> {
    /// The text of scopes.
    pub(crate) fn text(&mut self, scopes: &'a StoredScopes) -> &str {
        if self.last != Some(scopes) {
            self.text = json::encode_scopes(scopes);
            self.last = Some(scopes);
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use tidewater_model::ScopeValues;

    use super::*;

    fn filter(variable: &str, values: &[&str]) -> ScopeFilter {
        let entry = ScopeValues {
            variable: variable.to_owned(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
        };
        ScopeFilter::new(vec![entry]).unwrap()
    }

    #[track_caller]
    fn check(filter: &ScopeFilter, texts: &[(&str, bool)]) {
        let mut matcher = ScopesMatcher::new(filter);
        for (text, expected) in texts {
            let selected = matcher.select(text.as_bytes(), "test").unwrap();
            assert_eq!(selected.is_some(), *expected, "{text}");
        }
    }

    #[test]
    fn a_run_of_equal_texts_has_one_answer() {
        let texts = [
            (r#"{"team":"t1"}"#, true),
            (r#"{"team":"t1"}"#, true),
            (r#"{"team":"t2"}"#, false),
            (r#"{"team":"t2"}"#, false),
            (r#"{ "team": "t1" }"#, true),
            (r#"{"other":"t1"}"#, false),
            ("{}", false),
        ];
        check(&filter("team", &["t1"]), &texts);
        check(&filter("team", &["t1"; 20]), &texts);
    }

    #[test]
    fn an_empty_filter_selects_nothing() {
        check(&ScopeFilter::default(), &[("{}", false), ("{}", false)]);
    }

    #[test]
    fn a_text_that_says_no_scopes_is_corrupt_each_time() {
        let mut reader = ScopesReader::default();
        for _ in 0..2 {
            assert!(reader.read(b"[]", "test").is_err());
            assert!(reader.read(b"\xff", "test").is_err());
        }
        assert!(reader.read(b"{}", "test").unwrap().is_new);
        assert!(!reader.read(b"{}", "test").unwrap().is_new);
    }
}
