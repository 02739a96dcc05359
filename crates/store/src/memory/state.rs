//! Everything the database holds, as one value of persistent maps: a clone costs a few pointers
//! and shares all it does not change.
//!
//! Tables are kept by name: a schema version may give them other positions.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;
use bytestring::ByteString;
use imbl::OrdMap;
use tidewater_model::{
    ActorId, ClientId, CommitSeq, HorizonSeq, LogEpoch, PartitionId, StoredScopes,
};
use tidewater_schema::{Schema, Table, TableIndex};

use super::{
    index::ScopeIndex,
    values::{RowFault, ValueIndexes},
};
use crate::{
    ActivityBatch, Checkpoint, ClientRecord, Gate, PartitionRecord, Pruned, PushKey,
    ReactionRecord, RowKey, StoreError, StoredResult, StoredRow, Tombstone,
};

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// The schema of the last migration.
    pub(super) schema: Option<Arc<Schema>>,
    pub(super) partitions: OrdMap<PartitionId, Arc<Partition>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Partition {
    pub(super) registration: Option<Registration>,
    pub(super) head: CommitSeq,
    pub(super) horizon: HorizonSeq,
    pub(super) tables: OrdMap<Arc<str>, Arc<TableState>>,
    pub(super) commits: OrdMap<CommitSeq, Arc<LogCommit>>,
    pub(super) results: OrdMap<(ClientId, ByteString), Arc<StoredResult>>,
    pub(super) clients: OrdMap<ClientId, Arc<ClientRecord>>,
    pub(super) reactions: OrdMap<String, Arc<ReactionRecord>>,
    pub(super) writer_fence: Option<i32>,
    pub(super) checkpoints: OrdMap<String, Arc<Checkpoint>>,
}

#[derive(Clone, Debug)]
pub(super) struct Registration {
    pub(super) log_epoch: LogEpoch,
    pub(super) epoch_required: bool,
    pub(super) last_authenticated_at_ms: i64,
}

#[derive(Clone, Debug)]
pub(super) struct LogCommit {
    pub(super) created_at_ms: i64,
    pub(super) actor: ActorId,
    pub(super) changes: Vec<LogChange>,
}

#[derive(Clone, Debug)]
pub(super) struct LogChange {
    pub(super) table: Arc<str>,
    pub(super) row_id: ByteString,
    /// Row version and payload of an upsert.
    pub(super) row: Option<(i64, Bytes)>,
    pub(super) scopes: StoredScopes,
}

#[derive(Clone, Debug)]
pub(super) struct TableState {
    pub(super) name: Arc<str>,
    pub(super) rows: OrdMap<ByteString, Arc<Row>>,
    pub(super) rows_by_scope: ScopeIndex<ByteString>,
    pub(super) commits_by_scope: ScopeIndex<CommitSeq>,
    pub(super) tombstones: OrdMap<ByteString, Arc<Tombstone>>,
    /// As declared at the last migration.
    pub(super) indexes: ValueIndexes,
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) stored: StoredRow,
    pub(super) blob_ids: Vec<String>,
}

impl State {
    /// The schema in force.
    ///
    /// # Panics
    ///
    /// Before [`crate::Store::prepare`].
    pub(super) fn schema(&self) -> &Arc<Schema> {
        self.schema.as_ref().expect("`prepare` comes first")
    }

    pub(super) fn partition_mut(&mut self, partition: &PartitionId) -> &mut Partition {
        let entry = self.partitions.entry(partition.clone());
        Arc::make_mut(entry.or_default())
    }

    pub(super) fn table(&self, partition: &PartitionId, table: TableIndex) -> Option<&TableState> {
        let name = self.schema().table(table).name.as_str();
        let table = self.partitions.get(partition)?.tables.get(name)?;
        Some(table)
    }

    pub(super) fn gate(&self, partition: &PartitionId) -> Gate {
        let entry = self.partitions.get(partition);
        Gate {
            log_epoch: entry
                .and_then(|entry| entry.registration.as_ref())
                .map(|registration| registration.log_epoch.clone()),
            schema_version: self.schema().version(),
            head: entry.map_or(CommitSeq::START, |entry| entry.head),
            horizon: entry.map_or(HorizonSeq::START, |entry| entry.horizon),
            writer_fence: entry.and_then(|entry| entry.writer_fence),
            pending_checkpoints: entry.map_or_else(Vec::new, |entry| entry.pending().collect()),
        }
    }

