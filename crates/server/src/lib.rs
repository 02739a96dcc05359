//! Tidewater over HTTP: routes, authentication, limits, shutdown.
//!
//! Two ways in. [`serve`] runs a [`Server`] on a listener with every bound that a public server
//! needs. [`router`] gives the routes to be mounted in somebody else's axum service. Both end in
//! the same handlers, which turn bytes into a call of the engine and its answer into bytes.
//!
//! **Invariant:** nothing below this crate knows that HTTP exists, and nothing in it knows which
//! database it is on.

#![warn(missing_docs)]

mod auth;
mod blobs;
mod body;
mod conditional;
mod config;
mod console;
mod copies;
mod cors;
mod counts;
mod decoding;
mod encoding;
mod error;
mod health;
mod quota;
mod reply;
mod router;
mod scopes;
mod secret;
mod segments;
mod serve;
mod signed;
mod state;
mod stream;
mod sync;
mod transfer;
mod upload;

pub use auth::{
    AuthError, Authenticator, AuthenticatorChain, BearerTokens, RequestHead, StaticToken,
    TokenError, TrustedHeader,
};
pub use config::{ConnectionConfig, PROGRESS_BYTES_MIN, ServerConfig, TransferConfig};
pub use console::{Console, ConsoleAccess};
pub use cors::{Origin, OriginError};
pub use counts::TransferCounts;
pub use ipnet::IpNet;
pub use router::router;
pub use scopes::{ConfigScopes, ScopeTable};
pub use secret::Secret;
pub use serve::serve;
pub use state::{Server, Usage};
