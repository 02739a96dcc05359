//! The write transaction: a state of its own, and the turn to write.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use tidewater_model::{Cursor, PartitionId};
use tidewater_schema::Schema;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Shared,
    state::{LogChange, LogCommit, Partition, Row, State, UniqueFault},
};
use crate::{
    AppliedCommit, ChangeKind, ChangeWrite, ClientRecord, CommitWrite, Finished, LoadRequest,
    Loaded, RowKey, StoreError, StoreErrorKind, StoredResult, StoredRow, Tombstone, Violation,
    WriteTxn,
};

pub(super) struct MemoryTxn {
    shared: Arc<Shared>,
    /// What everybody will see when the transaction finishes.
    state: State,
    locked: BTreeSet<PartitionId>,
    poisoned: bool,
    /// Given back after everything else is gone.
    turn: OwnedSemaphorePermit,
}

impl MemoryTxn {
    pub(super) fn new(shared: Arc<Shared>, turn: OwnedSemaphorePermit) -> Self {
        let state = State::clone(&shared.snapshot());
        Self {
            shared,
            state,
            locked: BTreeSet::new(),
            poisoned: false,
            turn,
        }
    }

    fn check_poison(&self) -> Result<(), StoreError> {
        if self.poisoned {
            return Err(StoreError::new(
                StoreErrorKind::Corrupt,
                "use a transaction that failed",
            ));
        }
        Ok(())
    }

    fn load_row(&self, key: &RowKey) -> (Option<StoredRow>, Option<Tombstone>) {
        assert!(
            self.locked.contains(&key.partition),
            "rows are loaded from locked partitions"
        );
        let (Some(table), Some(partition)) = (
            self.state.table(&key.partition, key.table),
            self.state.partitions.get(&key.partition),
        ) else {
            return (None, None);
        };
        let row = table.rows.get(&key.row_id).map(|row| row.stored.clone());
        (row, partition.tombstone(table, &key.row_id))
    }

