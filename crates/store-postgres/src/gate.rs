//! Gates (§2.4), and the lock on a partition.
//!
//! A partition's row is created with its first lock, because only a row can be locked. A head of
//! 0 says as little as no row.

use tidewater_model::{CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_store::{Gate, StoreError};
use tokio_postgres::Row;

use crate::{
    checkpoints,
    error::{corrupt, get},
    guard,
    params::{Param, Step},
};

const GATES: &str = "SELECT r.log_epoch, \
    (SELECT schema_version::int8 FROM sync_schema_meta WHERE id = 1), \
    p.max_commit_seq, p.horizon_seq, f.required_version, \
    (SELECT array_agg(c.name) FROM sync_backfill_checkpoints c \
    WHERE c.partition = q.partition AND c.state <> 'activated') \
    FROM unnest($1::text[]) WITH ORDINALITY AS q (partition, place) \
    LEFT JOIN sync_writer_fence f ON f.partition = q.partition \
    LEFT JOIN sync_partition_registry r ON r.partition = q.partition \
    LEFT JOIN sync_partitions p ON p.partition = q.partition ORDER BY q.place";

const CREATE: &str = "INSERT INTO sync_partitions (partition) \
    SELECT q.partition FROM unnest($1::text[]) AS q (partition) \
    ORDER BY q.partition COLLATE \"C\" ON CONFLICT (partition) DO NOTHING";

/// In one order, so that two who lock several wait and do not deadlock.
const LOCK: &str = "SELECT 1 FROM sync_partitions WHERE partition = ANY ($1::text[]) \
    ORDER BY partition COLLATE \"C\" FOR UPDATE";

fn names<'a>(partitions: &[&'a PartitionId]) -> Param<'a> {
    Param::texts(partitions.iter().map(|name| name.as_str()).collect())
}

/// The same, with the timeline that the lock is taken on.
const LOCK_WITH_TIMELINE: &str = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8) \
    FROM sync_partitions WHERE partition = ANY ($1::text[]) \
    ORDER BY partition COLLATE \"C\" FOR UPDATE";

/// Reads the gates of partitions.
pub(crate) fn read<'a>(partitions: &[&'a PartitionId]) -> Step<'a> {
    Step::new(GATES, vec![names(partitions)])
}

/// Locks partitions until the transaction ends.
pub(crate) fn lock<'a>(partitions: &[&'a PartitionId]) -> [Step<'a>; 2] {
    [
        Step::new(CREATE, vec![names(partitions)]),
        Step::new(LOCK, vec![names(partitions)]),
    ]
}

/// The same as [`lock`], with an answer for [`check_timeline`].
pub(crate) fn lock_with_timeline<'a>(partitions: &[&'a PartitionId]) -> [Step<'a>; 2] {
    [
        Step::new(CREATE, vec![names(partitions)]),
        Step::new(LOCK_WITH_TIMELINE, vec![names(partitions)]),
    ]
}

/// Refuses to go on where the lock was taken on another timeline than `expected`.
pub(crate) fn check_timeline(
    locked: &[Row],
    expected: &str,
    during: &'static str,
) -> Result<(), StoreError> {
    for row in locked {
        let timeline: &str = get(row, 0, during)?;
        if timeline != expected {
            return Err(guard::left_behind(timeline, expected, during));
        }
    }
    Ok(())
}

/// Gates from the rows of [`read`].
pub(crate) fn gates(rows: &[Row], during: &'static str) -> Result<Vec<Gate>, StoreError> {
    rows.iter().map(|row| gate(row, during)).collect()
}

/// The only gate of [`read`].
pub(crate) fn only(rows: &[Row], during: &'static str) -> Result<Gate, StoreError> {
    let row = rows.first();
    gate(
        row.ok_or_else(|| corrupt(during, "no gate was read"))?,
        during,
    )
}

fn gate(row: &Row, during: &'static str) -> Result<Gate, StoreError> {
    let version: Option<i64> = get(row, 1, during)?;
    let version = version.ok_or_else(|| corrupt(during, "the database was not prepared"))?;
    let head: Option<i64> = get(row, 2, during)?;
    let horizon: Option<i64> = get(row, 3, during)?;
    let fence: Option<i64> = get(row, 4, during)?;
    let pending: Option<Vec<String>> = get(row, 5, during)?;
    let mut pending_checkpoints = pending.unwrap_or_default();
    pending_checkpoints.sort_unstable();
    Ok(Gate {
        log_epoch: get::<Option<&str>>(row, 0, during)?.map(LogEpoch::new),
        schema_version: checkpoints::version(version, during)?,
        head: place(head.unwrap_or(0), during)?,
        horizon: HorizonSeq::at(place(horizon.unwrap_or(0), during)?),
        writer_fence: fence
            .map(|fence| checkpoints::version(fence, during))
            .transpose()?,
        pending_checkpoints,
    })
}

/// A stored number as a place in the log.
pub(crate) fn place(raw: i64, during: &'static str) -> Result<CommitSeq, StoreError> {
    CommitSeq::from_i64(raw).ok_or_else(|| corrupt(during, format!("{raw} is no place in a log")))
}
