//! What an actor may see, declared in configuration (§3.2).
//!
//! Two declarations, added up: a table of actors, and claims of the credentials that are scope
//! values. Values are taken literally, but for `*`, which grants every value, and `{actor}`,
//! which stands for the actor's own name.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tidewater_engine::{ResolveError, ResolveRequest, ScopeResolver};
use tidewater_model::{AllowedScopes, ErrorCode};

/// Scope variables with their values.
pub type ScopeTable = BTreeMap<String, Vec<String>>;

/// Resolves scopes from tables in memory.
#[derive(Clone, Debug, Default)]
pub struct ConfigScopes {
    actors: BTreeMap<String, Grants>,
    claims: BTreeMap<String, String>,
}

/// What one actor is granted.
#[derive(Clone, Debug)]
enum Grants {
    /// The same for everybody, ready to hand out.
    Fixed(ScopeTable, AllowedScopes),
    /// Values that name the actor are filled in first.
    PerActor(ScopeTable),
}

/// The entry of actors that have none of their own.
const ANY_ACTOR: &str = "*";
/// The value that stands for the actor's name.
const OWN_NAME: &str = "{actor}";

impl ConfigScopes {
    /// `actors` maps an actor, or `*` for those not named, to scope variables with their values.
    /// `claims` maps a claim to the scope variable that it holds values of.
    pub fn new(actors: BTreeMap<String, ScopeTable>, claims: BTreeMap<String, String>) -> Self {
        let actors = actors
            .into_iter()
            .map(|(actor, table)| {
                let per_actor = table.values().flatten().any(|value| value == OWN_NAME);
                let grants = if per_actor {
                    Grants::PerActor(table)
                } else {
                    let allowed = AllowedScopes::from_lists(table.clone());
                    Grants::Fixed(table, allowed)
                };
                (actor, grants)
            })
            .collect();
        Self { actors, claims }
    }

    /// Every variable that may be granted, for a check against the schema: a variable that no
    /// table declares fails each request.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        let tables = self.actors.values().map(Grants::table);
        tables
            .flat_map(BTreeMap::keys)
            .chain(self.claims.values())
            .map(String::as_str)
    }

    fn grants(&self, actor: &str) -> Option<&Grants> {
        self.actors
            .get(actor)
            .or_else(|| self.actors.get(ANY_ACTOR))
    }

    fn add_claims(
        &self,
        claims: &Map<String, Value>,
        table: &mut ScopeTable,
    ) -> Result<(), ResolveError> {
        for (claim, variable) in &self.claims {
            let Some(value) = claims.get(claim) else {
                continue;
            };
            let Some(values) = strings(value) else {
                tracing::error!(claim, "claim is neither a string nor a list of strings");
                // Not `Failed`: that would revoke, and a client deletes what is revoked.
                return Err(ResolveError::Code(ErrorCode::InternalError));
            };
            table.entry(variable.clone()).or_default().extend(values);
        }
        Ok(())
    }
}

#[async_trait]
impl ScopeResolver for ConfigScopes {
    async fn resolve(&self, request: ResolveRequest<'_>) -> Result<AllowedScopes, ResolveError> {
        let actor = request.identity.actor.as_str();
        let mut table = match self.grants(actor) {
            Some(Grants::Fixed(_, allowed)) if self.claims.is_empty() => {
                return Ok(allowed.clone());
            }
            Some(Grants::Fixed(table, _)) => table.clone(),
            Some(Grants::PerActor(table)) => named(table, actor),
            None => ScopeTable::new(),
        };
        self.add_claims(&request.identity.claims, &mut table)?;
        Ok(AllowedScopes::from_lists(table))
    }
}

impl Grants {
    fn table(&self) -> &ScopeTable {
        match self {
            Self::Fixed(table, _) | Self::PerActor(table) => table,
        }
    }
}

