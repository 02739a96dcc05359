//! Bulk loading and unloading of one table of one partition.
//!
//! `import` goes through the ordinary write path, so scopes, constraints, references, validators
//! and the log treat its rows like anybody's; devices receive them like any commit. `export`
//! writes what `import` reads.

mod export;
mod import;
mod rows;

use std::path::Path;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tidewater_schema::{Schema, TableIndex};

pub(crate) use self::{
    export::{ExportOptions, export},
    import::{ImportOptions, import},
};

/// Which rows, in which form.
#[derive(Args, Debug)]
pub(crate) struct Selection {
    /// The configuration file of the server, which must not be running on the same database.
    #[arg(long, value_name = "FILE", env = "TIDEWATER_CONFIG")]
    config: std::path::PathBuf,
    /// The partition.
    #[arg(long, value_name = "NAME")]
    partition: String,
    /// The table.
    #[arg(long, value_name = "NAME")]
    table: String,
    /// The form of the rows; by the ending of the file's name if it is not given.
    #[arg(long, value_enum)]
    format: Option<Format>,
}

/// How rows are written.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Format {
    /// One JSON object a line.
    Jsonl,
    /// Comma-separated values with a header line.
    Csv,
}

impl Selection {
    fn format(&self, file: &Path) -> anyhow::Result<Format> {
        if let Some(format) = self.format {
            return Ok(format);
        }
        match file.extension().and_then(|ending| ending.to_str()) {
            Some("jsonl" | "ndjson" | "json") => Ok(Format::Jsonl),
            Some("csv") => Ok(Format::Csv),
            _ => anyhow::bail!("--format is needed: the name of the file does not tell"),
        }
    }

    fn table(&self, schema: &Schema) -> anyhow::Result<TableIndex> {
        schema
            .find(&self.table)
            .with_context(|| format!("there is no table {:?}", self.table))
    }
}
