//! Occurrences of tables: of the schema's, which are replaced by one partition of them, and of
//! common tables, which get names of their own.

use sqlparser::ast::{Cte, Expr, Ident, LimitClause, ObjectName, TableAlias, Value, With};
use tidewater_schema::TableIndex;

use super::{
    RECURSION_ROWS_MAX, SqlError,
    names::{self, folded},
    query::{Walk, absent, plain_alias, single},
};

/// A table that a WITH declares.
pub(super) struct CommonTable {
    name: String,
    /// Its name in the result.
    replacement: String,
    /// Whether its own body is being walked.
    open: bool,
    /// Whether its body names it.
    recursive: bool,
}

/// A name as an identifier in the result.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Walk<'_> {
    /// Without RECURSIVE a common table is seen by those after it, and not by itself.
    pub(super) fn with(&mut self, with: &With) -> Result<(), SqlError> {
        let With {
            with_token: _,
            recursive,
            cte_tables,
        } = with;
        self.scopes.push(Vec::new());
        if *recursive {
            for cte in cte_tables {
                self.declare(cte)?;
            }
        }
        for (at, cte) in cte_tables.iter().enumerate() {
            let Cte {
                alias: _,
                query,
                from,
                materialized: _,
                closing_paren_token: _,
            } = cte;
            absent(from, "FROM after a common table")?;
            if *recursive {
                self.set_open(at, true);
                self.query(query)?;
                self.set_open(at, false);
                self.check_recursion(at, cte)?;
            } else {
                self.query(query)?;
                self.declare(cte)?;
            }
        }
        Ok(())
    }

    fn declare(&mut self, cte: &Cte) -> Result<(), SqlError> {
        let TableAlias {
            explicit: _,
            name,
            columns,
            at,
        } = &cte.alias;
        absent(at, "AT")?;
        self.names.declare_qualifier(name)?;
        for column in columns {
            absent(&column.data_type, "the type of a column")?;
            self.names.declare(&column.name)?;
        }
        let folded_name = folded(name);
        let scope = self
            .scopes
            .last_mut()
            .expect("the clause has just opened its scope");
        if scope.iter().any(|table| table.name == folded_name) {
            return Err(SqlError::new(format!(
                "two common tables are called `{}`",
                name.value
            )));
        }
        let replacement = format!("\"_sync_common_{}\"", self.common_tables);
        self.common_tables += 1;
        scope.push(CommonTable {
            name: folded_name,
            replacement: replacement.clone(),
            open: false,
            recursive: false,
        });
        self.replace(name, replacement);
        Ok(())
    }

    fn set_open(&mut self, at: usize, open: bool) {
        let scope = self
            .scopes
            .last_mut()
            .expect("the clause has its scope until its end");
        scope[at].open = open;
    }

    /// A table that names itself must say after how many rows it ends. Rows that an OFFSET skips
    /// would not count.
    fn check_recursion(&self, at: usize, cte: &Cte) -> Result<(), SqlError> {
        let scope = self
            .scopes
            .last()
            .expect("the clause has its scope until its end");
        if !scope[at].recursive {
            return Ok(());
        }
        let limit = match &cte.query.limit_clause {
            Some(LimitClause::LimitOffset {
                limit: Some(Expr::Value(limit)),
                offset: None,
                limit_by: _,
            }) => match &limit.value {
                Value::Number(number, false) => number.parse::<u64>().ok(),
                _ => None,
            },
            _ => None,
        };
        if limit.is_some_and(|limit| limit <= RECURSION_ROWS_MAX) {
            return Ok(());
        }
        Err(SqlError::new(format!(
            "the recursive common table `{}` needs a LIMIT of at most {RECURSION_ROWS_MAX} rows: a \
             cycle in the rows would never end",
            cte.alias.name.value
        )))
    }

    /// Replaces one occurrence of a table.
    pub(super) fn table(
        &mut self,
        name: &ObjectName,
        alias: Option<&TableAlias>,
    ) -> Result<(), SqlError> {
        let name = single(name)?;
        let alias = alias.map(plain_alias).transpose()?;
        let goes_by = alias.unwrap_or(name);
        let mut text = match self.common_table(name) {
            Some(replacement) => {
                self.names.declare_qualifier(goes_by)?;
                replacement
            }
            None => {
                let index = self.find(name)?;
                let schema = self.schema;
                self.names.declare_table(goes_by, schema.table(index))?;
                self.confined(index)?
            }
        };
        if alias.is_none() {
            text.push_str(" AS ");
            text.push_str(&quoted(&name.value));
        }
        self.replace(name, text);
        Ok(())
    }

    /// Replaces the table of `value IN table`, which is every row of its only column.
    pub(super) fn table_of_values(&mut self, name: &ObjectName) -> Result<(), SqlError> {
        let name = single(name)?;
        let text = match self.common_table(name) {
            Some(replacement) => format!("(SELECT * FROM {replacement})"),
            None => {
                let index = self.find(name)?;
                self.confined(index)?
            }
        };
        self.replace(name, text);
        Ok(())
    }

    /// What stands for a common table in sight, if there is one of this name.
    fn common_table(&mut self, name: &Ident) -> Option<String> {
        let folded = folded(name);
        let table = self
            .scopes
            .iter_mut()
            .rev()
            .find_map(|scope| scope.iter_mut().find(|table| table.name == folded))?;
        table.recursive |= table.open;
        Some(table.replacement.clone())
    }

    fn find(&self, name: &Ident) -> Result<TableIndex, SqlError> {
        names::check_reserved(name)?;
        let mut tables = self.schema.tables().iter();
        tables
            .position(|table| table.name.eq_ignore_ascii_case(&name.value))
            .map(TableIndex)
            .ok_or_else(|| {
                SqlError::new(format!("there is no table `{}` in the schema", name.value))
            })
    }

    /// A table's rows of one partition, in the columns that are offered.
    fn confined(&mut self, index: TableIndex) -> Result<String, SqlError> {
        let table = self.schema.table(index);
        if !table.materialized {
            return Err(SqlError::new(format!(
                "table `{}` is not materialized: it has no columns in the database",
                table.name
            )));
        }
        let columns: Vec<String> = names::offered(table).map(quoted).collect();
        if columns.is_empty() {
            return Err(SqlError::new(format!(
                "every column of table `{}` is encrypted by clients",
                table.name
            )));
        }
        self.tables.insert(index);
        Ok(format!(
            "(SELECT {} FROM {} WHERE _sync_partition = ?1)",
            columns.join(", "),
            quoted(&table.name)
        ))
    }
}