/// The table with the actor's name filled in.
fn named(table: &ScopeTable, actor: &str) -> ScopeTable {
    // An actor called `*` must not be granted everything by a rule about names.
    let own = (actor != "*").then_some(actor);
    let fill = |value: &String| match value.as_str() {
        OWN_NAME => own.map(str::to_owned),
        _ => Some(value.clone()),
    };
    table
        .iter()
        .map(|(variable, values)| (variable.clone(), values.iter().filter_map(fill).collect()))
        .collect()
}

/// A string or a list of strings.
fn strings(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned))
            .collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use tidewater_engine::Identity;

    use super::*;

    fn scopes(actors: Value, claims: Value) -> ConfigScopes {
        let actors = serde_json::from_value(actors).unwrap();
        ConfigScopes::new(actors, serde_json::from_value(claims).unwrap())
    }

    async fn resolve(
        scopes: &ConfigScopes,
        actor: &str,
        claims: Value,
    ) -> Result<AllowedScopes, ResolveError> {
        let mut identity = Identity::new("p", actor);
        identity.claims = Arc::new(serde_json::from_value(claims).unwrap());
        scopes
            .resolve(ResolveRequest {
                identity: &identity,
                client_id: None,
            })
            .await
    }

    #[tokio::test]
    async fn an_actor_with_an_entry_of_its_own_does_not_get_the_one_for_everybody() {
        let scopes = scopes(
            json!({"*": {"team": ["t1"]}, "root": {"team": ["*"]}, "eve": {}}),
            json!({}),
        );
        let anybody = resolve(&scopes, "alice", json!({})).await.unwrap();
        assert!(anybody.allows("team", "t1") && !anybody.allows("team", "t2"));
        assert!(
            resolve(&scopes, "root", json!({}))
                .await
                .unwrap()
                .allows("team", "t2")
        );
        assert_eq!(
            resolve(&scopes, "eve", json!({})).await.unwrap(),
            AllowedScopes::default()
        );
    }

    #[tokio::test]
    async fn nobody_is_granted_anything_by_default() {
        let scopes = scopes(json!({"alice": {"team": ["t1"]}}), json!({}));
        assert_eq!(
            resolve(&scopes, "bob", json!({})).await.unwrap(),
            AllowedScopes::default()
        );
    }

    #[tokio::test]
    async fn the_actors_own_name_is_filled_in() {
        let scopes = scopes(json!({"*": {"owner": ["{actor}", "shared"]}}), json!({}));
        let allowed = resolve(&scopes, "alice", json!({})).await.unwrap();
        assert!(allowed.allows("owner", "alice") && allowed.allows("owner", "shared"));
        assert!(!allowed.allows("owner", "bob") && !allowed.allows("owner", "{actor}"));
        let star = resolve(&scopes, "*", json!({})).await.unwrap();
        assert!(!star.allows("owner", "bob"));
    }

    #[tokio::test]
    async fn claims_add_their_values_to_the_table() {
        let scopes = scopes(
            json!({"*": {"team": ["t1"]}}),
            json!({"teams": "team", "org": "org"}),
        );
        let claims = json!({"teams": ["t2", "t3"], "org": "o1", "other": 5});
        let allowed = resolve(&scopes, "alice", claims).await.unwrap();
        for (variable, value) in [("team", "t1"), ("team", "t3"), ("org", "o1")] {
            assert!(allowed.allows(variable, value), "{variable} {value}");
        }
        assert!(!allowed.allows("org", "o2"));
        assert_eq!(
            scopes.variables().collect::<Vec<_>>(),
            ["team", "org", "team"]
        );
    }

    #[tokio::test]
    async fn a_claim_of_another_shape_fails_the_request_and_revokes_nothing() {
        let scopes = scopes(json!({}), json!({"teams": "team"}));
        for claim in [json!(5), json!(["t1", 5]), json!({"a": "b"}), json!(null)] {
            let error = resolve(&scopes, "alice", json!({ "teams": claim }))
                .await
                .unwrap_err();
            assert!(matches!(
                error,
                ResolveError::Code(ErrorCode::InternalError)
            ));
        }
    }
}
