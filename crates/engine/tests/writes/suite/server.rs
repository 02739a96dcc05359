//! An engine with everything around it under the test's hand, and a look at what it stored.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidewater_engine::{
    Clock, CommitEvent, Engine, EngineConfig, EngineParts, Hooks, Identity, Ids, ResolveError,
    ResolveRequest, RoundError, ScopeResolver,
};
use tidewater_model::{AllowedScopes, ClientId, CommitSeq, LogEpoch, PartitionId};
use tidewater_objects::MemorySegments;
use tidewater_schema::Schema;
use tidewater_store::{
    LoadRequest, Loaded, PartitionTouch, PushKey, RowKey, RowScan, Store, StoredResult, StoredRow,
    Tombstone, WindowRequest,
};
use tidewater_wire::WireVersion;
use tokio::sync::broadcast;

use super::{
    asking::{Answer, Ask, Op, Told, all_teams, row_text},
    watched::WatchedStore,
};

/// What a server is started with.
pub(crate) struct Setup {
    pub(crate) schema: String,
    /// Older versions that are served beside it.
    pub(crate) older: Vec<String>,
    pub(crate) hooks: Hooks,
    pub(crate) config: EngineConfig,
    /// Whether a store may run lanes on a thread of its own, where virtual time does not wait for
    /// them.
    pub(crate) adopts_lanes: bool,
}

impl Setup {
    pub(crate) fn of(schema: &str) -> Self {
        Self {
            schema: schema.to_owned(),
            older: Vec::new(),
            hooks: Hooks::default(),
            config: EngineConfig::default(),
            adopts_lanes: true,
        }
    }

    pub(crate) fn with_hooks(mut self, hooks: Hooks) -> Self {
        self.hooks = hooks;
        self
    }

    pub(crate) async fn start(self) -> Server {
        self.start_on(crate::home::open()).await
    }

    /// Starts on a database that may have been used before.
    pub(crate) async fn start_on(self, database: Arc<dyn Store>) -> Server {
        let store = Arc::new(WatchedStore::new(database, self.adopts_lanes));
        let clock = Arc::new(ManualClock(AtomicI64::new(1_800_000_000_000)));
        let compile = |text: &String| Schema::from_json(text).expect("a schema");
        let older = self.older.iter().map(compile).collect();
        let schema = compile(&self.schema).with_window(older);
        let schema = Arc::new(schema.expect("a window"));
        let resolver = Arc::new(Resolver::default());
        let engine = Engine::open(EngineParts {
            store: Arc::<WatchedStore>::clone(&store),
            schema: Arc::clone(&schema),
            segments: Arc::new(MemorySegments::new(1024 * 1024, 1_000)),
            transfers: tidewater_engine::Transfers::default(),
            resolver: Arc::<Resolver>::clone(&resolver),
            clock: Arc::<ManualClock>::clone(&clock),
            ids: Arc::new(CountedIds::default()),
            hooks: self.hooks,
            config: self.config,
        })
        .await
        .expect("a database for this schema");
        Server {
            events: Mutex::new(engine.follow_commits()),
            engine,
            schema,
            store,
            clock,
            resolver,
            epochs: Mutex::default(),
            commits_pushed: AtomicU64::new(0),
        }
    }
}

/// An engine and what it stands on.
pub(crate) struct Server {
    pub(crate) engine: Arc<Engine>,
    pub(crate) schema: Arc<Schema>,
    pub(crate) store: Arc<WatchedStore>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) resolver: Arc<Resolver>,
    events: Mutex<broadcast::Receiver<CommitEvent>>,
    epochs: Mutex<BTreeMap<PartitionId, LogEpoch>>,
    commits_pushed: AtomicU64,
}

impl Server {
    pub(crate) async fn start(schema: &str) -> Self {
        Setup::of(schema).start().await
    }

    /// Answers a request; an error is a failure of the request as a whole.
    pub(crate) async fn try_round(&self, ask: Ask) -> Result<Answer, RoundError> {
        let identity = Identity::new(ask.partition.as_str(), ask.actor.as_str());
        let epoch = self.epoch(&identity).await;
        let schema = ask.schema.clone();
        let schema = schema.unwrap_or_else(|| Arc::clone(&self.schema));
        let request = ask.encode(&schema, &epoch);
        let body = self.engine.round(identity, request).await?;
        Ok(Answer::read(body).await)
    }

    pub(crate) async fn round(&self, ask: Ask) -> Answer {
        self.try_round(ask).await.expect("the request is answered")
    }

    /// Pushes one commit under an id of its own and says what became of it.
    pub(crate) async fn push(&self, operations: Vec<Op>) -> String {
        self.tell(operations).await.outcome()
    }

    /// Pushes in another wire version.
    pub(crate) async fn push_in(&self, version: WireVersion, operations: Vec<Op>) -> String {
        let ask = Ask::new()
            .in_version(version)
            .push(&self.fresh_id(), operations);
        self.round(ask).await.told[0].outcome()
    }

