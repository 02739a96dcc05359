//! `tidewater-load`: the load generator without the rest of Tidewater.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "tidewater-load", about)]
struct Cli {
    #[command(flatten)]
    args: tidewater_loadgen::Args,
}

fn main() -> anyhow::Result<ExitCode> {
    let report = tidewater_loadgen::run(Cli::parse().args)?;
    write!(io::stdout().lock(), "{report}")?;
    Ok(if report.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
