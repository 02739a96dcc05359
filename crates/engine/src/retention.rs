//! How far the log may be pruned, and the upkeep that runs by itself (§4.6).
//!
//! [`horizon`] is pure. [`prune`] flushes gathered activity before it reads, because a client
//! whose cursor went down a moment ago must hold the horizon back too, and hands the epoch it
//! read to the store, which refuses if the log was replaced meanwhile. Recorded outcomes live
//! longer than the log and go by their own age (`outcomes`). Where several nodes share a database,
//! one of them does each of these jobs.
//!
//! **Invariant:** maintenance outlives every failure. A pass that fails is logged and the next
//! one runs as if nothing had happened.

mod outcomes;

use std::sync::Arc;

use tidewater_model::{CommitSeq, HorizonSeq, PartitionId};
use tidewater_store::{
    Job, PartitionRecord, Pruned, RetentionInputs, StorageCode, StoreError, StoreErrorKind,
};
use tokio::time::{MissedTickBehavior, interval};

use crate::{Engine, Retention, RoundError, blobs, nodes};

/// Where the horizon may go. It never falls.
///
/// A client seen lately holds it back, unless what it waits for is too old; the newest commits
/// stay whatever else is true.
pub(crate) fn horizon(inputs: &RetentionInputs, retention: Retention) -> HorizonSeq {
    let retained = inputs
        .gate
        .head
        .get()
        .saturating_sub(retention.retained_commits);
    let retained = CommitSeq::new(retained).expect("below a place in the log");
    let wanted = match inputs.oldest_cursor {
        Some(cursor) => cursor.max(inputs.newest_before),
        None => retained,
    };
    inputs
        .gate
        .horizon
        .max(HorizonSeq::at(wanted.min(retained)))
}

/// Prunes one partition. Runs even when the horizon stays: that finishes a delete which was
/// interrupted.
pub(crate) async fn prune(
    engine: &Engine,
    partition: &PartitionId,
    retention: Retention,
) -> Result<Pruned, RoundError> {
    engine.flush_activity().await?;
    let plan = plan(engine, partition, retention).await?;
    Ok(apply(engine, partition, &plan).await?)
}

/// Flushes activity, prunes and forgets outcomes, each in its own interval, until it is dropped.
pub(crate) async fn run_maintenance(engine: &Arc<Engine>) {
    tokio::join!(
        flush_forever(engine),
        prune_forever(engine),
        outcomes::prune_forever(engine),
        expire_forever(engine),
        blobs::sweep_forever(engine),
        nodes::follow_forever(engine)
    );
}

struct Plan {
    inputs: RetentionInputs,
    horizon: HorizonSeq,
}

impl Plan {
    fn moves(&self) -> bool {
        self.horizon > self.inputs.gate.horizon
    }
}

async fn plan(
    engine: &Engine,
    partition: &PartitionId,
    retention: Retention,
) -> Result<Plan, StoreError> {
    let now_ms = engine.parts.clock.now_ms();
    let seen_since_ms = now_ms.saturating_sub(retention.active_window_ms);
    let aged_before_ms = now_ms.saturating_sub(retention.forced_age_ms);
    let inputs = engine
        .store()
        .retention_inputs(partition, seen_since_ms, aged_before_ms)
        .await?;
    let horizon = horizon(&inputs, retention);
    Ok(Plan { inputs, horizon })
}

async fn apply(
    engine: &Engine,
    partition: &PartitionId,
    plan: &Plan,
) -> Result<Pruned, StoreError> {
    let Some(epoch) = &plan.inputs.gate.log_epoch else {
        return Err(StoreError::refused(
            StorageCode::PartitionUnregistered,
            "prune",
            "the partition was never named by authentication",
        ));
    };
    let pruned = engine.store().prune(partition, epoch, plan.horizon).await?;
    engine.partitions.advance_horizon(partition, pruned.horizon);
    Ok(pruned)
}

async fn flush_forever(engine: &Engine) {
    let mut ticks = interval(engine.parts.config.activity_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        match engine.flush_activity().await {
            Ok(()) => failing = false,
            // Once, not every second for as long as the database is away.
            Err(_) if failing => {}
            Err(error) => {
                failing = true;
                tracing::warn!(%error, "gathered activity could not be written, trying on");
            }
        }
    }
}

async fn prune_forever(engine: &Engine) {
    let mut ticks = interval(engine.parts.config.prune_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_first = true;
    loop {
        ticks.tick().await;
        if !is_ours(engine, Job::PruneLogs).await {
            continue;
        }
        // Deletes that an earlier process did not finish are finished once.
        match prune_all(engine, is_first).await {
            Ok(()) => is_first = false,
            Err(error) => tracing::warn!(%error, "pruning failed, trying again later"),
        }
    }
}

async fn expire_forever(engine: &Engine) {
    let config = &engine.parts.config;
    let mut ticks = interval(config.segment_expire_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if config.segments_are_shared && !is_ours(engine, Job::ExpireSegments).await {
            continue;
        }
        let ended_by_ms = engine.parts.clock.now_ms() - config.segment_record_kept_ms;
        match engine.parts.segments.expire(ended_by_ms).await {
            Ok(removed) => tracing::debug!(segments = removed.segments, "expired segments"),
            Err(error) => tracing::warn!(%error, "segments were not expired, trying later"),
        }
    }
}

/// Whether this node does a job now. One that cannot find out does not: another may be doing it.
pub(crate) async fn is_ours(engine: &Engine, job: Job) -> bool {
    engine.store().holds(job).await.unwrap_or_else(|error| {
        tracing::warn!(%error, ?job, "whether a job is ours is not known, trying again later");
        false
    })
}

/// The registered partitions, page by page.
#[derive(Default)]
pub(crate) struct PartitionPages {
    after: Option<PartitionId>,
}

impl PartitionPages {
    /// The next page; empty after the last.
    pub(crate) async fn next(
        &mut self,
        engine: &Engine,
    ) -> Result<Vec<PartitionRecord>, StoreError> {
        let page = engine
            .store()
            .list_partitions(self.after.as_ref(), PARTITIONS_PER_PAGE)
            .await?;
        if let Some(last) = page.last() {
            self.after = Some(last.partition.clone());
        }
        Ok(page)
    }
}

/// Partitions read from the registry at once.
const PARTITIONS_PER_PAGE: usize = 256;

/// Prunes every registered partition. One that fails does not keep the others from their turn;
/// the first failure is returned.
async fn prune_all(engine: &Engine, is_first: bool) -> Result<(), StoreError> {
    engine.flush_activity().await?;
    let mut outcome = Ok(());
    let mut pages = PartitionPages::default();
    loop {
        let page = pages.next(engine).await?;
        if page.is_empty() {
            return outcome;
        }
        for record in &page {
            if let Err(error) = prune_one(engine, &record.partition, is_first).await {
                outcome = outcome.and(Err(error));
            }
        }
    }
}

/// Writes nothing when the horizon stays, except on the first pass.
async fn prune_one(
    engine: &Engine,
    partition: &PartitionId,
    is_first: bool,
) -> Result<(), StoreError> {
    let plan = plan(engine, partition, engine.parts.config.retention).await?;
    if !is_first && !plan.moves() {
        return Ok(());
    }
    match apply(engine, partition, &plan).await {
        Ok(pruned) => {
            tracing::debug!(%partition, horizon = %pruned.horizon,
                removed = pruned.removed_commits, "pruned");
            Ok(())
        }
        // The log was replaced between reading and pruning: the next pass reads the new one.
        Err(error) if error.kind == StoreErrorKind::Refused(StorageCode::PruneEpochMismatch) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
