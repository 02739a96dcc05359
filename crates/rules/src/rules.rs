//! Compiles the rules of a configuration and hands them to the engine.

use std::{collections::BTreeMap, fmt::Display, sync::Arc};

use tidewater_engine::{Hooks, Rejection};
use tidewater_schema::{Schema, Table};
use tidewater_wire::RejectionDetails;

use crate::{
    assertion::Assertion,
    config::{AssertRule, RulesConfig, ValidateRule},
    expression::{Expression, STEPS_MAX},
    sql::{Placeholders, Query},
    table_rules::{TableRule, TableRules},
};

/// Length of a message: it is stored with every rejected commit.
pub const MESSAGE_BYTES_MAX: usize = 1_024;

/// A rule that cannot be compiled: where it stands and what is wrong.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct RuleError {
    /// The place in the configuration, such as `rules.validate[2].expr`.
    pub place: String,
    /// A sentence.
    pub fault: String,
}

impl RuleError {
    fn new(place: impl Display, fault: impl Display) -> Self {
        Self {
            place: place.to_string(),
            fault: fault.to_string(),
        }
    }
}

/// Compiled rules.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    by_table: BTreeMap<String, Arc<TableRules>>,
    assertions: Vec<Arc<Assertion>>,
}

impl Rules {
    /// Compiles every rule, or says what is wrong with the first that does not compile.
    pub fn compile(config: &RulesConfig, schema: &Schema) -> Result<Self, RuleError> {
        if !(1..=STEPS_MAX).contains(&config.steps_max) {
            return Err(RuleError::new(
                "rules.steps_max",
                format!(
                    "it is {} and must be from 1 to {STEPS_MAX}",
                    config.steps_max
                ),
            ));
        }
        let mut by_table: BTreeMap<String, TableRules> = BTreeMap::new();
        for (at, rule) in config.validate.iter().enumerate() {
            let place = format!("rules.validate[{at}]");
            let table = table(schema, &rule.table, format_args!("{place}.table"))?;
            let compiled = compile_rule(rule, table, place)?;
            by_table
                .entry(table.name.clone())
                .or_insert_with(|| TableRules::new(config.steps_max))
                .push(compiled);
        }
        let mut assertions: Vec<Arc<Assertion>> = Vec::with_capacity(config.assert.len());
        for (at, rule) in config.assert.iter().enumerate() {
            let assertion = compile_assertion(rule, schema, &format!("rules.assert[{at}]"))?;
            if assertions.iter().any(|other| other.name == assertion.name) {
                return Err(RuleError::new(
                    format_args!("rules.assert[{at}].name"),
                    format!("another assertion is called `{}` too", rule.name),
                ));
            }
            assertions.push(Arc::new(assertion));
        }
        let by_table = by_table
            .into_iter()
            .map(|(table, rules)| (table, Arc::new(rules)))
            .collect();
        Ok(Self {
            by_table,
            assertions,
        })
    }

    /// Whether the store must understand SQL.
    pub fn needs_sql(&self) -> bool {
        !self.assertions.is_empty()
    }

    /// Adds the rules to what the host brings, after validators that are there already.
    pub fn install(&self, hooks: &mut Hooks) {
        for (table, rules) in &self.by_table {
            let validators = hooks.row_validators.entry(table.clone()).or_default();
            validators.push(Arc::<TableRules>::clone(rules));
        }
        for assertion in &self.assertions {
            hooks
                .commit_validators
                .push(Arc::<Assertion>::clone(assertion));
        }
    }
}

fn table<'a>(schema: &'a Schema, name: &str, place: impl Display) -> Result<&'a Table, RuleError> {
    match schema.find(name) {
        Some(index) => Ok(schema.table(index)),
        None => Err(RuleError::new(
            place,
            format!("there is no table `{name}` in the schema"),
        )),
    }
}

fn compile_rule(rule: &ValidateRule, table: &Table, place: String) -> Result<TableRule, RuleError> {
    let expression = Expression::compile(&rule.expr, table)
        .map_err(|fault| RuleError::new(format_args!("{place}.expr"), fault))?;
    let mut rejection = rejection(&rule.code, &rule.message, &place)?;
    if let Some(details) = details(rule) {
        let offender = if rule.fields.is_empty() {
            "reason"
        } else {
            "fields"
        };
        rejection = rejection
            .with_details(details)
            .map_err(|error| RuleError::new(format_args!("{place}.{offender}"), error))?;
    }
    Ok(TableRule {
        place,
        on: rule.on,
        expression,
        rejection,
    })
}

fn details(rule: &ValidateRule) -> Option<RejectionDetails> {
    if rule.fields.is_empty() && rule.reason.is_none() {
        return None;
    }
    let fields = rule.fields.iter();
    let details = fields.fold(RejectionDetails::new(), |details, field| {
        details.field_path(field)
    });
    Some(match &rule.reason {
        None => details,
        Some(reason) => details.reason(reason),
    })
}

fn rejection(code: &str, message: &str, place: &str) -> Result<Rejection, RuleError> {
    if message.is_empty() || message.len() > MESSAGE_BYTES_MAX {
        return Err(RuleError::new(
            format_args!("{place}.message"),
            format!(
                "it has {} bytes and must have 1 to {MESSAGE_BYTES_MAX}",
                message.len()
            ),
        ));
    }
    Rejection::new(code, message)
        .map_err(|error| RuleError::new(format_args!("{place}.code"), error))
}

fn compile_assertion(
    rule: &AssertRule,
    schema: &Schema,
    place: &str,
) -> Result<Assertion, RuleError> {
    if rule.name.is_empty() {
        return Err(RuleError::new(
            format_args!("{place}.name"),
            "the name is empty",
        ));
    }
    let query = Query::compile(
        &rule.sql,
        schema,
        Placeholders::Named(&Assertion::PARAMETERS),
    )
    .map_err(|error| RuleError::new(format_args!("{place}.sql"), error))?;
    let tables = match &rule.tables {
        None => {
            let read = query.tables().iter();
            read.map(|index| schema.table(*index).name.clone())
                .collect()
        }
        Some(names) => {
            let place = format!("{place}.tables");
            let names = names
                .iter()
                .map(|name| table(schema, name, &place).map(|table| table.name.clone()));
            names.collect::<Result<_, _>>()?
        }
    };
    let assertion = Assertion {
        name: rule.name.clone(),
        query,
        tables,
        rejection: rejection(&rule.code, &rule.message, place)?,
    };
    if assertion.tables.is_empty() {
        return Err(RuleError::new(
            format_args!("{place}.tables"),
            "there are none: it would never be asked",
        ));
    }
    Ok(assertion)
}

#[cfg(test)]
mod tests;
