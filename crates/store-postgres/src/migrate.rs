//! Brings a database to a schema (§2.4, §9), or refuses and changes nothing.
//!
//! What is to be done is a list of steps, made by comparing the schema with the stored layouts
//! and with the database's own catalogue. An empty list writes nothing. Otherwise all of it runs
//! in one transaction, planned again inside it under a lock that every node takes: of two that
//! start at once, the second finds nothing left to do; but for rows that get columns, which follow
//! in bounded pieces (`rewrites`).
//!
//! Databases of the reference get what they lack even at an equal version, because none of that
//! changes what is stored: column versions, scopes of tombstones, indexes, the bytewise order.

mod rewrites;
mod steps;

use std::sync::Arc;

use tidewater_schema::{Layouts, MigrationPlan, RefusalCode, Schema, Stored, Table, WidenedTable};
use tidewater_store::{StorageCode, StoreError};

pub(crate) use self::steps::Step;

use crate::{
    app_table::{self, PRIMARY_KEY},
    catalog::{Catalog, TableInfo},
    error::{corrupt, get},
    guard, indexes,
    infrastructure::{RESTORE_GUARD, TABLES},
    layout::{Layout, TableLayout},
    link::{Link, Mode},
    params,
    statements::{TableSql, quoted},
    typed::created_type,
};

const DURING: &str = "prepare the database";

/// Held by whoever migrates, until its transaction ends.
fn lock() -> params::Step<'static> {
    params::Step::once("SELECT pg_advisory_xact_lock(7594812630491)", Vec::new())
}

/// A database that is ready.
pub(crate) struct Prepared {
    pub(crate) layout: Layout,
    /// Whether the server acknowledges commits that are not on its disk, unless it is told.
    pub(crate) loses_commits: bool,
}

/// Brings the database to a schema.
pub(crate) async fn prepare(link: &mut Link, schema: &Arc<Schema>) -> Result<Prepared, StoreError> {
    let steps = plan(link, schema).await?;
    if !steps.is_empty() {
        // What an earlier start left comes first, or another node that has begun meanwhile: the
        // plan is made for rows of one layout.
        let mut is_left = is_any_left(&steps, schema);
        while is_left || !carry_out(link, schema).await? {
            rewrites::finish(link, schema).await?;
            is_left = false;
        }
        rewrites::finish(link, schema).await?;
    }
    begin_snapshot(link).await?;
    let catalog = Catalog::read(link, DURING).await?;
    link.commit(Vec::new(), DURING).await?;
    Ok(Prepared {
        layout: layout(schema, &catalog)?,
        loses_commits: catalog.synchronous_commit == "off",
    })
}

/// Carries out everything but the rewriting of rows, which it notes. `false` where some of that
/// is left from before: then nothing was done.
async fn carry_out(link: &mut Link, schema: &Arc<Schema>) -> Result<bool, StoreError> {
    let beginning = [link.begin(Mode::Migrate), lock()];
    link.fly(&beginning, DURING).await?.rows(DURING)?;
    let steps = plan_now(link, schema).await?;
    let is_left = is_any_left(&steps, schema);
    if !is_left {
        for step in steps {
            tracing::info!(%step, "migrating");
            step.run(link).await?;
        }
    }
    link.commit(Vec::new(), DURING).await?;
    Ok(!is_left)
}

/// What is left of a table that is retired goes with it.
fn is_any_left(steps: &[Step], schema: &Schema) -> bool {
    let is_left = |step: &Step| match step {
        Step::Resume(left) => schema.find(&left.table).is_some(),
        _ => false,
    };
    steps.iter().any(is_left)
}

/// What it would take to bring the database to a schema.
pub(crate) async fn plan(link: &mut Link, schema: &Arc<Schema>) -> Result<Vec<Step>, StoreError> {
    begin_snapshot(link).await?;
    let steps = plan_now(link, schema).await?;
    link.commit(Vec::new(), DURING).await?;
    Ok(steps)
}

async fn begin_snapshot(link: &mut Link) -> Result<(), StoreError> {
    let beginning = [link.begin(Mode::Read)];
    link.fly(&beginning, DURING).await?.rows(DURING)?;
    Ok(())
}

