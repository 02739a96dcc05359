//! `tidewater export`: the rows of a table, in the order of their keys.

use std::{
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Args;
use tidewater_model::PartitionId;
use tidewater_store::TableScan;

use super::{Selection, rows::RowWriter};
use crate::{Failure, assemble, config::Config, run};

/// Options of `tidewater export`.
#[derive(Args, Debug)]
pub(crate) struct ExportOptions {
    #[command(flatten)]
    selection: Selection,
    /// Where to; `-` is standard output.
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
}

/// Rows read at a time.
const PAGE_ROWS: usize = 1_000;

/// Bytes read at a time.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Runs an export.
pub(crate) fn export(options: &ExportOptions) -> Result<(), Failure> {
    let selection = &options.selection;
    let config = Config::load(&selection.config).map_err(Failure::Wrong)?;
    let plan = assemble::check(&config).map_err(Failure::Wrong)?;
    let index = selection.table(&plan.schema).map_err(Failure::Wrong)?;
    let format = selection.format(&options.file).map_err(Failure::Wrong)?;
    let table = plan.schema.table(index).clone();
    run::runtime()?.block_on(async {
        let engine = plan.open_for_operator(&config, 1).await?;
        // Only now: an export that cannot be done leaves an earlier file as it is.
        let output = create(&options.file).map_err(Failure::Wrong)?;
        let mut rows = RowWriter::new(&table, format, BufWriter::new(output))?;
        let mut scan = TableScan {
            partition: PartitionId::new(selection.partition.as_str()),
            table: index,
            after: None,
            rows_max: PAGE_ROWS,
            bytes_max: PAGE_BYTES,
        };
        loop {
            let page = engine.store().scan_table(scan.clone()).await?;
            for row in page.rows() {
                rows.write(row.payload)?;
            }
            scan.after = page.rows().next_back().map(|row| row.row_id.to_owned());
            if !page.has_more {
                break;
            }
        }
        engine.close().await?;
        rows.finish()?;
        Ok(())
    })
}

fn create(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(std::io::stdout()));
    }
    let file = std::fs::File::create(path);
    Ok(Box::new(
        file.with_context(|| format!("create {}", path.display()))?,
    ))
}