    /// Pushes one commit and returns the whole answer to it.
    pub(crate) async fn tell(&self, operations: Vec<Op>) -> Told {
        let ask = Ask::new().push(&self.fresh_id(), operations);
        self.round(ask).await.told.remove(0)
    }

    pub(crate) fn fresh_id(&self) -> String {
        format!(
            "auto-{}",
            self.commits_pushed.fetch_add(1, Ordering::SeqCst)
        )
    }

    /// Puts the requests into one group: all of them wait while another write goes on, in order,
    /// and are then taken together.
    pub(crate) async fn batch(self: &Arc<Self>, asks: Vec<Ask>) -> Vec<Result<Answer, RoundError>> {
        self.batch_while(asks, async {}).await
    }

    /// The same, and this happens while they wait.
    pub(crate) async fn batch_while(
        self: &Arc<Self>,
        asks: Vec<Ask>,
        during: impl Future<Output = ()>,
    ) -> Vec<Result<Answer, RoundError>> {
        for ask in &asks {
            self.epoch(&Identity::new(ask.partition.as_str(), ask.actor.as_str()))
                .await;
        }
        let plug = Ask::new().in_partition("plug").of_client("plug");
        self.epoch(&Identity::new("plug", "ann")).await;
        self.store.hold();
        let table = self.schema.tables()[0].name.clone();
        let plug = plug.push(
            &self.fresh_id(),
            vec![super::asking::delete(&table, "nothing")],
        );
        let server = Arc::clone(self);
        let plug = tokio::spawn(async move { server.round(plug).await });
        self.store.someone_waits().await;
        let mut rounds = Vec::new();
        for ask in asks {
            let before = self.resolver.calls();
            let server = Arc::clone(self);
            let round = tokio::spawn(async move { server.try_round(ask).await });
            // What follows the resolver up to the lane happens without waiting.
            while !round.is_finished() && self.resolver.calls() == before {
                tokio::task::yield_now().await;
            }
            rounds.push(round);
        }
        during.await;
        self.store.release();
        plug.await.expect("the plug is a round like others");
        let mut answers = Vec::new();
        for round in rounds {
            answers.push(round.await.expect("rounds do not panic"));
        }
        answers
    }

    async fn epoch(&self, identity: &Identity) -> LogEpoch {
        if let Some(epoch) = self.epochs.lock().get(&identity.partition) {
            return epoch.clone();
        }
        let touch = PartitionTouch {
            partition: identity.partition.clone(),
            initial_epoch: LogEpoch::new("epoch-1"),
            at_ms: self.clock.now_ms(),
        };
        let epoch = self
            .store
            .touch_partition(touch)
            .await
            .expect("it is written")
            .log_epoch;
        self.epochs
            .lock()
            .insert(identity.partition.clone(), epoch.clone());
        epoch
    }

    /// Every row of a table as text, with its version.
    pub(crate) async fn rows(&self, table: &str) -> Vec<String> {
        self.rows_in("p1", table).await
    }

    pub(crate) async fn rows_in(&self, partition: &str, table: &str) -> Vec<String> {
        let index = self.schema.find(table).expect("a table");
        let scan = RowScan {
            partition: PartitionId::new(partition),
            table: index,
            filter: all_teams(),
            after: None,
            rows_max: usize::MAX >> 1,
            bytes_max: usize::MAX >> 1,
        };
        let page = self.store.inner().scan_rows(scan).await.expect("rows");
        let table = self.schema.table(index);
        page.rows()
            .map(|row| format!("{}@{}", row_text(table, row.payload), row.row_version))
            .collect()
    }

    /// The changes of a table in the log: `3 upsert c1@2 t1`, `4 delete c1 t1`.
    pub(crate) async fn log(&self, table: &str) -> Vec<String> {
        self.log_of("p1", table).await
    }

    pub(crate) async fn log_of(&self, partition: &str, table: &str) -> Vec<String> {
        let request = WindowRequest {
            partition: PartitionId::new(partition),
            table: self.schema.find(table).expect("a table"),
            filter: all_teams(),
            after: CommitSeq::START,
            through: CommitSeq::MAX,
            changes_max: usize::MAX >> 1,
            bytes_max: usize::MAX >> 1,
        };
        let window = self
            .store
            .inner()
            .read_window(request)
            .await
            .expect("the log");
        let mut lines = Vec::new();
        for commit in window.commits() {
            for change in commit.changes() {
                let team = change.scopes.value("team").unwrap_or_default();
                let what = match change.row {
                    Some((version, _)) => format!("upsert {}@{version}", change.row_id),
                    None => format!("delete {}", change.row_id),
                };
                lines.push(format!("{} {what} {team}", commit.commit_seq()));
            }
        }
        lines
    }

