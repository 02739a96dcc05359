//! Fences of writers, and checkpoints of backfills (§2.4).
//!
//! What a change comes to is the contract's to say; here it is read and written, under the lock
//! that writers of the partition take.

use tidewater_model::PartitionId;
use tidewater_store::{
    Checkpoint, CheckpointChange, CheckpointGround, CheckpointKey, CheckpointOutcome,
    CheckpointState, SchemaState, StoreError, transition,
};
use tokio_postgres::{Row, types::Type};

use crate::{
    error::{corrupt, get},
    gate::{self, place},
    link::{Link, Mode},
    params::{Param, Step},
    successor,
};

const RAISE: &str = "INSERT INTO sync_writer_fence AS f (partition, required_version) \
    VALUES ($1, $2) ON CONFLICT (partition) DO UPDATE SET \
    required_version = greatest(f.required_version, excluded.required_version) \
    RETURNING required_version";

const VERSION: &str = "SELECT schema_version::int8 FROM sync_schema_meta WHERE id = 1";

const PENDING: &str = "SELECT DISTINCT name FROM sync_backfill_checkpoints \
    WHERE state <> 'activated' ORDER BY name";

const FIND: &str = "SELECT partition, name, schema_version, state, watermark, owner_epoch, \
    observed_rows, lease_expires_at_ms FROM sync_backfill_checkpoints \
    WHERE partition = $1 AND name = $2";

const LIST: &str = "SELECT partition, name, schema_version, state, watermark, owner_epoch, \
    observed_rows, lease_expires_at_ms FROM sync_backfill_checkpoints \
    WHERE (partition, name) >= ($1, $2) ORDER BY partition, name LIMIT $3";

const PUT: &str = "INSERT INTO sync_backfill_checkpoints (partition, name, schema_version, \
    state, watermark, owner_epoch, observed_rows, lease_expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (partition, name) DO UPDATE SET \
    schema_version = excluded.schema_version, state = excluded.state, \
    watermark = excluded.watermark, owner_epoch = excluded.owner_epoch, \
    observed_rows = excluded.observed_rows, lease_expires_at_ms = excluded.lease_expires_at_ms";

/// Requires at least this version from writers, once the one that has the partition is done, and
/// says what is required then.
pub(crate) async fn raise_fence(
    link: &mut Link,
    partition: &PartitionId,
    required: i32,
) -> Result<i32, StoreError> {
    const DURING: &str = "raise a fence";
    let mut steps = Vec::from(gate::lock(&[partition]));
    let params = vec![
        Param::text(partition.as_str()),
        Param::integer(i64::from(required)),
    ];
    steps.push(Step::new(RAISE, params));
    let answers = link.transact(Mode::Write, steps, DURING).await?;
    let row = answers.last().and_then(|rows| rows.first());
    let row = row.ok_or_else(|| corrupt(DURING, "the fence was not written"))?;
    version(get(row, 0, DURING)?, DURING)
}

/// Changes a checkpoint.
pub(crate) async fn change(
    link: &mut Link,
    key: &CheckpointKey,
    change: CheckpointChange,
) -> Result<(CheckpointOutcome, Checkpoint), StoreError> {
    const DURING: &str = "change a checkpoint";
    let partition = &key.partition;
    let mut steps = vec![link.begin(Mode::Write)];
    steps.extend(gate::lock(&[partition]));
    steps.push(gate::read(&[partition]));
    let name = vec![Param::text(partition.as_str()), Param::text(&key.name)];
    steps.push(Step::new(FIND, name));
    let mut answers = link.fly(&steps, DURING).await?.rows(DURING)?;
    let found = answers.pop().unwrap_or_default();
    let gate = gate::only(&answers.pop().unwrap_or_default(), DURING)?;
    let stored = found.first().map(|row| checkpoint(row, DURING));
    let stored = stored.transpose()?;
    let ground = CheckpointGround {
        head: gate.head,
        horizon: gate.horizon,
        writer_fence: gate.writer_fence,
    };
    let (outcome, next) = transition(key, stored.as_ref(), ground, change)?;
    let mut steps = Vec::new();
    if stored.as_ref() != Some(&next) {
        steps.push(put(&next));
    }
    link.commit(steps, DURING).await?;
    Ok((outcome, next))
}

fn put(next: &Checkpoint) -> Step<'_> {
    let params = vec![
        Param::text(next.key.partition.as_str()),
        Param::text(&next.key.name),
        Param::integer(i64::from(next.schema_version)),
        Param::text(next.state.as_str()),
        Param::integer(next.watermark.to_i64()),
        Param::integer(next.owner_epoch),
        Param::integer(next.observed_rows),
        Param::new(next.lease_expires_at_ms, Type::INT8),
    ];
    Step::new(PUT, params)
}

/// Up to `limit` checkpoints after the given one.
pub(crate) async fn list(
    link: &mut Link,
    after: Option<&CheckpointKey>,
    limit: usize,
) -> Result<Vec<Checkpoint>, StoreError> {
    const DURING: &str = "list checkpoints";
    let params = vec![
        Param::text(after.map_or("", |after| after.partition.as_str())),
        Param::new(
            successor(after.map(|after| after.name.as_str())),
            Type::TEXT,
        ),
        Param::count(limit),
    ];
    let steps = vec![Step::new(LIST, params)];
    let answers = link.transact(Mode::Read, steps, DURING).await?;
    let rows = answers[0].iter();
    rows.map(|row| checkpoint(row, DURING)).collect()
}

/// The schema of the database, and what is pending.
pub(crate) async fn schema_state(link: &mut Link) -> Result<SchemaState, StoreError> {
    const DURING: &str = "read the state of the schema";
    let steps = vec![
        Step::new(VERSION, Vec::new()),
        Step::new(PENDING, Vec::new()),
    ];
    let answers = link.transact(Mode::Read, steps, DURING).await?;
    let row = answers[0].first();
    let row = row.ok_or_else(|| corrupt(DURING, "the database was not prepared"))?;
    let pending = answers[1].iter().map(|row| get(row, 0, DURING));
    Ok(SchemaState {
        schema_version: version(get(row, 0, DURING)?, DURING)?,
        pending_checkpoints: pending.collect::<Result<_, _>>()?,
    })
}

fn checkpoint(row: &Row, during: &'static str) -> Result<Checkpoint, StoreError> {
    let state: &str = get(row, 3, during)?;
    let state = CheckpointState::from_text(state)
        .ok_or_else(|| corrupt(during, format!("`{state}` is no state of a checkpoint")))?;
    Ok(Checkpoint {
        key: CheckpointKey {
            partition: PartitionId::new(get::<&str>(row, 0, during)?),
            name: get(row, 1, during)?,
        },
        schema_version: version(get(row, 2, during)?, during)?,
        state,
        watermark: place(get(row, 4, during)?, during)?,
        owner_epoch: get(row, 5, during)?,
        observed_rows: get(row, 6, during)?,
        lease_expires_at_ms: get(row, 7, during)?,
    })
}

/// A stored number as a schema version.
pub(crate) fn version(raw: i64, during: &'static str) -> Result<i32, StoreError> {
    i32::try_from(raw).map_err(|_| corrupt(during, format!("{raw} is no schema version")))
}
