//! Scopes: the columns that decide who may see and write a row (§3).
//!
//! A row carries one value per scope variable of its table ([`StoredScopes`]). A client asks for
//! lists of values, the host allows lists of values ([`AllowedScopes`]), and the intersection is
//! what a subscription sees ([`ScopeFilter`]). Variables are independent: a row matches when
//! every variable of the filter matches (AND), each by one of its values (OR).
//!
//! Not here: how the intersection is made and when it means "revoked"; that is a decision and
//! lives in the engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::utf16_cmp;

/// One scope variable with a list of values, in the order they were asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScopeValues {
    /// The variable.
    pub variable: String,
    /// Its values; on the wire neither sorted nor unique.
    pub values: Vec<String>,
}

/// A map from scope variable to values, by ascending UTF-16 order of the variable.
///
/// The form of requested and of effective scopes. As a filter it selects the rows that carry,
/// for each variable, one of its values. An empty filter selects nothing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScopeFilter(Vec<ScopeValues>);

impl ScopeFilter {
    /// Sorts the variables; `None` when one is named twice.
    pub fn new(mut entries: Vec<ScopeValues>) -> Option<Self> {
        entries.sort_by(|left, right| utf16_cmp(&left.variable, &right.variable));
        let unique = entries
            .windows(2)
            .all(|pair| pair[0].variable != pair[1].variable);
        unique.then_some(Self(entries))
    }

    /// The variables with their values, in order.
    pub fn entries(&self) -> &[ScopeValues] {
        &self.0
    }

    /// Whether no variable is named. Such a filter selects nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a row with these stored scopes is selected.
    pub fn matches(&self, stored: &StoredScopes) -> bool {
        !self.0.is_empty()
            && self.0.iter().all(|entry| {
                stored
                    .value(&entry.variable)
                    .is_some_and(|value| entry.values.iter().any(|wanted| wanted == value))
            })
    }
}

/// The scope values of one stored row: exactly one per variable, by ascending UTF-16 order.
///
/// Shared, because a row's scopes travel with each of its versions and with each change.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct StoredScopes(Arc<[(String, String)]>);

impl StoredScopes {
    /// Sorts the pairs; `None` when a variable is named twice.
    pub fn new(mut pairs: Vec<(String, String)>) -> Option<Self> {
        pairs.sort_by(|left, right| utf16_cmp(&left.0, &right.0));
        let unique = pairs.windows(2).all(|pair| pair[0].0 != pair[1].0);
        unique.then(|| Self(pairs.into()))
    }

    /// The value of `variable`.
    pub fn value(&self, variable: &str) -> Option<&str> {
        self.0
            .iter()
            .find_map(|(name, value)| (name == variable).then_some(value.as_str()))
    }

    /// Variable and value, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether no variable has a value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What the host grants for one variable.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Grant {
    /// Every value: the resolver's list contained `*`.
    Any,
    /// These values and no others.
    Values(BTreeSet<String>),
}

impl Grant {
    /// Whether `value` is granted.
    pub fn allows(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Values(values) => values.contains(value),
        }
    }
}

/// What the host allows an actor, for all tables together (§3.2).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AllowedScopes(BTreeMap<String, Grant>);

impl AllowedScopes {
    /// Takes the resolver's lists; a list with `*` in it grants every value.
    pub fn from_lists<V>(lists: impl IntoIterator<Item = (String, V)>) -> Self
    where
        V: IntoIterator<Item = String>,
    {
        let mut grants = BTreeMap::new();
        for (variable, values) in lists {
            let values: BTreeSet<String> = values.into_iter().collect();
            let grant = if values.contains("*") {
                Grant::Any
            } else {
                Grant::Values(values)
            };
            grants.insert(variable, grant);
        }
        Self(grants)
    }

    /// The grant for `variable`, if there is one.
    pub fn grant(&self, variable: &str) -> Option<&Grant> {
        self.0.get(variable)
    }

    /// Whether `value` of `variable` is granted.
    pub fn allows(&self, variable: &str, value: &str) -> bool {
        self.grant(variable)
            .is_some_and(|grant| grant.allows(value))
    }

    /// The variables with a grant, in order.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Variables and grants, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Grant)> {
        self.0
            .iter()
            .map(|(variable, grant)| (variable.as_str(), grant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn stored(pairs: &[(&str, &str)]) -> StoredScopes {
        let pairs = pairs
            .iter()
            .map(|&(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        StoredScopes::new(pairs).unwrap()
    }

    #[track_caller]
    fn check(wanted: &[(&str, &[&str])], row: &[(&str, &str)], expected: bool) {
        assert_eq!(filter(wanted).matches(&stored(row)), expected);
    }

    #[test]
    fn variables_combine_with_and_and_values_with_or() {
        let row = [("team", "t1"), ("region", "eu")];
        check(&[("team", &["t1", "t2"])], &row, true);
        check(&[("team", &["t1"]), ("region", &["eu"])], &row, true);
        check(&[("team", &["t1"]), ("region", &["us"])], &row, false);
        check(&[("team", &[])], &row, false);
        check(&[("owner", &["t1"])], &row, false);
    }

    #[test]
    fn an_empty_filter_selects_nothing() {
        check(&[], &[("team", "t1")], false);
    }

    #[test]
    fn a_star_among_the_values_grants_every_value() {
        let allowed = AllowedScopes::from_lists([
            ("team".to_owned(), vec!["*".to_owned(), "t1".to_owned()]),
            ("region".to_owned(), vec!["eu".to_owned()]),
        ]);
        assert!(allowed.allows("team", "anything"));
        assert!(allowed.allows("region", "eu"));
        assert!(!allowed.allows("region", "us"));
        assert!(!allowed.allows("owner", "me"));
    }

    #[test]
    fn a_variable_named_twice_is_refused() {
        let entry = ScopeValues {
            variable: "a".to_owned(),
            values: Vec::new(),
        };
        assert_eq!(ScopeFilter::new(vec![entry.clone(), entry]), None);
        let pair = ("a".to_owned(), "1".to_owned());
        assert_eq!(StoredScopes::new(vec![pair.clone(), pair]), None);
    }
}
