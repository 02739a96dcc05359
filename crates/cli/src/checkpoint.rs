//! `checkpoint`: backfills of projections, declared, claimed, advanced and activated (§2.4).
//!
//! For whoever completes a projection with a program of their own: the program claims, reads,
//! says how far it got, and activates. Until then only servers that declare the checkpoint
//! (`schema.checkpoints`) serve the partition. Lines are tab-separated; the exit code is 1 where
//! nothing was changed because somebody else has the checkpoint.

use std::{fmt::Write as _, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use clap::{Args, Subcommand};
use tidewater_engine::{Clock as _, SystemClock};
use tidewater_model::{CommitSeq, PartitionId};
use tidewater_store::{Checkpoint, CheckpointChange, CheckpointKey, CheckpointOutcome, Store};

use crate::{
    Failure,
    config::{Config, milliseconds, store::StoreKind},
    database::OperatedDatabase,
    run, schema,
};

/// `checkpoint`
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// Prints every checkpoint.
    List {
        #[command(flatten)]
        database: DatabaseOption,
    },
    /// Declares a checkpoint for the schema version of the configuration.
    Declare {
        #[command(flatten)]
        database: DatabaseOption,
        /// Its name.
        #[arg(long, value_name = "NAME")]
        name: String,
        #[command(flatten)]
        which: Which,
    },
    /// Makes partitions refuse commits of servers below a schema version.
    Fence {
        #[command(flatten)]
        database: DatabaseOption,
        /// The version; that of the configuration's schema unless it is given.
        #[arg(long, value_name = "NUMBER")]
        version: Option<i32>,
        #[command(flatten)]
        which: Which,
    },
    /// Begins a backfill, or takes over from an owner whose lease has ended.
    Claim {
        #[command(flatten)]
        database: DatabaseOption,
        #[command(flatten)]
        checkpoint: One,
        /// How long others wait for the next sign of life.
        #[arg(long, value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
        lease: Duration,
        /// Takes over from an owner who is known to be gone, whose lease has not ended.
        #[arg(long)]
        force: bool,
    },
    /// Says how far the owner got, and renews its lease.
    Advance {
        #[command(flatten)]
        database: DatabaseOption,
        #[command(flatten)]
        checkpoint: One,
        /// What the claim printed.
        #[arg(long, value_name = "NUMBER")]
        owner_epoch: i64,
        /// Every commit up to this one was seen.
        #[arg(long, value_name = "PLACE")]
        watermark: u64,
        /// Rows seen so far.
        #[arg(long, value_name = "COUNT")]
        rows: i64,
        /// How long others wait for the next sign of life.
        #[arg(long, value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
        lease: Duration,
    },
    /// Says that the projection is complete.
    Activate {
        #[command(flatten)]
        database: DatabaseOption,
        #[command(flatten)]
        checkpoint: One,
        /// What the claim printed.
        #[arg(long, value_name = "NUMBER")]
        owner_epoch: i64,
    },
}

#[derive(Args, Debug)]
pub(crate) struct DatabaseOption {
    /// The configuration file of the server.
    #[arg(long = "config", value_name = "FILE", env = "TIDEWATER_CONFIG")]
    file: PathBuf,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Which {
    /// One partition.
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// Every partition.
    #[arg(long)]
    all: bool,
}

#[derive(Args, Debug)]
pub(crate) struct One {
    /// The partition.
    #[arg(long, value_name = "NAME")]
    partition: String,
    /// The name of the checkpoint.
    #[arg(long, value_name = "NAME")]
    name: String,
}

impl One {
    fn key(&self) -> CheckpointKey {
        CheckpointKey {
            partition: PartitionId::new(self.partition.as_str()),
            name: self.name.clone(),
        }
    }
}

/// Entries read at a time.
const PAGE: usize = 500;

pub(crate) fn run(command: &CheckpointCommand) -> Result<(), Failure> {
    let (CheckpointCommand::List { database }
    | CheckpointCommand::Declare { database, .. }
    | CheckpointCommand::Fence { database, .. }
    | CheckpointCommand::Claim { database, .. }
    | CheckpointCommand::Advance { database, .. }
    | CheckpointCommand::Activate { database, .. }) = command;
    let config = Config::load(&database.file).map_err(Failure::Wrong)?;
    run::runtime()?.block_on(async {
        let database = Database::open(&config).await?;
        database.carry_out(command).await?;
        database.opened.close();
        Ok(())
    })
}

/// The database, at the schema of the configuration.
struct Database {
    opened: OperatedDatabase,
    schema_version: i32,
}

impl Database {
    async fn open(config: &Config) -> anyhow::Result<Self> {
        let path = &config.store.path;
        ensure!(
            config.store.kind() != StoreKind::Sqlite || path.exists(),
            "there is no database {}",
            path.display()
        );
        let schema = Arc::new(schema::of(config)?);
        let opened = OperatedDatabase::open(config, false)?;
        opened.store().prepare(&schema).await?;
        Ok(Self {
            opened,
            schema_version: schema.version(),
        })
    }