    pub(super) fn find_row(&self, key: &RowKey) -> Option<StoredRow> {
        let table = self.table(&key.partition, key.table)?;
        table.rows.get(&key.row_id).map(|row| row.stored.clone())
    }

    pub(super) fn find_push_result(&self, key: &PushKey) -> Option<StoredResult> {
        let entry = self.partitions.get(&key.partition)?;
        let result = entry
            .results
            .get(&(key.client.clone(), key.client_commit_id.clone()))?;
        Some(StoredResult::clone(result))
    }

    pub(super) fn find_client(
        &self,
        partition: &PartitionId,
        client: &ClientId,
    ) -> Option<ClientRecord> {
        let record = self.partitions.get(partition)?.clients.get(client)?;
        Some(ClientRecord::clone(record))
    }

    pub(super) fn put_activity(&mut self, batch: ActivityBatch) {
        for (partition, at_ms) in batch.touches {
            let Some(entry) = self.partitions.get_mut(&partition) else {
                continue;
            };
            if let Some(registration) = &mut Arc::make_mut(entry).registration {
                registration.seen(at_ms);
            }
        }
        for (key, epoch, record) in batch.clients {
            let Some(entry) = self.partitions.get_mut(&key.partition) else {
                continue;
            };
            let current = entry
                .registration
                .as_ref()
                .is_some_and(|registration| registration.log_epoch == epoch);
            let foreign = entry
                .clients
                .get(&key.client)
                .is_some_and(|stored| stored.actor != record.actor);
            if current && !foreign {
                Arc::make_mut(entry)
                    .clients
                    .insert(key.client, Arc::new(record));
            }
        }
    }
}

impl Registration {
    /// Clocks of several processes differ; a partition is never less recently seen than before.
    pub(super) fn seen(&mut self, at_ms: i64) {
        self.last_authenticated_at_ms = self.last_authenticated_at_ms.max(at_ms);
    }
}

impl Partition {
    pub(super) fn record(&self, partition: &PartitionId) -> Option<PartitionRecord> {
        let registration = self.registration.as_ref()?;
        Some(PartitionRecord {
            partition: partition.clone(),
            log_epoch: registration.log_epoch.clone(),
            epoch_required: registration.epoch_required,
            last_authenticated_at_ms: registration.last_authenticated_at_ms,
            head: self.head,
            horizon: self.horizon,
        })
    }

    pub(super) fn table_mut(&mut self, table: &Table) -> &mut TableState {
        let name = table.name.as_str();
        if !self.tables.contains_key(name) {
            let state = TableState::new(table);
            self.tables.insert(Arc::clone(&state.name), Arc::new(state));
        }
        Arc::make_mut(self.tables.get_mut(name).expect("it was just inserted"))
    }

    /// Tombstones above the horizon only: below it an unversioned write wins again (§4.6).
    pub(super) fn tombstone(&self, table: &TableState, row_id: &str) -> Option<Tombstone> {
        let tombstone = table.tombstones.get(row_id)?;
        (!self.horizon.covers(tombstone.commit_seq)).then(|| Tombstone::clone(tombstone))
    }

    /// Records an outcome unless there is one.
    pub(super) fn put_result(&mut self, key: &PushKey, result: impl FnOnce() -> StoredResult) {
        self.results
            .entry((key.client.clone(), key.client_commit_id.clone()))
            .or_insert_with(|| Arc::new(result()));
    }

    pub(super) fn replace_result(&mut self, key: &PushKey, result: StoredResult) {
        let key = (key.client.clone(), key.client_commit_id.clone());
        self.results.insert(key, Arc::new(result));
    }

