//! `migrate`: what a new schema does to the database, before a server does it (§9).

use std::{path::PathBuf, sync::Arc};

use clap::Args;

use crate::{
    Failure,
    config::Config,
    database::{self, OperatedDatabase},
    run, schema, telemetry,
};

/// `migrate`
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["plan", "apply"])))]
pub(crate) struct MigrateOptions {
    /// The configuration file of the server, which must not be running on a SQLite file.
    #[arg(long, value_name = "FILE", env = "TIDEWATER_CONFIG")]
    config: PathBuf,
    /// Prints the steps, one a line, and changes nothing. No line: nothing is to be done.
    #[arg(long)]
    plan: bool,
    /// Carries them out, all or none, and prints them.
    #[arg(long)]
    apply: bool,
}

/// Shows the steps and, if it is asked to, carries them out.
pub(crate) fn run(options: &MigrateOptions) -> Result<(), Failure> {
    let config = Config::load(&options.config).map_err(Failure::Wrong)?;
    database::check_exists(&config).map_err(Failure::Wrong)?;
    let schema = Arc::new(schema::of(&config).map_err(Failure::Wrong)?);
    if options.apply {
        // A large database takes a while: the log says how far it is.
        telemetry::start(&config.log).map_err(Failure::Wrong)?;
    }
    run::runtime()?.block_on(async {
        let database = if options.plan {
            OperatedDatabase::open_or_imagine(&config)?
        } else {
            OperatedDatabase::open(&config, false)?
        };
        let steps = database.plan_migration(&schema).await?;
        if options.apply {
            database.store().prepare(&schema).await?;
        }
        database.close();
        let lines: String = steps.iter().map(|step| format!("{step}\n")).collect();
        run::print(&lines)?;
        Ok(())
    })
}
