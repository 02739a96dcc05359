//! `schema check`: what the server makes of a schema document.

use std::{fmt::Write as _, path::Path};

use anyhow::Context as _;
use tidewater_schema::{Schema, Table};

use crate::{Failure, assemble, config::Config, run};

/// Compiles a schema, with the rules of a configuration if there is one, and prints its tables.
pub(crate) fn check(file: &Path, config: Option<&Path>) -> Result<(), Failure> {
    let schema = load(file).map_err(Failure::Wrong)?;
    if let Some(config) = config {
        let config = Config::load(config).map_err(Failure::Wrong)?;
        assemble::check_rules(&config, &schema).map_err(Failure::Wrong)?;
    }
    let mut text = format!("schema version {}\n", schema.version());
    for table in schema.tables() {
        describe(table, &mut text).context("describe the schema")?;
    }
    run::print(&text)?;
    Ok(())
}

/// Reads and compiles a schema.
pub(crate) fn load(file: &Path) -> anyhow::Result<Schema> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    Schema::from_json(&text).with_context(|| format!("schema {}", file.display()))
}

/// The schema of a configuration, with its window.
pub(crate) fn of(config: &Config) -> anyhow::Result<Schema> {
    let path = config.schema.path.as_deref();
    let schema = load(path.context("schema.path is not set")?)?;
    let older: anyhow::Result<Vec<Schema>> =
        config.schema.window.iter().map(|path| load(path)).collect();
    schema.with_window(older?).context("schema.window")
}

fn describe(table: &Table, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\n{}", table.name)?;
    for (index, (column, meta)) in table.columns.iter().zip(&table.metas).enumerate() {
        let mut notes = Vec::new();
        if index == table.primary_key {
            notes.push("primary key".to_owned());
        }
        if column.nullable {
            notes.push("nullable".to_owned());
        }
        if let Some(merger) = &meta.crdt_type {
            notes.push(format!("merged by {merger}"));
        }
        if meta.encrypted {
            notes.push("encrypted by clients".to_owned());
        }
        for pattern in table
            .scopes
            .iter()
            .filter(|pattern| pattern.column == index)
        {
            notes.push(format!("scope {}", pattern.pattern()));
        }
        let line = format!(
            "  {:<24} {:<9} {}",
            column.name,
            column.kind.name(),
            notes.join(", ")
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
