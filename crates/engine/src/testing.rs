//! What the tests of this crate share: a whole engine on the memory store, with everything
//! outside of it under the test's hand.
//!
//! Here are the server, its clock, ids and resolver. `seed` puts commits into the store past the
//! push half; `messages` builds requests and reads responses; `store` counts the reads of a store
//! and lets a test act in front of one.

mod messages;
mod seed;
mod store;

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tidewater_model::{AllowedScopes, CommitSeq, ErrorCode, HorizonSeq, PartitionId};
use tidewater_objects::{MemorySegments, SegmentRecord, SegmentStore};
use tidewater_schema::{Schema, Table, TableIndex};
use tidewater_store::Store;
use tidewater_wire::row::decode_row;

pub(crate) use self::{
    messages::{Answer, Ask, SeenPage, SeenSection, collect, subscription},
    seed::{Write, full_row, note, secret, task},
    store::ProbedStore,
};
use crate::{
    Clock, Engine, EngineConfig, EngineParts, Identity, Ids, ResolveError, ResolveRequest,
    RoundError, ScopeResolver, Transfers,
};

/// The partition that is meant when a test does not say.
pub(crate) const PARTITION: &str = "p1";
/// The actor that is meant when a test does not say.
pub(crate) const ACTOR: &str = "ann";

/// When the tests' time begins, Unix milliseconds.
pub(crate) const START_MS: i64 = 1_800_000_000_000;

/// `notes` has one scope variable, `tasks` two, `secrets` an encrypted column.
pub(crate) const SCHEMA: &str = r#"{
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
      "scopes": ["team:{team_id}"]},
    {"name": "photos", "primaryKey": "id", "columns": [
        {"name": "id", "type": "string", "nullable": false},
        {"name": "team_id", "type": "string", "nullable": false},
        {"name": "image", "type": "blob_ref", "nullable": true},
        {"name": "thumb", "type": "blob_ref", "nullable": true}],
      "scopes": ["team:{team_id}"]}
  ]
}"#;

/// Version 2: tasks without a rank, and no photos.
pub(crate) fn older() -> Schema {
    let mut document: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
    document["schemaVersion"] = serde_json::json!(2);
    let tables = document["tables"].as_array_mut().unwrap();
    tables.pop();
    tables[1]["columns"].as_array_mut().unwrap().pop();
    // The order of tables is no part of the bargain.
    tables.reverse();
    Schema::from_json(&document.to_string()).unwrap()
}

/// Version 3, which serves version 2 beside it.
pub(crate) fn windowed() -> Schema {
    let schema = Schema::from_json(SCHEMA).unwrap();
    schema.with_window(vec![older()]).unwrap()
}

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
        Self::start_as(config, 64 * 1024 * 1024, Transfers::default()).await
    }

    /// Sends every bootstrap as rows.
    pub(crate) async fn without_images() -> Self {
        Self::start_with(EngineConfig {
            image_builds_max: 0,
            ..EngineConfig::default()
        })
        .await
    }

    /// With room for so many bytes of segments.
    pub(crate) async fn start_as(
        config: EngineConfig,
        segment_bytes_max: usize,
        transfers: Transfers,
    ) -> Self {
        let schema = Schema::from_json(SCHEMA).unwrap();
        Self::start_on(schema, config, segment_bytes_max, transfers).await
    }

    /// Serves another schema, with a window perhaps.
    pub(crate) async fn serving(schema: Schema, config: EngineConfig) -> Self {
        Self::start_on(schema, config, 64 * 1024 * 1024, Transfers::default()).await
    }

    async fn start_on(
        schema: Schema,
        config: EngineConfig,
        segment_bytes_max: usize,
        transfers: Transfers,
    ) -> Self {
        let store = Arc::new(ProbedStore::default());
        let segments = MemorySegments::new(segment_bytes_max, SEGMENT_LIFETIME_MS);
        let segments = Arc::new(segments);
        let clock = Arc::new(ManualClock(AtomicI64::new(START_MS)));
        let resolver = Arc::new(SwitchedResolver::default());
        let engine = Engine::open(EngineParts {
            store: Arc::<ProbedStore>::clone(&store),
            schema: Arc::new(schema),
            segments: Arc::<MemorySegments>::clone(&segments),
            transfers,
            resolver: Arc::<SwitchedResolver>::clone(&resolver),
            clock: Arc::<ManualClock>::clone(&clock),
            ids: Arc::new(CountedIds::default()),
            hooks: crate::Hooks::default(),
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

    /// Another node on the same database.
    pub(crate) async fn beside(&self, config: EngineConfig) -> Self {
        let engine = Engine::open(EngineParts {
            store: Arc::<ProbedStore>::clone(&self.store),
            schema: Arc::clone(self.engine.schema()),
            segments: Arc::<MemorySegments>::clone(&self.segments),
            transfers: Transfers::default(),
            resolver: Arc::<SwitchedResolver>::clone(&self.resolver),
            clock: Arc::<ManualClock>::clone(&self.clock),
            ids: Arc::new(CountedIds::default()),
            hooks: crate::Hooks::default(),
            config,
        })
        .await
        .unwrap();
        Self {
            engine,
            store: Arc::clone(&self.store),
            segments: Arc::clone(&self.segments),
            clock: Arc::clone(&self.clock),
            resolver: Arc::clone(&self.resolver),
            commits_seeded: AtomicU64::new(1_000_000),
        }
    }

    /// A published segment's bytes.
    pub(crate) async fn segment_bytes(&self, id: &str) -> Bytes {
        let stream = self.segments.open(id, None).await.unwrap().unwrap();
        stream.collect(usize::MAX).await.unwrap()
    }

    /// A published segment's record.
    pub(crate) async fn segment_record(&self, id: &str) -> Arc<SegmentRecord> {
        self.segments.record(id).await.unwrap().unwrap()
    }

    pub(crate) fn table(&self, name: &str) -> &Table {
        self.engine.schema().table(self.index(name))
    }

    fn index(&self, name: &str) -> TableIndex {
        self.engine.schema().find(name).unwrap()
    }

    /// A row as text, for comparison: its values between bars, NULL as a dash, bytes
    /// and empty text as nothing.
    pub(crate) fn text(&self, table: &str, payload: &[u8]) -> String {
        let row = decode_row(&self.table(table).columns, payload).unwrap();
        let values: Vec<String> = row
            .iter()
            .map(|field| match field.as_ref().map(|field| &field.value) {
                None => "-".to_owned(),
                Some(value) => value.render().unwrap_or_default().into_owned(),
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
        let bytes = collect(body).await;
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

    /// The default partition's epoch.
    pub(crate) async fn epoch(&self) -> String {
        let state = self
            .engine
            .partitions
            .touch(&self.engine, &partition())
            .await
            .unwrap();
        state.log_epoch.as_str().to_owned()
    }

    /// The horizon of a partition as it is stored.
    pub(crate) async fn horizon(&self, partition: &str) -> u64 {
        let partition = PartitionId::new(partition);
        let record = self
            .store
            .find_partition(&partition)
            .await
            .unwrap()
            .unwrap();
        record.horizon.seq().get()
    }

    /// Moves the default partition's horizon, whatever retention says.
    pub(crate) async fn prune_to(&self, horizon: i64) {
        let state = self
            .engine
            .partitions
            .touch(&self.engine, &partition())
            .await
            .unwrap();
        let horizon = HorizonSeq::at(seq(horizon));
        let pruned = self
            .store
            .prune(&partition(), &state.log_epoch, horizon)
            .await
            .unwrap();
        self.engine
            .partitions
            .advance_horizon(&partition(), pruned.horizon);
    }
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
