//! Validators that a test can exchange while the server runs (§6.7, §6.8).
//!
//! An engine takes its hooks when it opens, and a restart would lose what the server only knows
//! in memory. So every instance has one validator that judges by a table of rules, installed for
//! all tables from the start, and a switch exchanges the rules: they hold from the next commit
//! on. A rule becomes a whole refusal when it is set, so a code or a field that must not travel
//! is refused there, and not found out in the middle of a push.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use tidewater_engine::{
    CandidateCommit, CandidateReader, CommitValidator, Hooks, ReadError, Rejection, RejectionError,
    RowValidator, RowView, RowWrite, ValidatorError,
};
use tidewater_model::ColumnType;
use tidewater_schema::{Schema, Table};
use tidewater_wire::{RejectionDetails, row::Value};

use crate::rows::value_to_json;

/// What a validator refuses, as JSON: `{"kind": "maxLength", …}`, with `type` for `kind`, or with
/// the kind as the only key, `{"maxLength": {…}}`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(try_from = "Json")]
pub enum Rule {
    /// Of one table's writes.
    Row(RowRule),
    /// Of whole commits.
    Commit(CommitRule),
}

/// What is refused of a write.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum RowRule {
    /// A string longer than this.
    MaxLength {
        /// The string.
        column: String,
        /// Characters it may have.
        max: usize,
        /// Of the refusal.
        code: String,
    },
    /// An update that changes a column of a row that is guarded as it is stored.
    ImmutableWhen {
        /// What must not change.
        column: String,
        /// What guards the row.
        guard_column: String,
        /// The value that guards it.
        guard_value: Json,
        /// Of the refusal.
        code: String,
    },
}

/// What is refused of a commit.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum CommitRule {
    /// A row with this value whose sibling the commit does not touch.
    RequireSiblingWhen {
        /// Of both rows.
        table: String,
        /// What says that a sibling is needed.
        column: String,
        /// The value that says so.
        equals: Json,
        /// The sibling's id is the row's with this behind it.
        sibling_row_id_suffix: String,
        /// Of the refusal.
        code: String,
    },
}

/// A row rule and whose writes it is about.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct TableRule {
    /// The table.
    pub table: String,
    /// The rule.
    pub rule: Rule,
}