    pub(super) fn prune(&mut self, horizon: HorizonSeq) -> Pruned {
        let previous = self.horizon;
        self.horizon = previous.max(horizon);
        let through = (Bound::Unbounded, Bound::Included(self.horizon.seq()));
        let removed: Vec<_> = self
            .commits
            .range::<_, CommitSeq>(through)
            .map(|(seq, commit)| (*seq, Arc::clone(commit)))
            .collect();
        for (seq, commit) in &removed {
            self.commits.remove(seq);
            for change in &commit.changes {
                if let Some(table) = self.tables.get_mut(&change.table) {
                    let table = Arc::make_mut(table);
                    table.commits_by_scope.remove(&change.scopes, seq);
                }
            }
        }
        each_mut(&mut self.tables, |table| {
            Arc::make_mut(table).forget_tombstones(self.horizon);
        });
        Pruned {
            previous,
            horizon: self.horizon,
            removed_commits: u64::try_from(removed.len()).expect("a count fits"),
        }
    }
}

impl TableState {
    pub(super) fn new(table: &Table) -> Self {
        Self {
            name: Arc::from(table.name.as_str()),
            rows: OrdMap::new(),
            rows_by_scope: ScopeIndex::default(),
            commits_by_scope: ScopeIndex::default(),
            tombstones: OrdMap::new(),
            indexes: ValueIndexes::declared(table),
        }
    }

    /// Builds the declared indexes anew, as `table` has them.
    pub(super) fn index_values(&mut self, table: &Table) -> Result<(), RowFault> {
        self.indexes = ValueIndexes::declared(table);
        for (row_id, row) in &self.rows {
            let keys = self.indexes.keys(table, &row.stored.payload)?;
            self.indexes.insert(&keys, row_id)?;
        }
        Ok(())
    }

    /// Stores a row in the place of the one there was.
    pub(super) fn put(
        &mut self,
        table: &Table,
        row_id: &ByteString,
        row: Row,
    ) -> Result<(), RowFault> {
        let before = self.rows.get(row_id).cloned();
        let keys = self.indexes.keys(table, &row.stored.payload)?;
        if let Some(before) = &before {
            let keys_before = self.indexes.keys(table, &before.stored.payload)?;
            self.indexes.remove(&keys_before, row_id);
            if before.stored.scopes != row.stored.scopes {
                self.rows_by_scope.remove(&before.stored.scopes, row_id);
            }
        }
        self.indexes.insert(&keys, row_id)?;
        self.rows_by_scope.insert(&row.stored.scopes, row_id);
        self.rows.insert(row_id.clone(), Arc::new(row));
        Ok(())
    }

    /// Removes a row, if it is there, and gives it back.
    pub(super) fn take(
        &mut self,
        table: &Table,
        row_id: &ByteString,
    ) -> Result<Option<Arc<Row>>, StoreError> {
        let Some(row) = self.rows.remove(row_id) else {
            return Ok(None);
        };
        let keys = self.indexes.keys(table, &row.stored.payload)?;
        self.indexes.remove(&keys, row_id);
        self.rows_by_scope.remove(&row.stored.scopes, row_id);
        Ok(Some(row))
    }

    fn forget_tombstones(&mut self, horizon: HorizonSeq) {
        let gone: Vec<_> = self
            .tombstones
            .iter()
            .filter(|(_, tombstone)| horizon.covers(tombstone.commit_seq))
            .map(|(row_id, _)| row_id.clone())
            .collect();
        for row_id in &gone {
            self.tombstones.remove(row_id);
        }
    }
}

/// Visits every value of a map, to change it.
pub(super) fn each_mut<K, V>(map: &mut OrdMap<K, V>, mut change: impl FnMut(&mut V))
where
    K: Clone + Ord,
    V: Clone,
{
    let keys: Vec<K> = map.keys().cloned().collect();
    for key in keys {
        change(map.get_mut(&key).expect("the keys stay"));
    }
}

/// [`each_mut`], until a change fails.
pub(super) fn try_each_mut<K, V>(
    map: &mut OrdMap<K, V>,
    mut change: impl FnMut(&mut V) -> Result<(), StoreError>,
) -> Result<(), StoreError>
where
    K: Clone + Ord,
    V: Clone,
{
    let mut result = Ok(());
    each_mut(map, |value| {
        if result.is_ok() {
            result = change(value);
        }
    });
    result
}
