//! Schemas, rows and commits for tests of stores.
//!
//! Rows are [`Item`]s: what a test says about a row is what it is about, the rest has defaults.
//! Commits are [`Draft`]s, which keep the promises that the contract asks of its caller.

use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;
use serde_json::{Value as Json, json};
use tidewater_model::{
    ActorId, ClientId, CommitSeq, LogEpoch, PartitionId, ScopeFilter, ScopeValues, StoredScopes,
};
use tidewater_schema::{Schema, TableIndex};
use tidewater_wire::row::{RowWriter, Value};

use super::{SeenPage, SeenWindow};
use crate::{
    AppliedCommit, ChangeKind, ChangeWrite, CommitWrite, LoadRequest, PartitionTouch, PushKey,
    PushResultRecord, PushStatus, ResultRecord, RowKey, RowScan, RowState, Store, StoredRow,
    WindowRequest,
};

/// Scopes `team` and `owner`; `code` is unique.
pub const NOTES: TableIndex = TableIndex(0);
/// The same columns; `team` and `code` together are unique.
pub const TASKS: TableIndex = TableIndex(1);
/// One column of each type, an integer as key.
pub const SAMPLES: TableIndex = TableIndex(2);

/// When everything happens that does not say otherwise.
pub const NOW_MS: i64 = 1_700_000_000_000;

/// The first version of the schema, as a document to change.
pub fn schema_document() -> Json {
    let item_columns = json!([
        {"name": "id", "type": "string", "nullable": false},
        {"name": "team", "type": "string", "nullable": false},
        {"name": "owner", "type": "string", "nullable": false},
        {"name": "code", "type": "string", "nullable": true},
        {"name": "body", "type": "string", "nullable": true},
    ]);
    let item_scopes = json!([
        {"pattern": "team:{team}", "variable": "team", "column": "team"},
        {"pattern": "owner:{owner}", "variable": "owner", "column": "owner"},
    ]);
    json!({
        "irVersion": 1,
        "schemaVersion": 1,
        "tables": [
            {
                "name": "notes", "primaryKey": "id",
                "columns": item_columns, "scopes": item_scopes,
                "indexes": [{"name": "notes_code", "columns": ["code"], "unique": true}],
            },
            {
                "name": "tasks", "primaryKey": "id",
                "columns": item_columns, "scopes": item_scopes,
                "indexes": [
                    {"name": "tasks_team_code", "columns": ["team", "code"], "unique": true},
                    {"name": "tasks_body", "columns": ["body"], "unique": false},
                ],
            },
            {
                "name": "samples", "primaryKey": "id",
                "columns": [
                    {"name": "id", "type": "integer", "nullable": false},
                    {"name": "team", "type": "string", "nullable": false},
                    {"name": "count", "type": "integer", "nullable": true},
                    {"name": "ratio", "type": "float", "nullable": true},
                    {"name": "done", "type": "boolean", "nullable": true},
                    {"name": "meta", "type": "json", "nullable": true},
                    {"name": "raw", "type": "bytes", "nullable": true},
                    {"name": "photo", "type": "blob_ref", "nullable": true},
                    {"name": "doc", "type": "crdt", "nullable": true, "crdtType": "yjs-doc"},
                ],
                "scopes": [{"pattern": "team:{team}", "variable": "team", "column": "team"}],
            },
        ],
    })
}

/// Compiles a document.
pub fn compile(document: &Json) -> Arc<Schema> {
    Arc::new(Schema::from_json(&document.to_string()).unwrap())
}

/// The first version of the schema.
pub fn schema() -> Arc<Schema> {
    compile(&schema_document())
}

/// A partition.
pub fn partition(name: &str) -> PartitionId {
    PartitionId::new(name)
}

/// A client.
pub fn client(name: &str) -> ClientId {
    ClientId::new(name)
}

/// An actor.
pub fn actor(name: &str) -> ActorId {
    ActorId::new(name)
}

/// An epoch.
pub fn epoch(name: &str) -> LogEpoch {
    LogEpoch::new(name)
}

/// A place in the log.
pub fn seq(raw: u64) -> CommitSeq {
    CommitSeq::new(raw).unwrap()
}