/// Why a rule cannot be set.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RuleError {
    /// It is not about something that exists.
    #[error("there is no {0}")]
    Unknown(String),
    /// It would never refuse anything.
    #[error("{0} is not a string column")]
    NotText(String),
    /// A row rule where one for commits is needed, or the other way round.
    #[error("the rule is not one for {0}")]
    Misplaced(&'static str),
    /// Its refusal must not travel.
    #[error(transparent)]
    Refusal(#[from] RejectionError),
}

impl TryFrom<Json> for Rule {
    type Error = String;

    fn try_from(json: Json) -> Result<Self, String> {
        let members = with_kind(json).ok_or("a rule is an object with a kind")?;
        let kind = members["kind"].as_str().unwrap_or_default();
        let of_commits = kind == "requireSiblingWhen";
        let json = Json::Object(members);
        let rule = if of_commits {
            serde_json::from_value(json).map(Self::Commit)
        } else {
            serde_json::from_value(json).map(Self::Row)
        };
        rule.map_err(|error| error.to_string())
    }
}

/// Brings the three forms into one.
fn with_kind(json: Json) -> Option<Map<String, Json>> {
    let Json::Object(mut members) = json else {
        return None;
    };
    if members.contains_key("kind") {
        return Some(members);
    }
    if let Some(kind) = members.remove("type") {
        members.insert("kind".to_owned(), kind);
        return Some(members);
    }
    let mut members = members.into_iter();
    let (Some((kind, Json::Object(mut inner))), None) = (members.next(), members.next()) else {
        return None;
    };
    inner.insert("kind".to_owned(), kind.into());
    Some(inner)
}

/// Judges by rules that can be exchanged.
#[derive(Debug, Default)]
pub struct SwitchValidator {
    of_rows: RwLock<BTreeMap<String, Vec<Armed<RowRule>>>>,
    of_commits: RwLock<Option<Armed<CommitRule>>>,
}

/// A rule with what it answers.
#[derive(Clone, Debug)]
struct Armed<R> {
    rule: R,
    refusal: Rejection,
}

impl SwitchValidator {
    /// Replaces the rules for rows, all or none.
    pub fn judge_rows(&self, schema: &Schema, rules: Vec<TableRule>) -> Result<(), RuleError> {
        let mut armed: BTreeMap<String, Vec<Armed<RowRule>>> = BTreeMap::new();
        for TableRule { table, rule } in rules {
            let Rule::Row(rule) = rule else {
                return Err(RuleError::Misplaced("rows"));
            };
            let rule = arm_row_rule(find_table(schema, &table)?, rule)?;
            armed.entry(table).or_default().push(rule);
        }
        *self.of_rows.write() = armed;
        Ok(())
    }

    /// Replaces the rule for commits; `None` accepts them all.
    pub fn judge_commits(&self, schema: &Schema, rule: Option<Rule>) -> Result<(), RuleError> {
        let armed = match rule {
            None => None,
            Some(Rule::Row(_)) => return Err(RuleError::Misplaced("commits")),
            Some(Rule::Commit(rule)) => Some(arm_commit_rule(schema, rule)?),
        };
        *self.of_commits.write() = armed;
        Ok(())
    }

    /// Joins the validators of a host, behind them.
    pub(crate) fn install(self: &Arc<Self>, schema: &Schema, hooks: &mut Hooks) {
        for table in schema.tables() {
            let validators = hooks.row_validators.entry(table.name.clone()).or_default();
            validators.push(Arc::<Self>::clone(self));
        }
        hooks.commit_validators.push(Arc::<Self>::clone(self));
    }
}

fn arm_row_rule(table: &Table, rule: RowRule) -> Result<Armed<RowRule>, RuleError> {
    let refusal = match &rule {
        RowRule::MaxLength { column, max, code } => {
            if find_column(table, column)? != ColumnType::String {
                return Err(RuleError::NotText(column.clone()));
            }
            let message = format!("{column} is longer than {max} characters");
            refusal(code, message, column, "max_length")?
        }
        RowRule::ImmutableWhen {
            column,
            guard_column,
            code,
            ..
        } => {
            find_column(table, column)?;
            find_column(table, guard_column)?;
            let message = format!("{column} cannot change any more");
            refusal(code, message, column, "immutable")?
        }
    };
    Ok(Armed { rule, refusal })
}

fn arm_commit_rule(schema: &Schema, rule: CommitRule) -> Result<Armed<CommitRule>, RuleError> {
    let CommitRule::RequireSiblingWhen {
        table,
        column,
        code,
        ..
    } = &rule;
    find_column(find_table(schema, table)?, column)?;
    let message = "the commit does not carry the row's sibling".to_owned();
    let refusal = refusal(code, message, column, "missing_sibling")?;
    Ok(Armed { rule, refusal })
}

fn find_table<'a>(schema: &'a Schema, name: &str) -> Result<&'a Table, RuleError> {
    let index = schema.find(name);
    let index = index.ok_or_else(|| RuleError::Unknown(format!("table {name:?}")))?;
    Ok(schema.table(index))
}

fn find_column(table: &Table, name: &str) -> Result<ColumnType, RuleError> {
    let mut columns = table.columns.iter();
    let column = columns.find(|column| column.name == name);
    let unknown = || RuleError::Unknown(format!("column {name:?} in table {:?}", table.name));
    Ok(column.ok_or_else(unknown)?.kind)
}

fn refusal(
    code: &str,
    message: String,
    column: &str,
    reason: &str,
) -> Result<Rejection, RejectionError> {
    let details = RejectionDetails::new().field_path(column).reason(reason);
    Rejection::new(code, message)?.with_details(details)
}

impl RowRule {
    fn accepts(&self, write: &RowWrite<'_>) -> Result<bool, ReadError> {
        // Both rules are about rows that stay.
        let Some(row) = write.row else {
            return Ok(true);
        };
        Ok(match self {
            Self::MaxLength { column, max, .. } => match row.value(column)? {
                Some(Value::String(text)) => text.chars().count() <= *max,
                _ => true,
            },
            Self::ImmutableWhen {
                column,
                guard_column,
                guard_value,
                ..
            } => match write.stored {
                Some(stored) if holds(&stored, guard_column, guard_value)? => {
                    row.value(column)? == stored.value(column)?
                }
                _ => true,
            },
        })
    }
}

impl CommitRule {
    /// The first operation that lacks its sibling.
    fn first_offender(&self, commit: &CandidateCommit<'_>) -> Result<Option<i32>, ReadError> {
        let Self::RequireSiblingWhen {
            table,
            column,
            equals,
            sibling_row_id_suffix: suffix,
            ..
        } = self;
        let of_table = || {
            let operations = commit.operations.iter();
            operations.filter(|operation| operation.table.name == *table)
        };
        for operation in of_table() {
            let Some(row) = &operation.row else { continue };
            let sibling = format!("{}{suffix}", operation.row_id);
            if holds(row, column, equals)? && !of_table().any(|other| other.row_id == sibling) {
                return Ok(Some(operation.op_index));
            }
        }
        Ok(None)
    }
}

