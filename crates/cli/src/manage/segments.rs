//! `tidewater segments list|prune`.

use anyhow::{Context as _, ensure};
use clap::Subcommand;
use serde_json::{Value, json};
use tidewater_model::PartitionId;
use tidewater_objects::{Prune, Removed, SegmentRecord, SegmentStore};
use tidewater_wire::MediaType;

use super::{Lines, Place, distance, now_ms, size};
use crate::{
    Failure, assemble,
    config::{Config, objects::ObjectsKind},
    objects, run,
};

/// What to do with segments.
#[derive(Debug, Subcommand)]
pub(crate) enum SegmentsCommand {
    /// Lists segments with what they were published as.
    List {
        #[command(flatten)]
        place: Place,
        /// Only what was published for this partition.
        #[arg(long, value_name = "NAME")]
        partition: Option<String>,
    },
    /// Removes segments: those that have expired, or more. Clients that still want one ask for a
    /// new one.
    Prune {
        #[command(flatten)]
        place: Place,
        /// Everything, whether it has expired or not.
        #[arg(long, conflicts_with = "partition")]
        all: bool,
        /// Everything that was published for this partition.
        #[arg(long, value_name = "NAME")]
        partition: Option<String>,
    },
}

/// Records read at once.
const PAGE: usize = 500;

/// Runs a command.
pub(crate) fn run(command: &SegmentsCommand) -> Result<(), Failure> {
    let (SegmentsCommand::List { place, .. } | SegmentsCommand::Prune { place, .. }) = command;
    let config = Config::load(&place.config).map_err(Failure::Wrong)?;
    assemble::check(&config).map_err(Failure::Wrong)?;
    ensure_kept(&config).map_err(Failure::Wrong)?;
    run::runtime()?.block_on(async {
        let segments = objects::open_segments(&config)?;
        match command {
            SegmentsCommand::List { place, partition } => {
                list(segments.as_ref(), place.json, partition.as_deref()).await
            }
            SegmentsCommand::Prune {
                place,
                all,
                partition,
            } => prune(segments.as_ref(), place.json, *all, partition.as_deref()).await,
        }
    })?;
    Ok(())
}

fn ensure_kept(config: &Config) -> anyhow::Result<()> {
    ensure!(
        config.segments.kind != Some(ObjectsKind::Memory),
        "segments.kind is memory: only the server's own process can see them"
    );
    Ok(())
}

async fn list(
    segments: &dyn SegmentStore,
    is_json: bool,
    partition: Option<&str>,
) -> anyhow::Result<()> {
    let now_ms = now_ms();
    let mut lines = Lines::new();
    let (mut count, mut bytes, mut publications) = (0u64, 0u64, 0u64);
    let mut after = None;
    if !is_json {
        lines.text(&row(&[
            "segment",
            "kind",
            "table",
            "partition",
            "rows",
            "size",
            "expires",
            "pin",
            "epoch",
        ]))?;
    }
    while !lines.is_closed() {
        let page = segments.list(after.as_ref(), PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
        for record in page {
            let mut shown = 0u64;
            for line in describe(&record, partition, is_json, now_ms) {
                lines.text(&line)?;
                shown += 1;
            }
            if shown > 0 {
                count += 1;
                bytes += record.byte_length;
                publications += shown;
            }
        }
    }
    if !is_json {
        lines.text(&format!(
            "{count} segments, {} bytes ({}), {publications} publications",
            bytes,
            size(bytes)
        ))?;
    }
    lines.finish()
}

/// A line for each publication that is asked for.
fn describe(
    record: &SegmentRecord,
    partition: Option<&str>,
    is_json: bool,
    now_ms: i64,
) -> Vec<String> {
    let wanted = record.publications.iter().filter(|publication| {
        let name = publication.context.key.partition.as_str();
        partition.is_none_or(|partition| partition == name)
    });
    wanted
        .map(|publication| {
            let key = &publication.context.key;
            let kind = match key.media_type {
                MediaType::Rows => "rows",
                MediaType::Sqlite => "image",
            };
            if is_json {
                return json!({
                    "segmentId": record.id.as_str(),
                    "kind": kind,
                    "byteLength": record.byte_length,
                    "rowCount": record.row_count,
                    "partition": key.partition.as_str(),
                    "logEpoch": key.log_epoch.as_str(),
                    "table": key.table,
                    "schemaVersion": key.schema_version,
                    "scopeDigest": key.scope_digest,
                    "asOfCommitSeq": key.as_of.get(),
                    "rowCursor": publication.context.row_cursor,
                    "nextRowCursor": publication.context.next_row_cursor,
                    "createdAtMs": publication.created_at_ms,
                    "expiresAtMs": publication.expires_at_ms,
                    "expired": publication.is_expired(now_ms),
                })
                .to_string();
            }
            row(&[
                record.id.as_str().get(..23).unwrap_or(record.id.as_str()),
                kind,
                &key.table,
                key.partition.as_str(),
                &record.row_count.to_string(),
                &size(record.byte_length),
                &distance(publication.expires_at_ms, now_ms),
                &key.as_of.get().to_string(),
                key.log_epoch.as_str(),
            ])
        })
        .collect()
}

fn row(cells: &[&str; 9]) -> String {
    let [id, kind, table, partition, rows, size, expires, pin, epoch] = cells;
    format!(
        "{id:<24} {kind:<5} {table:<20} {partition:<16} {rows:>9} {size:>10} {expires:>12} \
         {pin:>9} {epoch}"
    )
}

async fn prune(
    segments: &dyn SegmentStore,
    is_json: bool,
    all: bool,
    partition: Option<&str>,
) -> anyhow::Result<()> {
    let removed = match partition {
        Some(name) => {
            segments
                .prune(&Prune::Partition(PartitionId::new(name)))
                .await
        }
        None if all => segments.prune(&Prune::All).await,
        None => segments.expire(now_ms()).await,
    };
    let Removed {
        segments,
        publications,
        bytes,
    } = removed.context("remove segments")?;
    let mut lines = Lines::new();
    if is_json {
        let removed: Value =
            json!({ "segments": segments, "publications": publications, "bytes": bytes });
        lines.json(&removed)?;
    } else {
        lines.text(&format!(
            "removed {segments} segments ({}) and {publications} publications",
            size(bytes)
        ))?;
    }
    lines.finish()
}
