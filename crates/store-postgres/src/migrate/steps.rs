//! The steps of a migration. Their `Display` is for people.

use std::{fmt, sync::Arc};

use tidewater_schema::{Table, WidenedTable};
use tidewater_store::{StorageCode, StoreError, rewrite::Rewrite};

use super::{DURING, rewrites};
use crate::{
    error::{class, failure},
    indexes::Wanted,
    link::Link,
    params::{self, Param},
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

/// Also of partitions that are not registered and have a log, as an import may leave them.
const RAISE_FENCES: &str = "INSERT INTO sync_writer_fence AS f (partition, required_version) \
    SELECT partition, $1 FROM (SELECT partition FROM sync_partition_registry \
    UNION SELECT partition FROM sync_partitions) known \
    ON CONFLICT (partition) DO UPDATE SET \
    required_version = greatest(f.required_version, excluded.required_version)";

const MARK: &str = "INSERT INTO sync_schema_meta (id, schema_version, layouts) \
    VALUES (1, $1, $2) ON CONFLICT (id) DO UPDATE SET schema_version = excluded.schema_version, \
    layouts = excluded.layouts";

impl Step {
    /// Carries it out inside the open transaction.
    pub(crate) async fn run(&self, link: &mut Link) -> Result<(), StoreError> {
        match self {
            Self::Sql(text) => command(link, text).await,
            Self::Retire(table) => retire(link, table).await,
            // It is done before anything else.
            Self::Resume(_) => Ok(()),
            Self::Rewrite(widened) => rewrites::begin(link, widened).await,
            Self::Widen { widened, typed } => {
                widen_rows(link, widened, typed).await?;
                widen_log(link, widened).await
            }
            Self::Fill { table, typed } => fill_typed(link, table, typed).await,
            Self::Index(index) => create_index(link, index).await,
            Self::Fence(version) => {
                let params = vec![Param::integer(i64::from(*version))];
                let steps = [params::Step::once(RAISE_FENCES, params)];
                link.fly(&steps, DURING).await?.rows(DURING).map(drop)
            }
            Self::Mark { version, layouts } => {
                // The column is a BIGINT in some databases and an INTEGER in others.
                let sql = MARK.replace("$1", &version.to_string()).replace("$2", "$1");
                let steps = [params::Step::once(sql, vec![Param::text(layouts)])];
                link.fly(&steps, DURING).await?.rows(DURING).map(drop)
            }
        }
    }
}

async fn command(link: &mut Link, sql: &str) -> Result<(), StoreError> {
    let steps = [params::Step::command(sql)];
    link.fly(&steps, DURING).await?.rows(DURING).map(drop)
}

/// The history of a table goes with it: a table of the same name that comes later has another.
async fn retire(link: &mut Link, table: &str) -> Result<(), StoreError> {
    let mut steps: Vec<params::Step<'_>> = [
        "sync_row_scopes",
        "sync_blob_refs",
        "sync_tombstones",
        "sync_change_scopes",
        "sync_changes",
        "sync_row_rewrites",
    ]
    .iter()
    .map(|holder| {
        let sql = format!("DELETE FROM {holder} WHERE tbl = $1");
        params::Step::once(sql, vec![Param::text(table)])
    })
    .collect();
    let drop_table = format!("DROP TABLE IF EXISTS {}", quoted(table));
    steps.push(params::Step::command(drop_table));
    link.fly(&steps, DURING).await?.rows(DURING).map(drop)
}

async fn create_index(link: &mut Link, index: &Wanted) -> Result<(), StoreError> {
    let steps = [params::Step::command(index.sql.as_str())];
    let flight = link.fly(&steps, DURING).await?;
    let Some((_, error)) = flight.first_failure() else {
        return Ok(());
    };
    let table = &index.table;
    let why = match class(error) {
        "23" => format!(
            "rows of table `{table}` share a value that a unique index forbids: change the rows, \
             or drop the index from the schema"
        ),
        "54" => format!(
            "rows of table `{table}` have values that are too long for an index: change the \
             rows, or drop the index from the schema"
        ),
        _ => return Err(failure(error, DURING)),
    };
    Err(StoreError::refused(
        StorageCode::SchemaIncompatible,
        DURING,
        why,
    ))
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
