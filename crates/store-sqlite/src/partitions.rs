//! The registry of partitions (§2.1), and activity that was gathered in memory.

use rusqlite::Row;
use tidewater_model::{CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_store::{ActivityBatch, PartitionRecord, PartitionTouch, StoreError};

use crate::{
    clients::put_client,
    error::{corrupt, failed},
    session::Session,
    statements::Queries,
    successor,
};

/// Registers a partition if it is new and refreshes its last-seen time.
pub(crate) fn touch(
    session: &mut Session<'_>,
    touch: &PartitionTouch,
) -> Result<PartitionRecord, StoreError> {
    const DURING: &str = "touch a partition";
    let partition = touch.partition.as_str();
    session
        .queries
        .touch_partition
        .execute(&[&partition, &touch.initial_epoch.as_str(), &touch.at_ms])
        .map_err(failed(DURING))?;
    registered(&mut session.queries, &touch.partition, DURING)
}

/// Gives a partition a new epoch and forgets its clients.
pub(crate) fn rotate_epoch(
    session: &mut Session<'_>,
    partition: &PartitionId,
    epoch: &LogEpoch,
    at_ms: i64,
) -> Result<PartitionRecord, StoreError> {
    const DURING: &str = "rotate an epoch";
    let name = partition.as_str();
    let queries = &mut session.queries;
    queries
        .rotate_epoch
        .execute(&[&name, &epoch.as_str(), &at_ms])
        .and_then(|_| queries.clear_clients.execute(&[&name]))
        .and_then(|_| queries.clear_failures.execute(&[&name]))
        .map_err(failed(DURING))?;
    registered(queries, partition, DURING)
}

/// The registry's entry for a partition.
pub(crate) fn find(
    queries: &mut Queries<'_>,
    partition: &PartitionId,
    during: &'static str,
) -> Result<Option<PartitionRecord>, StoreError> {
    let found = queries.partition.find(&[&partition.as_str()], record);
    found.map_err(failed(during))
}

fn registered(
    queries: &mut Queries<'_>,
    partition: &PartitionId,
    during: &'static str,
) -> Result<PartitionRecord, StoreError> {
    find(queries, partition, during)?
        .ok_or_else(|| corrupt(during, "the partition that was just written is not there"))
}

/// Up to `limit` entries of the registry after the given one.
pub(crate) fn list(
    session: &mut Session<'_>,
    after: Option<&PartitionId>,
    limit: usize,
) -> Result<Vec<PartitionRecord>, StoreError> {
    const DURING: &str = "list partitions";
    let from = successor(after.map(PartitionId::as_str));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut found = Vec::new();
    let mut rows = session
        .queries
        .partitions
        .rows(&[&from, &limit])
        .map_err(failed(DURING))?;
    while let Some(row) = rows.next().map_err(failed(DURING))? {
        found.push(record(row).map_err(failed(DURING))?);
    }
    Ok(found)
}

/// Writes gathered activity.
pub(crate) fn put_activity(
    session: &mut Session<'_>,
    batch: &ActivityBatch,
) -> Result<(), StoreError> {
    const DURING: &str = "write activity";
    let queries = &mut session.queries;
    for (partition, at_ms) in &batch.touches {
        queries
            .see_partition
            .execute(&[&partition.as_str(), at_ms])
            .map_err(failed(DURING))?;
    }
    for (key, epoch, record) in &batch.clients {
        put_client(queries, key, epoch.as_str(), record).map_err(failed(DURING))?;
    }
    Ok(())
}

fn record(row: &Row<'_>) -> rusqlite::Result<PartitionRecord> {
    let seq = |index: usize| {
        let raw: Option<i64> = row.get(index)?;
        let raw = raw.unwrap_or(0);
        CommitSeq::from_i64(raw).ok_or(rusqlite::Error::IntegralValueOutOfRange(index, raw))
    };
    Ok(PartitionRecord {
        partition: PartitionId::new(row.get_ref(0)?.as_str()?),
        log_epoch: LogEpoch::new(row.get_ref(1)?.as_str()?),
        epoch_required: row.get(2)?,
        last_authenticated_at_ms: row.get(3)?,
        head: seq(4)?,
        horizon: HorizonSeq::at(seq(5)?),
    })
}
