//! A scope resolver that a test holds the switch of.
//!
//! Nobody is granted anything until a test says so: an actor without an entry has no scopes, and
//! its subscriptions are revoked (§3.2).

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Deserialize;
use tidewater_engine::{ResolveError, ResolveRequest, ScopeResolver};
use tidewater_model::AllowedScopes;

/// Scope variables with the values granted for them.
pub type ScopeLists = BTreeMap<String, Vec<String>>;

/// What the resolver does when it is asked.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum ResolverMode {
    /// Answers from its table.
    #[default]
    Ok,
    /// Fails: subscriptions are revoked and writes forbidden.
    Failing,
    /// Reports an outage of what is behind it: nothing is revoked.
    Outage,
}

/// Answers from a table in memory, or not at all.
#[derive(Debug, Default)]
pub struct SwitchResolver(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    mode: ResolverMode,
    allowed: BTreeMap<String, AllowedScopes>,
}

impl SwitchResolver {
    /// Replaces what an actor is allowed.
    pub fn allow(&self, actor: &str, allowed: ScopeLists) {
        let allowed = AllowedScopes::from_lists(allowed);
        self.0.lock().allowed.insert(actor.to_owned(), allowed);
    }

    /// Sets what happens from the next request on.
    pub fn set_mode(&self, mode: ResolverMode) {
        self.0.lock().mode = mode;
    }

    fn answer(&self, actor: &str) -> Result<AllowedScopes, ResolveError> {
        let state = self.0.lock();
        match state.mode {
            ResolverMode::Ok => Ok(state.allowed.get(actor).cloned().unwrap_or_default()),
            ResolverMode::Failing => Err(ResolveError::Failed("switched to failing".to_owned())),
            ResolverMode::Outage => Err(ResolveError::Outage("switched to outage".to_owned())),
        }
    }
}

#[async_trait]
impl ScopeResolver for SwitchResolver {
    async fn resolve(&self, request: ResolveRequest<'_>) -> Result<AllowedScopes, ResolveError> {
        self.answer(request.identity.actor.as_str())
    }
}

/// Builds the table of one actor: `scopes([("team_id", &["t1", "t2"])])`.
pub fn scopes<const N: usize>(lists: [(&str, &[&str]); N]) -> ScopeLists {
    lists
        .into_iter()
        .map(|(variable, values)| {
            let values = values.iter().map(|&value| value.to_owned()).collect();
            (variable.to_owned(), values)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_without_an_entry_is_allowed_nothing() {
        let resolver = SwitchResolver::default();
        resolver.allow("alice", scopes([("team_id", &["t1"])]));
        assert!(resolver.answer("alice").unwrap().allows("team_id", "t1"));
        assert_eq!(resolver.answer("bob").unwrap(), AllowedScopes::default());
    }

    #[test]
    fn the_switch_decides_how_it_fails_and_the_table_survives() {
        let resolver = SwitchResolver::default();
        resolver.allow("alice", scopes([("team_id", &["*"])]));
        resolver.set_mode(ResolverMode::Failing);
        assert!(matches!(
            resolver.answer("alice"),
            Err(ResolveError::Failed(_))
        ));
        resolver.set_mode(ResolverMode::Outage);
        assert!(matches!(
            resolver.answer("alice"),
            Err(ResolveError::Outage(_))
        ));
        resolver.set_mode(ResolverMode::Ok);
        assert!(resolver.answer("alice").unwrap().allows("team_id", "any"));
    }
}
