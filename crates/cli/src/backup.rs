//! `backup` and `restore`: a database as one file, and back.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::{
    Failure,
    config::{Config, store::StoreKind},
    epoch, run,
};

/// `backup`
#[derive(Args, Debug)]
pub(crate) struct BackupOptions {
    /// The configuration file of the server, which may be running.
    #[arg(long, value_name = "FILE", env = "TIDEWATER_CONFIG")]
    config: PathBuf,
    /// Where the copy goes. It must not exist.
    #[arg(value_name = "FILE")]
    output: PathBuf,
}

/// `restore`
#[derive(Args, Debug)]
pub(crate) struct RestoreOptions {
    /// The configuration file of the server, which must not be running.
    #[arg(long, value_name = "FILE", env = "TIDEWATER_CONFIG")]
    config: PathBuf,
    /// Moves the database that is there aside, to the same name with `.old` added.
    #[arg(long)]
    replace: bool,
    /// The backup.
    #[arg(value_name = "FILE")]
    backup: PathBuf,
}

/// Copies the database.
pub(crate) fn back_up(options: &BackupOptions) -> Result<(), Failure> {
    let config = Config::load(&options.config).map_err(Failure::Wrong)?;
    check_kind(&config).map_err(Failure::Wrong)?;
    tidewater_store_sqlite::back_up(&config.store.path, &options.output)
        .context("back the database up")?;
    run::print(&format!("{}\n", options.output.display()))?;
    Ok(())
}

/// Puts a backup in place and starts a new timeline.
pub(crate) fn restore(options: &RestoreOptions) -> Result<(), Failure> {
    let config = Config::load(&options.config).map_err(Failure::Wrong)?;
    check_kind(&config).map_err(Failure::Wrong)?;
    tidewater_store_sqlite::restore(&options.backup, &config.store.path, options.replace)
        .context("restore the database")?;
    epoch::rotate_all(&config)
}

/// Whether this server's database is a file that can be copied.
fn check_kind(config: &Config) -> anyhow::Result<()> {
    match config.store.kind() {
        StoreKind::Sqlite => Ok(()),
        StoreKind::Memory => bail!("store.kind is memory: there is no database"),
        StoreKind::Postgres => bail!(
            "store.kind is postgres, which has tools of its own for this: back it up with \
             pg_basebackup or pg_dump, and after a restore run `tidewater verify` and \
             `tidewater epoch rotate --all`; docs/postgres.md says how"
        ),
    }
}
