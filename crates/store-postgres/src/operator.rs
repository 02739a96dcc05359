//! What operators read and forget: whole tables, reactions, old outcomes.
//!
//! No client is answered from here, and nothing here may hold up those who answer clients: every
//! call looks at a bounded piece.

use bytestring::ByteString;
use tidewater_model::{ClientId, PartitionId};
use tidewater_store::{
    PushKey, ReactionRecord, ReactionStatus, ReactionWrite, RowPage, RowPageBuilder, StoreError,
    StoredResult, TableScan, outcome,
};
use tokio_postgres::{Row, types::Type};

use crate::{
    error::{corrupt, get},
    gate::{self, place},
    layout::TableLayout,
    link::{Link, Mode},
    params::{Param, Step},
    successor,
};

/// Reads a page of a table, whatever the scopes of its rows. The link's transaction is left to be
/// ended.
pub(crate) async fn scan_table(
    link: &mut Link,
    table: &TableLayout,
    scan: &TableScan,
) -> Result<RowPage, StoreError> {
    const DURING: &str = "scan a table";
    let mut page = RowPageBuilder::default();
    let mut gate = None;
    let mut from = successor(scan.after.as_deref());
    loop {
        let wanted = scan.rows_max.saturating_add(1);
        let wanted = wanted.saturating_sub(page.row_count()).clamp(1, ROWS_MAX);
        let chunk = Step::new(
            table.sql.walk.as_str(),
            vec![
                Param::text(scan.partition.as_str()),
                Param::text(&from),
                Param::count(wanted),
                Param::count(scan.bytes_max.clamp(BYTES_MIN, BYTES_MAX)),
            ],
        );
        let rows = if gate.is_some() {
            let answers = link.fly(&[chunk], DURING).await?.rows(DURING)?;
            answers.into_iter().next().unwrap_or_default()
        } else {
            let beginning = link.begin(Mode::Read);
            let steps = [beginning, gate::read(&[&scan.partition]), chunk];
            let mut answers = link.fly(&steps, DURING).await?.rows(DURING)?;
            gate = Some(gate::only(&answers[1], DURING)?);
            answers.pop().unwrap_or_default()
        };
        let mut has_more = None;
        for row in &rows {
            let payload: &[u8] = get(row, 2, DURING)?;
            let is_full = page.row_count() >= scan.rows_max
                || page.byte_count() + payload.len() > scan.bytes_max;
            if page.row_count() > 0 && is_full {
                has_more = Some(true);
                break;
            }
            page.row(get(row, 0, DURING)?, get(row, 1, DURING)?, payload);
        }
        let is_whole = match rows.last() {
            None => true,
            Some(last) => {
                from = successor(Some(get(last, 0, DURING)?));
                let total: i64 = get(last, 3, DURING)?;
                let total = usize::try_from(total).unwrap_or(usize::MAX);
                rows.len() >= total && total < wanted
            }
        };
        if is_whole {
            has_more = has_more.or(Some(false));
        }
        if let Some(has_more) = has_more
            && let Some(gate) = gate.take()
        {
            return Ok(page.finish(gate, has_more));
        }
    }
}

/// Rows read at a time.
const ROWS_MAX: usize = 4_096;

/// Payload bytes read at a time, before the last row.
const BYTES_MIN: usize = 64 * 1024;
const BYTES_MAX: usize = 8 * 1024 * 1024;

const REACTIONS: &str = "SELECT idempotency_key, type, version, payload::text, \
    source_client_id, source_client_commit_id, source_commit_seq, created_at_ms, \
    available_at_ms, status, attempts, max_attempts FROM sync_reactions \
    WHERE partition = $1 AND idempotency_key >= $2 ORDER BY idempotency_key LIMIT $3";

const REACTIONS_OF_STATUS: &str = "SELECT idempotency_key, type, version, payload::text, \
    source_client_id, source_client_commit_id, source_commit_seq, created_at_ms, \
    available_at_ms, status, attempts, max_attempts FROM sync_reactions \
    WHERE partition = $1 AND status = $4 AND idempotency_key >= $2 \
    ORDER BY idempotency_key LIMIT $3";

