//! Declared indexes: which the schema wants and which of the existing ones are ours.
//!
//! Ours begin with `sync_ix_`, or have the declared name itself in databases of old servers. What
//! an operator added stays.
//!
//! A unique index begins with the partition: one tenant's values are no business of another's.
//! The reference's do not, and are replaced. Any other index ends with the partition and the row
//! id, so that rows with one value are read tenant by tenant and in order. The reference's do
//! not, and stay: they find the same rows.

use tidewater_schema::{Index, Schema, Table};

use crate::{
    catalog::{Catalog, IndexInfo},
    statements::quoted,
};

/// An index to create.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) table: String,
    pub(crate) sql: String,
}

/// What is to be done about indexes: names to drop, then indexes to create.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    pub(crate) drop: Vec<String>,
    pub(crate) create: Vec<Wanted>,
}

/// Compares the declared indexes with those that are there. Tables to be dropped do not count.
pub(crate) fn difference(schema: &Schema, catalog: &Catalog, retired: &[String]) -> Difference {
    let mut difference = Difference::default();
    for info in catalog.tables() {
        if retired.contains(&info.name) {
            continue;
        }
        let table = schema.tables().iter().find(|table| table.name == info.name);
        for index in info.indexes.iter().filter(|index| index.free_standing) {
            if is_ours(index, table.map(AsRef::as_ref))
                && !is_wanted(index, table.map(AsRef::as_ref))
            {
                difference.drop.push(index.name.clone());
            }
        }
    }
    for table in schema.tables().iter().filter(|table| table.materialized) {
        let info = catalog.find(&table.name);
        for index in &table.indexes {
            let is_there = info.is_some_and(|info| {
                info.indexes
                    .iter()
                    .any(|existing| is_same(existing, table, index))
            });
            if !is_there {
                difference.create.push(Wanted {
                    table: table.name.clone(),
                    sql: create(table, index),
                });
            }
        }
    }
    difference
}

fn is_ours(index: &IndexInfo, table: Option<&Table>) -> bool {
    index.name.starts_with("sync_ix_")
        || table.is_some_and(|table| {
            let mut declared = table.indexes.iter();
            declared.any(|declared| declared.name == index.name)
        })
}

fn is_wanted(index: &IndexInfo, table: Option<&Table>) -> bool {
    table.is_some_and(|table| {
        let mut declared = table.indexes.iter();
        table.materialized && declared.any(|declared| is_same(index, table, declared))
    })
}

fn is_same(existing: &IndexInfo, table: &Table, declared: &Index) -> bool {
    let columns = columns(table, declared);
    let declared_alone = &columns[..declared.columns.len()];
    existing.name == declared.physical_name()
        && existing.unique == declared.unique
        && !existing.partial
        && (are(existing, &columns) || (!declared.unique && are(existing, declared_alone)))
}

fn are(existing: &IndexInfo, columns: &[&str]) -> bool {
    existing.columns.len() == columns.len()
        && existing
            .columns
            .iter()
            .zip(columns)
            .all(|(left, right)| left.as_deref() == Some(*right))
}

fn columns<'a>(table: &'a Table, index: &Index) -> Vec<&'a str> {
    let declared = index.columns.iter();
    let declared = declared.map(|at| table.columns[*at].name.as_str());
    if index.unique {
        std::iter::once(PARTITION).chain(declared).collect()
    } else {
        declared.chain([PARTITION, "_sync_row_id"]).collect()
    }
}

const PARTITION: &str = "_sync_partition";

fn create(table: &Table, index: &Index) -> String {
    let unique = if index.unique { "UNIQUE " } else { "" };
    let columns: Vec<String> = columns(table, index).into_iter().map(quoted).collect();
    format!(
        "CREATE {unique}INDEX {} ON {} ({})",
        quoted(&index.physical_name()),
        quoted(&table.name),
        columns.join(", ")
    )
}
