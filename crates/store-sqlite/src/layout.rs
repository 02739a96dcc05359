//! The schema in force, with what SQLite needs to know about its tables.

use std::sync::Arc;

use parking_lot::Mutex;
use tidewater_schema::{Table, TableIndex};

use crate::statements::TableSql;

/// A schema as it lies in the database.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The version of the schema: what this server writes as.
    pub(crate) version: i32,
    /// Its tables, in the order of the schema.
    pub(crate) tables: Vec<TableLayout>,
}

impl Layout {
    /// The table at `index`.
    pub(crate) fn table(&self, index: TableIndex) -> &TableLayout {
        &self.tables[index.0]
    }
}

/// A table as it lies in the database.
#[derive(Debug)]
pub(crate) struct TableLayout {
    /// The table.
    pub(crate) table: Arc<Table>,
    /// Positions of the columns that are kept beside the payload.
    ///
    /// All of a materialized table. One that was materialized once keeps those it had then, and
    /// they are written still: stale values would lie, and missing ones could break NOT NULL.
    pub(crate) typed: Vec<usize>,
    /// Whether a write can break a constraint. If not, a commit needs no savepoint.
    pub(crate) constrained: bool,
    /// Its statements.
    pub(crate) sql: TableSql,
}

/// The layout in force, for every connection of a store.
#[derive(Debug, Default)]
pub(crate) struct CurrentLayout(Mutex<Option<Arc<Layout>>>);

impl CurrentLayout {
    /// The layout, once there is one.
    pub(crate) fn find(&self) -> Option<Arc<Layout>> {
        self.0.lock().clone()
    }

    /// Puts a layout in force.
    pub(crate) fn replace(&self, layout: Arc<Layout>) {
        *self.0.lock() = Some(layout);
    }
}
