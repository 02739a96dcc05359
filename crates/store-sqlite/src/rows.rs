//! Writes rows, and the entries that find them.

use tidewater_model::StoredScopes;
use tidewater_store::{ChangeKind, ChangeWrite, RowState, StoreError, StoreErrorKind};
use tidewater_wire::row::decode_row;

use crate::{
    error::{failed, is_violation},
    layout::TableLayout,
    scopes::ScopesWriter,
    statements::{Queries, TableQueries},
    typed::Typed,
};

pub(crate) const DURING: &str = "apply commits";

/// Why something was not written.
pub(crate) enum Fault {
    /// An operation broke a constraint of the database.
    Violation { op_index: i32 },
    /// The database failed.
    Store(StoreError),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(failed(DURING)(error))
    }
}

/// The row that a change is about.
pub(crate) struct Target<'a, 'c> {
    pub(crate) layout: &'a TableLayout,
    pub(crate) table: &'a mut TableQueries<'c>,
    pub(crate) queries: &'a mut Queries<'c>,
    pub(crate) partition: &'a str,
    pub(crate) row_id: &'a str,
}

impl Target<'_, '_> {
    /// Writes the row itself, and the entries that find it.
    pub(crate) fn write<'a>(
        &mut self,
        change: &'a ChangeWrite,
        texts: &mut ScopesWriter<'a>,
    ) -> Result<(), Fault> {
        match &change.kind {
            ChangeKind::Upsert { row, scopes_before } => {
                self.put(row, texts.text(&row.scopes), change.op_index)?;
                if scopes_before.as_ref() != Some(&row.scopes) {
                    self.put_scopes(&row.scopes, scopes_before.is_none())?;
                }
                if let Some(blob_ids) = &row.blob_ids {
                    self.put_blobs(blob_ids, scopes_before.is_none())?;
                }
            }
            ChangeKind::Delete { .. } => {
                self.table
                    .remove
                    .execute(&[&self.partition, &self.row_id])
                    .map_err(|error| fault(error, change.op_index))?;
                self.clear_scopes()?;
                self.clear_blobs()?;
            }
        }
        Ok(())
    }

    /// Writes payload and typed columns with one statement.
    fn put(&mut self, row: &RowState, scopes: &str, op_index: i32) -> Result<(), Fault> {
        let statement = self.table.put.compiled()?;
        statement.raw_bind_parameter(1, self.partition)?;
        statement.raw_bind_parameter(2, self.row_id)?;
        statement.raw_bind_parameter(3, row.row_version)?;
        statement.raw_bind_parameter(4, scopes)?;
        statement.raw_bind_parameter(5, &row.payload[..])?;
        statement.raw_bind_parameter(6, row.column_versions.as_deref())?;
        if !self.layout.typed.is_empty() {
            let columns = &self.layout.table.columns;
            let fields = decode_row(columns, &row.payload).map_err(|error| {
                StoreError::new(StoreErrorKind::Corrupt, DURING).with_source(error)
            })?;
            for (parameter, at) in self.layout.typed.iter().enumerate() {
                let value = Typed::new(&columns[*at], fields[*at].as_ref());
                statement.raw_bind_parameter(parameter + 7, value)?;
            }
        }
        match statement.raw_execute() {
            Ok(_) => Ok(()),
            Err(error) => Err(fault(error, op_index)),
        }
    }

    fn put_scopes(&mut self, scopes: &StoredScopes, is_new: bool) -> Result<(), Fault> {
        // A row that was not there has no entries.
        if !is_new {
            self.clear_scopes()?;
        }
        let table = self.layout.table.name.as_str();
        for (variable, value) in scopes.iter() {
            self.queries.put_row_scope.execute(&[
                &self.partition,
                &table,
                &variable,
                &value,
                &self.row_id,
            ])?;
        }
        Ok(())
    }

    fn put_blobs(&mut self, blob_ids: &[String], is_new: bool) -> Result<(), Fault> {
        if !is_new {
            self.clear_blobs()?;
        }
        let table = self.layout.table.name.as_str();
        for blob_id in blob_ids {
            self.queries
                .put_blob_ref
                .execute(&[&self.partition, &table, &self.row_id, blob_id])?;
        }
        Ok(())
    }

    fn clear_scopes(&mut self) -> Result<(), Fault> {
        let table = self.layout.table.name.as_str();
        self.queries
            .clear_row_scopes
            .execute(&[&self.partition, &table, &self.row_id])?;
        Ok(())
    }

    fn clear_blobs(&mut self) -> Result<(), Fault> {
        let table = self.layout.table.name.as_str();
        self.queries
            .clear_blob_refs
            .execute(&[&self.partition, &table, &self.row_id])?;
        Ok(())
    }
}

fn fault(error: rusqlite::Error, op_index: i32) -> Fault {
    if is_violation(&error) {
        Fault::Violation { op_index }
    } else {
        Fault::from(error)
    }
}
