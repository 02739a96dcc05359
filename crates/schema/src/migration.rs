//! What it takes to bring a database to a schema, or why that is refused (§2.4, §9).
//!
//! A pure comparison of the stored layouts with the schema's, so that an operator can see a plan
//! before it runs and every store carries out the same one. Stored rows are positional: columns
//! can be appended, nullable, and nothing else about a column can change.
//!
//! Not here: the database's own catalogue, which a store compares itself, including a switch of
//! `materialize` and declared indexes, which layouts do not record.

use std::{collections::BTreeSet, fmt, sync::Arc};

use tidewater_wire::row::Column;

use crate::{LayoutColumn, Layouts, Schema, Table};

/// What a database says about the schema it was last brought to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stored {
    /// That schema's version.
    pub version: i32,
    /// Its layouts.
    pub layouts: Layouts,
}

/// The steps that bring a database to a schema. Its `Display` is a summary for people.
///
/// The order of the fields is the order of the steps: a retired table's name is free before
/// another table is created.
#[derive(Clone, Debug)]
pub struct MigrationPlan {
    /// The stored version; `None` for a new database.
    pub from: Option<i32>,
    /// The version afterwards.
    pub to: i32,
    /// Tables to drop, by bytewise name.
    pub retired: Vec<String>,
    /// Tables that no stored version had.
    pub created: Vec<Arc<Table>>,
    /// Tables with appended columns. Every stored row of theirs is rewritten.
    pub widened: Vec<WidenedTable>,
}

/// A table whose rows were stored with fewer columns.
#[derive(Clone, Debug)]
pub struct WidenedTable {
    /// The table as it will be.
    pub table: Arc<Table>,
    /// How many of its columns the stored rows have.
    pub stored_columns: usize,
}

impl WidenedTable {
    /// The columns of the stored rows.
    pub fn before(&self) -> &[Column] {
        &self.table.columns[..self.stored_columns]
    }

    /// The columns that every stored row gets, as NULL.
    pub fn appended(&self) -> &[Column] {
        &self.table.columns[self.stored_columns..]
    }
}

/// Why a database cannot be brought to a schema. Nothing may be written to it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{message} ({})", .code.as_str())]
pub struct MigrationRefusal {
    /// Which rule is broken.
    pub code: RefusalCode,
    /// The table it is about.
    pub table: Option<String>,
    /// The column it is about.
    pub column: Option<String>,
    /// What is wrong and what to do.
    pub message: String,
}

/// The reasons to refuse a database.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum RefusalCode {
    /// The same version, but other columns: a version was changed without raising its number.
    StoredLayoutMismatch,
    /// The database was brought to a newer schema before.
    SchemaNewer,
    /// The schema changed in a way that stored rows cannot follow.
    SchemaIncompatible,
}

impl RefusalCode {
    /// The code as an operator sees it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StoredLayoutMismatch => "sync.storage.stored_layout_mismatch",
            Self::SchemaNewer => "sync.storage.schema_newer",
            Self::SchemaIncompatible => "sync.storage.schema_incompatible",
        }
    }
}

impl MigrationPlan {
    /// Compares what is stored (`None` for a new database) with the schema to serve.
    pub fn between(stored: Option<&Stored>, schema: &Schema) -> Result<Self, MigrationRefusal> {
        let Some(stored) = stored else {
            return Ok(Self {
                from: None,
                to: schema.version(),
                retired: Vec::new(),
                created: schema.tables().to_vec(),
                widened: Vec::new(),
            });
        };
        if stored.version > schema.version() {
            return Err(MigrationRefusal {
                code: RefusalCode::SchemaNewer,
                table: None,
                column: None,
                message: format!(
                    "the database is at schema version {} and the configured schema is version \
                     {}: serve the newer schema, or restore a backup from before it",
                    stored.version,
                    schema.version()
                ),
            });
        }
        if stored.version == schema.version() {
            check_equal(&stored.layouts, schema)?;
            return Ok(Self::unchanged(schema.version()));
        }
        Self::upgrade(stored, schema)
    }

    /// Whether the database is at this schema already, so that nothing is written.
    pub fn is_current(&self) -> bool {
        self.from == Some(self.to)
    }

    fn unchanged(version: i32) -> Self {
        Self {
            from: Some(version),
            to: version,
            retired: Vec::new(),
            created: Vec::new(),
            widened: Vec::new(),
        }
    }

