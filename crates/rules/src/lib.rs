//! Rules about writes that an operator declares, as validators of the engine (§6.7, §6.8).
//!
//! * `[[rules.validate]]`: a CEL expression that must be true of every write of a table. It is
//!   bounded: see [`RulesConfig::steps_max`].
//! * `[[rules.assert]]`: a SELECT that must find nothing once a commit is applied. It is confined
//!   to the commit's partition by [`sql`], which registered queries use as well.
//!
//! **Invariant:** a rule that is wrong is found when the server starts, with its place in the
//! configuration. A rule that comes to no verdict on a write rejects it: rules fail closed.
//!
//! Not here: reading the file (the binary does), running SQL (a store does), deadlines and what
//! a client is told of a failure (the engine).

#![warn(missing_docs)]

mod assertion;
mod config;
mod expression;
mod rules;
pub mod sql;
mod stack;
mod table_rules;
#[cfg(test)]
mod testing;

pub use config::{AssertRule, RulesConfig, ValidateRule, WriteKind};
pub use expression::{EXPRESSION_BYTES_MAX, EXPRESSION_DEPTH_MAX, STEPS_DEFAULT, STEPS_MAX};
pub use rules::{MESSAGE_BYTES_MAX, RuleError, Rules};