/// A filter.
pub fn filter(entries: &[(&str, &[&str])]) -> ScopeFilter {
    let entries = entries
        .iter()
        .map(|&(variable, values)| ScopeValues {
            variable: variable.to_owned(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
        })
        .collect();
    ScopeFilter::new(entries).unwrap()
}

/// The filter of team `t1`, in which an [`Item`] is unless it says otherwise.
pub fn team_one() -> ScopeFilter {
    filter(&[("team", &["t1"])])
}

/// Scopes.
pub fn scopes(pairs: &[(&str, &str)]) -> StoredScopes {
    let pairs = pairs
        .iter()
        .map(|&(variable, value)| (variable.to_owned(), value.to_owned()))
        .collect();
    StoredScopes::new(pairs).unwrap()
}

/// Asks to lock partitions and nothing else.
pub fn lock(names: &[&str]) -> LoadRequest {
    LoadRequest {
        partitions: names.iter().map(|name| partition(name)).collect(),
        ..LoadRequest::default()
    }
}

/// Registers a partition with the epoch `e1`.
pub async fn touch(store: &dyn Store, name: &str) {
    let touch = PartitionTouch {
        partition: partition(name),
        initial_epoch: epoch("e1"),
        at_ms: NOW_MS,
    };
    store.touch_partition(touch).await.unwrap();
}

/// A window without limits: change what a test is about.
pub fn whole_log(name: &str, table: TableIndex, filter: ScopeFilter) -> WindowRequest {
    WindowRequest {
        partition: partition(name),
        table,
        filter,
        after: CommitSeq::START,
        through: CommitSeq::MAX,
        changes_max: 1_000_000,
        bytes_max: 1 << 30,
    }
}

/// A scan without limits: change what a test is about.
pub fn all_rows(name: &str, table: TableIndex, filter: ScopeFilter) -> RowScan {
    RowScan {
        partition: partition(name),
        table,
        filter,
        after: None,
        rows_max: 1_000_000,
        bytes_max: 1 << 30,
    }
}

/// Reads a window.
pub async fn window(store: &dyn Store, request: WindowRequest) -> SeenWindow {
    SeenWindow::from(&store.read_window(request).await.unwrap())
}

/// Reads a page.
pub async fn page(store: &dyn Store, scan: RowScan) -> SeenPage {
    SeenPage::from(&store.scan_rows(scan).await.unwrap())
}

/// A row of [`NOTES`] or [`TASKS`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Item {
    /// The table.
    pub table: TableIndex,
    /// The primary key.
    pub id: String,
    /// First scope.
    pub team: String,
    /// Second scope.
    pub owner: String,
    /// The unique column.
    pub code: Option<String>,
    /// Any text.
    pub body: Option<String>,
    /// Its version.
    pub version: i64,
    /// Column versions.
    pub column_versions: Option<Bytes>,
    /// The blobs it references; `None` leaves them as they are.
    pub blob_ids: Option<Vec<String>>,
}

impl Item {
    /// A row of a table at version 1, in team `t1` and of owner `o1`.
    pub fn new(table: TableIndex, id: &str) -> Self {
        Self {
            table,
            id: id.to_owned(),
            team: "t1".to_owned(),
            owner: "o1".to_owned(),
            code: None,
            body: None,
            version: 1,
            column_versions: None,
            blob_ids: None,
        }
    }

    /// A note.
    pub fn note(id: &str) -> Self {
        Self::new(NOTES, id)
    }

    /// A task.
    pub fn task(id: &str) -> Self {
        Self::new(TASKS, id)
    }

    /// In another team.
    #[must_use]
    pub fn team(mut self, team: &str) -> Self {
        team.clone_into(&mut self.team);
        self
    }

    /// Of another owner.
    #[must_use]
    pub fn owner(mut self, owner: &str) -> Self {
        owner.clone_into(&mut self.owner);
        self
    }

    /// With a code.
    #[must_use]
    pub fn code(mut self, code: &str) -> Self {
        self.code = Some(code.to_owned());
        self
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, body: &str) -> Self {
        self.body = Some(body.to_owned());
        self
    }

    /// With column versions.
    #[must_use]
    pub fn column_versions(mut self, versions: &'static [u8]) -> Self {
        self.column_versions = Some(Bytes::from_static(versions));
        self
    }

    /// With references to blobs.
    #[must_use]
    pub fn blobs(mut self, ids: &[&str]) -> Self {
        self.blob_ids = Some(ids.iter().map(|&id| id.to_owned()).collect());
        self
    }

    /// The next version of it.
    #[must_use]
    pub fn next(&self) -> Self {
        Self {
            version: self.version + 1,
            ..self.clone()
        }
    }

    /// Its name within a partition.
    pub fn key(&self, name: &str) -> RowKey {
        RowKey {
            partition: partition(name),
            table: self.table,
            row_id: self.row_id(),
        }
    }

    /// Its primary key as text.
    pub fn row_id(&self) -> ByteString {
        ByteString::from(self.id.as_str())
    }

    /// Its scopes.
    pub fn scopes(&self) -> StoredScopes {
        scopes(&[("team", &self.team), ("owner", &self.owner)])
    }

    /// Its codec bytes.
    pub fn payload(&self) -> Bytes {
        let mut row = RowWriter::new(5);
        for text in [&self.id, &self.team, &self.owner] {
            row.value(&Value::String(text));
        }
        for text in [&self.code, &self.body] {
            match text {
                Some(text) => row.value(&Value::String(text)),
                None => row.null(),
            }
        }
        Bytes::from(row.finish())
    }

    /// How it reads back.
    pub fn stored(&self) -> StoredRow {
        StoredRow {
            row_version: self.version,
            scopes: self.scopes(),
            payload: self.payload(),
            column_versions: self.column_versions.clone(),
        }
    }

    /// How it is written.
    pub fn state(&self) -> RowState {
        RowState {
            row_version: self.version,
            scopes: self.scopes(),
            payload: self.payload(),
            column_versions: self.column_versions.clone(),
            blob_ids: self.blob_ids.clone(),
        }
    }
}