    fn apply_all(&mut self, commits: &[Arc<CommitWrite>]) -> Result<Option<Violation>, StoreError> {
        self.check_poison()?;
        for (commit, write) in commits.iter().enumerate() {
            assert!(
                self.locked.contains(&write.key.partition),
                "a commit is applied to a locked partition"
            );
            let before = self.state.clone();
            let schema = Arc::clone(self.state.schema());
            let partition = self.state.partition_mut(&write.key.partition);
            match apply_commit(partition, &schema, write) {
                Ok(()) => {}
                Err(ApplyFault::Violation { op_index }) => {
                    self.state = before;
                    return Ok(Some(Violation { commit, op_index }));
                }
                Err(ApplyFault::Store(error)) => {
                    self.poisoned = true;
                    return Err(error);
                }
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl WriteTxn for MemoryTxn {
    async fn load(&mut self, wanted: LoadRequest) -> Result<Loaded, StoreError> {
        self.check_poison()?;
        self.locked.extend(wanted.partitions.iter().cloned());
        let state = &self.state;
        let (rows, tombstones) = wanted.rows.iter().map(|key| self.load_row(key)).unzip();
        Ok(Loaded {
            gates: wanted.partitions.iter().map(|p| state.gate(p)).collect(),
            rows,
            tombstones,
            push_results: wanted
                .push_results
                .iter()
                .map(|key| state.find_push_result(key))
                .collect(),
            clients: wanted
                .clients
                .iter()
                .map(|key| state.find_client(&key.partition, &key.client))
                .collect(),
        })
    }

    async fn apply(
        &mut self,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Option<Violation>, StoreError> {
        self.apply_all(&commits)
    }

    async fn finish(
        mut self: Box<Self>,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Finished, StoreError> {
        if let Some(violation) = self.apply_all(&commits)? {
            return Ok(Finished::Violated(self, violation));
        }
        let Self {
            shared,
            state,
            turn,
            ..
        } = *self;
        shared.publish(state);
        drop(turn);
        Ok(Finished::Committed)
    }
}

enum ApplyFault {
    Violation { op_index: i32 },
    Store(StoreError),
}

impl From<StoreError> for ApplyFault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn apply_commit(
    partition: &mut Partition,
    schema: &Schema,
    write: &CommitWrite,
) -> Result<(), ApplyFault> {
    if let Some(at_ms) = write.bind_client_at_ms {
        let client = partition.clients.entry(write.key.client.clone());
        client.or_insert_with(|| {
            Arc::new(ClientRecord {
                actor: write.actor.clone(),
                cursor: Cursor::Never,
                subscriptions: Vec::new(),
                wire_version: 0,
                updated_at_ms: at_ms,
                failure: None,
            })
        });
    }
    partition.put_result(&write.key, || {
        StoredResult::Readable(Box::new(write.result.clone()))
    });
    match &write.applied {
        Some(applied) => append_commit(partition, schema, write, applied),
        None => Ok(()),
    }
}

fn append_commit(
    partition: &mut Partition,
    schema: &Schema,
    write: &CommitWrite,
    applied: &AppliedCommit,
) -> Result<(), ApplyFault> {
    let seq = applied.commit_seq;
    assert_eq!(
        seq,
        partition.head.next(),
        "a commit's place is one above the head"
    );
    partition.head = seq;
    let mut changes = Vec::with_capacity(applied.changes.len());
    for change in &applied.changes {
        let logged = apply_change(partition, schema, change)?;
        let table = partition.table_mut(schema.table(change.table));
        table.commits_by_scope.insert(&logged.scopes, &seq);
        changes.push(logged);
    }
    for (table, row_id) in &applied.tombstones_cleared {
        let table = partition.table_mut(schema.table(*table));
        table.tombstones.remove(row_id);
    }
    for (table, row_id, scopes) in &applied.tombstones {
        let table = partition.table_mut(schema.table(*table));
        let tombstone = Tombstone {
            commit_seq: seq,
            scopes: Some(scopes.clone()),
        };
        table.tombstones.insert(row_id.clone(), Arc::new(tombstone));
    }
    let commit = LogCommit {
        created_at_ms: applied.created_at_ms,
        actor: write.actor.clone(),
        changes,
    };
    partition.commits.insert(seq, Arc::new(commit));
    Ok(())
}

fn apply_change(
    partition: &mut Partition,
    schema: &Schema,
    change: &ChangeWrite,
) -> Result<LogChange, ApplyFault> {
    let declared = schema.table(change.table);
    let table = partition.table_mut(declared);
    let (row, scopes) = match &change.kind {
        ChangeKind::Upsert { row, scopes_before } => {
            let before = table.rows.get(&change.row_id);
            assert_eq!(
                before.map(|before| &before.stored.scopes),
                scopes_before.as_ref(),
                "the scopes before an upsert are those of the stored row"
            );
            let kept_blob_ids = || before.map(|before| before.blob_ids.clone());
            let stored = Row {
                stored: StoredRow {
                    row_version: row.row_version,
                    scopes: row.scopes.clone(),
                    payload: row.payload.clone(),
                    column_versions: row.column_versions.clone(),
                },
                blob_ids: row
                    .blob_ids
                    .clone()
                    .or_else(kept_blob_ids)
                    .unwrap_or_default(),
            };
            table
                .put(declared, &change.row_id, stored)
                .map_err(|fault| match fault {
                    UniqueFault::Taken => ApplyFault::Violation {
                        op_index: change.op_index,
                    },
                    UniqueFault::Store(error) => ApplyFault::Store(error),
                })?;
            (Some((row.row_version, row.payload.clone())), &row.scopes)
        }
        ChangeKind::Delete { scopes } => {
            let before = table.take(declared, &change.row_id)?;
            assert_eq!(
                before.as_ref().map(|before| &before.stored.scopes),
                Some(scopes),
                "the scopes of a delete are those of the stored row"
            );
            (None, scopes)
        }
    };
    Ok(LogChange {
        table: Arc::clone(&table.name),
        row_id: change.row_id.clone(),
        row,
        scopes: scopes.clone(),
    })
}
