//! Brings a database to a schema (§2.4, §9), or refuses and changes nothing.
//!
//! What is to be done is a list of steps, made by comparing the schema with the stored layouts
//! and with the database's own catalogue. An empty list writes nothing. Otherwise all of it runs
//! in one transaction that nobody else can write beside, planned again inside it; but for rows
//! that get columns, which follow in bounded pieces (`rewrites`).
//!
//! Databases of the reference get what they lack even at an equal version, because none of that
//! changes what is stored: column versions, scopes of tombstones, indexes.

mod rewrites;
mod steps;

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};
use tidewater_schema::{Layouts, MigrationPlan, RefusalCode, Schema, Stored, Table, WidenedTable};
use tidewater_store::{StorageCode, StoreError};

pub(crate) use self::steps::Step;

use crate::{
    app_table,
    catalog::{Catalog, TableInfo},
    error::{corrupt, failed},
    guard, indexes,
    infrastructure::TABLES,
    layout::{Layout, TableLayout},
    session::Session,
    statements::{TableSql, quoted},
    typed::sql_type,
};

const DURING: &str = "prepare the database";

/// Brings the database to a schema.
pub(crate) fn prepare(
    session: &mut Session<'_>,
    schema: &Arc<Schema>,
) -> Result<Layout, StoreError> {
    if !plan(session, schema)?.is_empty() {
        // What an earlier start left comes first: the plan is made for rows of one layout.
        rewrites::finish(session, schema)?;
        carry_out(session, schema)?;
        rewrites::finish(session, schema)?;
    }
    let catalog = Catalog::read(session.connection).map_err(failed(DURING))?;
    layout(schema, &catalog)
}

/// Carries out everything but the rewriting of rows, which it notes.
fn carry_out(session: &mut Session<'_>, schema: &Arc<Schema>) -> Result<(), StoreError> {
    session.transact(DURING, |session| {
        for step in plan_now(session.connection, schema)? {
            tracing::info!(%step, "migrating");
            step.run(session.connection)?;
        }
        Ok(())
    })
}

/// What it would take to bring the database to a schema.
pub(crate) fn plan(
    session: &mut Session<'_>,
    schema: &Arc<Schema>,
) -> Result<Vec<Step>, StoreError> {
    session.snapshot(DURING, |session| plan_now(session.connection, schema))
}

pub(crate) fn layout(schema: &Arc<Schema>, catalog: &Catalog) -> Result<Layout, StoreError> {
    let tables = schema.tables().iter().map(|table| {
        let info = catalog
            .find(&table.name)
            .ok_or_else(|| app_table::missing_table(table))?;
        let typed = app_table::typed_columns(table, info);
        Ok(TableLayout {
            sql: TableSql::new(table, &typed),
            constrained: info.is_constrained(),
            table: Arc::clone(table),
            typed,
        })
    });
    Ok(Layout {
        version: schema.version(),
        tables: tables.collect::<Result<_, StoreError>>()?,
    })
}

fn plan_now(connection: &Connection, schema: &Arc<Schema>) -> Result<Vec<Step>, StoreError> {
    let catalog = Catalog::read(connection).map_err(failed(DURING))?;
    let stored = stored(connection, &catalog)?;
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
    for left in rewrites::pending(connection)? {
        planner.steps.push(Step::Resume(left));
    }
    planner.infrastructure();
    if guard::read_identity(connection)?.is_none() {
        planner.sql(guard::IDENTIFY);
    }
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
fn stored(connection: &Connection, catalog: &Catalog) -> Result<Option<Stored>, StoreError> {
    let Some(meta) = catalog.find("sync_schema_meta") else {
        return Ok(None);
    };
    let layouts = if meta.column("layouts").is_some() {
        "layouts"
    } else {
        "'{}'"
    };
    let marker: Option<(i32, String)> = connection
        .query_row(
            &format!("SELECT schema_version, {layouts} FROM sync_schema_meta WHERE id = 1"),
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .map_err(failed(DURING))?;
    let Some((version, layouts)) = marker else {
        return Ok(None);
    };
    let layouts = Layouts::parse(&layouts).map_err(|error| corrupt(DURING, error.to_string()))?;
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
                None => self.sql(table.create),
                Some(info) => {
                    for (column, rest) in table.added {
                        if info.column(column).is_none() {
                            let name = table.name;
                            self.sql(format!("ALTER TABLE {name} ADD COLUMN {column} {rest}"));
                        }
                    }
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
        if info.column(app_table::COLUMN_VERSIONS).is_none() {
            self.add_column(table, &format!("{} BLOB", app_table::COLUMN_VERSIONS));
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
            let kind = sql_type(column.kind);
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
