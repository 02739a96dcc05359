//! Client records (§2.3), and the failure that a client last reported.

use rusqlite::{Row, types::ValueRef};
use tidewater_model::{ActorId, ClientId, Cursor, PartitionId};
use tidewater_store::{ClientKey, ClientRecord, FailureReport, StoreError, json};

use crate::{error::failed, session::Session, statements::Queries, successor};

/// A client's record.
pub(crate) fn find_client(
    queries: &mut Queries<'_>,
    partition: &PartitionId,
    client: &ClientId,
    during: &'static str,
) -> Result<Option<ClientRecord>, StoreError> {
    queries
        .client
        .find(&[&partition.as_str(), &client.as_str()], record)
        .map_err(failed(during))
}

/// Up to `limit` clients after the given one.
pub(crate) fn list_clients(
    session: &mut Session<'_>,
    partition: &PartitionId,
    after: Option<&ClientId>,
    limit: usize,
) -> Result<Vec<(ClientId, ClientRecord)>, StoreError> {
    const DURING: &str = "list clients";
    let from = successor(after.map(ClientId::as_str));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut found = Vec::new();
    let mut rows = session
        .queries
        .clients
        .rows(&[&partition.as_str(), &from, &limit])
        .map_err(failed(DURING))?;
    while let Some(row) = rows.next().map_err(failed(DURING))? {
        let client = row.get_ref(0).map_err(failed(DURING))?;
        let client = client
            .as_str()
            .map_err(|error| failed(DURING)(error.into()))?;
        found.push((ClientId::new(client), record(row).map_err(failed(DURING))?));
    }
    Ok(found)
}

fn record(row: &Row<'_>) -> rusqlite::Result<ClientRecord> {
    let failure = match row.get_ref(6)? {
        ValueRef::Null => None,
        code => Some(FailureReport {
            code: code.as_str()?.to_owned(),
            at_ms: row.get(7)?,
            streak: row.get(8)?,
        }),
    };
    Ok(ClientRecord {
        actor: ActorId::new(row.get_ref(1)?.as_str()?),
        // A cursor that is none holds back nothing.
        cursor: Cursor::from_i64(row.get(2)?).unwrap_or(Cursor::Never),
        // A client with unreadable subscriptions has none until its next pull.
        subscriptions: json::decode_subscriptions(row.get_ref(3)?.as_str()?).unwrap_or_default(),
        wire_version: row.get(4)?,
        updated_at_ms: row.get(5)?,
        failure,
    })
}

/// Replaces a client's record, unless the partition's epoch is another one or the stored record
/// is another actor's.
pub(crate) fn put_client(
    queries: &mut Queries<'_>,
    key: &ClientKey,
    epoch: &str,
    record: &ClientRecord,
) -> rusqlite::Result<()> {
    let partition = key.partition.as_str();
    let client = key.client.as_str();
    let written = queries.put_client.execute(&[
        &partition,
        &client,
        &record.actor.as_str(),
        &record.wire_version,
        &record.cursor.to_i64(),
        &json::encode_subscriptions(&record.subscriptions),
        &record.updated_at_ms,
        &epoch,
    ])?;
    if written == 0 {
        return Ok(());
    }
    match &record.failure {
        Some(failure) => queries.put_failure.execute(&[
            &partition,
            &client,
            &failure.code,
            &failure.at_ms,
            &failure.streak,
        ]),
        None => queries.clear_failure.execute(&[&partition, &client]),
    }
    .map(drop)
}
