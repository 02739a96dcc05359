//! Who is asking.
//!
//! The host decides: an [`Authenticator`] turns the head of a request into an identity. The
//! partition comes from here and from nowhere else, so no request can name somebody else's log.
//! What the identity may see is another question, answered by a `ScopeResolver`.

mod bearer;
mod trusted;

use std::{fmt, net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use http::{HeaderMap, Method, Uri};
use tidewater_engine::Identity;
use tidewater_model::ErrorCode;

pub use bearer::{BearerTokens, StaticToken, TokenError};
pub(crate) use bearer::{bearer_token, digest};
pub use trusted::TrustedHeader;

/// What authentication may look at: everything but the body.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path and query, below the mount.
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The other end of the connection, where it is known.
    pub peer: Option<SocketAddr>,
}

/// Why authentication has no answer, which is not the same as "no identity".
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// Something behind it failed. The text is for the log; the client is told to retry.
    #[error("{0}")]
    Failed(String),
    /// The request is to fail with this code.
    #[error("answered {}", .0.as_str())]
    Code(ErrorCode),
}

/// Establishes who makes a request.
///
/// Called once per request, before the body is read. An identity whose expiry has passed counts
/// as none.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// The identity, or `None` when the request has no credentials that this authenticator
    /// accepts.
    async fn authenticate(&self, head: RequestHead<'_>) -> Result<Option<Identity>, AuthError>;
}

/// Asks one authenticator after the other and takes the first identity.
///
/// A failure ends the search: it must not let a request through as somebody else.
pub struct AuthenticatorChain(Vec<Arc<dyn Authenticator>>);

impl AuthenticatorChain {
    /// Asks in the given order.
    pub fn new(members: Vec<Arc<dyn Authenticator>>) -> Self {
        Self(members)
    }
}

impl fmt::Debug for AuthenticatorChain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "AuthenticatorChain({})", self.0.len())
    }
}

#[async_trait]
impl Authenticator for AuthenticatorChain {
    async fn authenticate(&self, head: RequestHead<'_>) -> Result<Option<Identity>, AuthError> {
        for member in &self.0 {
            if let Some(identity) = member.authenticate(head).await? {
                return Ok(Some(identity));
            }
        }
        Ok(None)
    }
}

/// The one value of a header, or `None` when it is absent, repeated, empty or not text.
fn single<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    // Two values are an attempt to say two things to two readers.
    (values.next().is_none() && !value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests;
