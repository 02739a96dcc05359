//! `tidewater blobs list|sweep|verify`.
//!
//! Whether a blob is referenced is in the database, so it is opened, and the server must not be
//! running on the same SQLite file.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use futures_util::StreamExt as _;
use serde_json::json;
use tidewater_engine::Engine;
use tidewater_model::PartitionId;
use tidewater_objects::{BlobRecord, BlobStore};
use tidewater_wire::ContentHasher;

use super::{Lines, Place, distance, now_ms, size};
use crate::{Failure, assemble, config::Config, run};

/// What to do with blobs.
#[derive(Debug, Subcommand)]
pub(crate) enum BlobsCommand {
    /// Lists the blobs of a partition, and which of them a row references.
    List {
        #[command(flatten)]
        place: Place,
        /// The partition.
        #[arg(long, value_name = "NAME")]
        partition: String,
        /// Only those that no row references.
        #[arg(long)]
        orphans: bool,
    },
    /// Removes blobs that no row references and nobody used for the grace period
    /// (`blobs.sweep_grace`), as the server does by itself.
    Sweep {
        #[command(flatten)]
        place: Place,
        /// The partition.
        #[arg(long, value_name = "NAME")]
        partition: String,
    },
    /// Reads every blob of a partition and holds its content against its id.
    Verify {
        #[command(flatten)]
        place: Place,
        /// The partition.
        #[arg(long, value_name = "NAME")]
        partition: String,
    },
}

/// Blobs looked at together.
const PAGE: usize = 500;

/// Runs a command.
pub(crate) fn run(command: &BlobsCommand) -> Result<(), Failure> {
    let (BlobsCommand::List { place, .. }
    | BlobsCommand::Sweep { place, .. }
    | BlobsCommand::Verify { place, .. }) = command;
    let config = Config::load(&place.config).map_err(Failure::Wrong)?;
    let plan = assemble::check(&config).map_err(Failure::Wrong)?;
    if !config.blobs.enabled {
        return Err(Failure::Wrong(anyhow::anyhow!(
            "blobs.enabled is false: there are none"
        )));
    }
    run::runtime()?.block_on(async {
        let (engine, blobs) = plan.open_for_operator_with_blobs(&config, 1).await?;
        let blobs = blobs.context("there are no blobs")?;
        let done = match command {
            BlobsCommand::List {
                place,
                partition,
                orphans,
            } => {
                let partition = PartitionId::new(partition.as_str());
                list(&engine, blobs.as_ref(), &partition, place.json, *orphans).await
            }
            BlobsCommand::Sweep { place, partition } => {
                let partition = PartitionId::new(partition.as_str());
                sweep(&engine, &partition, place.json).await
            }
            BlobsCommand::Verify { place, partition } => {
                let partition = PartitionId::new(partition.as_str());
                verify(blobs.as_ref(), &partition, place.json).await
            }
        };
        engine.close().await?;
        done
    })?;
    Ok(())
}

async fn list(
    engine: &Arc<Engine>,
    blobs: &dyn BlobStore,
    partition: &PartitionId,
    is_json: bool,
    orphans: bool,
) -> anyhow::Result<()> {
    let now_ms = now_ms();
    let mut lines = Lines::new();
    let mut totals = (0u64, 0u64, 0u64);
    let mut after: Option<String> = None;
    while !lines.is_closed() {
        let page = blobs.list(partition, after.as_deref(), PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
        let ids = page.iter().map(|blob| blob.id.clone()).collect();
        let referenced = engine.store().are_referenced(partition, ids).await?;
        for (blob, is_referenced) in page.iter().zip(referenced) {
            if orphans && is_referenced {
                continue;
            }
            totals.0 += 1;
            totals.1 += blob.byte_length;
            totals.2 += u64::from(!is_referenced);
            lines.text(&describe(blob, is_referenced, is_json, now_ms))?;
        }
    }
    if !is_json {
        let (count, bytes, orphaned) = totals;
        lines.text(&format!(
            "{count} blobs, {bytes} bytes ({}), {orphaned} without a reference",
            size(bytes)
        ))?;
    }
    lines.finish()
}

fn describe(blob: &BlobRecord, is_referenced: bool, is_json: bool, now_ms: i64) -> String {
    if is_json {
        return json!({
            "blobId": blob.id,
            "byteLength": blob.byte_length,
            "mediaType": blob.media_type,
            "createdAtMs": blob.created_at_ms,
            "referenced": is_referenced,
        })
        .to_string();
    }
    format!(
        "{} {:>10} {:>12} {:<10} {}",
        blob.id,
        size(blob.byte_length),
        distance(blob.created_at_ms, now_ms),
        if is_referenced {
            "referenced"
        } else {
            "orphan"
        },
        blob.media_type.as_deref().unwrap_or("-")
    )
}

async fn sweep(engine: &Arc<Engine>, partition: &PartitionId, is_json: bool) -> anyhow::Result<()> {
    let swept = engine.sweep_blobs(partition).await?;
    let mut lines = Lines::new();
    if is_json {
        lines.json(&json!({
            "lookedAt": swept.looked_at,
            "referenced": swept.referenced,
            "removed": swept.removed,
            "removedBytes": swept.removed_bytes,
        }))?;
    } else {
        lines.text(&format!(
            "removed {} of {} blobs ({}); {} old ones are referenced",
            swept.removed,
            swept.looked_at,
            size(swept.removed_bytes),
            swept.referenced
        ))?;
    }
    lines.finish()
}

async fn verify(
    blobs: &dyn BlobStore,
    partition: &PartitionId,
    is_json: bool,
) -> anyhow::Result<()> {
    let mut lines = Lines::new();
    let (mut right, mut wrong, mut bytes) = (0u64, 0u64, 0u64);
    let mut after: Option<String> = None;
    loop {
        let page = blobs.list(partition, after.as_deref(), PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
        for blob in &page {
            match fault(blobs, partition, blob).await {
                None => right += 1,
                Some(fault) => {
                    wrong += 1;
                    if is_json {
                        lines.json(&json!({ "blobId": blob.id, "fault": fault }))?;
                    } else {
                        lines.text(&format!("{} {fault}", blob.id))?;
                    }
                }
            }
            bytes += blob.byte_length;
        }
    }
    if is_json {
        lines.json(&json!({ "right": right, "wrong": wrong, "bytes": bytes }))?;
    } else {
        lines.text(&format!(
            "{right} blobs are what their ids say, {wrong} are not; {} read",
            size(bytes)
        ))?;
    }
    lines.finish()?;
    if wrong > 0 {
        bail!("{wrong} blobs are not what their ids say");
    }
    Ok(())
}

/// What is wrong with a blob. It is read piece by piece.
async fn fault(
    blobs: &dyn BlobStore,
    partition: &PartitionId,
    blob: &BlobRecord,
) -> Option<String> {
    let stream = match blobs.open(partition, &blob.id, None).await {
        Ok(Some(stream)) => stream,
        // The sweep was faster: that is none.
        Ok(None) => return None,
        Err(error) => return Some(error.to_string()),
    };
    let mut chunks = stream.into_chunks();
    let mut hasher = ContentHasher::new();
    let mut length = 0u64;
    while let Some(chunk) = chunks.next().await {
        match chunk {
            Ok(chunk) => {
                hasher.update(&chunk);
                length += u64::try_from(chunk.len()).unwrap_or(u64::MAX);
            }
            Err(error) => return Some(error.to_string()),
        }
    }
    if length != blob.byte_length {
        return Some(format!("has {length} bytes of {}", blob.byte_length));
    }
    (hasher.finish() != blob.id).then(|| "has other content".to_owned())
}