/// Whether a column has this value; `null` is NULL, and 1 is the float 1.0 as well.
fn holds(row: &RowView<'_>, column: &str, expected: &Json) -> Result<bool, ReadError> {
    Ok(match row.value(column)? {
        Some(Value::Float(number)) => expected.as_f64() == Some(number),
        Some(value) => value_to_json(&value) == *expected,
        None => expected.is_null(),
    })
}

#[async_trait]
impl RowValidator for SwitchValidator {
    async fn validate(
        &self,
        write: &RowWrite<'_>,
        _reader: &dyn CandidateReader,
    ) -> Result<(), ValidatorError> {
        let rules = self.of_rows.read();
        let rules = rules.get(&write.table.name).into_iter().flatten();
        for armed in rules {
            if !armed.rule.accepts(write)? {
                return Err(armed.refusal.clone().into());
            }
        }
        Ok(())
    }
}

#[async_trait]
impl CommitValidator for SwitchValidator {
    async fn validate(
        &self,
        commit: &CandidateCommit<'_>,
        _reader: &dyn CandidateReader,
    ) -> Result<(), ValidatorError> {
        let Some(armed) = &*self.of_commits.read() else {
            return Ok(());
        };
        match armed.rule.first_offender(commit)? {
            Some(op_index) => Err(armed.refusal.clone().at_operation(op_index).into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::notes;

    #[track_caller]
    fn check(text: Json, expected: Option<&Rule>) {
        assert_eq!(serde_json::from_value(text).ok().as_ref(), expected);
    }

    fn max_length(code: &str) -> Rule {
        Rule::Row(RowRule::MaxLength {
            column: "title".to_owned(),
            max: 3,
            code: code.to_owned(),
        })
    }

    #[test]
    fn a_rule_is_read_in_three_forms() {
        let rule = max_length("x.y");
        let text = json!({ "kind": "maxLength", "column": "title", "max": 3, "code": "x.y" });
        check(text, Some(&rule));
        let text = json!({ "type": "maxLength", "column": "title", "max": 3, "code": "x.y" });
        check(text, Some(&rule));
        let text = json!({ "maxLength": { "column": "title", "max": 3, "code": "x.y" } });
        check(text, Some(&rule));
        check(json!({ "maxLength": 3 }), None);
        check(json!({ "maxLength": {}, "more": {} }), None);
        check(json!({ "kind": "odd", "column": "title" }), None);
        check(
            json!({ "kind": "maxLength", "column": "title", "max": -1, "code": "x" }),
            None,
        );
        check(json!([]), None);
        // A guard is never absent, but may be NULL.
        let guarded = json!({ "column": "title", "guardColumn": "done", "code": "x.y" });
        check(json!({ "immutableWhen": guarded }), None);
    }

    #[test]
    fn a_rule_that_would_do_nothing_or_must_not_travel_is_refused_and_nothing_changes() {
        let schema = notes(1).compile().unwrap();
        let validator = SwitchValidator::default();
        let of = |table: &str, rule: Rule| TableRule {
            table: table.to_owned(),
            rule,
        };
        let set = |rules: Vec<TableRule>| validator.judge_rows(&schema, rules);
        set(vec![of("notes", max_length("x.y"))]).unwrap();
        let sibling = CommitRule::RequireSiblingWhen {
            table: "notes".to_owned(),
            column: "none".to_owned(),
            equals: Json::Null,
            sibling_row_id_suffix: "-b".to_owned(),
            code: "x.y".to_owned(),
        };
        let stars = RowRule::MaxLength {
            column: "stars".to_owned(),
            max: 3,
            code: "x.y".to_owned(),
        };
        for (rule, expected) in [
            (of("none", max_length("x.y")), "there is no table \"none\""),
            (
                of("notes", Rule::Row(stars)),
                "stars is not a string column",
            ),
            (of("notes", max_length("")), "a rejection needs a code"),
            (
                of("notes", max_length("sync.mine")),
                "the code begins with a prefix that is reserved for the protocol",
            ),
            (
                of("notes", Rule::Commit(sibling.clone())),
                "the rule is not one for rows",
            ),
        ] {
            let rules = vec![of("notes", max_length("z")), rule];
            assert_eq!(set(rules).unwrap_err().to_string(), expected);
        }
        assert_eq!(validator.of_rows.read()["notes"].len(), 1);
        let refused = validator.judge_commits(&schema, Some(max_length("x.y")));
        assert_eq!(refused, Err(RuleError::Misplaced("commits")));
        let refused = validator.judge_commits(&schema, Some(Rule::Commit(sibling)));
        assert!(matches!(refused, Err(RuleError::Unknown(_))));
    }
}
