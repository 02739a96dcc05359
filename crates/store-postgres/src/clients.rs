//! Client records (§2.3), and the failure that a client last reported.

use tidewater_model::{ActorId, ClientId, Cursor, LogEpoch, PartitionId};
use tidewater_store::{ClientKey, ClientRecord, FailureReport, StoreError, json};
use tokio_postgres::Row;

use crate::{
    error::get,
    params::{Param, Step},
    successor,
};

const FIND: &str = "SELECT q.place, c.actor_id, c.cursor, c.subscriptions::text, \
    c.wire_version, c.updated_at_ms, f.code, f.at_ms, f.streak \
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS q (partition, client_id, place) \
    JOIN sync_clients c ON c.partition = q.partition AND c.client_id = q.client_id \
    LEFT JOIN sync_client_failures f ON f.partition = c.partition AND f.client_id = c.client_id";

const LIST: &str = "SELECT c.client_id, c.actor_id, c.cursor, c.subscriptions::text, \
    c.wire_version, c.updated_at_ms, f.code, f.at_ms, f.streak FROM sync_clients c \
    LEFT JOIN sync_client_failures f ON f.partition = c.partition AND f.client_id = c.client_id \
    WHERE c.partition = $1 AND c.client_id >= $2 ORDER BY c.client_id LIMIT $3";

/// Writes nothing where the epoch is another one or the client is another actor's. The epoch is
/// held: who rotates it waits, and then deletes what was written here.
const PUT: &str = "WITH input AS (SELECT * FROM unnest($1::text[], $2::text[], $3::text[], \
    $4::int4[], $5::int8[], $6::text[], $7::int8[], $8::text[], $9::text[], $10::int8[], \
    $11::int8[]) AS i (partition, client_id, actor_id, wire_version, cursor, subscriptions, \
    updated_at_ms, log_epoch, code, at_ms, streak)), \
    epochs AS (SELECT r.partition, r.log_epoch FROM sync_partition_registry r \
    WHERE r.partition = ANY ($1::text[]) ORDER BY r.partition FOR SHARE), \
    written AS (INSERT INTO sync_clients AS c (partition, client_id, actor_id, wire_version, \
    cursor, subscriptions, updated_at_ms) SELECT i.partition, i.client_id, i.actor_id, \
    i.wire_version, i.cursor, i.subscriptions::jsonb, i.updated_at_ms FROM input i \
    JOIN epochs e ON e.partition = i.partition AND e.log_epoch = i.log_epoch \
    ORDER BY i.partition, i.client_id \
    ON CONFLICT (partition, client_id) DO UPDATE SET wire_version = excluded.wire_version, \
    cursor = excluded.cursor, subscriptions = excluded.subscriptions, \
    updated_at_ms = excluded.updated_at_ms WHERE c.actor_id = excluded.actor_id \
    RETURNING c.partition, c.client_id), \
    cleared AS (DELETE FROM sync_client_failures f USING written w \
    JOIN input i ON i.partition = w.partition AND i.client_id = w.client_id \
    WHERE f.partition = w.partition AND f.client_id = w.client_id AND i.code IS NULL) \
    INSERT INTO sync_client_failures (partition, client_id, code, at_ms, streak) \
    SELECT i.partition, i.client_id, i.code, i.at_ms, i.streak FROM written w \
    JOIN input i ON i.partition = w.partition AND i.client_id = w.client_id \
    WHERE i.code IS NOT NULL ORDER BY i.partition, i.client_id \
    ON CONFLICT (partition, client_id) DO UPDATE SET code = excluded.code, \
    at_ms = excluded.at_ms, streak = excluded.streak";

/// Asks for client records: place in the question, then what [`record`] reads.
pub(crate) fn find(keys: &[ClientKey]) -> Step<'_> {
    Step::new(
        FIND,
        vec![
            Param::texts(keys.iter().map(|key| key.partition.as_str()).collect()),
            Param::texts(keys.iter().map(|key| key.client.as_str()).collect()),
        ],
    )
}

/// Asks for up to `limit` clients after the given one.
pub(crate) fn list<'a>(
    partition: &'a PartitionId,
    after: Option<&ClientId>,
    limit: usize,
) -> Step<'a> {
    let from = successor(after.map(ClientId::as_str));
    Step::new(
        LIST,
        vec![
            Param::text(partition.as_str()),
            Param::new(from, tokio_postgres::types::Type::TEXT),
            Param::count(limit),
        ],
    )
}

