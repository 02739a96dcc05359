//! The binary: reads the command line and the configuration, chooses the implementations, runs.
//!
//! Standard output is data and standard error is everything else. Exit codes: 0 it worked, 1 it
//! failed, 2 the command line, the configuration or the input is wrong.

mod assemble;
mod backup;
mod bulk;
mod checkpoint;
mod config;
mod database;
mod descriptors;
mod epoch;
mod manage;
mod migrate;
mod objects;
mod quickstart;
mod run;
mod schema;
mod telemetry;
mod verify;
mod wire;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::config::Config;

/// A server for the Syncular sync protocol.
#[derive(Debug, Parser)]
#[command(name = "tidewater", version, about, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the server.
    Serve {
        /// The configuration file.
        #[arg(long, value_name = "FILE", env = "TIDEWATER_CONFIG")]
        config: PathBuf,
    },
    /// Runs a server with a sample schema, two users and a console to watch.
    Quickstart(quickstart::Options),
    /// Loads rows of a file into a table, through the ordinary write path.
    Import(bulk::ImportOptions),
    /// Writes the rows of a table to a file.
    Export(bulk::ExportOptions),
    /// Looks after segments.
    #[command(subcommand)]
    Segments(manage::SegmentsCommand),
    /// Looks after blobs.
    #[command(subcommand)]
    Blobs(manage::BlobsCommand),
    /// Copies the database to a file, beside a server that goes on.
    Backup(backup::BackupOptions),
    /// Puts a backup in place of the database and gives every partition a new epoch.
    Restore(backup::RestoreOptions),
    /// Says what became of a database that went back in time.
    #[command(subcommand)]
    Epoch(epoch::EpochCommand),
    /// Brings the database to the schema, or shows what that would take.
    Migrate(migrate::MigrateOptions),
    /// Checks that a PostgreSQL database agrees with itself, beside servers that go on.
    Verify(verify::VerifyOptions),
    /// Follows backfills of projections, and fences writers that do not keep them.
    #[command(subcommand)]
    Checkpoint(checkpoint::CheckpointCommand),
    /// Drives load at a running server and checks what it answers.
    Load(Box<tidewater_loadgen::Args>),
    /// Looks at configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Looks at schemas.
    #[command(subcommand)]
    Schema(SchemaCommand),
    /// Looks at messages of the protocol.
    #[command(subcommand)]
    Wire(WireCommand),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Checks a configuration with its schema and tokens, and prints what is in effect.
    Check {
        /// The configuration file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum SchemaCommand {
    /// Checks a schema document and prints what the server makes of it.
    Check {
        /// The schema, as JSON.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// A configuration whose rules must compile with this schema.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum WireCommand {
    /// Prints a message as JSON.
    Render {
        /// The message; `-` or nothing is standard input.
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
        /// The bytes are a rows segment.
        #[arg(long)]
        segment: bool,
    },
    /// Decodes a message and writes it again: the same bytes, if it is one.
    Recode {
        /// The message; `-` or nothing is standard input.
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
    },
}

/// What went wrong, by exit code.
pub(crate) enum Failure {
    /// What was asked for could not be done.
    Failed(anyhow::Error),
    /// What was given is wrong.
    Wrong(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Serve { config } => run::serve(&config),
        Command::Quickstart(options) => quickstart::run(options),
        Command::Import(options) => bulk::import(&options),
        Command::Export(options) => bulk::export(&options),
        Command::Segments(command) => manage::segments(&command),
        Command::Blobs(command) => manage::blobs(&command),
        Command::Backup(options) => backup::back_up(&options),
        Command::Restore(options) => backup::restore(&options),
        Command::Epoch(command) => epoch::run(&command),
        Command::Migrate(options) => migrate::run(&options),
        Command::Verify(options) => verify::run(&options),
        Command::Checkpoint(command) => checkpoint::run(&command),
        Command::Load(args) => load(*args),
        Command::Config(ConfigCommand::Check { file }) => check_config(&file),
        Command::Schema(SchemaCommand::Check { file, config }) => {
            schema::check(&file, config.as_deref())
        }
        Command::Wire(WireCommand::Render { file, segment }) => wire::render(&file, segment),
        Command::Wire(WireCommand::Recode { file }) => wire::recode(&file),
    };
    let (error, code) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Failed(error)) => (error, 1),
        Err(Failure::Wrong(error)) => (error, 2),
    };
    telemetry::complain(&error);
    ExitCode::from(code)
}

/// A run that could not be done at all is told apart from a server that failed it.
fn load(args: tidewater_loadgen::Args) -> Result<(), Failure> {
    let report = tidewater_loadgen::run(args).map_err(Failure::Wrong)?;
    run::print(&report.to_string())?;
    if report.is_ok() {
        return Ok(());
    }
    Err(Failure::Failed(anyhow::anyhow!(
        "the server did not keep what it promised: see the report"
    )))
}

fn check_config(file: &std::path::Path) -> Result<(), Failure> {
    let config = Config::load(file).map_err(Failure::Wrong)?;
    assemble::check(&config).map_err(Failure::Wrong)?;
    run::print(&config.to_toml()?)?;
    Ok(())
}
