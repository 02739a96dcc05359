//! The schema in force, with what PostgreSQL needs to know about its tables.

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
    /// The timeline of the cluster that writes are made on, if that matters.
    pub(crate) timeline: Option<String>,
}

impl Layout {
    /// The table at `index`.
    pub(crate) fn table(&self, index: TableIndex) -> &TableLayout {
        &self.tables[index.0]
    }

    /// The place of a table by its name.
    pub(crate) fn find(&self, name: &str) -> Option<TableIndex> {
        let place = self.tables.iter().position(|table| table.name() == name);
        place.map(TableIndex)
    }
}

/// A table as it lies in the database.
#[derive(Debug)]
pub(crate) struct TableLayout {
    /// The table.
    pub(crate) table: Arc<Table>,
    /// Positions of the columns that are kept beside the payload: all of a materialized table,
    /// and those that a table had when it was one.
    pub(crate) typed: Vec<usize>,
    /// Its statements.
    pub(crate) sql: TableSql,
}

impl TableLayout {
    /// Its name, as the log has it.
    pub(crate) fn name(&self) -> &str {
        &self.table.name
    }
}

/// The layout in force.
#[derive(Debug, Default)]
pub(crate) struct CurrentLayout(Mutex<Option<Arc<Layout>>>);

impl CurrentLayout {
    /// The layout.
    ///
    /// # Panics
    ///
    /// Before the store is prepared, as the contract says.
    pub(crate) fn get(&self) -> Arc<Layout> {
        let layout = self.0.lock().clone();
        layout.expect("`prepare` comes first")
    }

    /// Puts a layout in force.
    pub(crate) fn replace(&self, layout: Arc<Layout>) {
        *self.0.lock() = Some(layout);
    }
}