/// Up to `limit` reactions after the given key, of one status or of all.
pub(crate) async fn list_reactions(
    link: &mut Link,
    partition: &PartitionId,
    status: Option<ReactionStatus>,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<ReactionRecord>, StoreError> {
    const DURING: &str = "list reactions";
    let mut params = vec![
        Param::text(partition.as_str()),
        Param::new(successor(after), Type::TEXT),
        Param::count(limit),
    ];
    let sql = match status {
        Some(status) => {
            params.push(Param::text(status.as_str()));
            REACTIONS_OF_STATUS
        }
        None => REACTIONS,
    };
    let steps = vec![Step::new(sql, params)];
    let answers = link.transact(Mode::Read, steps, DURING).await?;
    answers[0].iter().map(|row| reaction(row, DURING)).collect()
}

fn reaction(row: &Row, during: &'static str) -> Result<ReactionRecord, StoreError> {
    let owned = |column| get::<String>(row, column, during);
    let status: &str = get(row, 9, during)?;
    let status = ReactionStatus::from_text(status)
        .ok_or_else(|| corrupt(during, format!("`{status}` is no status of a reaction")))?;
    Ok(ReactionRecord {
        write: ReactionWrite {
            idempotency_key: owned(0)?,
            kind: owned(1)?,
            version: get(row, 2, during)?,
            payload: compact(get(row, 3, during)?),
            max_attempts: get(row, 11, during)?,
        },
        client: ClientId::new(get::<&str>(row, 4, during)?),
        client_commit_id: ByteString::from(get::<&str>(row, 5, during)?),
        commit_seq: place(get(row, 6, during)?, during)?,
        created_at_ms: get(row, 7, during)?,
        available_at_ms: get(row, 8, during)?,
        status,
        attempts: get(row, 10, during)?,
    })
}

/// JSON text without the spaces that the database puts into it, as it was written. The order of
/// an object's members is the database's own.
fn compact(text: &str) -> String {
    let mut in_string = false;
    let mut is_escaped = false;
    text.chars()
        .filter(|character| {
            let is_kept = in_string || *character != ' ';
            if !is_escaped && *character == '"' {
                in_string = !in_string;
            }
            is_escaped = in_string && !is_escaped && *character == '\\';
            is_kept
        })
        .collect()
}

const OUTCOMES: &str = "SELECT client_id, client_commit_id, result::text FROM sync_push_results \
    WHERE partition = $1 AND (client_id, client_commit_id) >= ($2, $3) \
    ORDER BY client_id, client_commit_id LIMIT $4 FOR UPDATE";

const DELETE_OUTCOMES: &str = "WITH gone AS (DELETE FROM sync_push_results r \
    USING unnest($2::text[], $3::text[]) AS q (client_id, client_commit_id) \
    WHERE r.partition = $1 AND r.client_id = q.client_id \
    AND r.client_commit_id = q.client_commit_id RETURNING 1) SELECT count(*) FROM gone";

/// Deletes old outcomes among the next ones: the last looked at if there may be more, and how
/// many were deleted.
pub(crate) async fn prune_push_results(
    link: &mut Link,
    partition: &PartitionId,
    after: Option<&PushKey>,
    recorded_before_ms: i64,
    limit: usize,
) -> Result<(Option<PushKey>, u64), StoreError> {
    const DURING: &str = "prune outcomes";
    let limit = limit.min(OUTCOMES_MAX);
    let name = || Param::text(partition.as_str());
    let client = after.map_or("", |key| key.client.as_str());
    let from = successor(after.map(|key| &*key.client_commit_id));
    let params = vec![
        name(),
        Param::text(client),
        Param::new(from, Type::TEXT),
        Param::count(limit),
    ];
    let steps = [link.begin(Mode::Write), Step::new(OUTCOMES, params)];
    let mut answers = link.fly(&steps, DURING).await?.rows(DURING)?;
    let rows = answers.pop().unwrap_or_default();
    let (mut clients, mut commits) = (Vec::new(), Vec::new());
    for row in &rows {
        if is_recorded_before(get(row, 2, DURING)?, recorded_before_ms) {
            clients.push(get::<&str>(row, 0, DURING)?);
            commits.push(get::<&str>(row, 1, DURING)?);
        }
    }
    let params = vec![name(), Param::texts(clients), Param::texts(commits)];
    let steps = vec![Step::new(DELETE_OUTCOMES, params)];
    let answers = link.commit(steps, DURING).await?;
    let deleted = match answers[0].first() {
        Some(row) => u64::try_from(get::<i64>(row, 0, DURING)?).unwrap_or(0),
        None => 0,
    };
    let last = match rows.last().filter(|_| rows.len() >= limit) {
        Some(row) => Some(PushKey {
            partition: partition.clone(),
            client: ClientId::new(get::<&str>(row, 0, DURING)?),
            client_commit_id: ByteString::from(get::<&str>(row, 1, DURING)?),
        }),
        None => None,
    };
    Ok((last, deleted))
}

/// Outcomes looked at in one call, whatever is asked for.
const OUTCOMES_MAX: usize = 1_000;

fn is_recorded_before(result: &str, at_ms: i64) -> bool {
    match outcome::decode(result) {
        StoredResult::Readable(record) => record.recorded_at_ms.is_some_and(|at| at < at_ms),
        StoredResult::Unreadable => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_go_unless_they_are_part_of_a_text() {
        let text = r#"{"a b": [1, "\\\" c "], "d": "\\"}"#;
        assert_eq!(compact(text), r#"{"a b":[1,"\\\" c "],"d":"\\"}"#);
    }
}
