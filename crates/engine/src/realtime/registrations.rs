//! Who sees which commit: registrations, and an index from scope values to them (§8.1).
//!
//! Connections with the same registration share one: it is matched once per commit and its
//! section is the same bytes for all of them. The index holds one variable of each registration,
//! the one with the fewest values; a change is looked up by each value it carries, so what a
//! commit costs follows those who may see it, not those who are connected.
//!
//! **Invariant:** a registration exists as long as a connection holds it.

use std::collections::{BTreeMap, BTreeSet};

use bytestring::ByteString;
use tidewater_model::{ScopeFilter, StoredScopes};
use tidewater_schema::TableIndex;

use super::room::SessionId;

/// One subscription of a client that may receive deltas.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Registration {
    pub(crate) id: ByteString,
    pub(crate) table: TableIndex,
    /// The version of the window that its rows are shown in.
    pub(crate) schema_version: i32,
    /// Never empty.
    pub(crate) effective: ScopeFilter,
}

impl Registration {
    /// Everything that makes two registrations one.
    fn content(&self) -> Vec<u8> {
        let mut content = self.table.0.to_le_bytes().to_vec();
        content.extend(self.schema_version.to_le_bytes());
        let mut put = |text: &str| {
            content.extend(text.len().to_le_bytes());
            content.extend(text.as_bytes());
        };
        put(&self.id);
        for entry in self.effective.entries() {
            put(&entry.variable);
            // Separates lists: a count is no text, but has its place.
            put(&entry.values.len().to_string());
            entry.values.iter().for_each(|value| put(value));
        }
        content
    }

    /// The position of the variable with the fewest values.
    fn narrowest(&self) -> usize {
        let entries = self.effective.entries().iter().enumerate();
        entries
            .min_by_key(|(_, entry)| entry.values.len())
            .map_or(0, |(position, _)| position)
    }

    /// Whether everything it sees is also seen by `other`, of the same subscription.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self == other
            || self.id == other.id
                && self.table == other.table
                && self.schema_version == other.schema_version
                && other.effective.entries().iter().all(|wide| {
                    let wide_values: BTreeSet<&String> = wide.values.iter().collect();
                    self.effective.entries().iter().any(|narrow| {
                        narrow.variable == wide.variable
                            && narrow
                                .values
                                .iter()
                                .all(|value| wide_values.contains(value))
                    })
                })
    }

    /// Scope values over all its variables.
    pub(crate) fn value_count(&self) -> usize {
        self.effective
            .entries()
            .iter()
            .map(|entry| entry.values.len())
            .sum()
    }
}

/// Names a shared registration while it exists.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct RegistrationId(usize);

#[derive(Debug)]
struct Shared {
    registration: Registration,
    content: Vec<u8>,
    /// The position of the indexed variable.
    indexed: usize,
    /// Who holds it, and at which place in their own list.
    sessions: BTreeMap<SessionId, u32>,
}

type ByValue = BTreeMap<String, Vec<RegistrationId>>;

/// All registrations of a partition.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    slots: Vec<Option<Shared>>,
    free: Vec<RegistrationId>,
    by_content: BTreeMap<Vec<u8>, RegistrationId>,
    index: BTreeMap<TableIndex, BTreeMap<String, ByValue>>,
    /// Rises when something new is indexed.
    stamp: u64,
}

/// What the registrations of one table and variable look for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Interest {
    pub(crate) table: TableIndex,
    pub(crate) variable: String,
    pub(crate) values: Vec<String>,
}

impl Registry {
    /// Gives a session this registration, as the one at `place` in its list.
    pub(crate) fn add(
        &mut self,
        registration: Registration,
        session: SessionId,
        place: u32,
    ) -> RegistrationId {
        let content = registration.content();
        let id = match self.by_content.get(&content) {
            Some(id) => *id,
            None => self.insert(registration, content),
        };
        self.shared_mut(id).sessions.insert(session, place);
        id
    }