    fn upgrade(stored: &Stored, schema: &Schema) -> Result<Self, MigrationRefusal> {
        let mut plan = Self {
            from: Some(stored.version),
            ..Self::unchanged(schema.version())
        };
        for table in schema.tables() {
            let Some(before) = stored.layouts.find(&table.name) else {
                plan.created.push(Arc::clone(table));
                continue;
            };
            check_appends_only(before, table)?;
            if before.len() < table.columns.len() {
                plan.widened.push(WidenedTable {
                    table: Arc::clone(table),
                    stored_columns: before.len(),
                });
            }
        }
        plan.retired = retired(&stored.layouts, schema)
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        Ok(plan)
    }
}

/// Tables that have a layout and are not in the schema.
fn retired<'a>(layouts: &'a Layouts, schema: &'a Schema) -> impl Iterator<Item = &'a str> {
    layouts
        .tables()
        .iter()
        .map(|layout| layout.table.as_str())
        .filter(|name| schema.find(name).is_none())
}

/// At the same version the columns must be the same, or stored rows would be misread.
fn check_equal(layouts: &Layouts, schema: &Schema) -> Result<(), MigrationRefusal> {
    let version = schema.version();
    let refuse = |table: &str, column: Option<&str>, what: String| {
        Err(MigrationRefusal {
            code: RefusalCode::StoredLayoutMismatch,
            table: Some(table.to_owned()),
            column: column.map(str::to_owned),
            message: format!(
                "at schema version {version} {what}: serve the schema that the database was \
                 written with, or raise the schema version"
            ),
        })
    };
    for table in schema.tables() {
        let name = &table.name;
        let Some(stored) = layouts.find(name) else {
            return refuse(name, None, format!("table `{name}` is not in the database"));
        };
        let wanted: Vec<LayoutColumn> = table.columns.iter().map(LayoutColumn::from).collect();
        for index in 0..wanted.len().max(stored.len()) {
            let what = match (stored.get(index), wanted.get(index)) {
                (Some(stored), Some(wanted)) if stored == wanted => continue,
                (stored, wanted) => format!(
                    "column {} of table `{name}` is {} in the database and {} in the schema",
                    index + 1,
                    or_missing(stored),
                    or_missing(wanted),
                ),
            };
            let column = wanted.get(index).or_else(|| stored.get(index));
            return refuse(name, column.map(|column| column.name.as_str()), what);
        }
    }
    if let Some(name) = retired(layouts, schema).next() {
        return refuse(name, None, format!("table `{name}` is not in the schema"));
    }
    Ok(())
}

fn or_missing(column: Option<&LayoutColumn>) -> String {
    column.map_or_else(|| "missing".to_owned(), LayoutColumn::to_string)
}

/// Stored rows are positional, so the stored columns must be a prefix of the new ones, and the
/// rows have no value for what follows.
fn check_appends_only(before: &[LayoutColumn], table: &Table) -> Result<(), MigrationRefusal> {
    let name = &table.name;
    let refuse = |column: &str, message: String| {
        Err(MigrationRefusal {
            code: RefusalCode::SchemaIncompatible,
            table: Some(name.clone()),
            column: Some(column.to_owned()),
            message,
        })
    };
    for (index, stored) in before.iter().enumerate() {
        let Some(wanted) = table.columns.get(index) else {
            return refuse(
                &stored.name,
                format!(
                    "column {stored} of table `{name}` was removed: stored rows still have it; \
                     keep the column, or retire the table and add one with a new name"
                ),
            );
        };
        let wanted = LayoutColumn::from(wanted);
        if *stored != wanted {
            return refuse(
                &wanted.name,
                format!(
                    "column {} of table `{name}` changed from {stored} to {wanted}: columns keep \
                     their place, name, type and nullability; append a nullable column instead",
                    index + 1
                ),
            );
        }
    }
    for column in &table.columns[before.len()..] {
        if !column.nullable {
            return refuse(
                &column.name,
                format!(
                    "column `{}` was appended to table `{name}` as NOT NULL: stored rows have no \
                     value for it; make it nullable",
                    column.name
                ),
            );
        }
    }
    Ok(())
}

impl fmt::Display for MigrationPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            None => write!(formatter, "new database at schema version {}", self.to)?,
            Some(from) if from == self.to => {
                return write!(formatter, "schema version {from}: nothing to do");
            }
            Some(from) => write!(formatter, "schema version {from} to {}", self.to)?,
        }
        for table in &self.retired {
            write!(formatter, "\n  drop table `{table}` with all its rows")?;
        }
        for table in &self.created {
            write!(formatter, "\n  create table `{}`", table.name)?;
        }
        for widened in &self.widened {
            write!(
                formatter,
                "\n  append to table `{}` and rewrite its rows:",
                widened.table.name
            )?;
            for (position, column) in widened.appended().iter().enumerate() {
                let separator = if position == 0 { " " } else { ", " };
                write!(formatter, "{separator}{}", LayoutColumn::from(column))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