fn layout(schema: &Arc<Schema>, catalog: &Catalog) -> Result<Layout, StoreError> {
    let tables = schema.tables().iter().map(|table| {
        let info = catalog
            .find(&table.name)
            .ok_or_else(|| app_table::missing_table(table))?;
        let typed = app_table::typed_columns(table, info);
        Ok(TableLayout {
            sql: TableSql::new(table, &typed),
            table: Arc::clone(table),
            typed,
        })
    });
    Ok(Layout {
        version: schema.version(),
        tables: tables.collect::<Result<_, StoreError>>()?,
        timeline: None,
    })
}

async fn plan_now(link: &mut Link, schema: &Arc<Schema>) -> Result<Vec<Step>, StoreError> {
    let catalog = Catalog::read(link, DURING).await?;
    // Row ids are compared by their bytes, and those must be UTF-8.
    if catalog.encoding != "UTF8" {
        let encoding = &catalog.encoding;
        return Err(corrupt(
            DURING,
            format!("the database is encoded as {encoding}: copy it into one encoded as UTF8"),
        ));
    }
    let stored = stored(link, &catalog).await?;
    let plan = MigrationPlan::between(stored.as_ref(), schema).map_err(|refusal| {
        let code = match refusal.code {
            RefusalCode::StoredLayoutMismatch => StorageCode::StoredLayoutMismatch,
            RefusalCode::SchemaNewer => StorageCode::SchemaNewer,
            RefusalCode::SchemaIncompatible => StorageCode::SchemaIncompatible,
        };
        StoreError::refused(code, DURING, refusal.message)
    })?;
    let mut planner = Planner {
        catalog: &catalog,
        plan: &plan,
        steps: Vec::new(),
    };
    if catalog.find("sync_row_rewrites").is_some() {
        let left = rewrites::pending(link).await?.into_iter();
        planner.steps.extend(left.map(Step::Resume));
    }
    if !plan.is_current() && catalog.find("sync_partitions").is_some() {
        // Who writes now has read the gate of the older schema: they finish first.
        planner.sql("LOCK TABLE sync_partitions IN EXCLUSIVE MODE");
    }
    planner.infrastructure();
    planner
        .steps
        .extend(plan.retired.iter().cloned().map(Step::Retire));
    let indexes = indexes::difference(schema, &catalog, &plan.retired);
    for name in &indexes.drop {
        planner.sql(format!("DROP INDEX {}", quoted(name)));
    }
    for table in schema.tables() {
        planner.table(table, stored.as_ref())?;
    }
    planner
        .steps
        .extend(indexes.create.into_iter().map(Step::Index));
    if !plan.is_current() {
        planner.steps.push(Step::Fence(plan.to));
        planner.steps.push(Step::Mark {
            version: plan.to,
            layouts: schema.layouts().to_json(),
        });
    }
    Ok(planner.steps)
}

/// What the database says about the schema it was brought to.
async fn stored(link: &mut Link, catalog: &Catalog) -> Result<Option<Stored>, StoreError> {
    let Some(meta) = catalog.find("sync_schema_meta") else {
        return Ok(None);
    };
    let layouts = if meta.column("layouts").is_some() {
        "layouts"
    } else {
        "'{}'"
    };
    let sql =
        format!("SELECT schema_version::int8, {layouts}::text FROM sync_schema_meta WHERE id = 1");
    let steps = [params::Step::once(sql, Vec::new())];
    let answers = link.fly(&steps, DURING).await?.rows(DURING)?;
    let Some(row) = answers[0].first() else {
        return Ok(None);
    };
    let version: i64 = get(row, 0, DURING)?;
    let version = i32::try_from(version)
        .map_err(|_| corrupt(DURING, format!("{version} is no schema version")))?;
    let layouts =
        Layouts::parse(get(row, 1, DURING)?).map_err(|error| corrupt(DURING, error.to_string()))?;
    Ok(Some(Stored { version, layouts }))
}

struct Planner<'a> {
    catalog: &'a Catalog,
    plan: &'a MigrationPlan,
    steps: Vec<Step>,
}

