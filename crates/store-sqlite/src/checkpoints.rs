//! Fences of writers, and checkpoints of backfills (§2.4).
//!
//! What a change comes to is the contract's to say; here it is read and written.

use rusqlite::Row;
use tidewater_model::PartitionId;
use tidewater_store::{
    Checkpoint, CheckpointChange, CheckpointGround, CheckpointKey, CheckpointOutcome,
    CheckpointState, SchemaState, StoreError, transition,
};

use crate::{
    error::{corrupt, failed},
    session::{Session, place},
    statements::text,
    successor,
};

/// Requires at least this version from writers, and says what is required then.
pub(crate) fn raise_fence(
    session: &mut Session<'_>,
    partition: &PartitionId,
    version: i32,
) -> Result<i32, StoreError> {
    const DURING: &str = "raise a fence";
    let name = partition.as_str();
    let queries = &mut session.queries;
    queries
        .raise_fence
        .execute(&[&name, &version])
        .map_err(failed(DURING))?;
    let found = queries.fence.find(&[&name], |row| row.get(0));
    let found = found.map_err(failed(DURING))?;
    found.ok_or_else(|| corrupt(DURING, "the fence that was just written is not there"))
}

/// Changes a checkpoint.
pub(crate) fn change(
    session: &mut Session<'_>,
    key: &CheckpointKey,
    change: CheckpointChange,
) -> Result<(CheckpointOutcome, Checkpoint), StoreError> {
    const DURING: &str = "change a checkpoint";
    let gate = session.gate(&key.partition, DURING)?;
    let partition = key.partition.as_str();
    let found = session
        .queries
        .checkpoint
        .rows(&[&partition, &key.name])
        .and_then(|mut rows| match rows.next()? {
            Some(row) => Ok(Some(checkpoint(row, DURING))),
            None => Ok(None),
        })
        .map_err(failed(DURING))?;
    let stored = found.transpose()?;
    let ground = CheckpointGround {
        head: gate.head,
        horizon: gate.horizon,
        writer_fence: gate.writer_fence,
    };
    let (outcome, next) = transition(key, stored.as_ref(), ground, change)?;
    if stored.as_ref() != Some(&next) {
        let put = &mut session.queries.put_checkpoint;
        put.execute(&[
            &partition,
            &key.name,
            &next.schema_version,
            &next.state.as_str(),
            &next.watermark.to_i64(),
            &next.owner_epoch,
            &next.observed_rows,
            &next.lease_expires_at_ms,
        ])
        .map_err(failed(DURING))?;
    }
    Ok((outcome, next))
}

/// Up to `limit` checkpoints after the given one.
pub(crate) fn list(
    session: &mut Session<'_>,
    after: Option<&CheckpointKey>,
    limit: usize,
) -> Result<Vec<Checkpoint>, StoreError> {
    const DURING: &str = "list checkpoints";
    let partition = after.map_or("", |after| after.partition.as_str());
    let from = successor(after.map(|after| after.name.as_str()));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = session
        .queries
        .checkpoints
        .rows(&[&partition, &from, &limit])
        .map_err(failed(DURING))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed(DURING))? {
        found.push(checkpoint(row, DURING)?);
    }
    Ok(found)
}

/// The schema of the database, and what is pending.
pub(crate) fn schema_state(session: &mut Session<'_>) -> Result<SchemaState, StoreError> {
    const DURING: &str = "read the state of the schema";
    session.snapshot(DURING, |session| {
        let queries = &mut session.queries;
        let version = queries.schema_version.find(&[], |row| row.get(0));
        let version = version.map_err(failed(DURING))?;
        let mut pending = Vec::new();
        let mut rows = queries.pending.rows(&[]).map_err(failed(DURING))?;
        while let Some(row) = rows.next().map_err(failed(DURING))? {
            pending.push(text(row, 0, DURING)?.to_owned());
        }
        Ok(SchemaState {
            schema_version: version
                .ok_or_else(|| corrupt(DURING, "the database was not prepared"))?,
            pending_checkpoints: pending,
        })
    })
}

fn checkpoint(row: &Row<'_>, during: &'static str) -> Result<Checkpoint, StoreError> {
    let integer = |index| row.get::<_, i64>(index).map_err(failed(during));
    let state = text(row, 3, during)?;
    let state = CheckpointState::from_text(state)
        .ok_or_else(|| corrupt(during, format!("`{state}` is no state of a checkpoint")))?;
    Ok(Checkpoint {
        key: CheckpointKey {
            partition: PartitionId::new(text(row, 0, during)?),
            name: text(row, 1, during)?.to_owned(),
        },
        schema_version: row.get(2).map_err(failed(during))?,
        state,
        watermark: place(integer(4)?, during)?,
        owner_epoch: integer(5)?,
        observed_rows: integer(6)?,
        lease_expires_at_ms: row.get(7).map_err(failed(during))?,
    })
}