    /// Takes a registration from a session.
    pub(crate) fn remove(&mut self, id: RegistrationId, session: SessionId) {
        let shared = self.shared_mut(id);
        shared.sessions.remove(&session);
        if !shared.sessions.is_empty() {
            return;
        }
        let shared = self.slots[id.0].take().expect("it was there");
        self.free.push(id);
        self.by_content.remove(&shared.content);
        let table = shared.registration.table;
        let entry = &shared.registration.effective.entries()[shared.indexed];
        let variables = self.index.get_mut(&table).expect("it was indexed");
        let by_value = variables.get_mut(&entry.variable).expect("it was indexed");
        for value in &entry.values {
            // A list may name a value twice.
            if let Some(ids) = by_value.get_mut(value) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    by_value.remove(value);
                }
            }
        }
        if by_value.is_empty() {
            variables.remove(&entry.variable);
        }
        if variables.is_empty() {
            self.index.remove(&table);
        }
    }

    /// The variable that a registration is looked up by.
    pub(crate) fn indexed_by(&self, id: RegistrationId) -> &str {
        let shared = self.shared(id);
        &shared.registration.effective.entries()[shared.indexed].variable
    }

    pub(crate) fn registration(&self, id: RegistrationId) -> &Registration {
        &self.shared(id).registration
    }

    /// Who holds it, and at which place in their list.
    pub(crate) fn sessions(
        &self,
        id: RegistrationId,
    ) -> impl Iterator<Item = (SessionId, u32)> + '_ {
        self.shared(id)
            .sessions
            .iter()
            .map(|(session, place)| (*session, *place))
    }

    /// Calls `hit` for each registration that sees a change with these scopes. A change that was
    /// read through one variable (`via`) is seen by the registrations indexed by it alone: those
    /// indexed by another get it from another read.
    pub(crate) fn find(
        &self,
        table: TableIndex,
        scopes: &StoredScopes,
        via: Option<&str>,
        mut hit: impl FnMut(RegistrationId),
    ) {
        let Some(variables) = self.index.get(&table) else {
            return;
        };
        for (variable, value) in scopes.iter() {
            if via.is_some_and(|via| via != variable) {
                continue;
            }
            let ids = variables
                .get(variable)
                .and_then(|by_value| by_value.get(value));
            for id in ids.into_iter().flatten() {
                if self.registration(*id).effective.matches(scopes) {
                    hit(*id);
                }
            }
        }
    }

    /// What all registrations look for, and a stamp that tells whether it is still all; `None`
    /// when it is more than `values_max` values.
    pub(crate) fn interests(&self, values_max: usize) -> Option<(u64, Vec<Interest>)> {
        let mut left = values_max;
        let mut interests = Vec::new();
        for (table, variables) in &self.index {
            for (variable, by_value) in variables {
                left = left.checked_sub(by_value.len())?;
                interests.push(Interest {
                    table: *table,
                    variable: variable.clone(),
                    values: by_value.keys().cloned().collect(),
                });
            }
        }
        Some((self.stamp, interests))
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty() && self.by_content.is_empty()
    }

    fn insert(&mut self, registration: Registration, content: Vec<u8>) -> RegistrationId {
        self.stamp += 1;
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            RegistrationId(self.slots.len() - 1)
        });
        let indexed = registration.narrowest();
        let entry = &registration.effective.entries()[indexed];
        let by_value = self
            .index
            .entry(registration.table)
            .or_default()
            .entry(entry.variable.clone())
            .or_default();
        for value in &entry.values {
            let ids = by_value.entry(value.clone()).or_default();
            if ids.last() != Some(&id) {
                ids.push(id);
            }
        }
        self.by_content.insert(content.clone(), id);
        self.slots[id.0] = Some(Shared {
            registration,
            content,
            indexed,
            sessions: BTreeMap::new(),
        });
        id
    }

    fn shared(&self, id: RegistrationId) -> &Shared {
        self.slots[id.0]
            .as_ref()
            .expect("a held registration exists")
    }

    fn shared_mut(&mut self, id: RegistrationId) -> &mut Shared {
        self.slots[id.0]
            .as_mut()
            .expect("a held registration exists")
    }
}

