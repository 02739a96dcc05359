//! `epoch`: what an operator says about a database that went back in time (§2.1).
//!
//! A new epoch makes every device drop what it synchronized and start over; its outbox stays and
//! is sent. The database must not be in use: connections of the old timeline are closed first.

use std::{fmt::Write as _, path::PathBuf, sync::Arc};

use anyhow::{Context as _, ensure};
use clap::{Args, Subcommand};
use tidewater_engine::{Clock as _, Ids as _, RandomIds, SystemClock};
use tidewater_model::{LogEpoch, PartitionId};
use tidewater_store::Store;

use crate::{
    Failure,
    config::{Config, store::StoreKind},
    database::{self, OperatedDatabase},
    run, schema,
};

/// `epoch`
#[derive(Debug, Subcommand)]
pub(crate) enum EpochCommand {
    /// Gives partitions a new epoch: their devices start over from what the database holds.
    Rotate {
        #[command(flatten)]
        config: ConfigOption,
        #[command(flatten)]
        which: Which,
    },
    /// Vouches for the database: nothing that a client was told is missing from it.
    Keep {
        #[command(flatten)]
        config: ConfigOption,
    },
}

#[derive(Args, Debug)]
pub(crate) struct ConfigOption {
    /// The configuration file of the server, which must not be running.
    #[arg(long = "config", value_name = "FILE", env = "TIDEWATER_CONFIG")]
    file: PathBuf,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Which {
    /// One partition.
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Every partition: what a restored database needs before it is served.
    #[arg(long)]
    all: bool,
}

/// Partitions read at a time.
const PAGE: usize = 500;

pub(crate) fn run(command: &EpochCommand) -> Result<(), Failure> {
    let (EpochCommand::Rotate { config, .. } | EpochCommand::Keep { config }) = command;
    let config = Config::load(&config.file).map_err(Failure::Wrong)?;
    database::check_exists(&config).map_err(Failure::Wrong)?;
    match command {
        EpochCommand::Rotate { which, .. } => match &which.partition {
            Some(partition) => rotate_one(&config, PartitionId::new(partition.as_str())),
            None => rotate_all(&config),
        },
        EpochCommand::Keep { .. } => keep(&config),
    }
}

/// Gives every partition a new epoch, and takes the database for the one that is served here.
pub(crate) fn rotate_all(config: &Config) -> Result<(), Failure> {
    run::runtime()?.block_on(async {
        let database = open(config, true).await?;
        let mut after = None;
        loop {
            let page = database
                .store()
                .list_partitions(after.as_ref(), PAGE)
                .await?;
            let Some(last) = page.last() else { break };
            after = Some(last.partition.clone());
            for record in page {
                rotate(database.store(), &record.partition).await?;
            }
        }
        // Last, so that what was interrupted is refused and done again.
        database.adopt().await?;
        database.close();
        Ok(())
    })
}

fn rotate_one(config: &Config, partition: PartitionId) -> Result<(), Failure> {
    run::runtime()?.block_on(async {
        let database = open(config, false).await?;
        let known = database.store().find_partition(&partition).await?;
        let known = known.with_context(|| format!("there is no partition {partition}"));
        known.map_err(Failure::Wrong)?;
        rotate(database.store(), &partition).await?;
        database.close();
        Ok(())
    })
}

fn keep(config: &Config) -> Result<(), Failure> {
    run::runtime()?.block_on(async {
        let database = open(config, true).await?;
        database.adopt().await?;
        database.close();
        Ok(())
    })
}

async fn rotate(store: &dyn Store, partition: &PartitionId) -> anyhow::Result<()> {
    let epoch = LogEpoch::new(RandomIds.fresh());
    let record = store
        .rotate_epoch(partition, &epoch, SystemClock.now_ms())
        .await?;
    let mut line = String::new();
    writeln!(line, "{}\t{}", record.partition, record.log_epoch.as_str())?;
    run::print(&line)
}

async fn open(config: &Config, accept_restored: bool) -> anyhow::Result<OperatedDatabase> {
    let path = &config.store.path;
    ensure!(
        config.store.kind() != StoreKind::Sqlite || path.exists(),
        "there is no database {}",
        path.display()
    );
    let schema = schema::of(config)?;
    let database = OperatedDatabase::open(config, accept_restored)?;
    database.store().prepare(&Arc::new(schema)).await?;
    Ok(database)
}
