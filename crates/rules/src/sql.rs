//! SQL that an operator wrote, confined to one partition (§6.8, REMOTE §2).
//!
//! A text is one SELECT on the tables of the schema, in SQLite's dialect. It is parsed, every
//! occurrence of a table is found in the tree, and each is replaced in the text by a derived
//! table of the application's columns with `WHERE _sync_partition = ?1`, under the same alias.
//! The rest of the text reaches the database as it was written, so it means what the database
//! says it means.
//!
//! **Invariant:** the walk is a list of what is allowed. A kind of token, clause, expression,
//! operator or function that it does not name is refused, so nothing stays in the text that was
//! not looked at. Common tables get names that no table can have, so a mistake in their scoping
//! is an error of the database and never rows of another partition.
//!
//! Not here: running it. A text that is refused by the database only is found out when it runs.

mod expression;
mod functions;
mod names;
mod query;
mod tables;
mod text;

use std::collections::BTreeSet;

use sqlparser::ast::Statement;
use tidewater_model::PartitionId;
use tidewater_schema::{Schema, TableIndex};
use tidewater_store::{SqlQuery, SqlValue};

use crate::stack::with_deep_stack;
use query::Walk;
use text::Text;

/// Length of a text. Operators of one precedence nest the tree as deeply as there are of them.
pub const SQL_BYTES_MAX: usize = 8 * 1024;

/// Rows of a recursive common table: a cycle in the rows must end somewhere.
pub const RECURSION_ROWS_MAX: u64 = 10_000;

/// What a text is refused for: a sentence for the one who wrote it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct SqlError(String);

impl SqlError {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

/// How a text asks for values.
#[derive(Clone, Copy, Debug)]
pub enum Placeholders<'a> {
    /// As `:name`, with one of these names. `:partition` is always known.
    Named(&'a [&'a str]),
    /// As `?`, so many of them, in the order of the text.
    Positional(usize),
}

/// One SELECT that sees one partition.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Query {
    sql: String,
    tables: BTreeSet<TableIndex>,
    parameters: Vec<String>,
}

impl Query {
    /// Parses a text and confines it.
    pub fn compile(
        sql: &str,
        schema: &Schema,
        placeholders: Placeholders<'_>,
    ) -> Result<Self, SqlError> {
        if sql.len() > SQL_BYTES_MAX {
            return Err(SqlError::new(format!(
                "the text has {} bytes: more than {SQL_BYTES_MAX} are not read",
                sql.len()
            )));
        }
        with_deep_stack(|| confine(sql, schema, placeholders))
            .map_err(|error| SqlError::new(format!("no thread to parse on: {error}")))?
    }

    /// The text for the database; `?1` is the partition.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The tables it reads.
    pub fn tables(&self) -> &BTreeSet<TableIndex> {
        &self.tables
    }

    /// The names of `?2`, `?3`, …; empty for positional ones.
    pub fn parameters(&self) -> &[String] {
        &self.parameters
    }

    /// The query with its values: those of [`Self::parameters`] in their order, or the
    /// positional ones.
    pub fn bind(
        &self,
        partition: &PartitionId,
        params: Vec<SqlValue>,
        rows_max: usize,
    ) -> SqlQuery {
        SqlQuery {
            sql: self.sql.clone(),
            params,
            partition: partition.clone(),
            rows_max,
        }
    }
}

fn confine(sql: &str, schema: &Schema, placeholders: Placeholders<'_>) -> Result<Query, SqlError> {
    let text = Text::read(sql)?;
    let statements = text.parse()?;
    let [statement] = statements.as_slice() else {
        return Err(SqlError::new(format!(
            "there are {} statements: write exactly one SELECT",
            statements.len()
        )));
    };
    let Statement::Query(query) = statement else {
        return Err(SqlError::new("only a SELECT is allowed"));
    };
    let mut walk = Walk::new(schema, placeholders);
    walk.query(query)?;
    walk.finish(&text)
}

#[cfg(test)]
mod tests;