/// The record in the columns from `at` on.
pub(crate) fn record(
    row: &Row,
    at: usize,
    during: &'static str,
) -> Result<ClientRecord, StoreError> {
    let failure = match get::<Option<&str>>(row, at + 5, during)? {
        None => None,
        Some(code) => Some(FailureReport {
            code: code.to_owned(),
            at_ms: get(row, at + 6, during)?,
            streak: u32::try_from(get::<i64>(row, at + 7, during)?).unwrap_or(u32::MAX),
        }),
    };
    Ok(ClientRecord {
        actor: ActorId::new(get::<&str>(row, at, during)?),
        // A cursor that is none holds back nothing.
        cursor: Cursor::from_i64(get(row, at + 1, during)?).unwrap_or(Cursor::Never),
        // A client with unreadable subscriptions has none until its next pull.
        subscriptions: json::decode_subscriptions(get(row, at + 2, during)?).unwrap_or_default(),
        wire_version: get(row, at + 3, during)?,
        updated_at_ms: get(row, at + 4, during)?,
        failure,
    })
}

/// Replaces clients' records. No client is there twice.
pub(crate) fn put<'a>(records: &[&'a (ClientKey, LogEpoch, ClientRecord)]) -> Step<'a> {
    let texts = |text: &dyn Fn(&'a (ClientKey, LogEpoch, ClientRecord)) -> &'a str| {
        Param::texts(records.iter().map(|record| text(record)).collect())
    };
    let integers = |integer: &dyn Fn(&ClientRecord) -> i64| {
        Param::integers(
            records
                .iter()
                .map(|(_, _, record)| integer(record))
                .collect(),
        )
    };
    let failures = |integer: &dyn Fn(&FailureReport) -> i64| {
        let failures = records.iter().map(|(_, _, record)| record.failure.as_ref());
        Param::integers_or_null(failures.map(|failure| failure.map(integer)).collect())
    };
    let versions: Vec<i32> = records
        .iter()
        .map(|(_, _, record)| record.wire_version)
        .collect();
    let subscriptions = records
        .iter()
        .map(|(_, _, record)| without_nul(json::encode_subscriptions(&record.subscriptions)));
    let codes = records.iter().map(|(_, _, record)| {
        let failure = record.failure.as_ref();
        failure.map(|failure| failure.code.as_str().into())
    });
    Step::new(
        PUT,
        vec![
            texts(&|(key, ..)| key.partition.as_str()),
            texts(&|(key, ..)| key.client.as_str()),
            texts(&|(_, _, record)| record.actor.as_str()),
            Param::new(versions, tokio_postgres::types::Type::INT4_ARRAY),
            integers(&|record| record.cursor.to_i64()),
            Param::owned_texts(subscriptions.collect()),
            integers(&|record| record.updated_at_ms),
            texts(&|(_, epoch, _)| epoch.as_str()),
            Param::texts_or_null(codes.collect()),
            failures(&|failure| failure.at_ms),
            failures(&|failure| i64::from(failure.streak)),
        ],
    )
}

/// JSON text whose texts have U+FFFD where they had U+0000, which the database does not hold.
pub(crate) fn without_nul(text: String) -> String {
    if !text.contains("\\u0000") {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        if let Some(after) = escape.strip_prefix("\\u0000") {
            out.push_str("\\ufffd");
            rest = after;
        } else {
            // What is escaped is not looked at: it may be a backslash itself.
            let end = escape
                .char_indices()
                .nth(2)
                .map_or(escape.len(), |(end, _)| end);
            out.push_str(&escape[..end]);
            rest = &escape[end..];
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_escaped_nul_is_replaced() {
        for (text, expected) in [
            (r#""a\u0000b\u0000""#, r#""a\ufffdb\ufffd""#),
            (r#""\\u0000""#, r#""\\u0000""#),
            (r#""\\\u0000ü\n""#, r#""\\\ufffdü\n""#),
            (r#""plain""#, r#""plain""#),
        ] {
            assert_eq!(without_nul(text.to_owned()), expected);
        }
    }
}
