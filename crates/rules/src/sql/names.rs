//! The names of a text: which are known, and which the text uses.
//!
//! A name is looked up in the whole text and not scope by scope: a misspelled column is found,
//! and a column of another subquery is left to the database. What is never found is a column
//! that was not offered: derived tables have no others.

use std::collections::{BTreeMap, BTreeSet};

use sqlparser::ast::Ident;
use tidewater_schema::Table;

use super::SqlError;

/// Beginnings of names that belong to the server or the database.
const RESERVED_PREFIXES: [&str; 4] = ["_sync", "sync_", "sqlite_", "pragma_"];

/// Names as a text declares and uses them.
#[derive(Default)]
pub(super) struct Names {
    /// Columns and aliases.
    known: BTreeSet<String>,
    /// Columns that exist and are not offered, with their tables.
    encrypted: BTreeMap<String, String>,
    /// What may stand before a dot, and the columns behind it if it can only be tables.
    qualifiers: BTreeMap<String, Option<BTreeSet<String>>>,
    uses: Vec<Use>,
}

struct Use {
    qualifier: Option<String>,
    column: Option<String>,
}

/// A name without regard to ASCII case, as SQLite compares them.
pub(super) fn folded(ident: &Ident) -> String {
    ident.value.to_ascii_lowercase()
}

/// Refuses a name that belongs to the server or to the database.
pub(super) fn check_reserved(ident: &Ident) -> Result<(), SqlError> {
    let name = folded(ident);
    if RESERVED_PREFIXES
        .iter()
        .any(|prefix| name.starts_with(prefix))
    {
        return Err(SqlError::new(format!(
            "`{}` belongs to the server: only tables and columns of the schema can be named",
            ident.value
        )));
    }
    Ok(())
}

/// Columns that a text may read, by name.
pub(super) fn offered(table: &Table) -> impl Iterator<Item = &str> {
    table
        .columns
        .iter()
        .zip(&table.metas)
        .filter(|(_, meta)| !meta.encrypted)
        .map(|(column, _)| column.name.as_str())
}

impl Names {
    /// Declares a column, an alias of an expression or a column of a common table.
    pub(super) fn declare(&mut self, name: &Ident) -> Result<(), SqlError> {
        check_reserved(name)?;
        self.known.insert(folded(name));
        Ok(())
    }

    /// Declares the columns of a table and the name it goes by.
    pub(super) fn declare_table(&mut self, name: &Ident, table: &Table) -> Result<(), SqlError> {
        check_reserved(name)?;
        let columns: BTreeSet<String> = offered(table).map(str::to_ascii_lowercase).collect();
        self.known.extend(columns.iter().cloned());
        for (column, meta) in table.columns.iter().zip(&table.metas) {
            if meta.encrypted {
                self.encrypted
                    .insert(column.name.to_ascii_lowercase(), table.name.clone());
            }
        }
        let known = self
            .qualifiers
            .entry(folded(name))
            .or_insert_with(|| Some(BTreeSet::new()));
        if let Some(known) = known {
            known.extend(columns);
        }
        Ok(())
    }

    /// Declares the name of a subquery or a common table.
    pub(super) fn declare_qualifier(&mut self, name: &Ident) -> Result<(), SqlError> {
        check_reserved(name)?;
        self.qualifiers.insert(folded(name), None);
        Ok(())
    }

    /// Notes a use of `column`.
    pub(super) fn use_column(&mut self, column: &Ident) -> Result<(), SqlError> {
        check_reserved(column)?;
        self.uses.push(Use {
            qualifier: None,
            column: Some(column.value.clone()),
        });
        Ok(())
    }

    /// Notes a use of `qualifier.column`.
    pub(super) fn use_qualified(
        &mut self,
        qualifier: &Ident,
        column: Option<&Ident>,
    ) -> Result<(), SqlError> {
        check_reserved(qualifier)?;
        column.map_or(Ok(()), check_reserved)?;
        self.uses.push(Use {
            qualifier: Some(qualifier.value.clone()),
            column: column.map(|column| column.value.clone()),
        });
        Ok(())
    }

    /// Refuses the first use of a name that nothing declares.
    pub(super) fn check(&self) -> Result<(), SqlError> {
        self.uses.iter().try_for_each(|name| self.check_use(name))
    }

    fn check_use(&self, name: &Use) -> Result<(), SqlError> {
        let behind = match &name.qualifier {
            None => None,
            Some(qualifier) => {
                let Some(behind) = self.qualifiers.get(&qualifier.to_ascii_lowercase()) else {
                    return Err(SqlError::new(format!(
                        "there is no table `{qualifier}` here"
                    )));
                };
                behind.as_ref()
            }
        };
        let Some(column) = &name.column else {
            return Ok(());
        };
        let folded = column.to_ascii_lowercase();
        if behind.unwrap_or(&self.known).contains(&folded) {
            return Ok(());
        }
        let sentence = match self.encrypted.get(&folded) {
            Some(table) => format!(
                "column `{column}` of `{table}` is encrypted by clients: the server cannot judge it"
            ),
            None => format!(
                "there is no column `{column}` in the tables of this text (text is written in \
                 single quotes, a computed column needs an alias)"
            ),
        };
        Err(SqlError::new(sentence))
    }
}
