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

fn main() -> ExitCode {
    match run(Cli::parse().args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Where there is no standard error, there is nobody to tell.
            drop(writeln!(io::stderr().lock(), "error: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Prints the report and tells whether it is good.
fn run(args: tidewater_loadgen::Args) -> anyhow::Result<bool> {
    let report = tidewater_loadgen::run(args)?;
    write!(io::stdout().lock(), "{report}")?;
    Ok(report.is_ok())
}
