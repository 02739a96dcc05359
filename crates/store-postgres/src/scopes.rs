//! Stored scopes between their JSON text and a filter.
//!
//! Rows share their scopes with many others, so the last texts are remembered with what they say.

use std::collections::{HashMap, HashSet};

use tidewater_model::{ScopeFilter, StoredScopes};
use tidewater_store::{StoreError, json};

use crate::error::corrupt;

/// Reads scopes from their text.
#[derive(Debug, Default)]
pub(crate) struct ScopesReader {
    text: String,
    scopes: Option<StoredScopes>,
}

impl ScopesReader {
    /// The scopes that a text says.
    pub(crate) fn read(
        &mut self,
        text: &str,
        during: &'static str,
    ) -> Result<StoredScopes, StoreError> {
        if let Some(scopes) = &self.scopes
            && self.text == text
        {
            return Ok(scopes.clone());
        }
        let scopes = parse(text, during)?;
        text.clone_into(&mut self.text);
        self.scopes = Some(scopes.clone());
        Ok(scopes)
    }
}

fn parse(text: &str, during: &'static str) -> Result<StoredScopes, StoreError> {
    json::decode_scopes(text).map_err(|error| corrupt(during, error.to_string()))
}

/// Reads scopes and says whether a filter selects them.
pub(crate) struct ScopesMatcher<'a> {
    variables: Vec<(&'a str, HashSet<&'a str>)>,
    /// The scopes of a text, where the filter selects them.
    known: HashMap<String, Option<StoredScopes>>,
}

/// Texts remembered. More different ones than this rarely come again soon.
const KNOWN_MAX: usize = 1_024;

impl<'a> ScopesMatcher<'a> {
    pub(crate) fn new(filter: &'a ScopeFilter) -> Self {
        let variables = filter.entries().iter().map(|entry| {
            let values = entry.values.iter().map(String::as_str);
            (entry.variable.as_str(), values.collect())
        });
        Self {
            variables: variables.collect(),
            known: HashMap::new(),
        }
    }

    /// The scopes that a text says, if the filter selects them.
    pub(crate) fn select(
        &mut self,
        text: &str,
        during: &'static str,
    ) -> Result<Option<&StoredScopes>, StoreError> {
        if !self.known.contains_key(text) {
            let scopes = parse(text, during)?;
            let selected = self.selects(&scopes).then_some(scopes);
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(text.to_owned(), selected);
        }
        Ok(self.known.get(text).and_then(Option::as_ref))
    }

    fn selects(&self, stored: &StoredScopes) -> bool {
        !self.variables.is_empty()
            && self.variables.iter().all(|(variable, wanted)| {
                stored
                    .value(variable)
                    .is_some_and(|value| wanted.contains(value))
            })
    }
}

/// Writes scopes as their text.
#[derive(Default)]
pub(crate) struct ScopesWriter<'a> {
    last: Option<&'a StoredScopes>,
    text: String,
}

impl<'a> ScopesWriter<'a> {
    /// The text of scopes.
    pub(crate) fn text(&mut self, scopes: &'a StoredScopes) -> String {
        if self.last != Some(scopes) {
            self.text = json::encode_scopes(scopes);
            self.last = Some(scopes);
        }
        self.text.clone()
    }
}

#[cfg(test)]
mod tests {
    use tidewater_model::ScopeValues;

    use super::*;

    #[test]
    fn a_text_has_one_answer_however_often_it_comes() {
        let entry = ScopeValues {
            variable: "team".to_owned(),
            values: vec!["t1".to_owned()],
        };
        let filter = ScopeFilter::new(vec![entry]).unwrap();
        let mut matcher = ScopesMatcher::new(&filter);
        for (text, expected) in [
            (r#"{"team":"t1"}"#, true),
            (r#"{"team":"t2"}"#, false),
            (r#"{"team": "t1"}"#, true),
            (r#"{"team":"t1"}"#, true),
            ("{}", false),
        ] {
            assert_eq!(matcher.select(text, "test").unwrap().is_some(), expected);
        }
        assert!(matcher.select("[]", "test").is_err());
    }

    #[test]
    fn an_empty_filter_selects_nothing() {
        let filter = ScopeFilter::default();
        let mut matcher = ScopesMatcher::new(&filter);
        assert!(matcher.select("{}", "test").unwrap().is_none());
    }
}
