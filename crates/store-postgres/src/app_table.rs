//! App tables: how one is created, and whether an existing one is what the schema says (§2.4).
//!
//! A column that was created with its table stands before the server's own columns and is
//! NOT NULL where the schema says so. One that was added later stands after them and takes NULL,
//! whatever the schema says: the rows of that time had no value for it.

use tidewater_schema::Table;
use tidewater_store::{StorageCode, StoreError};

use crate::{
    catalog::{ColumnInfo, TableInfo},
    statements::quoted,
    typed::{created_type, sql_type},
};

/// The server's columns of every app table that may not be NULL, with their types.
const META_COLUMNS: [(&str, &str); 5] = [
    ("_sync_partition", "text"),
    ("_sync_row_id", "text"),
    ("_sync_server_version", "bigint"),
    ("_sync_scopes", "jsonb"),
    ("_sync_payload", "bytea"),
];

/// The one that databases of older servers lack.
pub(crate) const COLUMN_VERSIONS: &str = "_sync_column_versions";

/// Those that name a row, and by which rows are ordered.
pub(crate) const PRIMARY_KEY: [&str; 2] = ["_sync_partition", "_sync_row_id"];

/// The statement that creates a table.
pub(crate) fn create(table: &Table) -> String {
    let mut columns: Vec<String> = PRIMARY_KEY
        .iter()
        .map(|name| format!("{name} text COLLATE \"C\" NOT NULL"))
        .collect();
    if table.materialized {
        columns.extend(table.columns.iter().map(|column| {
            let not_null = if column.nullable { "" } else { " NOT NULL" };
            let name = quoted(&column.name);
            format!("{name} {}{not_null}", created_type(column.kind))
        }));
    }
    columns.extend([
        "_sync_server_version bigint NOT NULL".to_owned(),
        "_sync_scopes jsonb NOT NULL".to_owned(),
        "_sync_payload bytea NOT NULL".to_owned(),
        format!("{COLUMN_VERSIONS} bytea"),
        "PRIMARY KEY (_sync_partition, _sync_row_id)".to_owned(),
    ]);
    format!(
        "CREATE TABLE {} ({})",
        quoted(&table.name),
        columns.join(", ")
    )
}

/// Positions of the columns that are kept beside the payload.
pub(crate) fn typed_columns(table: &Table, info: &TableInfo) -> Vec<usize> {
    (0..table.columns.len())
        .filter(|at| info.column(&table.columns[*at].name).is_some())
        .collect()
}

/// Positions of the columns that should be kept and are not there.
pub(crate) fn missing_columns(table: &Table, info: &TableInfo) -> Vec<usize> {
    (0..table.columns.len())
        .filter(|at| table.materialized && info.column(&table.columns[*at].name).is_none())
        .collect()
}

/// Compares an existing table with the schema, apart from columns that are not there.
pub(crate) fn check(table: &Table, info: &TableInfo) -> Result<(), StoreError> {
    for (name, kind) in META_COLUMNS {
        let Some(column) = info.column(name) else {
            return Err(missing_column(table, name));
        };
        check_type(table, column, kind)?;
        if !column.not_null {
            return Err(mismatch(table, Some(name), "nullability", "it takes NULL"));
        }
    }
    if let Some(column) = info.column(COLUMN_VERSIONS)
        && column.not_null
    {
        let why = "it does not take NULL";
        return Err(mismatch(table, Some(COLUMN_VERSIONS), "nullability", why));
    }
    check_primary_key(table, info)?;
    let added_after = place(info, "_sync_server_version");
    for column in &table.columns {
        let Some(found) = info.column(&column.name) else {
            continue;
        };
        check_type(table, found, sql_type(column.kind))?;
        let added = place(info, &column.name) > added_after;
        let expected = !column.nullable && !added;
        if found.not_null != expected {
            let why = if expected {
                "it takes NULL"
            } else {
                "it does not take NULL"
            };
            return Err(mismatch(table, Some(&column.name), "nullability", why));
        }
    }
    Ok(())
}

fn place(info: &TableInfo, name: &str) -> Option<usize> {
    info.columns.iter().position(|column| column.name == name)
}

fn check_type(table: &Table, column: &ColumnInfo, expected: &str) -> Result<(), StoreError> {
    if column.sql_type == expected {
        return Ok(());
    }
    Err(mismatch(
        table,
        Some(&column.name),
        "type",
        &format!("it is {} and not {expected}", column.sql_type),
    ))
}

fn check_primary_key(table: &Table, info: &TableInfo) -> Result<(), StoreError> {
    let primary = info.indexes.iter().find(|index| index.primary);
    let is_ours = primary.is_some_and(|index| {
        index.columns.len() == PRIMARY_KEY.len()
            && index
                .columns
                .iter()
                .zip(PRIMARY_KEY)
                .all(|(column, name)| column.as_deref() == Some(name))
    });
    if is_ours {
        return Ok(());
    }
    let why = "it is not (_sync_partition, _sync_row_id)";
    Err(mismatch(table, None, "primary_key", why))
}

/// The refusal of a table that is not there.
pub(crate) fn missing_table(table: &Table) -> StoreError {
    mismatch(table, None, "missing_table", "it is not in the database")
}

/// The refusal of a column that is not there.
pub(crate) fn missing_column(table: &Table, column: &str) -> StoreError {
    let why = "it is not in the database";
    mismatch(table, Some(column), "missing_column", why)
}

fn mismatch(table: &Table, column: Option<&str>, reason: &str, why: &str) -> StoreError {
    let of = column.map_or_else(String::new, |column| format!("column `{column}` of "));
    StoreError::refused(
        StorageCode::PhysicalLayoutMismatch,
        "prepare the database",
        format!(
            "{of}table `{}`: {why} (reason {reason}); restore a backup, or undo the change that \
             was made to the table by hand",
            table.name
        ),
    )
}
