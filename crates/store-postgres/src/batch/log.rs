//! What commits leave beside rows: the log and what finds its entries, tombstones, outcomes,
//! clients, reactions, heads.

use std::{borrow::Cow, collections::HashMap};

use tidewater_model::Op;
use tidewater_store::{
    AppliedCommit, ChangeKind, ChangeWrite, CommitWrite, ReactionWrite, outcome,
};
use tokio_postgres::types::Type;

use super::push_keys;
use crate::{
    clients::without_nul,
    layout::Layout,
    params::{Param, Step},
    scopes::ScopesWriter,
};

const APPEND_COMMITS: &str = "INSERT INTO sync_commits (partition, client_id, \
    client_commit_id, actor_id, commit_seq, created_at_ms) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int8[], $6::int8[])";

const APPEND_CHANGES: &str = "INSERT INTO sync_changes (partition, tbl, row_id, commit_seq, idx, \
    op, row_version, scopes, payload) SELECT q.partition, q.tbl, q.row_id, q.commit_seq, \
    q.idx::int4, q.op::int2, q.row_version, q.scopes::jsonb, q.payload \
    FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::int8[], $6::int8[], \
    $7::int8[], $8::text[], $9::bytea[]) AS q (partition, tbl, row_id, commit_seq, idx, op, \
    row_version, scopes, payload)";

/// A database that was pruned halfway may still have the entry.
const APPEND_SCOPES: &str = "INSERT INTO sync_change_scopes (partition, tbl, var, value, \
    commit_seq) SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int8[]) \
    ON CONFLICT DO NOTHING";

const CLEAR_TOMBSTONES: &str = "DELETE FROM sync_tombstones t \
    USING unnest($1::text[], $2::text[], $3::text[]) AS q (partition, tbl, row_id) \
    WHERE t.partition = q.partition AND t.tbl = q.tbl AND t.row_id = q.row_id";

const PUT_TOMBSTONES: &str = "INSERT INTO sync_tombstones (partition, tbl, row_id, commit_seq, \
    scopes) SELECT q.partition, q.tbl, q.row_id, q.commit_seq, q.scopes::jsonb \
    FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::text[]) \
    AS q (partition, tbl, row_id, commit_seq, scopes) \
    ON CONFLICT (partition, tbl, row_id) DO UPDATE SET commit_seq = excluded.commit_seq, \
    scopes = excluded.scopes";

const PUT_RESULTS: &str = "INSERT INTO sync_push_results (partition, client_id, \
    client_commit_id, result) SELECT q.partition, q.client_id, q.client_commit_id, \
    q.result::jsonb FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY \
    AS q (partition, client_id, client_commit_id, result, place) ORDER BY q.place \
    ON CONFLICT DO NOTHING";

const BIND_CLIENTS: &str = "INSERT INTO sync_clients (partition, client_id, actor_id, \
    wire_version, cursor, subscriptions, updated_at_ms) SELECT q.partition, q.client_id, \
    q.actor_id, 0, -1, '[]', q.at_ms FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[]) \
    WITH ORDINALITY AS q (partition, client_id, actor_id, at_ms, place) ORDER BY q.place \
    ON CONFLICT DO NOTHING";

const PUT_REACTIONS: &str = "INSERT INTO sync_reactions (partition, idempotency_key, type, \
    version, payload, source_client_id, source_client_commit_id, source_commit_seq, \
    created_at_ms, available_at_ms, status, attempts, max_attempts) SELECT q.partition, \
    q.key, q.type, q.version::int4, q.payload::jsonb, q.client, q.commit, q.seq, q.at_ms, \
    q.at_ms, 'pending', 0, q.attempts::int4 FROM unnest($1::text[], $2::text[], $3::text[], \
    $4::text[], $5::text[], $6::text[], $7::int8[], $8::int8[], $9::int8[], $10::int8[]) \
    WITH ORDINALITY AS q (partition, key, type, payload, client, commit, version, seq, at_ms, \
    attempts, place) ORDER BY q.place ON CONFLICT DO NOTHING";

const SET_HEADS: &str = "UPDATE sync_partitions p SET max_commit_seq = q.seq \
    FROM unnest($1::text[], $2::int8[]) AS q (partition, seq) WHERE p.partition = q.partition";

type Applied<'a> = (&'a CommitWrite, &'a AppliedCommit);

