//! What the tests of this crate share: a whole engine on the memory store, with everything
//! outside of it under the test's hand.
//!
//! Here are the server, its clock, ids and resolver, and commits put into the store directly.
//! `messages` builds requests and reads responses; `store` counts the reads of a store and lets
//! a test act in front of one.

mod messages;
mod store;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidewater_model::{
    ActorId, AllowedScopes, ClientId, CommitSeq, ErrorCode, PartitionId, StoredScopes,
};
use tidewater_objects::MemorySegments;
use tidewater_schema::{Schema, Table, TableIndex};
use tidewater_store::{
    AppliedCommit, ChangeKind, ChangeWrite, CommitWrite, Finished, LoadRequest, PushKey,
    PushResultRecord, PushStatus, RowKey, RowState, Store, StoredRow,
};
use tidewater_wire::row::{RowWriter, Value, decode_row};

pub(crate) use self::{
    messages::{Answer, Ask, SeenPage, SeenSection, subscription},
    store::ProbedStore,
};
use crate::{
    Clock, Engine, EngineConfig, EngineParts, Identity, Ids, ResolveError, ResolveRequest,
    RoundError, ScopeResolver,
};

/// The partition that is meant when a test does not say.
pub(crate) const PARTITION: &str = "p1";
/// The actor that is meant when a test does not say.
pub(crate) const ACTOR: &str = "ann";

/// When the tests' time begins, Unix milliseconds.
pub(crate) const START_MS: i64 = 1_800_000_000_000;

/// `notes` has one scope variable, `tasks` two, `secrets` an encrypted column.
const SCHEMA: &str = r#"{
  "irVersion": 1, "schemaVersion": 3,
  "tables": [
    {"name": "notes", "primaryKey": "id", "columns": [
        {"name": "id", "type": "string", "nullable": false},
        {"name": "team_id", "type": "string", "nullable": false},
        {"name": "body", "type": "string", "nullable": true}],
      "scopes": ["team:{team_id}"]},
    {"name": "tasks", "primaryKey": "id", "columns": [
        {"name": "id", "type": "string", "nullable": false},
        {"name": "org", "type": "string", "nullable": false},
        {"name": "list", "type": "string", "nullable": false},
        {"name": "title", "type": "string", "nullable": true},
        {"name": "rank", "type": "integer", "nullable": true}],
      "scopes": ["org:{org}", "list:{list}"]},
    {"name": "secrets", "primaryKey": "id", "columns": [
        {"name": "id", "type": "string", "nullable": false},
        {"name": "team_id", "type": "string", "nullable": false},
        {"name": "pin", "type": "bytes", "nullable": true, "encrypted": true,
         "declaredType": "string"}],
      "scopes": ["team:{team_id}"]}
  ]
}"#;

/// An engine and what it stands on.
pub(crate) struct TestServer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) store: Arc<ProbedStore>,
    pub(crate) segments: Arc<MemorySegments>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) resolver: Arc<SwitchedResolver>,
    commits_seeded: AtomicU64,
}

