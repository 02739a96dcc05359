//! Rules as they are written in a configuration file.

use serde::{Deserialize, Serialize};

use crate::expression::STEPS_DEFAULT;

/// `[rules]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RulesConfig {
    /// Steps that the evaluation of one expression may take.
    pub steps_max: u64,
    /// Expressions that judge single writes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub validate: Vec<ValidateRule>,
    /// SQL that judges whole commits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assert: Vec<AssertRule>,
}

impl Default for RulesConfig {
    fn default() -> Self {
        Self {
            steps_max: STEPS_DEFAULT,
            validate: Vec::new(),
            assert: Vec::new(),
        }
    }
}

/// `[[rules.validate]]`: what must be true of a write.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ValidateRule {
    /// The table.
    pub table: String,
    /// A CEL expression on `row`, `stored`, `op`, `actor` and `partition`.
    pub expr: String,
    /// The code of the rejection.
    pub code: String,
    /// The message of the rejection.
    pub message: String,
    /// Fields that are wrong, for the details of the rejection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// A token that says why, for the details of the rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Which writes it judges; both kinds when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<WriteKind>,
}

/// One kind of write.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WriteKind {
    /// Inserts and updates.
    Upsert,
    /// Deletes.
    Delete,
}

/// `[[rules.assert]]`: what must not be found after a commit.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AssertRule {
    /// What it is called in the log.
    pub name: String,
    /// A SELECT whose rows are what is wrong.
    pub sql: String,
    /// The code of the rejection.
    pub code: String,
    /// The message of the rejection.
    pub message: String,
    /// The tables whose commits it judges; those it reads when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<Vec<String>>,
}
