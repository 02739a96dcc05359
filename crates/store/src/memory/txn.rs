//! The write transaction: a state of its own, and the turn to write.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use bytestring::ByteString;
use tidewater_model::{Cursor, PartitionId};
use tidewater_schema::Schema;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Shared,
    state::{LogChange, LogCommit, Partition, Row, State},
    values::RowFault,
};
use crate::{
    AppliedCommit, ChangeKind, ChangeWrite, Child, ChildQuestion, ClientRecord, CommitWrite,
    Finished, IndexScan, LoadRequest, Loaded, RowKey, RowPage, RowScan, SqlQuery, SqlValue,
    StorageCode, StoreError, StoreErrorKind, StoredResult, StoredRow, Tombstone, Violation,
    WriteTxn, below_fence,
};

pub(super) struct MemoryTxn {
    shared: Arc<Shared>,
    /// What everybody will see when the transaction finishes, but for what is staged.
    state: State,
    /// The state without what is staged, while something is.
    unstaged: Option<State>,
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
            unstaged: None,
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
        self.assert_locked(&key.partition);
        let (Some(table), Some(partition)) = (
            self.state.table(&key.partition, key.table),
            self.state.partitions.get(&key.partition),
        ) else {
            return (None, None);
        };
        let row = table.rows.get(&key.row_id).map(|row| row.stored.clone());
        (row, partition.tombstone(table, &key.row_id))
    }

    fn assert_locked(&self, partition: &PartitionId) {
        assert!(
            self.locked.contains(partition),
            "a transaction touches locked partitions only"
        );
    }

    fn take_back(&mut self) {
        if let Some(state) = self.unstaged.take() {
            self.state = state;
        }
    }

    fn apply_all(&mut self, commits: &[Arc<CommitWrite>]) -> Result<Option<Violation>, StoreError> {
        self.check_poison()?;
        self.take_back();
        for (commit, write) in commits.iter().enumerate() {
            self.assert_locked(&write.key.partition);
            let before = self.state.clone();
            let schema = Arc::clone(self.state.schema());
            let partition = self.state.partition_mut(&write.key.partition);
            if let Some(required) = partition.writer_fence
                && write.applied.is_some()
                && required > schema.version()
            {
                self.poisoned = true;
                let name = &write.key.partition;
                return Err(below_fence(name, required, schema.version()));
            }
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

    async fn stage(
        &mut self,
        partition: &PartitionId,
        changes: Vec<ChangeWrite>,
    ) -> Result<Option<i32>, StoreError> {
        self.check_poison()?;
        self.assert_locked(partition);
        let before = self.state.clone();
        self.unstaged.get_or_insert_with(|| before.clone());
        let schema = Arc::clone(self.state.schema());
        let entry = self.state.partition_mut(partition);
        for change in &changes {
            match apply_change(entry, &schema, change) {
                Ok(_) => {}
                Err(ApplyFault::Violation { op_index }) => {
                    self.state = before;
                    return Ok(Some(op_index));
                }
                Err(ApplyFault::Store(error)) => {
                    self.poisoned = true;
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    async fn unstage(&mut self) -> Result<(), StoreError> {
        self.check_poison()?;
        self.take_back();
        Ok(())
    }

    async fn scan_rows(&mut self, scan: RowScan) -> Result<RowPage, StoreError> {
        self.check_poison()?;
        self.assert_locked(&scan.partition);
        Ok(self.state.scan_rows(&scan))
    }

    async fn scan_index(
        &mut self,
        scan: IndexScan,
    ) -> Result<Vec<(ByteString, StoredRow)>, StoreError> {
        self.check_poison()?;
        self.assert_locked(&scan.partition);
        self.state.scan_index(&scan)
    }

    async fn load_children(
        &mut self,
        questions: Vec<ChildQuestion>,
    ) -> Result<Vec<Vec<Child>>, StoreError> {
        self.check_poison()?;
        let answers = questions.iter().map(|question| {
            self.assert_locked(&question.partition);
            self.state.load_children(question)
        });
        answers.collect()
    }

    async fn query(&mut self, _query: SqlQuery) -> Result<Vec<Vec<SqlValue>>, StoreError> {
        Err(StoreError::refused(
            StorageCode::QueryUnsupported,
            "run a query",
            "the memory store has no SQL: use a database for registered queries",
        ))
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
    partition.put_reactions(&write.key, applied);
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
                    RowFault::Taken => ApplyFault::Violation {
                        op_index: change.op_index,
                    },
                    RowFault::Store(error) => ApplyFault::Store(error),
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