    fn store(&self) -> &dyn Store {
        self.opened.store()
    }

    async fn carry_out(&self, command: &CheckpointCommand) -> anyhow::Result<()> {
        let at_ms = SystemClock.now_ms();
        match command {
            CheckpointCommand::List { .. } => self.list().await,
            CheckpointCommand::Declare { name, which, .. } => {
                let schema_version = self.schema_version;
                let change = CheckpointChange::Declare { schema_version };
                for partition in self.partitions(which).await? {
                    let name = name.clone();
                    self.change(&CheckpointKey { partition, name }, change)
                        .await?;
                }
                Ok(())
            }
            CheckpointCommand::Fence { version, which, .. } => {
                let version = version.unwrap_or(self.schema_version);
                for partition in self.partitions(which).await? {
                    let required = self.store().raise_fence(&partition, version).await?;
                    run::print(&format!("{partition}\t{required}\n"))?;
                }
                Ok(())
            }
            CheckpointCommand::Claim {
                checkpoint,
                lease,
                force,
                ..
            } => {
                let change = CheckpointChange::Claim {
                    at_ms,
                    lease_ms: milliseconds(*lease),
                    force: *force,
                };
                self.change(&checkpoint.key(), change).await
            }
            CheckpointCommand::Advance {
                checkpoint,
                owner_epoch,
                watermark,
                rows,
                lease,
                ..
            } => {
                let watermark = CommitSeq::new(*watermark);
                let change = CheckpointChange::Advance {
                    owner_epoch: *owner_epoch,
                    watermark: watermark.context("the watermark is no place in a log")?,
                    observed_rows: *rows,
                    at_ms,
                    lease_ms: milliseconds(*lease),
                };
                self.change(&checkpoint.key(), change).await
            }
            CheckpointCommand::Activate {
                checkpoint,
                owner_epoch,
                ..
            } => {
                let owner_epoch = *owner_epoch;
                let change = CheckpointChange::Activate { owner_epoch };
                self.change(&checkpoint.key(), change).await
            }
        }
    }

    async fn list(&self) -> anyhow::Result<()> {
        let mut after = None;
        loop {
            let page = self.store().list_checkpoints(after.as_ref(), PAGE).await?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = Some(last.key.clone());
            for checkpoint in &page {
                run::print(&line(checkpoint)?)?;
            }
        }
    }

    /// Changes a checkpoint and prints it.
    async fn change(&self, key: &CheckpointKey, change: CheckpointChange) -> anyhow::Result<()> {
        let (outcome, checkpoint) = self.store().change_checkpoint(key, change).await?;
        let why = match outcome {
            CheckpointOutcome::Done => return run::print(&line(&checkpoint)?),
            CheckpointOutcome::Held => "is held by another owner, whose lease has not ended",
            CheckpointOutcome::Stale => "has another owner now, or is activated already",
            CheckpointOutcome::Unverifiable => {
                "can not be verified: the log above its watermark was pruned; claim it again and \
                 begin anew"
            }
        };
        let CheckpointKey { partition, name } = key;
        anyhow::bail!("checkpoint `{name}` of partition {partition} {why}")
    }

    async fn partitions(&self, which: &Which) -> anyhow::Result<Vec<PartitionId>> {
        if let Some(name) = &which.partition {
            let partition = PartitionId::new(name.as_str());
            let known = self.store().find_partition(&partition).await?;
            ensure!(known.is_some(), "there is no partition {partition}");
            return Ok(vec![partition]);
        }
        let mut found: Vec<PartitionId> = Vec::new();
        loop {
            let page = self.store().list_partitions(found.last(), PAGE).await?;
            if page.is_empty() {
                return Ok(found);
            }
            found.extend(page.into_iter().map(|record| record.partition));
        }
    }
}

/// Partition, name, schema version, state, watermark, owner epoch, rows, end of the lease.
fn line(checkpoint: &Checkpoint) -> anyhow::Result<String> {
    let mut line = String::new();
    let lease = checkpoint.lease_expires_at_ms;
    writeln!(
        line,
        "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
        checkpoint.key.partition,
        checkpoint.key.name,
        checkpoint.schema_version,
        checkpoint.state.as_str(),
        checkpoint.watermark.get(),
        checkpoint.owner_epoch,
        checkpoint.observed_rows,
        lease.map_or_else(|| "-".to_owned(), |end| end.to_string()),
    )?;
    Ok(line)
}
