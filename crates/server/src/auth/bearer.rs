//! Tokens known from configuration, sent as `Authorization: Bearer`.
//!
//! Tokens are kept and compared as SHA-256 digests, so neither the memory of the process nor the
//! time of a comparison says anything about them.

use std::{collections::HashMap, fmt, sync::Arc};

use async_trait::async_trait;
use http::header;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tidewater_engine::Identity;

use super::{AuthError, Authenticator, RequestHead, single};
use crate::Secret;

/// One token and whom it stands for.
#[derive(Clone, Debug)]
pub struct StaticToken {
    /// What the client sends.
    pub token: Secret,
    /// The partition.
    pub partition: String,
    /// The actor.
    pub actor: String,
    /// Claims for the scope resolver.
    pub claims: Map<String, Value>,
}

/// A set of tokens that cannot work. No message contains a token.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// A token without text would authenticate everybody who sends an empty one.
    #[error("the token of actor {0:?} is empty")]
    Empty(String),
    /// Whose is it?
    #[error("actors {0:?} and {1:?} have the same token")]
    Duplicate(String, String),
}

/// Authenticates by static bearer tokens.
pub struct BearerTokens(HashMap<[u8; 32], Identity>);

impl BearerTokens {
    /// Takes the tokens.
    pub fn new(tokens: impl IntoIterator<Item = StaticToken>) -> Result<Self, TokenError> {
        let mut identities: HashMap<_, Identity> = HashMap::new();
        for token in tokens {
            if token.token.expose().trim().is_empty() {
                return Err(TokenError::Empty(token.actor));
            }
            let mut identity = Identity::new(token.partition, token.actor);
            identity.claims = Arc::new(token.claims);
            let actor = identity.actor.to_string();
            if let Some(before) = identities.insert(digest(token.token.expose()), identity) {
                return Err(TokenError::Duplicate(before.actor.to_string(), actor));
            }
        }
        Ok(Self(identities))
    }
}

impl fmt::Debug for BearerTokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "BearerTokens({})", self.0.len())
    }
}

#[async_trait]
impl Authenticator for BearerTokens {
    async fn authenticate(&self, head: RequestHead<'_>) -> Result<Option<Identity>, AuthError> {
        let token = bearer_token(&head);
        Ok(token.and_then(|token| self.0.get(&digest(token))).cloned())
    }
}

/// The token of the request's `Authorization` header.
pub(crate) fn bearer_token<'a>(head: &RequestHead<'a>) -> Option<&'a str> {
    let value = single(head.headers, &header::AUTHORIZATION)?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The digest of a token.
pub(crate) fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}