    /// The commits observers were told of since the last time.
    pub(crate) fn events(&self) -> Vec<CommitEvent> {
        let mut receiver = self.events.lock();
        let mut events = Vec::new();
        loop {
            match receiver.try_recv() {
                Ok(event) => events.push(event),
                Err(broadcast::error::TryRecvError::Empty) => return events,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The newest commit that is durable.
    pub(crate) async fn head(&self) -> u64 {
        self.head_of("p1").await
    }

    pub(crate) async fn head_of(&self, partition: &str) -> u64 {
        let record = self
            .store
            .find_partition(&PartitionId::new(partition))
            .await
            .expect("read");
        record.map_or(0, |record| record.head.get())
    }

    /// The newest commit that the engine tells a client of who has read everything.
    pub(crate) async fn told_head(&self, table: &str) -> i64 {
        let ask = Ask::new().of_client("reader").by("reader").pull(table, 0);
        self.round(ask).await.cursors[0]
    }

    async fn load(&self, wanted: LoadRequest) -> Loaded {
        // Dropped at once: it only looks.
        let (_, loaded) = self
            .store
            .inner()
            .begin_write(wanted)
            .await
            .expect("a look");
        loaded
    }

    /// Rows by key, each with its tombstone.
    pub(crate) async fn look(
        &self,
        partition: &str,
        table: &str,
        keys: &[String],
    ) -> Vec<(Option<StoredRow>, Option<Tombstone>)> {
        let partition = PartitionId::new(partition);
        let table = self.schema.find(table).expect("a table");
        let row = |key: &String| RowKey {
            partition: partition.clone(),
            table,
            row_id: key.as_str().into(),
        };
        let wanted = LoadRequest {
            rows: keys.iter().map(row).collect(),
            partitions: vec![partition.clone()],
            ..LoadRequest::default()
        };
        let loaded = self.load(wanted).await;
        loaded.rows.into_iter().zip(loaded.tombstones).collect()
    }

    pub(crate) async fn stored(&self, table: &str, row_id: &str) -> Option<StoredRow> {
        self.look("p1", table, &[row_id.to_owned()])
            .await
            .remove(0)
            .0
    }

    pub(crate) async fn tombstone(&self, table: &str, row_id: &str) -> Option<Tombstone> {
        self.look("p1", table, &[row_id.to_owned()])
            .await
            .remove(0)
            .1
    }

    /// The version of every column of a row.
    pub(crate) async fn column_versions(&self, table: &str, row_id: &str) -> Vec<i64> {
        let row = self.stored(table, row_id).await.expect("a row");
        let columns = self
            .schema
            .table(self.schema.find(table).expect("a table"))
            .columns
            .len();
        column_versions(&row, columns)
    }

    /// The recorded outcome of a commit of client `c1`.
    pub(crate) async fn recorded(&self, commit: &str) -> Option<StoredResult> {
        self.recorded_of("c1", commit).await
    }

    pub(crate) async fn recorded_of(&self, client: &str, commit: &str) -> Option<StoredResult> {
        let key = PushKey {
            partition: PartitionId::new("p1"),
            client: ClientId::new(client),
            client_commit_id: commit.into(),
        };
        self.store.find_push_result(&key).await.expect("a look")
    }

    /// The actor a client is bound to in the database.
    pub(crate) async fn bound_to(&self, client: &str) -> Option<String> {
        let partition = PartitionId::new("p1");
        let client = ClientId::new(client);
        let record = self
            .store
            .find_client(&partition, &client)
            .await
            .expect("a look");
        record.map(|record| record.actor.as_str().to_owned())
    }
}

/// Reads stored column versions; written anew from §2.2, not with the code under test.
pub(crate) fn column_versions(row: &StoredRow, columns: usize) -> Vec<i64> {
    let Some(bytes) = &row.column_versions else {
        return vec![row.row_version; columns];
    };
    let mut versions = vec![1; columns];
    let mut numbers = Vec::new();
    let (mut value, mut shift) = (0_i64, 0);
    for byte in bytes {
        value |= i64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            numbers.push(value);
            (value, shift) = (0, 0);
        }
    }
    for pair in numbers.chunks(2) {
        versions[usize::try_from(pair[0]).expect("an ordinal")] = pair[1];
    }
    versions
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

#[derive(Default)]
struct CountedIds(AtomicU64);

impl Ids for CountedIds {
    fn fresh(&self) -> String {
        format!("id-{}", self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

/// Allows every team to everybody, but for those it was told about.
#[derive(Default)]
pub(crate) struct Resolver {
    grants: Mutex<BTreeMap<String, Vec<String>>>,
    calls: AtomicU64,
}

impl Resolver {
    pub(crate) fn allow(&self, actor: &str, teams: &[&str]) {
        let teams = teams.iter().map(|&team| team.to_owned()).collect();
        self.grants.lock().insert(actor.to_owned(), teams);
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl ScopeResolver for Resolver {
    async fn resolve(&self, request: ResolveRequest<'_>) -> Result<AllowedScopes, ResolveError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let teams = self
            .grants
            .lock()
            .get(request.identity.actor.as_str())
            .cloned();
        let teams = teams.unwrap_or_else(|| vec!["*".to_owned()]);
        Ok(AllowedScopes::from_lists([("team".to_owned(), teams)]))
    }
}
