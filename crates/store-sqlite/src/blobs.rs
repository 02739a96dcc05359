//! Which rows reference a blob (§5.9.4).

use tidewater_model::PartitionId;
use tidewater_schema::TableIndex;
use tidewater_store::{RowKey, ScopesTest, StoreError};

use crate::{
    error::failed,
    scopes::ScopesReader,
    session::Session,
    statements::{bytes, text},
};

/// The first row found that references the blob and is wanted, in one snapshot.
pub(crate) fn find_blob_row(
    session: &mut Session<'_>,
    partition: &PartitionId,
    blob_id: &str,
    wanted: &ScopesTest,
) -> Result<Option<RowKey>, StoreError> {
    const DURING: &str = "find a row by its blob";
    session.snapshot(DURING, |session| {
        let layout = session.layout();
        let name = partition.as_str();
        let mut scopes = ScopesReader::default();
        let Session {
            queries, tables, ..
        } = session;
        let mut references = queries
            .rows_of_blob
            .rows(&[&name, &blob_id])
            .map_err(failed(DURING))?;
        while let Some(reference) = references.next().map_err(failed(DURING))? {
            let table = text(reference, 0, DURING)?;
            // The reference left entries of tables that it dropped.
            let Some(index) = layout.find(table) else {
                continue;
            };
            let row_id = text(reference, 1, DURING)?;
            let mut rows = tables[index.0]
                .load
                .rows(&[&name, &row_id])
                .map_err(failed(DURING))?;
            let Some(row) = rows.next().map_err(failed(DURING))? else {
                continue;
            };
            let read = scopes.read(bytes(row, 1, DURING)?, DURING)?;
            if wanted.admits(index, read.scopes) {
                return Ok(Some(RowKey {
                    partition: partition.clone(),
                    table: index,
                    row_id: row_id.into(),
                }));
            }
        }
        Ok(None)
    })
}

/// Whether any row references a blob, per id, in one snapshot.
pub(crate) fn are_referenced(
    session: &mut Session<'_>,
    partition: &PartitionId,
    blob_ids: &[String],
) -> Result<Vec<bool>, StoreError> {
    const DURING: &str = "look for references";
    session.snapshot(DURING, |session| {
        let name = partition.as_str();
        let found = blob_ids.iter().map(|blob_id| {
            let found = session
                .queries
                .is_blob_referenced
                .find(&[&name, blob_id], |_| Ok(()));
            found.map(|found| found.is_some())
        });
        let found: rusqlite::Result<Vec<bool>> = found.collect();
        found.map_err(failed(DURING))
    })
}

impl crate::layout::Layout {
    /// The place of a table by its name.
    fn find(&self, name: &str) -> Option<TableIndex> {
        let place = self
            .tables
            .iter()
            .position(|layout| layout.table.name == name);
        place.map(TableIndex)
    }
}