impl Planner<'_> {
    fn sql(&mut self, text: impl Into<String>) {
        self.steps.push(Step::Sql(text.into()));
    }

    /// The server's own tables.
    fn infrastructure(&mut self) {
        for table in TABLES {
            let info = self.catalog.find(table.name);
            match info {
                None => {
                    self.sql(table.create());
                    if table.name == RESTORE_GUARD {
                        self.sql(guard::IDENTIFY);
                    }
                }
                Some(info) => {
                    for (column, rest) in table.added {
                        if info.column(column).is_none() {
                            let name = table.name;
                            self.sql(format!("ALTER TABLE {name} ADD COLUMN {column} {rest}"));
                        }
                    }
                    self.bytewise(info, |_| true);
                }
            }
            for (name, create) in table.indexes {
                if !info.is_some_and(|info| info.has_index(name)) {
                    self.sql(*create);
                }
            }
        }
        // The reference prunes in several transactions, and may have been stopped between them.
        let is_reference = self
            .catalog
            .find("sync_tombstones")
            .is_none_or(|info| info.column("scopes").is_none());
        if is_reference && self.catalog.find("sync_change_scopes").is_some() {
            self.sql(
                "DELETE FROM sync_change_scopes WHERE commit_seq <= coalesce((\
                 SELECT p.horizon_seq FROM sync_partitions p \
                 WHERE p.partition = sync_change_scopes.partition), 0)",
            );
        }
    }

    /// Has texts of a table compared byte by byte from now on.
    fn bytewise(&mut self, info: &TableInfo, wanted: impl Fn(&str) -> bool) {
        let columns = info.columns.iter();
        let changes: Vec<String> = columns
            .filter(|column| {
                column.sql_type == "text" && !column.is_bytewise && wanted(&column.name)
            })
            .map(|column| {
                let name = quoted(&column.name);
                format!("ALTER COLUMN {name} TYPE text COLLATE \"C\"")
            })
            .collect();
        if !changes.is_empty() {
            let name = quoted(&info.name);
            self.sql(format!("ALTER TABLE {name} {}", changes.join(", ")));
        }
    }

    /// One app table.
    fn table(&mut self, table: &Arc<Table>, stored: Option<&Stored>) -> Result<(), StoreError> {
        let Some(info) = self.catalog.find(&table.name) else {
            let has_rows = stored.is_some_and(|stored| stored.layouts.find(&table.name).is_some());
            if has_rows {
                return Err(app_table::missing_table(table));
            }
            self.sql(app_table::create(table));
            return Ok(());
        };
        app_table::check(table, info)?;
        self.bytewise(info, |name| PRIMARY_KEY.contains(&name));
        if info.column(app_table::COLUMN_VERSIONS).is_none() {
            self.add_column(table, &format!("{} bytea", app_table::COLUMN_VERSIONS));
        }
        self.columns(table, info)
    }

    fn columns(&mut self, table: &Arc<Table>, info: &TableInfo) -> Result<(), StoreError> {
        let missing = app_table::missing_columns(table, info);
        if let Some(at) = missing.first()
            && self.plan.is_current()
        {
            return Err(app_table::missing_column(table, &table.columns[*at].name));
        }
        let mut typed = app_table::typed_columns(table, info);
        for at in &missing {
            let column = &table.columns[*at];
            let kind = created_type(column.kind);
            self.add_column(table, &format!("{} {kind}", quoted(&column.name)));
        }
        typed.extend(&missing);
        let widened: Option<&WidenedTable> = self
            .plan
            .widened
            .iter()
            .find(|widened| widened.table.name == table.name);
        match widened {
            // Typed columns that were there all along are as they were.
            Some(widened) if missing.iter().all(|at| *at >= widened.stored_columns) => {
                self.steps.push(Step::Rewrite(widened.clone()));
            }
            Some(widened) => self.steps.push(Step::Widen {
                widened: widened.clone(),
                typed,
            }),
            None if !missing.is_empty() => self.steps.push(Step::Fill {
                table: Arc::clone(table),
                typed,
            }),
            None => {}
        }
        Ok(())
    }

    fn add_column(&mut self, table: &Table, column: &str) {
        self.sql(format!(
            "ALTER TABLE {} ADD COLUMN {column}",
            quoted(&table.name)
        ));
    }
}