/// Everything that commits write beside rows.
pub(crate) fn log_steps<'a>(layout: &'a Layout, commits: &[&'a CommitWrite]) -> Vec<Step<'a>> {
    let applied: Vec<Applied<'a>> = commits
        .iter()
        .filter_map(|commit| Some((*commit, commit.applied.as_ref()?)))
        .collect();
    let mut steps = Vec::new();
    push_bindings(&mut steps, commits);
    push_results(&mut steps, commits);
    if applied.is_empty() {
        return steps;
    }
    push_commits(&mut steps, &applied);
    push_changes(&mut steps, layout, &applied);
    push_tombstones(&mut steps, layout, &applied);
    push_reactions(&mut steps, &applied);
    steps
}

fn push_bindings<'a>(steps: &mut Vec<Step<'a>>, commits: &[&'a CommitWrite]) {
    let bound: Vec<(&'a CommitWrite, i64)> = commits
        .iter()
        .filter_map(|commit| Some((*commit, commit.bind_client_at_ms?)))
        .collect();
    if bound.is_empty() {
        return;
    }
    let texts = |text: &dyn Fn(&'a CommitWrite) -> &'a str| {
        Param::texts(bound.iter().map(|(commit, _)| text(commit)).collect())
    };
    let params = vec![
        texts(&|commit| commit.key.partition.as_str()),
        texts(&|commit| commit.key.client.as_str()),
        texts(&|commit| commit.actor.as_str()),
        Param::integers(bound.iter().map(|(_, at_ms)| *at_ms).collect()),
    ];
    steps.push(Step::new(BIND_CLIENTS, params));
}

fn push_results<'a>(steps: &mut Vec<Step<'a>>, commits: &[&'a CommitWrite]) {
    if commits.is_empty() {
        return;
    }
    let texts = |text: &dyn Fn(&'a CommitWrite) -> &'a str| {
        Param::texts(commits.iter().map(|commit| text(commit)).collect())
    };
    let results = commits
        .iter()
        .map(|commit| without_nul(outcome::encode(&commit.result)));
    let params = vec![
        texts(&|commit| commit.key.partition.as_str()),
        texts(&|commit| commit.key.client.as_str()),
        texts(&|commit| &commit.key.client_commit_id),
        Param::owned_texts(results.collect()),
    ];
    steps.push(Step::new(PUT_RESULTS, params));
}

fn push_commits<'a>(steps: &mut Vec<Step<'a>>, applied: &[Applied<'a>]) {
    let texts = |text: &dyn Fn(&'a CommitWrite) -> &'a str| {
        Param::texts(applied.iter().map(|(commit, _)| text(commit)).collect())
    };
    let integers = |integer: &dyn Fn(&AppliedCommit) -> i64| {
        Param::integers(
            applied
                .iter()
                .map(|(_, applied)| integer(applied))
                .collect(),
        )
    };
    let params = vec![
        texts(&|commit| commit.key.partition.as_str()),
        texts(&|commit| commit.key.client.as_str()),
        texts(&|commit| &commit.key.client_commit_id),
        texts(&|commit| commit.actor.as_str()),
        integers(&|applied| applied.commit_seq.to_i64()),
        integers(&|applied| applied.created_at_ms),
    ];
    steps.push(Step::new(APPEND_COMMITS, params));
    let mut heads: HashMap<&str, i64> = HashMap::new();
    for (commit, applied) in applied {
        heads.insert(commit.key.partition.as_str(), applied.commit_seq.to_i64());
    }
    let (names, seqs) = heads.into_iter().unzip();
    let params = vec![Param::texts(names), Param::integers(seqs)];
    steps.push(Step::new(SET_HEADS, params));
}

fn push_changes<'a>(steps: &mut Vec<Step<'a>>, layout: &'a Layout, applied: &[Applied<'a>]) {
    let mut keys: Vec<[&str; 3]> = Vec::new();
    let (mut seqs, mut indexes, mut ops, mut versions) = (vec![], vec![], vec![], vec![]);
    let (mut scope_texts, mut payloads) = (Vec::new(), Vec::new());
    let mut entries: Vec<([&str; 4], i64)> = Vec::new();
    let mut writer = ScopesWriter::default();
    for (commit, applied) in applied {
        let seq = applied.commit_seq.to_i64();
        let partition = commit.key.partition.as_str();
        let before = entries.len();
        for (index, change) in (0_i64..).zip(&applied.changes) {
            let table = layout.table(change.table).name();
            keys.push([partition, table, &change.row_id]);
            seqs.push(seq);
            indexes.push(index);
            let (op, version, payload) = logged(change);
            ops.push(i64::from(op.tag()));
            versions.push(version);
            payloads.push(payload);
            let scopes = match &change.kind {
                ChangeKind::Upsert { row, .. } => &row.scopes,
                ChangeKind::Delete { scopes } => scopes,
            };
            scope_texts.push(writer.text(scopes));
            let pairs = scopes.iter();
            entries
                .extend(pairs.map(|(variable, value)| ([partition, table, variable, value], seq)));
        }
        entries[before..].sort_unstable();
    }
    entries.dedup();
    if keys.is_empty() {
        return;
    }
    let mut params = columns(&keys);
    params.push(Param::integers(seqs));
    params.push(Param::integers(indexes));
    params.push(Param::integers(ops));
    params.push(Param::integers_or_null(versions));
    params.push(Param::owned_texts(scope_texts));
    params.push(Param::bytes(payloads));
    steps.push(Step::new(APPEND_CHANGES, params));
    if entries.is_empty() {
        return;
    }
    let (keys, seqs): (Vec<[&str; 4]>, Vec<i64>) = entries.into_iter().unzip();
    let mut params = columns(&keys);
    params.push(Param::integers(seqs));
    steps.push(Step::new(APPEND_SCOPES, params));
}

/// A change as the log has it: what it did, version and payload.
fn logged(change: &ChangeWrite) -> (Op, Option<i64>, Option<&[u8]>) {
    match &change.kind {
        ChangeKind::Upsert { row, .. } => {
            (Op::Upsert, Some(row.row_version), Some(&row.payload[..]))
        }
        ChangeKind::Delete { .. } => (Op::Delete, None, None),
    }
}

fn push_tombstones<'a>(steps: &mut Vec<Step<'a>>, layout: &'a Layout, applied: &[Applied<'a>]) {
    let mut order: Vec<[&'a str; 3]> = Vec::new();
    let mut last: HashMap<[&'a str; 3], Option<(i64, String)>> = HashMap::new();
    let mut writer = ScopesWriter::default();
    for (commit, applied) in applied {
        let partition = commit.key.partition.as_str();
        let mut set = |key: [&'a str; 3], tombstone| {
            if last.insert(key, tombstone).is_none() {
                order.push(key);
            }
        };
        for (table, row_id) in &applied.tombstones_cleared {
            set([partition, layout.table(*table).name(), row_id], None);
        }
        for (table, row_id, scopes) in &applied.tombstones {
            let tombstone = (applied.commit_seq.to_i64(), writer.text(scopes));
            set(
                [partition, layout.table(*table).name(), row_id],
                Some(tombstone),
            );
        }
    }
    let (mut cleared, mut kept) = (Vec::new(), Vec::new());
    let (mut seqs, mut scopes) = (Vec::new(), Vec::new());
    for key in order {
        match last.remove(&key).flatten() {
            None => cleared.push(key),
            Some((seq, text)) => {
                kept.push(key);
                seqs.push(seq);
                scopes.push(text);
            }
        }
    }
    push_keys(steps, CLEAR_TOMBSTONES, &cleared);
    if kept.is_empty() {
        return;
    }
    let mut params = columns(&kept);
    params.push(Param::integers(seqs));
    params.push(Param::owned_texts(scopes));
    steps.push(Step::new(PUT_TOMBSTONES, params));
}

fn push_reactions<'a>(steps: &mut Vec<Step<'a>>, applied: &[Applied<'a>]) {
    let planned: Vec<(&'a CommitWrite, &'a AppliedCommit, &'a ReactionWrite)> = applied
        .iter()
        .flat_map(|(commit, applied)| {
            let reactions = applied.reactions.iter();
            reactions.map(|reaction| (*commit, *applied, reaction))
        })
        .collect();
    if planned.is_empty() {
        return;
    }
    let texts = |text: &dyn Fn(&'a CommitWrite, &'a ReactionWrite) -> &'a str| {
        let planned = planned.iter();
        let texts = planned.map(|(commit, _, reaction)| text(commit, reaction));
        Param::texts(texts.collect())
    };
    let integers = |integer: &dyn Fn(&AppliedCommit, &ReactionWrite) -> i64| {
        let planned = planned.iter();
        let integers = planned.map(|(_, applied, reaction)| integer(applied, reaction));
        Param::integers(integers.collect())
    };
    let payloads = planned.iter().map(|(_, _, reaction)| {
        let held: Cow<'_, str> = without_nul(reaction.payload.clone()).into();
        Some(held)
    });
    let params = vec![
        texts(&|commit, _| commit.key.partition.as_str()),
        texts(&|_, reaction| &reaction.idempotency_key),
        texts(&|_, reaction| &reaction.kind),
        Param::new(payloads.collect::<Vec<_>>(), Type::TEXT_ARRAY),
        texts(&|commit, _| commit.key.client.as_str()),
        texts(&|commit, _| &commit.key.client_commit_id),
        integers(&|_, reaction| i64::from(reaction.version)),
        integers(&|applied, _| applied.commit_seq.to_i64()),
        integers(&|applied, _| applied.created_at_ms),
        integers(&|_, reaction| i64::from(reaction.max_attempts)),
    ];
    steps.push(Step::new(PUT_REACTIONS, params));
}

/// Texts that belong together, as one array for each.
fn columns<'a, const N: usize>(keys: &[[&'a str; N]]) -> Vec<Param<'a>> {
    let column = |at: usize| Param::texts(keys.iter().map(|key| key[at]).collect());
    (0..N).map(column).collect()
}
