//! Commits put into the store directly: history that a test starts from.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use tidewater_model::{ActorId, ClientId, CommitSeq, PartitionId, StoredScopes};
use tidewater_store::{
    AppliedCommit, ChangeKind, ChangeWrite, CommitWrite, Finished, LoadRequest, PushKey,
    PushResultRecord, PushStatus, RowKey, RowState, Store, StoredRow,
};
use tidewater_wire::row::{RowWriter, Value};

use super::{PARTITION, TestServer};
use crate::Clock;

impl TestServer {
    /// Writes a commit past the push half and returns its place.
    pub(crate) async fn commit(&self, writes: &[Write<'_>]) -> i64 {
        self.commit_to(PARTITION, writes).await
    }

    pub(crate) async fn commit_to(&self, partition: &str, writes: &[Write<'_>]) -> i64 {
        let partition = PartitionId::new(partition);
        self.engine
            .partitions
            .touch(&self.engine, &partition)
            .await
            .unwrap();
        let number = self.commits_seeded.fetch_add(1, Ordering::Relaxed);
        let keys: Vec<RowKey> = writes
            .iter()
            .map(|write| RowKey {
                partition: partition.clone(),
                table: self.index(write.table()),
                row_id: write.row_id().into(),
            })
            .collect();
        let wanted = LoadRequest {
            partitions: vec![partition.clone()],
            rows: keys.clone(),
            ..LoadRequest::default()
        };
        let (txn, loaded) = self.store.begin_write(wanted).await.unwrap();
        let commit_seq = loaded.gates[0].head.next();
        let applied = AppliedCommit {
            commit_seq,
            created_at_ms: self.clock.now_ms(),
            ..self.apply(&keys, writes, loaded.rows)
        };
        let write = CommitWrite {
            key: PushKey {
                partition: partition.clone(),
                client: ClientId::new("seed"),
                client_commit_id: format!("seed-{number}").into(),
            },
            actor: ActorId::new("seeder"),
            result: PushResultRecord {
                status: PushStatus::Applied(commit_seq),
                results: Vec::new(),
                recorded_at_ms: None,
                actor: None,
                schema_version: None,
                content_digest: None,
            },
            applied: Some(applied),
            bind_client_at_ms: None,
        };
        assert!(matches!(
            txn.finish(vec![Arc::new(write)]).await,
            Ok(Finished::Committed)
        ));
        self.engine.partitions.advance_head(&partition, commit_seq);
        commit_seq.to_i64()
    }

    /// What writes do to the rows that are stored.
    fn apply(
        &self,
        keys: &[RowKey],
        writes: &[Write<'_>],
        rows: Vec<Option<StoredRow>>,
    ) -> AppliedCommit {
        let mut candidate: BTreeMap<&RowKey, Option<(i64, StoredScopes)>> = keys
            .iter()
            .zip(rows)
            .map(|(key, row)| (key, row.map(|row| (row.row_version, row.scopes))))
            .collect();
        let mut deleted: BTreeMap<&RowKey, StoredScopes> = BTreeMap::new();
        let mut applied = AppliedCommit {
            commit_seq: CommitSeq::START,
            created_at_ms: 0,
            changes: Vec::new(),
            tombstones: Vec::new(),
            tombstones_cleared: Vec::new(),
            reactions: Vec::new(),
        };
        for (key, write) in keys.iter().zip(writes) {
            let before = candidate.get_mut(key).unwrap();
            let kind = match write {
                Write::Delete(..) => {
                    let (_, scopes) = before.take().expect("a row is deleted that exists");
                    deleted.insert(key, scopes.clone());
                    ChangeKind::Delete { scopes }
                }
                Write::Upsert(table, values) => {
                    deleted.remove(key);
                    let scopes = self
                        .table(table)
                        .stored_scopes(|index| values[index])
                        .unwrap();
                    let row_version = before.as_ref().map_or(1, |(version, _)| version + 1);
                    let scopes_before = before.replace((row_version, scopes.clone()));
                    let payload = full_row(values).into();
                    let (column_versions, blob_ids) = (None, None);
                    let row = RowState {
                        row_version,
                        scopes,
                        payload,
                        column_versions,
                        blob_ids,
                    };
                    ChangeKind::Upsert {
                        row,
                        scopes_before: scopes_before.map(|(_, s)| s),
                    }
                }
            };
            let (table, row_id) = (key.table, key.row_id.clone());
            applied.changes.push(ChangeWrite {
                table,
                row_id,
                op_index: 0,
                kind,
            });
        }
        for (key, row) in candidate {
            if row.is_some() {
                applied
                    .tombstones_cleared
                    .push((key.table, key.row_id.clone()));
            }
        }
        for (key, scopes) in deleted {
            applied
                .tombstones
                .push((key.table, key.row_id.clone(), scopes));
        }
        applied
    }
}

/// One write of a seeded commit; the first value is the primary key, a string.
pub(crate) enum Write<'a> {
    Upsert(&'a str, Vec<Option<Value<'a>>>),
    Delete(&'a str, &'a str),
}

impl Write<'_> {
    fn table(&self) -> &str {
        match self {
            Self::Upsert(table, _) | Self::Delete(table, _) => table,
        }
    }

    fn row_id(&self) -> &str {
        match self {
            Self::Delete(_, row_id) => row_id,
            Self::Upsert(_, values) => match values[0] {
                Some(Value::String(row_id)) => row_id,
                _ => panic!("the primary keys of the test schema are strings"),
            },
        }
    }
}

pub(crate) fn note<'a>(id: &'a str, team: &'a str, body: &'a str) -> Write<'a> {
    let text = |text| Some(Value::String(text));
    Write::Upsert("notes", vec![text(id), text(team), text(body)])
}

pub(crate) fn task<'a>(id: &'a str, org: &'a str, list: &'a str) -> Write<'a> {
    let text = |text| Some(Value::String(text));
    Write::Upsert("tasks", vec![text(id), text(org), text(list), None, None])
}

pub(crate) fn secret<'a>(id: &'a str, team: &'a str, pin: &'a [u8]) -> Write<'a> {
    let text = |text| Some(Value::String(text));
    Write::Upsert(
        "secrets",
        vec![text(id), text(team), Some(Value::Bytes(pin))],
    )
}

/// A row in codec bytes.
pub(crate) fn full_row(values: &[Option<Value<'_>>]) -> Vec<u8> {
    let mut writer = RowWriter::new(values.len());
    for value in values {
        match value {
            None => writer.null(),
            Some(value) => writer.value(value),
        }
    }
    writer.finish()
}
