//! Removes blobs that nothing references and nobody used for a while (§5.9.2).
//!
//! Page by page: list, ask the index, remove what is orphaned on condition that nobody stored or
//! held it since. See the module above for why a push cannot lose a blob to this.

use std::sync::Arc;

use tidewater_model::PartitionId;
use tidewater_objects::{BlobStore, HOLD_MS};
use tidewater_store::Job;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    Engine, RoundError,
    retention::{PartitionPages, is_ours},
};

/// Blobs looked at together.
const PAGE_BLOBS: usize = 256;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Swept {
    /// Blobs looked at.
    pub looked_at: u64,
    /// Blobs that a row references.
    pub referenced: u64,
    /// Blobs removed.
    pub removed: u64,
    /// Bytes of those.
    pub removed_bytes: u64,
}

/// Sweeps one partition.
pub(crate) async fn sweep(engine: &Engine, partition: &PartitionId) -> Result<Swept, RoundError> {
    let blobs = super::store(engine)?;
    let mut swept = Swept::default();
    let mut after: Option<String> = None;
    loop {
        let failed = |error| RoundError::internal(&error, "list blobs");
        let page = blobs
            .list(partition, after.as_deref(), PAGE_BLOBS)
            .await
            .map_err(failed)?;
        let Some(last) = page.last() else {
            break;
        };
        after = Some(last.id.clone());
        swept.looked_at += u64::try_from(page.len()).unwrap_or(u64::MAX);
        let before_ms = before_ms(engine);
        let old = page
            .into_iter()
            .filter(|blob| blob.created_at_ms < before_ms);
        let old: Vec<_> = old.collect();
        let ids = old.iter().map(|blob| blob.id.clone()).collect();
        let referenced = engine.store().are_referenced(partition, ids).await?;
        for (blob, is_referenced) in old.iter().zip(referenced) {
            if is_referenced {
                swept.referenced += 1;
            } else if remove(engine, blobs, partition, &blob.id, before_ms).await? {
                swept.removed += 1;
                swept.removed_bytes += blob.byte_length;
            }
        }
    }
    if swept.removed > 0 {
        engine.quota.look_again(partition);
        tracing::info!(%partition, removed = swept.removed, bytes = swept.removed_bytes,
            "swept blobs without a reference");
    }
    Ok(swept)
}

async fn remove(
    engine: &Engine,
    blobs: &Arc<dyn BlobStore>,
    partition: &PartitionId,
    blob_id: &str,
    unused_since_ms: i64,
) -> Result<bool, RoundError> {
    let now_ms = engine.parts.clock.now_ms();
    blobs
        .remove(partition, blob_id, unused_since_ms, now_ms)
        .await
        .map_err(|error| RoundError::internal(&error, "remove a blob"))
}

/// What was stored or held strictly before may go. A push is protected by its hold even where an
/// operator sets no grace at all.
fn before_ms(engine: &Engine) -> i64 {
    let grace_ms = engine.parts.config.blob_grace_ms.max(2 * HOLD_MS);
    engine.parts.clock.now_ms().saturating_sub(grace_ms)
}

/// Sweeps every partition from time to time, until it is dropped.
pub(crate) async fn sweep_forever(engine: &Engine) {
    let Some(blobs) = &engine.parts.transfers.blobs else {
        return;
    };
    let mut ticks = interval(engine.parts.config.blob_sweep_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if !is_ours(engine, Job::SweepBlobs).await {
            continue;
        }
        if let Err(error) = sweep_all(engine).await {
            tracing::warn!(%error, "blobs were not swept, trying later");
        }
        if let Err(error) = blobs.expire_uploads(before_ms(engine)).await {
            tracing::warn!(%error, "abandoned uploads stay, trying later");
        }
    }
}

/// One partition that fails does not keep the others from their turn.
async fn sweep_all(engine: &Engine) -> Result<(), RoundError> {
    let mut outcome = Ok(());
    let mut pages = PartitionPages::default();
    loop {
        let page = pages.next(engine).await?;
        if page.is_empty() {
            return outcome;
        }
        for record in &page {
            if let Err(error) = sweep(engine, &record.partition).await {
                outcome = outcome.and(Err(error));
            }
        }
    }
}
