//! The registry of partitions (§2.1), and activity that was gathered in memory.

use std::collections::HashSet;

use tidewater_model::{CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_store::{
    ActivityBatch, ClientKey, ClientRecord, PartitionRecord, PartitionTouch, StoreError,
    signals::{NodeId, Signal},
};
use tokio_postgres::{Row, types::Type};

use crate::{
    announce, clients,
    error::{corrupt, get},
    gate::{self, place},
    link::{Link, Mode},
    params::{Param, Step},
    successor,
};

const FIND: &str = "SELECT r.partition, r.log_epoch, r.epoch_required, \
    r.last_authenticated_at_ms, p.max_commit_seq, p.horizon_seq FROM sync_partition_registry r \
    LEFT JOIN sync_partitions p ON p.partition = r.partition WHERE r.partition = $1";

const LIST: &str = "SELECT r.partition, r.log_epoch, r.epoch_required, \
    r.last_authenticated_at_ms, p.max_commit_seq, p.horizon_seq FROM sync_partition_registry r \
    LEFT JOIN sync_partitions p ON p.partition = r.partition WHERE r.partition >= $1 \
    ORDER BY r.partition LIMIT $2";

const TOUCH: &str = "INSERT INTO sync_partition_registry AS r (partition, log_epoch, \
    epoch_required, last_authenticated_at_ms) VALUES ($1, $2, false, $3) \
    ON CONFLICT (partition) DO UPDATE SET last_authenticated_at_ms = \
    greatest(r.last_authenticated_at_ms, excluded.last_authenticated_at_ms)";

const ROTATE: &str = "INSERT INTO sync_partition_registry AS r (partition, log_epoch, \
    epoch_required, last_authenticated_at_ms) VALUES ($1, $2, true, $3) \
    ON CONFLICT (partition) DO UPDATE SET log_epoch = excluded.log_epoch, \
    epoch_required = true, last_authenticated_at_ms = \
    greatest(r.last_authenticated_at_ms, excluded.last_authenticated_at_ms)";

const SEE: &str = "UPDATE sync_partition_registry r SET last_authenticated_at_ms = s.at_ms \
    FROM (SELECT q.partition, max(q.at_ms) AS at_ms \
    FROM unnest($1::text[], $2::int8[]) AS q (partition, at_ms) GROUP BY q.partition) s \
    WHERE r.partition = s.partition AND r.last_authenticated_at_ms < s.at_ms";

const CLEAR_CLIENTS: &str = "DELETE FROM sync_clients WHERE partition = $1";

const CLEAR_FAILURES: &str = "DELETE FROM sync_client_failures WHERE partition = $1";

/// Registers a partition if it is new and refreshes its last-seen time.
pub(crate) async fn touch(
    link: &mut Link,
    touch: &PartitionTouch,
) -> Result<PartitionRecord, StoreError> {
    const DURING: &str = "touch a partition";
    let partition = touch.partition.as_str();
    let params = vec![
        Param::text(partition),
        Param::text(touch.initial_epoch.as_str()),
        Param::integer(touch.at_ms),
    ];
    let steps = vec![
        Step::new(TOUCH, params),
        Step::new(FIND, vec![Param::text(partition)]),
    ];
    registered(link.transact(Mode::Write, steps, DURING).await?, DURING)
}

/// Gives a partition a new epoch and forgets its clients, when no writer has the partition.
pub(crate) async fn rotate_epoch(
    link: &mut Link,
    partition: &PartitionId,
    epoch: &LogEpoch,
    at_ms: i64,
    announcer: Option<&NodeId>,
) -> Result<PartitionRecord, StoreError> {
    const DURING: &str = "rotate an epoch";
    let name = || Param::text(partition.as_str());
    let mut steps = Vec::from(gate::lock(&[partition]));
    let params = vec![name(), Param::text(epoch.as_str()), Param::integer(at_ms)];
    steps.push(Step::new(ROTATE, params));
    steps.push(Step::new(CLEAR_CLIENTS, vec![name()]));
    steps.push(Step::new(CLEAR_FAILURES, vec![name()]));
    let partition = partition.clone();
    steps.extend(announcer.map(|node| announce::step(node, [Signal::Registry { partition }])));
    steps.push(Step::new(FIND, vec![name()]));
    registered(link.transact(Mode::Write, steps, DURING).await?, DURING)
}

/// The registry's entry for a partition.
pub(crate) async fn find(
    link: &mut Link,
    partition: &PartitionId,
) -> Result<Option<PartitionRecord>, StoreError> {
    const DURING: &str = "find a partition";
    let steps = vec![Step::new(FIND, vec![Param::text(partition.as_str())])];
    let answers = link.transact(Mode::Read, steps, DURING).await?;
    let row = answers[0].first();
    row.map(|row| record(row, DURING)).transpose()
}

fn registered(
    mut answers: Vec<Vec<Row>>,
    during: &'static str,
) -> Result<PartitionRecord, StoreError> {
    let rows = answers.pop().unwrap_or_default();
    let row = rows
        .first()
        .ok_or_else(|| corrupt(during, "the partition that was just written is not there"))?;
    record(row, during)
}

/// Up to `limit` entries of the registry after the given one.
pub(crate) async fn list(
    link: &mut Link,
    after: Option<&PartitionId>,
    limit: usize,
) -> Result<Vec<PartitionRecord>, StoreError> {
    const DURING: &str = "list partitions";
    let from = successor(after.map(PartitionId::as_str));
    let params = vec![Param::new(from, Type::TEXT), Param::count(limit)];
    let steps = vec![Step::new(LIST, params)];
    let answers = link.transact(Mode::Read, steps, DURING).await?;
    answers[0].iter().map(|row| record(row, DURING)).collect()
}

/// Writes gathered activity.
pub(crate) async fn put_activity(link: &mut Link, batch: &ActivityBatch) -> Result<(), StoreError> {
    const DURING: &str = "write activity";
    let mut steps = Vec::new();
    if !batch.touches.is_empty() {
        let touches = batch.touches.iter();
        let names = touches.clone().map(|(partition, _)| partition.as_str());
        let times = touches.map(|(_, at_ms)| *at_ms);
        let params = vec![
            Param::texts(names.collect()),
            Param::integers(times.collect()),
        ];
        steps.push(Step::new(SEE, params));
    }
    steps.extend(
        rounds(&batch.clients)
            .iter()
            .map(|round| clients::put(round)),
    );
    if steps.is_empty() {
        return Ok(());
    }
    link.transact(Mode::Write, steps, DURING).await?;
    Ok(())
}

type Activity = (ClientKey, LogEpoch, ClientRecord);

/// The records in rounds that name each client once: a statement cannot write a row twice.
fn rounds(records: &[Activity]) -> Vec<Vec<&Activity>> {
    let mut rounds: Vec<(HashSet<&ClientKey>, Vec<&Activity>)> = Vec::new();
    for record in records {
        let is_known = |known: &HashSet<&ClientKey>| known.contains(&record.0);
        if rounds.last().is_none_or(|(known, _)| is_known(known)) {
            rounds.push((HashSet::new(), Vec::new()));
        }
        let (known, round) = rounds.last_mut().expect("one was just pushed");
        known.insert(&record.0);
        round.push(record);
    }
    rounds.into_iter().map(|(_, round)| round).collect()
}

fn record(row: &Row, during: &'static str) -> Result<PartitionRecord, StoreError> {
    let seq = |column: usize| -> Result<CommitSeq, StoreError> {
        let raw: Option<i64> = get(row, column, during)?;
        place(raw.unwrap_or(0), during)
    };
    Ok(PartitionRecord {
        partition: PartitionId::new(get::<&str>(row, 0, during)?),
        log_epoch: LogEpoch::new(get::<&str>(row, 1, during)?),
        epoch_required: get(row, 2, during)?,
        last_authenticated_at_ms: get(row, 3, during)?,
        head: seq(4)?,
        horizon: HorizonSeq::at(seq(5)?),
    })
}
