//! `verify`: whether a database agrees with itself, before it is served again.

use std::{path::PathBuf, sync::Arc};

use anyhow::{anyhow, ensure};
use clap::Args;
use tidewater_store::Store as _;
use tidewater_store_postgres::PostgresStore;

use crate::{
    Failure,
    config::{Config, store::StoreKind},
    run, schema,
};

/// `verify`
#[derive(Args, Debug)]
pub(crate) struct VerifyOptions {
    /// The configuration file of the server, which may be running.
    #[arg(long, value_name = "FILE", env = "TIDEWATER_CONFIG")]
    config: PathBuf,
}

/// Reads all of the database and prints what does not agree with the rest of it.
pub(crate) fn run(options: &VerifyOptions) -> Result<(), Failure> {
    let config = Config::load(&options.config).map_err(Failure::Wrong)?;
    check_kind(&config).map_err(Failure::Wrong)?;
    let schema = Arc::new(schema::of(&config).map_err(Failure::Wrong)?);
    let faults: Vec<String> = run::runtime()?.block_on(async {
        let mut postgres = config.store.to_postgres(1)?;
        // It is looked at before anybody decides what it is.
        postgres.accept_restored = true;
        let store = PostgresStore::new(postgres)?;
        ensure!(
            store.plan_migration(&schema).await?.is_empty(),
            "the database is not of this schema: see `tidewater migrate --plan`"
        );
        store.prepare(&schema).await?;
        let faults = store.verify().await?;
        store.close();
        anyhow::Ok(faults)
    })?;
    let lines: String = faults.iter().map(|fault| format!("{fault}\n")).collect();
    run::print(&lines)?;
    if faults.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(anyhow!(
        "the database does not agree with itself: restore it from another backup"
    )))
}

fn check_kind(config: &Config) -> anyhow::Result<()> {
    ensure!(
        config.store.kind() == StoreKind::Postgres,
        "store.kind is not postgres: a SQLite file is checked when it is backed up and restored"
    );
    Ok(())
}
