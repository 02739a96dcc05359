//! The steps of a migration. Their `Display` is for people.

use std::{fmt, sync::Arc};

use rusqlite::Connection;
use tidewater_schema::{Table, WidenedTable};
use tidewater_store::{StorageCode, StoreError, rewrite::Rewrite};

use super::{DURING, rewrites};
use crate::{
    error::{failed, is_violation},
    indexes::Wanted,
    rewrite::{fill_typed, widen_log, widen_rows},
    statements::quoted,
};

/// One step of a migration.
#[derive(Debug)]
pub(crate) enum Step {
    /// Runs a statement.
    Sql(String),
    /// Drops an app table and all that finds its rows.
    Retire(String),
    /// Goes on with what an earlier start began.
    Resume(Rewrite),
    /// Appends columns to stored rows, piece by piece.
    Rewrite(WidenedTable),
    /// Appends columns to stored rows and fills typed columns from them, at once.
    Widen {
        widened: WidenedTable,
        typed: Vec<usize>,
    },
    /// Fills typed columns of stored rows.
    Fill {
        table: Arc<Table>,
        typed: Vec<usize>,
    },
    /// Creates a declared index.
    Index(Wanted),
    /// Refuses the commits of older servers.
    Fence(i32),
    /// Remembers what the database was brought to.
    Mark { version: i32, layouts: String },
}

impl Step {
    /// Carries it out inside the open transaction.
    pub(crate) fn run(&self, connection: &Connection) -> Result<(), StoreError> {
        match self {
            Self::Sql(text) => connection.execute_batch(text).map_err(failed(DURING)),
            Self::Retire(table) => retire(connection, table).map_err(failed(DURING)),
            // It is done before anything else.
            Self::Resume(_) => Ok(()),
            Self::Rewrite(widened) => rewrites::begin(connection, widened),
            Self::Widen { widened, typed } => {
                widen_rows(connection, widened, typed)?;
                widen_log(connection, widened)
            }
            Self::Fill { table, typed } => fill_typed(connection, table, typed),
            Self::Index(index) => create_index(connection, index),
            Self::Fence(version) => connection
                .execute(RAISE_FENCES, [version])
                .map(drop)
                .map_err(failed(DURING)),
            Self::Mark { version, layouts } => connection
                .execute(
                    "INSERT OR REPLACE INTO sync_schema_meta (id, schema_version, layouts) \
                     VALUES (1, ?1, ?2)",
                    (version, layouts),
                )
                .map(drop)
                .map_err(failed(DURING)),
        }
    }
}

/// Also of partitions that are not registered and have a log, as an import may leave them.
const RAISE_FENCES: &str = "INSERT INTO sync_writer_fence (partition, required_version) \
    SELECT partition, ?1 FROM (SELECT partition FROM sync_partition_registry \
    UNION SELECT partition FROM sync_partitions) WHERE true \
    ON CONFLICT (partition) DO UPDATE SET \
    required_version = max(required_version, excluded.required_version)";

/// The history of a table goes with it: a table of the same name that comes later has another.
fn retire(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    for holder in [
        "sync_row_scopes",
        "sync_blob_refs",
        "sync_tombstones",
        "sync_change_scopes",
        "sync_changes",
        "sync_row_rewrites",
    ] {
        connection.execute(&format!("DELETE FROM {holder} WHERE tbl = ?1"), [table])?;
    }
    connection.execute_batch(&format!("DROP TABLE IF EXISTS {}", quoted(table)))
}

fn create_index(connection: &Connection, index: &Wanted) -> Result<(), StoreError> {
    connection.execute_batch(&index.sql).map_err(|error| {
        if !is_violation(&error) {
            return failed(DURING)(error);
        }
        StoreError::refused(
            StorageCode::SchemaIncompatible,
            DURING,
            format!(
                "rows of table `{}` share a value that a unique index forbids: change the rows, \
                 or drop the index from the schema",
                index.table
            ),
        )
    })
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sql(text) => formatter.write_str(text),
            Self::Retire(table) => write!(formatter, "drop table `{table}` with its history"),
            Self::Resume(left) => left.fmt(formatter),
            Self::Rewrite(widened) | Self::Widen { widened, .. } => write!(
                formatter,
                "append {} column(s) to every stored row of table `{}`",
                widened.appended().len(),
                widened.table.name
            ),
            Self::Fill { table, .. } => write!(
                formatter,
                "fill the typed columns of table `{}` from its rows",
                table.name
            ),
            Self::Index(index) => formatter.write_str(&index.sql),
            Self::Fence(version) => write!(
                formatter,
                "refuse commits of servers below schema version {version}"
            ),
            Self::Mark { version, .. } => write!(formatter, "mark schema version {version}"),
        }
    }
}
