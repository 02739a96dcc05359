//! CEL expressions that judge one write of a table.
//!
//! CEL has no loops but those over what is there, and still a rule can be made to work for
//! minutes: strings double with every `+`, and loops nest. The interpreter has no bound of its
//! own, so an expression is rewritten when it is compiled: every operand and every turn of a
//! loop passes through a meter (see `meter`), and an evaluation that spends its steps fails.
//!
//! **Invariant:** what an evaluation may do is bounded by `steps_max`, whatever the rule and the
//! row. A step is at most 256 bytes of text or bytes handled, one value of a list, a map or a
//! JSON document, or one turn of a loop, so memory is bounded by it as well. Nesting is bounded
//! when a rule is compiled, so that any thread's stack is enough.
//!
//! **Invariant:** a rule never sees a column that clients encrypt, and the text of a failure
//! holds nothing of a row.

mod check;
mod evaluate;
mod meter;
mod values;

use std::{collections::BTreeMap, fmt, sync::Arc};

use cel::{Env, ParseErrors, parser::Expression as Ast};
use regex::Regex;
use tidewater_schema::Table;

use crate::stack::with_deep_stack;
use check::Check;
pub(crate) use evaluate::{EvaluationError, Inputs};
use values::Columns;

/// Length of an expression: more is a program, and belongs into a validator of its own.
pub const EXPRESSION_BYTES_MAX: usize = 4 * 1024;

/// Nesting of an expression, which is how deep its evaluation recurses.
pub const EXPRESSION_DEPTH_MAX: usize = 16;

/// Steps of one evaluation unless the configuration says otherwise: about ten milliseconds.
pub const STEPS_DEFAULT: u64 = 100_000;

/// Most steps that a configuration may allow: a rule runs while its partition is locked.
pub const STEPS_MAX: u64 = 10_000_000;

/// A compiled expression.
pub(crate) struct Expression {
    /// With the meter in it.
    ast: Ast,
    env: Arc<Env>,
    row: Columns,
    stored: Columns,
    patterns: Arc<BTreeMap<String, Pattern>>,
}

/// A regular expression that a rule names.
pub(crate) struct Pattern {
    regex: Regex,
    /// Memory of the compiled program, which bounds the work per byte of text.
    size: usize,
}

impl Expression {
    /// Compiles a rule for writes of `table`; the error is a sentence for its author.
    pub(crate) fn compile(source: &str, table: &Table) -> Result<Self, String> {
        if source.len() > EXPRESSION_BYTES_MAX {
            return Err(format!(
                "the expression has {} bytes: more than {EXPRESSION_BYTES_MAX} are not read",
                source.len()
            ));
        }
        with_deep_stack(|| compile(source, table))
            .map_err(|error| format!("no thread to parse on: {error}"))?
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expression")
            .field("row", &self.row)
            .field("stored", &self.stored)
            .finish()
    }
}

fn compile(source: &str, table: &Table) -> Result<Expression, String> {
    let env = Env::stdlib().with_optional_support(false);
    let depth = u16::try_from(EXPRESSION_DEPTH_MAX).unwrap_or(u16::MAX);
    let ast = env
        .parser()
        .max_recursion_depth(depth)
        .parse(source)
        .map_err(|errors| first_sentence(&errors))?;
    let mut check = Check::new(table);
    check.expression(&ast)?;
    Ok(Expression {
        ast: meter::metered(ast),
        env: Arc::new(env),
        row: check.row,
        stored: check.stored,
        patterns: Arc::new(check.patterns),
    })
}

/// Where the first error is and what it is, on one line.
fn first_sentence(errors: &ParseErrors) -> String {
    match errors.errors.first() {
        Some(error) => {
            let (line, column) = error.pos;
            format!(
                "line {line}, column {column}: {:.300}",
                error.msg.replace('\n', " ")
            )
        }
        None => "the expression cannot be read".to_owned(),
    }
}

#[cfg(test)]
mod tests;
