//! `migrate`: what a new schema does to the database, before a server does it (§9).

use std::{path::PathBuf, sync::Arc};

use anyhow::Context as _;
use clap::Args;
use tidewater_store::Store as _;
use tidewater_store_sqlite::{SqliteConfig, SqliteStore};

use crate::{Failure, assemble, backup::check_kind, config::Config, run, schema, telemetry};

/// `migrate`
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["plan", "apply"])))]
pub(crate) struct MigrateOptions {
    /// The configuration file of the server, which must not be running.
    #[arg(long, value_name = "FILE", env = "TIDEWATER_CONFIG")]
    config: PathBuf,
    /// Prints the steps, one a line, and changes nothing. No line: nothing is to be done.
    #[arg(long)]
    plan: bool,
    /// Carries them out, all or none, and prints them.
    #[arg(long)]
    apply: bool,
}

/// A plan for a database that is not there is one for an empty one, and leaves none behind.
fn database(config: &Config, options: &MigrateOptions) -> SqliteConfig {
    if options.plan && !config.store.path.exists() {
        return SqliteConfig::in_memory();
    }
    assemble::sqlite_config(config)
}

/// Shows the steps and, if it is asked to, carries them out.
pub(crate) fn run(options: &MigrateOptions) -> Result<(), Failure> {
    let config = Config::load(&options.config).map_err(Failure::Wrong)?;
    check_kind(&config).map_err(Failure::Wrong)?;
    let schema = Arc::new(schema::of(&config).map_err(Failure::Wrong)?);
    if options.apply {
        // A large database takes a while: the log says how far it is.
        telemetry::start(&config.log).map_err(Failure::Wrong)?;
    }
    run::runtime()?.block_on(async {
        let store = SqliteStore::open(database(&config, options)).context("open the database")?;
        let steps = store.plan_migration(&schema).await?;
        if options.apply {
            store.prepare(&schema).await?;
        }
        store.close();
        let lines: String = steps.iter().map(|step| format!("{step}\n")).collect();
        run::print(&lines)?;
        Ok(())
    })
}
