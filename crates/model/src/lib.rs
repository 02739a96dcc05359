//! The nouns of the sync domain, and nothing that does anything with them.
//!
//! Names ([`PartitionId`], [`ActorId`], [`ClientId`]), places in a log ([`CommitSeq`], [`Cursor`],
//! [`HorizonSeq`]), scopes, column types, the error catalogue and the limits. Every other crate
//! depends on this one, so it depends on nothing but the standard library.

#![warn(missing_docs)]

mod error_code;
mod ids;
pub mod limits;
mod order;
mod scope;
mod seq;
mod value;

pub use error_code::{Category, ErrorCode, RecommendedAction};
pub use ids::{ActorId, ClientId, LogEpoch, PartitionId};
pub use order::utf16_cmp;
pub use scope::{AllowedScopes, Grant, ScopeFilter, ScopeValues, StoredScopes};
pub use seq::{CommitSeq, Cursor, HorizonSeq};
pub use value::{ColumnType, Op};
