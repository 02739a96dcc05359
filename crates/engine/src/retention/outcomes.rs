//! How long the recorded outcomes of commits are kept (§2.3).
//!
//! An outcome is what keeps a commit that is sent twice from being applied twice, so it outlives
//! the log: a client may come back with an unanswered commit long after it has to bootstrap. It
//! does not live forever either, because it takes space for every commit ever pushed.
//!
//! **Invariant:** no outcome goes before the commits of its time may be pruned, whatever is
//! configured. One without a time, or one that is unreadable, never goes.

use std::sync::Arc;

use tidewater_model::PartitionId;
use tidewater_store::{Job, PushKey, StoreError};
use tokio::time::{MissedTickBehavior, interval};

use super::{PartitionPages, is_ours};
use crate::{Engine, EngineConfig};

/// Forgets old outcomes of every partition, in its interval, until it is dropped.
pub(super) async fn prune_forever(engine: &Arc<Engine>) {
    let mut ticks = interval(engine.parts.config.outcome_prune_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if !is_ours(engine, Job::PruneOutcomes).await {
            continue;
        }
        match prune_all(engine).await {
            Ok(0) => {}
            Ok(forgotten) => tracing::debug!(forgotten, "forgot old outcomes"),
            Err(error) => {
                tracing::warn!(%error, "old outcomes could not be forgotten, trying again later");
            }
        }
    }
}

/// How many were forgotten. A partition that fails does not keep the others from their turn; the
/// first failure is returned.
async fn prune_all(engine: &Engine) -> Result<u64, StoreError> {
    let age_ms = age_ms(&engine.parts.config);
    let before_ms = engine.parts.clock.now_ms().saturating_sub(age_ms);
    let mut outcome = Ok(0);
    let mut pages = PartitionPages::default();
    loop {
        let page = pages.next(engine).await?;
        if page.is_empty() {
            return outcome;
        }
        for record in &page {
            let one = prune_one(engine, &record.partition, before_ms).await;
            outcome = match (outcome, one) {
                (Ok(sum), Ok(count)) => Ok(sum + count),
                (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            };
        }
    }
}

async fn prune_one(
    engine: &Engine,
    partition: &PartitionId,
    before_ms: i64,
) -> Result<u64, StoreError> {
    let mut forgotten = 0;
    let mut after: Option<PushKey> = None;
    loop {
        let (last, count) = engine
            .store()
            .prune_push_results(partition, after.as_ref(), before_ms, OUTCOMES_PER_PAGE)
            .await?;
        forgotten += count;
        if last.is_none() {
            return Ok(forgotten);
        }
        after = last;
    }
}

/// The age that counts.
fn age_ms(config: &EngineConfig) -> i64 {
    config.outcome_age_ms.max(config.retention.forced_age_ms)
}

/// Outcomes looked at before other writers get their turn.
const OUTCOMES_PER_PAGE: usize = 500;

#[cfg(test)]
mod tests;
