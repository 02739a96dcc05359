//! Brings the state to a schema (§2.4), as [`MigrationPlan`] says.
//!
//! Payloads of the log are rewritten like those of rows, so that everything stored is always
//! encoded for the schema in force.

use std::sync::Arc;

use bytes::Bytes;
use tidewater_schema::{MigrationPlan, RefusalCode, Schema, Stored, WidenedTable};
use tidewater_wire::row::{decode_row, encode_row};

use super::{
    state::{LogChange, Partition, State, try_each_mut},
    values::RowFault,
};
use crate::{StorageCode, StoreError, StoreErrorKind};

const DURING: &str = "prepare the database";

impl State {
    pub(super) fn migrate(&mut self, schema: &Arc<Schema>) -> Result<(), StoreError> {
        let stored = self.schema.as_ref().map(|schema| Stored {
            version: schema.version(),
            layouts: schema.layouts(),
        });
        let plan = MigrationPlan::between(stored.as_ref(), schema).map_err(|refusal| {
            let code = match refusal.code {
                RefusalCode::StoredLayoutMismatch => StorageCode::StoredLayoutMismatch,
                RefusalCode::SchemaNewer => StorageCode::SchemaNewer,
                RefusalCode::SchemaIncompatible => StorageCode::SchemaIncompatible,
            };
            StoreError::refused(code, DURING, refusal.message)
        })?;
        // Positions of tables may differ from those of an equal schema: it is in force anyway.
        self.schema = Some(Arc::clone(schema));
        if plan.is_current() {
            return Ok(());
        }
        try_each_mut(&mut self.partitions, |partition| {
            let partition = Arc::make_mut(partition);
            for name in &plan.retired {
                partition.tables.remove(name.as_str());
            }
            for table in &plan.widened {
                partition.widen(table)?;
            }
            partition.raise_fence(schema.version());
            partition.index_values(schema)
        })
    }
}

impl Partition {
    fn widen(&mut self, widened: &WidenedTable) -> Result<(), StoreError> {
        let Some(table) = self.tables.get_mut(widened.table.name.as_str()) else {
            return Ok(());
        };
        let table = Arc::make_mut(table);
        try_each_mut(&mut table.rows, |row| {
            let stored = &mut Arc::make_mut(row).stored;
            stored.payload = append_nulls(widened, &stored.payload)?;
            Ok(())
        })?;
        try_each_mut(&mut self.commits, |commit| {
            let concerned = |change: &LogChange| change.table == table.name;
            if !commit.changes.iter().any(concerned) {
                return Ok(());
            }
            for change in &mut Arc::make_mut(commit).changes {
                if change.table == table.name
                    && let Some((_, payload)) = &mut change.row
                {
                    *payload = append_nulls(widened, payload)?;
                }
            }
            Ok(())
        })
    }

    fn index_values(&mut self, schema: &Schema) -> Result<(), StoreError> {
        for declared in schema.tables() {
            let Some(table) = self.tables.get_mut(declared.name.as_str()) else {
                continue;
            };
            Arc::make_mut(table)
                .index_values(declared)
                .map_err(|fault| match fault {
                    RowFault::Taken => StoreError::refused(
                        StorageCode::SchemaIncompatible,
                        DURING,
                        format!(
                            "rows of table `{}` share a value that a unique index forbids: \
                             change the rows, or drop the index from the schema",
                            declared.name
                        ),
                    ),
                    RowFault::Store(error) => error,
                })?;
        }
        Ok(())
    }
}

fn append_nulls(widened: &WidenedTable, payload: &[u8]) -> Result<Bytes, StoreError> {
    let fields = decode_row(widened.before(), payload)
        .map_err(|error| StoreError::new(StoreErrorKind::Corrupt, DURING).with_source(error))?;
    let values: Vec<Option<&[u8]>> = fields
        .iter()
        .map(|field| field.map(|field| field.encoded))
        .chain(widened.appended().iter().map(|_| None))
        .collect();
    Ok(Bytes::from(encode_row(&values)))
}
