//! Inverted indexes by scope variable and value, over rows and over the log.
//!
//! A filter is answered from the index of one variable, the one that selects least, so that a
//! read costs what it finds and not what there is. The caller verifies the other variables.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashSet},
    ops::Bound,
    sync::Arc,
};

use imbl::{OrdMap, OrdSet};
use tidewater_model::{ScopeFilter, StoredScopes};

/// Keys by scope variable and value.
#[derive(Clone, Debug)]
pub(super) struct ScopeIndex<K: Ord>(OrdMap<Arc<str>, OrdMap<Arc<str>, OrdSet<K>>>);

impl<K: Ord> Default for ScopeIndex<K> {
    fn default() -> Self {
        Self(OrdMap::new())
    }
}

impl<K: Clone + Ord> ScopeIndex<K> {
    pub(super) fn insert(&mut self, scopes: &StoredScopes, key: &K) {
        for (variable, value) in scopes.iter() {
            // Looking first keeps the common case, a known variable and value, free of copies.
            if !self.0.contains_key(variable) {
                self.0.insert(Arc::from(variable), OrdMap::new());
            }
            let values = self.0.get_mut(variable).expect("it was just inserted");
            if !values.contains_key(value) {
                values.insert(Arc::from(value), OrdSet::new());
            }
            values
                .get_mut(value)
                .expect("it was just inserted")
                .insert(key.clone());
        }
    }

    pub(super) fn remove(&mut self, scopes: &StoredScopes, key: &K) {
        for (variable, value) in scopes.iter() {
            let Some(values) = self.0.get_mut(variable) else {
                continue;
            };
            let Some(keys) = values.get_mut(value) else {
                continue;
            };
            keys.remove(key);
            if keys.is_empty() {
                values.remove(value);
            }
        }
    }

    /// The greatest key under one of the values.
    pub(super) fn greatest(&self, variable: &str, values: &[String]) -> Option<&K> {
        let by_value = self.0.get(variable)?;
        values
            .iter()
            .filter_map(|value| by_value.get(value.as_str())?.get_max())
            .max()
    }

    /// How many keys there are under the values, each under its own, up to a limit.
    pub(super) fn count(
        &self,
        variable: &str,
        values: &[String],
        bounds: (Bound<&K>, Bound<&K>),
        limit: u64,
    ) -> u64 {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let keys = self
            .sets(variable, values)
            .into_iter()
            .flat_map(|set| set.range::<_, K>(bounds));
        u64::try_from(keys.take(limit).count()).expect("a count fits")
    }

    /// The keys that one variable of the filter selects, ascending, each once, within bounds.
    pub(super) fn candidates(
        &self,
        filter: &ScopeFilter,
        lower: Bound<&K>,
        upper: Bound<&K>,
    ) -> impl Iterator<Item = &K> {
        let sets = filter
            .entries()
            .iter()
            .map(|entry| self.sets(&entry.variable, &entry.values))
            .min_by_key(|sets| sets.iter().map(|set| set.len()).sum::<usize>())
            .unwrap_or_default();
        Merge::new(
            sets.into_iter()
                .map(move |set| set.range::<_, K>((lower, upper))),
        )
    }

    fn sets(&self, variable: &str, values: &[String]) -> Vec<&OrdSet<K>> {
        let Some(by_value) = self.0.get(variable) else {
            return Vec::new();
        };
        // Values from a client repeat.
        let values: BTreeSet<&str> = values.iter().map(String::as_str).collect();
        values
            .into_iter()
            .filter_map(|value| by_value.get(value))
            .collect()
    }
}

/// Merges ascending iterators into one, without repetitions.
struct Merge<I: Iterator> {
    rest: Vec<I>,
    heads: BinaryHeap<Reverse<(I::Item, usize)>>,
    last: Option<I::Item>,
}

impl<I> Merge<I>
where
    I: Iterator,
    I::Item: Ord,
{
    fn new(sources: impl Iterator<Item = I>) -> Self {
        let mut rest = Vec::new();
        let mut heads = BinaryHeap::new();
        for mut source in sources {
            if let Some(head) = source.next() {
                heads.push(Reverse((head, rest.len())));
                rest.push(source);
            }
        }
        Self {
            rest,
            heads,
            last: None,
        }
    }
}

impl<I> Iterator for Merge<I>
where
    I: Iterator,
    I::Item: Copy + Ord,
{
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        loop {
            let Reverse((item, source)) = self.heads.pop()?;
            if let Some(head) = self.rest[source].next() {
                self.heads.push(Reverse((head, source)));
            }
            if self.last != Some(item) {
                self.last = Some(item);
                return Some(item);
            }
        }
    }
}

/// [`ScopeFilter::matches`] for a filter with many values and a row after row.
pub(super) struct Matcher<'a>(Vec<(&'a str, HashSet<&'a str>)>);

impl<'a> Matcher<'a> {
    pub(super) fn new(filter: &'a ScopeFilter) -> Self {
        let variables = filter.entries().iter().map(|entry| {
            let values = entry.values.iter().map(String::as_str).collect();
            (entry.variable.as_str(), values)
        });
        Self(variables.collect())
    }

    pub(super) fn matches(&self, stored: &StoredScopes) -> bool {
        !self.0.is_empty()
            && self.0.iter().all(|(variable, values)| {
                stored
                    .value(variable)
                    .is_some_and(|value| values.contains(value))
            })
    }
}