/// A commit in the making.
#[derive(Clone, Debug)]
pub struct Draft {
    write: CommitWrite,
}

impl Draft {
    /// An applied commit without changes, at a place of a partition. Its client is `c1`, its id
    /// is made from the place.
    pub fn new(name: &str, place: u64) -> Self {
        Self {
            write: CommitWrite {
                key: push_key(name, "c1", &format!("m{place}")),
                actor: actor("a1"),
                result: PushResultRecord {
                    status: PushStatus::Applied(seq(place)),
                    results: Vec::new(),
                    recorded_at_ms: Some(NOW_MS),
                    actor: Some(actor("a1")),
                    schema_version: Some(1),
                    content_digest: None,
                },
                applied: Some(AppliedCommit {
                    commit_seq: seq(place),
                    created_at_ms: NOW_MS,
                    changes: Vec::new(),
                    tombstones: Vec::new(),
                    tombstones_cleared: Vec::new(),
                }),
                bind_client_at_ms: None,
            },
        }
    }

    /// A rejected commit.
    pub fn rejected(name: &str, id: &str) -> Self {
        let mut draft = Self::new(name, 1).id(id);
        draft.write.applied = None;
        draft.write.result.status = PushStatus::Rejected;
        draft.write.result.results = vec![ResultRecord::Error {
            op_index: 0,
            code: "sync.forbidden".to_owned(),
            message: "not yours".to_owned(),
            retryable: false,
            details: None,
        }];
        draft
    }

    /// With another id.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        self.write.key.client_commit_id = ByteString::from(id);
        self
    }

    /// From another client.
    #[must_use]
    pub fn client(mut self, name: &str) -> Self {
        self.write.key.client = client(name);
        self
    }

    /// By another actor.
    #[must_use]
    pub fn actor(mut self, name: &str) -> Self {
        self.write.actor = actor(name);
        self.write.result.actor = Some(actor(name));
        self
    }

    /// At another time.
    #[must_use]
    pub fn at(mut self, at_ms: i64) -> Self {
        self.applied().created_at_ms = at_ms;
        self
    }

    /// With another outcome.
    #[must_use]
    pub fn outcome(mut self, result: PushResultRecord) -> Self {
        self.write.result = result;
        self
    }

    /// Binds the client.
    #[must_use]
    pub fn bind(mut self, at_ms: i64) -> Self {
        self.write.bind_client_at_ms = Some(at_ms);
        self
    }

    /// Inserts a row.
    #[must_use]
    pub fn insert(self, item: &Item) -> Self {
        self.upsert(item.table, item.row_id(), item.state(), None)
    }

    /// Updates a row.
    #[must_use]
    pub fn update(self, before: &Item, item: &Item) -> Self {
        let scopes_before = Some(before.scopes());
        self.upsert(item.table, item.row_id(), item.state(), scopes_before)
    }

    /// Writes a row of any table.
    #[must_use]
    pub fn upsert(
        self,
        table: TableIndex,
        row_id: ByteString,
        row: RowState,
        scopes_before: Option<StoredScopes>,
    ) -> Self {
        self.change(table, row_id, ChangeKind::Upsert { row, scopes_before })
    }

    /// Deletes a row for good.
    #[must_use]
    pub fn delete(self, item: &Item) -> Self {
        self.remove(item).bury(item)
    }

    /// Deletes a row that this commit inserts again.
    #[must_use]
    pub fn remove(self, item: &Item) -> Self {
        let scopes = item.scopes();
        self.change(item.table, item.row_id(), ChangeKind::Delete { scopes })
    }

    /// Records the tombstone of a row that this commit leaves deleted.
    #[must_use]
    pub fn bury(mut self, item: &Item) -> Self {
        self.applied()
            .tombstones
            .push((item.table, item.row_id(), item.scopes()));
        self
    }

    /// Ends the tombstone of a row.
    #[must_use]
    pub fn clear(mut self, item: &Item) -> Self {
        self.applied()
            .tombstones_cleared
            .push((item.table, item.row_id()));
        self
    }

    /// Its idempotency key.
    pub fn key(&self) -> PushKey {
        self.write.key.clone()
    }

    /// Its outcome.
    pub fn result(&self) -> PushResultRecord {
        self.write.result.clone()
    }

    /// The commit.
    pub fn build(self) -> Arc<CommitWrite> {
        Arc::new(self.write)
    }

    fn applied(&mut self) -> &mut AppliedCommit {
        let applied = self.write.applied.as_mut();
        applied.expect("only an applied commit writes rows")
    }

    fn change(mut self, table: TableIndex, row_id: ByteString, kind: ChangeKind) -> Self {
        let op_index = i32::try_from(self.applied().changes.len()).unwrap();
        self.applied().changes.push(ChangeWrite {
            table,
            row_id,
            op_index,
            kind,
        });
        let applied = ResultRecord::Applied { op_index };
        self.write.result.results.push(applied);
        self
    }
}

/// An idempotency key.
pub fn push_key(name: &str, client_name: &str, id: &str) -> PushKey {
    PushKey {
        partition: partition(name),
        client: client(client_name),
        client_commit_id: ByteString::from(id),
    }
}