#[cfg(test)]
mod tests {
    use tidewater_model::ScopeValues;

    use super::*;

    fn registration(id: &str, lists: &[(&str, &[&str])]) -> Registration {
        let entries = lists
            .iter()
            .map(|(variable, values)| ScopeValues {
                variable: (*variable).to_owned(),
                values: values.iter().map(|value| (*value).to_owned()).collect(),
            })
            .collect();
        Registration {
            id: id.into(),
            table: TableIndex(0),
            schema_version: 1,
            effective: ScopeFilter::new(entries).unwrap(),
        }
    }

    fn found(registry: &Registry, pairs: &[(&str, &str)]) -> Vec<SessionId> {
        let pairs = pairs
            .iter()
            .map(|(variable, value)| ((*variable).to_owned(), (*value).to_owned()))
            .collect();
        let mut sessions = Vec::new();
        registry.find(
            TableIndex(0),
            &StoredScopes::new(pairs).unwrap(),
            None,
            |id| {
                sessions.extend(registry.sessions(id).map(|(session, _)| session));
            },
        );
        sessions
    }

    #[test]
    fn equal_registrations_are_one_and_vanish_with_their_last_session() {
        let mut registry = Registry::default();
        let wanted = registration("s", &[("team", &["t1", "t1", "t2"])]);
        let first = registry.add(wanted.clone(), SessionId(1), 0);
        assert_eq!(registry.add(wanted.clone(), SessionId(2), 3), first);
        assert_eq!(
            found(&registry, &[("team", "t1")]),
            [SessionId(1), SessionId(2)]
        );
        registry.remove(first, SessionId(1));
        assert_eq!(found(&registry, &[("team", "t2")]), [SessionId(2)]);
        registry.remove(first, SessionId(2));
        assert!(registry.is_empty());
    }

    #[test]
    fn the_order_of_values_is_content_because_it_is_echoed() {
        let mut registry = Registry::default();
        let one = registry.add(registration("s", &[("team", &["a", "b"])]), SessionId(1), 0);
        let other = registry.add(registration("s", &[("team", &["b", "a"])]), SessionId(2), 0);
        assert_ne!(one, other);
    }

    #[test]
    fn rows_in_the_columns_of_another_version_are_another_registration() {
        let mut registry = Registry::default();
        let newer = registration("s", &[("team", &["a"])]);
        let older = Registration {
            schema_version: 0,
            ..newer.clone()
        };
        assert!(!older.is_within(&newer) && !newer.is_within(&older));
        assert_ne!(
            registry.add(newer, SessionId(1), 0),
            registry.add(older, SessionId(2), 0)
        );
    }

    #[test]
    fn every_variable_must_match_whichever_is_indexed() {
        let mut registry = Registry::default();
        let wanted = registration("s", &[("list", &["l1"]), ("org", &["o1", "o2"])]);
        registry.add(wanted, SessionId(1), 0);
        assert_eq!(
            found(&registry, &[("list", "l1"), ("org", "o2")]),
            [SessionId(1)]
        );
        assert_eq!(found(&registry, &[("list", "l1"), ("org", "o3")]), []);
        assert_eq!(found(&registry, &[("list", "l2"), ("org", "o1")]), []);
    }

    #[test]
    fn a_narrower_list_is_within_a_wider_one_of_the_same_subscription() {
        let wide = registration("s", &[("team", &["a", "b"])]);
        assert!(registration("s", &[("team", &["b"])]).is_within(&wide));
        assert!(!wide.is_within(&registration("s", &[("team", &["b"])])));
        assert!(!registration("x", &[("team", &["b"])]).is_within(&wide));
        let both = registration("s", &[("org", &["o"]), ("team", &["b"])]);
        assert!(both.is_within(&wide) && !wide.is_within(&both));
    }
}
