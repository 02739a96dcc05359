//! Which rows reference a blob (§5.9.4).
//!
//! Any number of rows may reference one, and none of them may be wanted: references are read from
//! a cursor, a bounded number at a time, and the scopes of their rows after them.

use std::collections::BTreeMap;

use tidewater_model::PartitionId;
use tidewater_schema::TableIndex;
use tidewater_store::{RowKey, ScopesTest, StoreError};

use crate::{
    error::{corrupt, get},
    layout::Layout,
    link::{Link, Mode},
    params::{Param, Step},
    scopes::ScopesReader,
};

/// The first row found that references the blob and is wanted, in one snapshot. The link's
/// transaction is left to be ended.
pub(crate) async fn find_blob_row(
    link: &mut Link,
    layout: &Layout,
    partition: &PartitionId,
    blob_id: &str,
    wanted: &ScopesTest,
) -> Result<Option<RowKey>, StoreError> {
    const DURING: &str = "find a row by its blob";
    if blob_id.contains('\0') {
        return Ok(None);
    }
    let params = vec![Param::text(partition.as_str()), Param::text(blob_id)];
    // What a cursor gives is not known before it is declared, and so is never prepared.
    let mut steps = vec![
        link.begin(Mode::Read),
        Step::once(DECLARE, params),
        Step::once(FETCH_FIRST, Vec::new()),
    ];
    loop {
        let mut answers = link.fly(&steps, DURING).await?.rows(DURING)?;
        let references = answers.pop().unwrap_or_default();
        if references.is_empty() {
            return Ok(None);
        }
        let mut tables: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for reference in &references {
            // The reference left entries of tables that it dropped.
            if let Some(table) = layout.find(get(reference, 0, DURING)?) {
                let row_ids = tables.entry(table.0).or_default();
                row_ids.push(get(reference, 1, DURING)?);
            }
        }
        let questions: Vec<Step<'_>> = tables
            .iter()
            .map(|(table, row_ids)| {
                let sql = layout.tables[*table].sql.scopes.as_str();
                let name = Param::text(partition.as_str());
                Step::new(sql, vec![name, Param::texts(row_ids.clone())])
            })
            .collect();
        if !questions.is_empty() {
            let answers = link.fly(&questions, DURING).await?.rows(DURING)?;
            let mut scopes = ScopesReader::default();
            for (table, rows) in tables.keys().zip(&answers) {
                for row in rows {
                    let table = TableIndex(*table);
                    if wanted.admits(table, &scopes.read(get(row, 1, DURING)?, DURING)?) {
                        return Ok(Some(RowKey {
                            partition: partition.clone(),
                            table,
                            row_id: get::<&str>(row, 0, DURING)?.into(),
                        }));
                    }
                }
            }
        }
        steps = vec![Step::once(FETCH, Vec::new())];
    }
}

const DECLARE: &str = "DECLARE sync_references NO SCROLL CURSOR FOR \
    SELECT tbl, row_id FROM sync_blob_refs WHERE partition = $1 AND blob_id = $2";

/// Few rows reference a blob as a rule.
const FETCH_FIRST: &str = "FETCH 16 FROM sync_references";
const FETCH: &str = "FETCH 512 FROM sync_references";

/// Whether any row references a blob, per id, in one snapshot.
pub(crate) async fn are_referenced(
    link: &mut Link,
    partition: &PartitionId,
    blob_ids: &[String],
) -> Result<Vec<bool>, StoreError> {
    const DURING: &str = "look for references";
    let held = blob_ids.iter().enumerate();
    let held = held.filter(|(_, blob_id)| !blob_id.contains('\0'));
    let (places, ids): (Vec<usize>, Vec<&str>) =
        held.map(|(place, blob_id)| (place, &**blob_id)).unzip();
    let params = vec![Param::text(partition.as_str()), Param::texts(ids)];
    let steps = vec![Step::new(REFERENCED, params)];
    let answers = link.transact(Mode::Read, steps, DURING).await?;
    let mut referenced = vec![false; blob_ids.len()];
    for row in &answers[0] {
        let ordinal: i64 = get(row, 0, DURING)?;
        let place = usize::try_from(ordinal - 1).ok();
        let place = place.and_then(|nth| places.get(nth));
        let place = place.ok_or_else(|| corrupt(DURING, "an answer to no question"))?;
        referenced[*place] = true;
    }
    Ok(referenced)
}

const REFERENCED: &str = "SELECT q.place FROM unnest($2::text[]) WITH ORDINALITY \
    AS q (blob_id, place) WHERE EXISTS (SELECT 1 FROM sync_blob_refs b \
    WHERE b.partition = $1 AND b.blob_id = q.blob_id)";