/// Segments live this long in tests, in milliseconds.
pub(crate) const SEGMENT_LIFETIME_MS: i64 = 1_000;

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self::start_with(EngineConfig::default()).await
    }

    pub(crate) async fn start_with(config: EngineConfig) -> Self {
        let store = Arc::new(ProbedStore::default());
        let segments = Arc::new(MemorySegments::new(64 * 1024 * 1024, SEGMENT_LIFETIME_MS));
        let clock = Arc::new(ManualClock(AtomicI64::new(START_MS)));
        let resolver = Arc::new(SwitchedResolver::default());
        let schema = Arc::new(Schema::from_json(SCHEMA).unwrap());
        let engine = Engine::open(EngineParts {
            store: Arc::<ProbedStore>::clone(&store),
            schema,
            segments: Arc::clone(&segments),
            resolver: Arc::<SwitchedResolver>::clone(&resolver),
            clock: Arc::<ManualClock>::clone(&clock),
            ids: Arc::new(CountedIds::default()),
            config,
        })
        .await
        .unwrap();
        Self {
            engine,
            store,
            segments,
            clock,
            resolver,
            commits_seeded: AtomicU64::new(0),
        }
    }

    pub(crate) fn table(&self, name: &str) -> &Table {
        self.engine.schema().table(self.index(name))
    }

    fn index(&self, name: &str) -> TableIndex {
        self.engine.schema().find(name).unwrap()
    }

    /// A row as text, for comparison: its values between bars, NULL as a dash.
    pub(crate) fn text(&self, table: &str, payload: &[u8]) -> String {
        let row = decode_row(&self.table(table).columns, payload).unwrap();
        let values: Vec<String> = row
            .iter()
            .map(|field| match field.as_ref().map(|field| &field.value) {
                None => "-".to_owned(),
                Some(value) => value
                    .render()
                    .map_or_else(|| "?".to_owned(), |text| text.into()),
            })
            .collect();
        values.join("|")
    }

    /// Answers a request of the default actor, which must not fail as a whole.
    pub(crate) async fn round(&self, ask: Ask) -> Answer {
        self.try_round(&identity(), ask).await.unwrap()
    }

    /// Answers a request; the epoch is the live one unless the request says otherwise.
    pub(crate) async fn try_round(
        &self,
        identity: &Identity,
        ask: Ask,
    ) -> Result<Answer, RoundError> {
        let state = self
            .engine
            .partitions
            .touch(&self.engine, &identity.partition)
            .await?;
        let version = ask.version();
        let request = ask.encode(&state.log_epoch, self.engine.schema().version());
        let body = self.engine.round(identity.clone(), request).await?;
        let bytes = messages::collect(body).await;
        let answer = Answer::decode(&bytes);
        assert_eq!(
            answer.version, version,
            "a response is in the version of its request"
        );
        Ok(answer)
    }

    /// The failure of a request as a whole.
    pub(crate) async fn refusal(&self, ask: Ask) -> RoundError {
        match self.try_round(&identity(), ask).await {
            Ok(_) => panic!("the request was answered"),
            Err(error) => error,
        }
    }

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

/// The default actor in the default partition.
pub(crate) fn identity() -> Identity {
    Identity::new(PARTITION, ACTOR)
}

pub(crate) fn partition() -> PartitionId {
    PartitionId::new(PARTITION)
}

pub(crate) fn seq(raw: i64) -> CommitSeq {
    CommitSeq::from_i64(raw).unwrap()
}

/// A clock that moves when it is told to.
pub(crate) struct ManualClock(AtomicI64);

impl ManualClock {
    pub(crate) fn advance_ms(&self, by_ms: i64) {
        self.0.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// `id-1`, `id-2`, …
#[derive(Default)]
pub(crate) struct CountedIds(AtomicU64);

impl Ids for CountedIds {
    fn fresh(&self) -> String {
        format!("id-{}", self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

/// What the resolver does when it is asked.
#[derive(Clone, Debug)]
pub(crate) enum Grants {
    /// Allows these values, to everybody.
    Allowed(AllowedScopes),
    Fails,
    IsOut,
    Refuses(ErrorCode),
    NeverAnswers,
}

/// A resolver that allows everything until it is switched.
pub(crate) struct SwitchedResolver {
    grants: Mutex<Grants>,
    calls: AtomicU64,
}

impl Default for SwitchedResolver {
    fn default() -> Self {
        let everything = [("team_id", &["*"][..]), ("org", &["*"]), ("list", &["*"])];
        let grants = Grants::Allowed(allowed(&everything));
        Self {
            grants: Mutex::new(grants),
            calls: AtomicU64::new(0),
        }
    }
}

impl SwitchedResolver {
    /// From now on does this.
    pub(crate) fn switch(&self, grants: Grants) {
        *self.grants.lock() = grants;
    }

    /// From now on allows these values and no others.
    pub(crate) fn allow(&self, lists: &[(&str, &[&str])]) {
        self.switch(Grants::Allowed(allowed(lists)));
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl ScopeResolver for SwitchedResolver {
    async fn resolve(&self, _request: ResolveRequest<'_>) -> Result<AllowedScopes, ResolveError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let grants = self.grants.lock().clone();
        match grants {
            Grants::Allowed(allowed) => Ok(allowed),
            Grants::Fails => Err(ResolveError::Failed("it was told to".to_owned())),
            Grants::IsOut => Err(ResolveError::Outage("it was told to".to_owned())),
            Grants::Refuses(code) => Err(ResolveError::Code(code)),
            Grants::NeverAnswers => std::future::pending().await,
        }
    }
}

fn allowed(lists: &[(&str, &[&str])]) -> AllowedScopes {
    AllowedScopes::from_lists(lists.iter().map(|&(variable, values)| {
        (
            variable.to_owned(),
            values
                .iter()
                .map(|&value| value.to_owned())
                .collect::<Vec<_>>(),
        )
    }))
}
