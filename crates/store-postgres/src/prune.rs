//! Pruning (§4.6): the horizon rises at once, and what it covers goes piece by piece.
//!
//! Nothing at or below the horizon is ever shown, so when it goes is nobody's business but the
//! disk's. The first transaction raises the horizon, under the lock that writers take; each of
//! the following deletes a bounded number of changes and holds up nobody. A pass that is cut short
//! is finished by the next.

use tidewater_model::{CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_store::{Pruned, RetentionInputs, StorageCode, StoreError};

use crate::{
    error::get,
    gate::{self, place},
    link::{Link, Mode, Pool, retried},
    params::{Param, Step},
};

const DURING: &str = "prune the log";

const OLDEST_CURSOR: &str = "SELECT min(cursor) FROM sync_clients \
    WHERE partition = $1 AND updated_at_ms >= $2 AND cursor >= 0";

const NEWEST_BEFORE: &str = "SELECT max(commit_seq) FROM sync_commits \
    WHERE partition = $1 AND created_at_ms < $2 AND commit_seq > coalesce((\
    SELECT horizon_seq FROM sync_partitions WHERE partition = $1), 0)";

const RAISE: &str = "UPDATE sync_partitions p SET horizon_seq = $3 \
    WHERE p.partition = $1 AND p.horizon_seq < $3 AND EXISTS (SELECT 1 \
    FROM sync_partition_registry r WHERE r.partition = $1 AND r.log_epoch = $2)";

/// The commit with which a piece ends, unless the horizon comes before it.
const PIECE: &str = "SELECT commit_seq FROM sync_changes \
    WHERE partition = $1 AND commit_seq <= $2 ORDER BY commit_seq, idx OFFSET $3 LIMIT 1";

/// The index is by value and not by place: its entries are found through the changes. Scopes that
/// are none have no entries to find by them.
const PRUNE_SCOPES: &str = "DELETE FROM sync_change_scopes s USING (\
    SELECT DISTINCT h.tbl, e.key, e.value, h.commit_seq FROM sync_changes h \
    CROSS JOIN LATERAL jsonb_each_text(CASE WHEN jsonb_typeof(h.scopes) = 'object' \
    THEN h.scopes ELSE '{}' END) e \
    WHERE h.partition = $1 AND h.commit_seq <= $2) x \
    WHERE s.partition = $1 AND s.tbl = x.tbl AND s.var = x.key AND s.value = x.value \
    AND s.commit_seq = x.commit_seq";

const PRUNE_CHANGES: &str = "DELETE FROM sync_changes WHERE partition = $1 AND commit_seq <= $2";

const PRUNE_TOMBSTONES: &str =
    "DELETE FROM sync_tombstones WHERE partition = $1 AND commit_seq <= $2";

const PRUNE_COMMITS: &str = "WITH gone AS (DELETE FROM sync_commits \
    WHERE partition = $1 AND commit_seq <= $2 RETURNING 1) SELECT count(*) FROM gone";

/// What pruning is decided from.
pub(crate) async fn retention_inputs(
    link: &mut Link,
    partition: &PartitionId,
    seen_since_ms: i64,
    aged_before_ms: i64,
) -> Result<RetentionInputs, StoreError> {
    const DURING: &str = "read retention inputs";
    let at = |at_ms| vec![Param::text(partition.as_str()), Param::integer(at_ms)];
    let steps = vec![
        gate::read(&[partition]),
        Step::new(OLDEST_CURSOR, at(seen_since_ms)),
        Step::new(NEWEST_BEFORE, at(aged_before_ms)),
    ];
    let answers = link.transact(Mode::Read, steps, DURING).await?;
    let only = |step: usize| -> Result<Option<i64>, StoreError> {
        match answers[step].first() {
            Some(row) => get(row, 0, DURING),
            None => Ok(None),
        }
    };
    Ok(RetentionInputs {
        gate: gate::only(&answers[0], DURING)?,
        oldest_cursor: only(1)?.map(|cursor| place(cursor, DURING)).transpose()?,
        newest_before: place(only(2)?.unwrap_or(0), DURING)?,
    })
}

/// Raises the horizon, and deletes what it covers.
pub(crate) async fn prune(
    pool: &Pool,
    partition: &PartitionId,
    epoch: &LogEpoch,
    horizon: HorizonSeq,
) -> Result<Pruned, StoreError> {
    let (previous, raised) = retried!(pool, DURING, link =>
        raise_horizon(&mut link, partition, epoch, horizon))?;
    let mut removed_commits = 0;
    loop {
        let (removed, is_last) = retried!(pool, DURING, link =>
            delete_piece(&mut link, partition, raised))?;
        removed_commits += removed;
        if is_last {
            return Ok(Pruned {
                previous,
                horizon: raised,
                removed_commits,
            });
        }
    }
}

async fn raise_horizon(
    link: &mut Link,
    partition: &PartitionId,
    epoch: &LogEpoch,
    horizon: HorizonSeq,
) -> Result<(HorizonSeq, HorizonSeq), StoreError> {
    let mut steps = Vec::from(gate::lock(&[partition]));
    steps.push(gate::read(&[partition]));
    let params = vec![
        Param::text(partition.as_str()),
        Param::text(epoch.as_str()),
        Param::integer(horizon.to_i64()),
    ];
    steps.push(Step::new(RAISE, params));
    // What is refused has changed nothing but the partition's row, which says nothing.
    let answers = link.transact(Mode::Write, steps, DURING).await?;
    let gate = gate::only(&answers[2], DURING)?;
    match gate.log_epoch {
        None => Err(StoreError::refused(
            StorageCode::PartitionUnregistered,
            DURING,
            "the partition was never touched",
        )),
        Some(current) if current != *epoch => Err(StoreError::refused(
            StorageCode::PruneEpochMismatch,
            DURING,
            "the epoch changed after the pruning inputs were read",
        )),
        Some(_) => Ok((gate.horizon, gate.horizon.max(horizon))),
    }
}

/// Deletes the oldest part of what the horizon covers: commits removed, and whether nothing is
/// left.
async fn delete_piece(
    link: &mut Link,
    partition: &PartitionId,
    horizon: HorizonSeq,
) -> Result<(u64, bool), StoreError> {
    let name = || Param::text(partition.as_str());
    let params = vec![
        name(),
        Param::integer(horizon.to_i64()),
        Param::integer(PIECE_CHANGES),
    ];
    let steps = [link.begin(Mode::Write), Step::new(PIECE, params)];
    let answers = link.fly(&steps, DURING).await?.rows(DURING)?;
    let through: CommitSeq = match answers[1].first() {
        Some(row) => place(get(row, 0, DURING)?, DURING)?,
        None => horizon.seq(),
    };
    let is_last = answers[1].is_empty() || through == horizon.seq();
    let through = || vec![name(), Param::integer(through.to_i64())];
    let steps = vec![
        Step::new(PRUNE_SCOPES, through()),
        Step::new(PRUNE_CHANGES, through()),
        Step::new(PRUNE_TOMBSTONES, through()),
        Step::new(PRUNE_COMMITS, through()),
    ];
    let answers = link.commit(steps, DURING).await?;
    let removed = match answers[3].first() {
        Some(row) => get::<i64>(row, 0, DURING)?,
        None => 0,
    };
    Ok((u64::try_from(removed).unwrap_or(0), is_last))
}

/// Changes deleted before others get their turn: some tens of milliseconds.
const PIECE_CHANGES: i64 = 5_000;
