//! Evaluates a compiled expression on one write.

use std::{collections::BTreeMap, sync::Arc};

use cel::{
    Context, ExecutionError, FunctionContext, Value,
    common::{
        types::{CelBool, CelString},
        value::CowVal,
    },
};
use tidewater_model::Op;
use tidewater_schema::Table;

use super::{
    Expression, Pattern,
    check::MATCHES,
    meter::{self, CHARGE, CHARGE_INDEX, Meter, Spent},
    values,
};

/// Bytes of text times bytes of pattern that one step covers: a pattern visits, at worst, each
/// of its states for each byte.
const PATTERN_WORK_PER_STEP: usize = 4 * 1024;

/// A function as the interpreter calls it.
type Function = Box<
    dyn for<'context, 'call> Fn(
            &mut FunctionContext<'context, 'call>,
        ) -> Result<CowVal<'context, 'call>, ExecutionError>
        + Send
        + Sync,
>;

/// What an expression judges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs<'a> {
    pub(crate) op: Op,
    pub(crate) table: &'a Table,
    pub(crate) actor: &'a str,
    pub(crate) partition: &'a str,
    /// The row as it will be, in codec bytes.
    pub(crate) row: Option<&'a [u8]>,
    /// The row as it is.
    pub(crate) stored: Option<&'a [u8]>,
}

/// Why there is no verdict. Nothing of a row is in it: the text goes to the log.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum EvaluationError {
    /// The budget ran out.
    #[error("it needs more steps than it may take")]
    Spent,
    /// The stored bytes are not what the schema says.
    #[error("the row cannot be read")]
    Row,
    /// The expression has a value of another type.
    #[error("its value is neither true nor false but of type {0}")]
    NotBoolean(String),
    /// The expression cannot be evaluated on this row.
    #[error("{0}")]
    Failed(String),
}

impl Expression {
    /// Whether the write is accepted.
    pub(crate) fn holds(
        &self,
        inputs: &Inputs<'_>,
        steps_max: u64,
    ) -> Result<bool, EvaluationError> {
        let meter = Arc::new(Meter::new(steps_max));
        let row = values::row(inputs.table, inputs.row, &self.row, &meter)?;
        let stored = values::row(inputs.table, inputs.stored, &self.stored, &meter)?;
        let mut context = Context::with_env(Arc::clone(&self.env));
        context.add_variable_as_val("row", row);
        context.add_variable_as_val("stored", stored);
        let op = match inputs.op {
            Op::Upsert => "upsert",
            Op::Delete => "delete",
        };
        for (name, text) in [
            ("op", op),
            ("actor", inputs.actor),
            ("partition", inputs.partition),
        ] {
            context.add_variable_as_val(name, Box::new(CelString::from(text)));
        }
        for (name, function) in [
            (CHARGE, charge(Arc::clone(&meter))),
            (CHARGE_INDEX, charge_index(Arc::clone(&meter))),
            (
                MATCHES,
                matches(Arc::clone(&meter), Arc::clone(&self.patterns)),
            ),
        ] {
            context
                .add_function(name, function)
                .map_err(|error| EvaluationError::Failed(error.to_string()))?;
        }
        match Value::resolve_val(&self.ast, &context) {
            // An error that was put aside may have hidden that there were no steps left.
            _ if meter.is_spent() => Err(EvaluationError::Spent),
            Ok(value) => match value.downcast_ref::<CelBool>() {
                Some(value) => Ok(*value.inner()),
                None => Err(EvaluationError::NotBoolean(
                    value.get_type().name().to_owned(),
                )),
            },
            Err(error) => Err(EvaluationError::Failed(told(&error))),
        }
    }
}

/// Takes what the argument costs and hands it back.
fn charge(meter: Arc<Meter>) -> Function {
    Box::new(move |call| {
        let value = only_argument(call)?;
        meter.charge(value.as_ref()).map_err(spent)?;
        Ok(value)
    })
}

fn charge_index(meter: Arc<Meter>) -> Function {
    Box::new(move |call| {
        let value = only_argument(call)?;
        if !meter::is_index(value.as_ref()) {
            return Err(ExecutionError::function_error(
                "[]",
                "an index is a whole number",
            ));
        }
        meter.charge(value.as_ref()).map_err(spent)?;
        Ok(value)
    })
}

/// `text.matches(pattern)`, which searches as the standard says, with the patterns of the rule.
fn matches(meter: Arc<Meter>, patterns: Arc<BTreeMap<String, Pattern>>) -> Function {
    Box::new(move |call| {
        let text = call.this.as_ref().or_else(|| call.args.first());
        let texts = text.zip(call.args.last()).and_then(|(text, pattern)| {
            let text = text.downcast_ref::<CelString<'_>>()?;
            Some((
                text.inner(),
                pattern.downcast_ref::<CelString<'_>>()?.inner(),
            ))
        });
        let Some((text, pattern)) = texts else {
            return Err(ExecutionError::function_error(MATCHES, "it takes texts"));
        };
        let Some(pattern) = patterns.get(pattern) else {
            return Err(ExecutionError::function_error(
                MATCHES,
                "the pattern is not known",
            ));
        };
        let work = text.len().saturating_mul(pattern.size) / PATTERN_WORK_PER_STEP;
        meter
            .spend(u64::try_from(work).unwrap_or(u64::MAX))
            .map_err(spent)?;
        Ok(CowVal::owned(CelBool::from(pattern.regex.is_match(text))))
    })
}

fn only_argument<'context, 'call>(
    call: &mut FunctionContext<'context, 'call>,
) -> Result<CowVal<'context, 'call>, ExecutionError> {
    call.args
        .pop()
        .ok_or_else(|| ExecutionError::invalid_argument_count(1, 0))
}

fn spent(Spent: Spent) -> ExecutionError {
    ExecutionError::function_error(CHARGE, "no steps are left")
}

/// What went wrong, without the values it went wrong with.
fn told(error: &ExecutionError) -> String {
    let text = match error {
        // These name types, functions and variables of the expression.
        ExecutionError::NoSuchOverload(overload) => return overload.to_string(),
        ExecutionError::UndeclaredReference(name) => return format!("there is no `{name}`"),
        ExecutionError::FunctionError { function, .. } => {
            return format!("`{function}` failed");
        }
        ExecutionError::NoSuchKey(_) => "a map does not have the key it is asked for",
        ExecutionError::IndexOutOfBounds(_) => "a list is shorter than the index",
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            "a division by zero"
        }
        ExecutionError::Overflow(..) => "a number grew too large",
        ExecutionError::DuplicateKey(_) => "a map has a key twice",
        ExecutionError::ValuesNotComparable(..) => "values of these types cannot be compared",
        ExecutionError::UnexpectedType { .. }
        | ExecutionError::UnsupportedTargetType { .. }
        | ExecutionError::UnsupportedKeyType(_)
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedIndex(..) => "a value has a type that is not expected",
        _ => "it cannot be evaluated",
    };
    text.to_owned()
}
