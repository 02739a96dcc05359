//! One server with a switch for everything around it: time, ids, permissions, storage.
//!
//! An instance is a real engine behind the real router, on a database of its own. What surrounds
//! it (clock, ids, resolver, validator, segments) outlives the engine, which is closed and opened
//! again when a server would be restarted: after a restore and for a schema upgrade.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{Router, extract::Request, response::Response};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value as Json};
use tidewater_engine::{
    BuildStats, Clock, Engine, EngineParts, Hooks, RealtimeStats, Retention, Swept, Transfers,
    UrlSource,
};
use tidewater_model::{ActorId, CommitSeq, HorizonSeq, LogEpoch, PartitionId, limits};
use tidewater_objects::{MemorySegments, SIGNED_URL_SECONDS_MAX, SigningKeys};
use tidewater_schema::{Schema, TableIndex};
use tidewater_server::{Server, TransferCounts, Usage, router};
use tidewater_store::{PartitionRecord, RowRef, TableScan};
use tidewater_wire::{control::WakeReason, row::decode_row};
use tokio::sync::RwLock;
use tower::ServiceExt;

use crate::{
    InstanceLimits, InstanceSpec, NameIsToken, SeededIds, StoreKind, SwitchResolver,
    SwitchValidator, VirtualClock,
    bucket::Bucket,
    database::{Backup, Database},
    probe::{Probe, ProbedStore},
    rows::fields_to_json,
};

/// A row as the database holds it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RowView {
    /// The primary key as text.
    pub row_id: String,
    /// Its version.
    pub version: i64,
    /// Its columns by name.
    pub values: Map<String, Json>,
    /// Its scope variables with their values.
    pub scopes: Map<String, Json>,
}

/// One server under test.
pub struct Instance {
    /// What it was made from and where that is kept, if it is.
    kept: Option<(PathBuf, InstanceSpec)>,
    surroundings: Surroundings,
    live: RwLock<Live>,
    backup: Mutex<Option<Arc<Backup>>>,
}

/// What stays when the server restarts.
struct Surroundings {
    partition: PartitionId,
    /// Where clients reach the mount.
    base_url: String,
    limits: InstanceLimits,
    clock: Arc<VirtualClock>,
    ids: Arc<SeededIds>,
    resolver: Arc<SwitchResolver>,
    validator: Arc<SwitchValidator>,
    segments: Arc<MemorySegments>,
    bucket: Arc<Bucket>,
    /// How long signed URLs of segments live, if there are any.
    url_lifetime: Mutex<Option<Duration>>,
    /// What servers did that are no more.
    past: Mutex<InstanceCounts>,
    probe: Arc<Probe>,
    hooks: Hooks,
}

/// What a restart replaces.
struct Live {
    database: Arc<Mutex<Database>>,
    schema: Arc<Schema>,
    engine: Arc<Engine>,
    server: Arc<Server>,
    router: Router,
}

/// What an instance sent, took and built since it was made, restarts included.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InstanceCounts {
    /// Downloads and uploads by the server's routes.
    pub transfers: TransferCounts,
    /// Segments built and spared.
    pub builds: BuildStats,
    /// Blobs fetched past the server.
    pub bucket_downloads: u64,
    /// Blobs stored past the server.
    pub bucket_uploads: u64,
}

/// Memory for segments: enough for every test, little enough for many instances.
const SEGMENT_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Memory for blobs.
const BLOB_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Signs URLs of segments.
const SIGNING_KEY: &[u8] = b"a key that everybody knows, for tests";

/// Where an instance is that nobody reaches from outside of this process.
const NOWHERE: &str = "http://127.0.0.1:1";

/// Rows read at once.
const ROWS_PER_PAGE: usize = 5_000;

impl Instance {
    /// Makes a server on an empty database, for tests that talk to the engine themselves.
    pub async fn open(spec: &InstanceSpec, kind: StoreKind) -> Result<Arc<Self>> {
        Self::create(spec, kind, None, NOWHERE).await
    }

    /// Makes a server on an empty database, for a host that brings validators.
    pub async fn open_with_hooks(
        spec: &InstanceSpec,
        kind: StoreKind,
        hooks: Hooks,
    ) -> Result<Arc<Self>> {
        Self::build(spec, kind, None, NOWHERE, hooks).await
    }

    /// Makes a server on an empty database, or on the one in `folder`, whose mount clients reach
    /// at `base_url`.
    pub(crate) async fn create(
        spec: &InstanceSpec,
        kind: StoreKind,
        folder: Option<PathBuf>,
        base_url: &str,
    ) -> Result<Arc<Self>> {
        Self::build(spec, kind, folder, base_url, Hooks::default()).await
    }

    async fn build(
        spec: &InstanceSpec,
        kind: StoreKind,
        folder: Option<PathBuf>,
        base_url: &str,
        hooks: Hooks,
    ) -> Result<Arc<Self>> {
        spec.check()?;
        let schema = compile(&spec.schema)?;
        let lifetime_ms = spec.limits.segment_ttl_ms;
        let lifetime_ms = lifetime_ms.unwrap_or(limits::SEGMENT_LIFETIME_MS_DEFAULT);
        let kept = folder.clone().map(|folder| (folder, spec.clone()));
        let database = blocking(move || Database::open(kind, folder)).await?;
        let blobs = database.open_blobs(BLOB_BYTES_MAX)?;
        let surroundings = Surroundings {
            base_url: base_url.to_owned(),
            bucket: Arc::new(Bucket::new(blobs, base_url)),
            url_lifetime: Mutex::new(spec.signed_url_lifetime()?),
            past: Mutex::default(),
            partition: PartitionId::new(spec.partition.as_str()),
            limits: spec.limits.clone(),
            clock: Arc::new(VirtualClock::new(spec.now_ms)),
            ids: Arc::new(SeededIds::new(spec.seed.unwrap_or_default())),
            resolver: Arc::default(),
            validator: Arc::default(),
            segments: Arc::new(MemorySegments::new(SEGMENT_BYTES_MAX, lifetime_ms)),
            probe: Arc::default(),
            hooks,
        };
        let live = surroundings
            .open(Arc::new(Mutex::new(database)), schema)
            .await?;
        if let Some((folder, spec)) = &kept {
            spec.write(folder)?;
        }
        Ok(Arc::new(Self {
            kept,
            surroundings,
            live: RwLock::new(live),
            backup: Mutex::new(None),
        }))
    }

    /// Answers one request of the protocol, its path below the mount.
    pub async fn answer(&self, request: Request) -> Response {
        let router = self.live.read().await.router.clone();
        match router.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// Answers a request with a presigned URL, as the provider of the bucket.
    pub(crate) async fn answer_as_bucket(&self, token: &str, request: Request) -> Response {
        let now_ms = self.clock().now_ms();
        self.surroundings
            .bucket
            .answer(token, now_ms, request)
            .await
    }

    /// How long signed URLs of segments live that are given out from now on; `None` for no URLs.
    pub async fn set_signed_url_lifetime(&self, lifetime: Option<Duration>) -> Result<()> {
        *self.surroundings.url_lifetime.lock() = lifetime;
        // They are a part of what the engine is made from.
        self.restart().await
    }

    /// Whether blobs are fetched and stored past the server from now on.
    pub fn set_blob_presign(&self, enabled: bool) {
        self.surroundings.bucket.set_presigning(enabled);
    }

    /// What was sent, taken and built so far.
    pub async fn counts(&self) -> InstanceCounts {
        let live = self.live.read().await;
        let mut counts = *self.surroundings.past.lock();
        counts.add(&live);
        (counts.bucket_downloads, counts.bucket_uploads) = self.surroundings.bucket.counts();
        counts
    }

    /// The segments that are kept.
    pub fn segments(&self) -> &MemorySegments {
        &self.surroundings.segments
    }

    /// Grants and switches.
    pub fn resolver(&self) -> &SwitchResolver {
        &self.surroundings.resolver
    }

    /// Rules about writes, behind the validators that a host brought.
    pub fn validator(&self) -> &SwitchValidator {
        &self.surroundings.validator
    }

    /// Time.
    pub fn clock(&self) -> &VirtualClock {
        &self.surroundings.clock
    }

    /// The partition everybody is in.
    pub fn partition(&self) -> &PartitionId {
        &self.surroundings.partition
    }

    /// The engine that runs now.
    pub async fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.live.read().await.engine)
    }

    /// What the server has in use now.
    pub async fn usage(&self) -> Usage {
        self.live.read().await.server.usage()
    }

    /// Where the hub stands.
    pub async fn realtime(&self) -> RealtimeStats {
        self.engine().await.realtime_stats()
    }

    /// Has the scopes of connected clients resolved anew, of one actor or of all (§8.4).
    pub async fn refresh_scopes(&self, actor: Option<&str>) {
        let actor = actor.map(ActorId::new);
        let engine = self.engine().await;
        engine
            .refresh_scopes(self.partition(), actor.as_ref())
            .await;
    }

    /// Tells every connected client to pull.
    pub async fn wake(&self, reason: WakeReason) {
        self.engine().await.wake(self.partition(), reason);
    }

    /// Ends every socket, and lets no new one be opened until the server is restarted.
    pub async fn end_sockets(&self) {
        let server = Arc::clone(&self.live.read().await.server);
        server.end_sockets().await;
    }

    /// The schema served now.
    pub async fn schema(&self) -> Arc<Schema> {
        Arc::clone(&self.live.read().await.schema)
    }

    /// Makes the next recorded outcome that is found unreadable (§2.3).
    pub fn blind_next_outcome(&self) {
        self.surroundings.probe.blind_next_outcome();
    }

    /// Prunes the log as far as `retention` allows and returns the horizon.
    pub async fn prune(&self, retention: Retention) -> Result<HorizonSeq> {
        let engine = self.engine().await;
        if self.record().await?.is_none() {
            // Nobody was here yet: there is no log to prune.
            return Ok(HorizonSeq::START);
        }
        let pruned = engine.prune(self.partition(), retention).await?;
        Ok(pruned.horizon)
    }

    /// Removes blobs that nothing references.
    pub async fn sweep_blobs(&self) -> Result<Swept> {
        Ok(self.engine().await.sweep_blobs(self.partition()).await?)
    }

    /// The newest commit.
    pub async fn head(&self) -> Result<CommitSeq> {
        let record = self.record().await?;
        Ok(record.map_or(CommitSeq::START, |record| record.head))
    }

    /// How far the log was pruned.
    pub async fn horizon(&self) -> Result<HorizonSeq> {
        let record = self.record().await?;
        Ok(record.map_or(HorizonSeq::START, |record| record.horizon))
    }

    /// The log epoch; `None` before the first request.
    pub async fn log_epoch(&self) -> Result<Option<LogEpoch>> {
        Ok(self.record().await?.map(|record| record.log_epoch))
    }

    /// Every row of a table, by bytewise row id.
    pub async fn rows(&self, table: &str) -> Result<Vec<RowView>> {
        let live = self.live.read().await;
        let table = live
            .schema
            .find(table)
            .with_context(|| format!("no table {table}"))?;
        let mut scan = TableScan {
            partition: self.partition().clone(),
            table,
            after: None,
            rows_max: ROWS_PER_PAGE,
            bytes_max: usize::MAX,
        };
        let mut rows = Vec::new();
        loop {
            let page = live.engine.store().scan_table(scan.clone()).await?;
            for row in page.rows() {
                rows.push(live.view(table, row)?);
            }
            if !page.has_more {
                return Ok(rows);
            }
            scan.after = page.rows().next_back().map(|row| row.row_id.to_owned());
        }
    }

    /// Keeps the database as it is now; a later backup takes this one's place.
    pub async fn back_up(&self) -> Result<()> {
        let live = self.live.read().await;
        live.engine.flush_activity().await?;
        let database = Arc::clone(&live.database);
        let backup = blocking(move || database.lock().back_up()).await?;
        *self.backup.lock() = Some(Arc::new(backup));
        Ok(())
    }

    /// Puts the database back to the last backup and rotates the log epoch, as an operator must
    /// (§2.1).
    pub async fn restore(&self) -> Result<()> {
        let backup = self.backup.lock().clone().context("there is no backup")?;
        let schema = self.schema().await;
        let engine = self
            .reopen(schema, move |database| database.restore(&backup))
            .await?;
        engine.rotate_epoch(self.partition()).await?;
        Ok(())
    }

    /// Restarts the server on the same database with another schema.
    pub async fn upgrade(&self, schema: &Json) -> Result<()> {
        self.reopen(compile(schema)?, Database::reopen).await?;
        if let Some((folder, spec)) = &self.kept {
            let schema = schema.clone();
            InstanceSpec {
                schema,
                ..spec.clone()
            }
            .write(folder)?;
        }
        Ok(())
    }

    /// Restarts the server on the same database with another schema and older ones beside it,
    /// newest first.
    pub async fn upgrade_beside(&self, schema: &Json, older: &[Json]) -> Result<()> {
        let compile = |document: &Json| Schema::from_json(&document.to_string());
        let older = older.iter().map(compile).collect::<Result<_, _>>()?;
        let schema = compile(schema)?.with_window(older)?;
        self.reopen(Arc::new(schema), Database::reopen).await?;
        Ok(())
    }

    /// Restarts the server: what it only knows in memory is gone.
    pub async fn restart(&self) -> Result<()> {
        let schema = self.schema().await;
        self.reopen(schema, Database::reopen).await?;
        Ok(())
    }

    /// Closes the engine, changes the database and opens an engine on it.
    ///
    /// A failure leaves the server closed, as a server that does not come up again would be.
    async fn reopen(
        &self,
        schema: Arc<Schema>,
        change: impl FnOnce(&mut Database) -> Result<()> + Send + 'static,
    ) -> Result<Arc<Engine>> {
        let mut live = self.live.write().await;
        live.server.end_sockets().await;
        self.surroundings.past.lock().add(&live);
        live.engine.close().await?;
        let database = Arc::clone(&live.database);
        blocking(move || change(&mut database.lock())).await?;
        let database = Arc::clone(&live.database);
        *live = self.surroundings.open(database, schema).await?;
        Ok(Arc::clone(&live.engine))
    }

    async fn record(&self) -> Result<Option<PartitionRecord>> {
        let engine = self.engine().await;
        Ok(engine.store().find_partition(self.partition()).await?)
    }
}

impl Surroundings {
    async fn open(&self, database: Arc<Mutex<Database>>, schema: Arc<Schema>) -> Result<Live> {
        let resolver: Arc<SwitchResolver> = Arc::clone(&self.resolver);
        let clock: Arc<VirtualClock> = Arc::clone(&self.clock);
        let ids: Arc<SeededIds> = Arc::clone(&self.ids);
        let mut hooks = self.hooks.clone();
        self.validator.install(&schema, &mut hooks);
        let store = ProbedStore::new(database.lock().store(), Arc::clone(&self.probe));
        let engine = Engine::open(EngineParts {
            store: Arc::new(store),
            schema: Arc::clone(&schema),
            segments: Arc::<MemorySegments>::clone(&self.segments),
            transfers: self.transfers()?,
            resolver,
            clock,
            ids,
            hooks,
            config: self.limits.engine(),
        })
        .await?;
        let authenticator = Arc::new(NameIsToken::new(self.partition.clone()));
        let server = Server::new(Arc::clone(&engine), authenticator, self.limits.server());
        let server = Arc::new(server);
        Ok(Live {
            database,
            schema,
            engine,
            router: router(Arc::clone(&server)),
            server,
        })
    }

    fn transfers(&self) -> Result<Transfers> {
        let segment_urls = match *self.url_lifetime.lock() {
            None => UrlSource::None,
            Some(lifetime) => UrlSource::Signed {
                keys: Arc::new(SigningKeys::new(vec![SIGNING_KEY.to_vec()])?),
                base_url: format!("{}/signed/segments", self.base_url),
                lifetime,
            },
        };
        // The bucket decides whether it has URLs.
        let lifetime = Duration::from_secs(SIGNED_URL_SECONDS_MAX);
        Ok(Transfers {
            blobs: Some(Arc::<Bucket>::clone(&self.bucket)),
            segment_urls,
            blob_urls: Some(lifetime),
            upload_urls: Some(lifetime),
        })
    }
}

impl InstanceCounts {
    /// Adds what a server did.
    fn add(&mut self, live: &Live) {
        let (more, builds) = (live.server.transfer_counts(), live.engine.build_stats());
        let transfers = &mut self.transfers;
        transfers.segment_downloads += more.segment_downloads;
        transfers.signed_downloads += more.signed_downloads;
        transfers.blob_downloads += more.blob_downloads;
        transfers.blob_uploads += more.blob_uploads;
        transfers.upload_grants += more.upload_grants;
        transfers.not_modified += more.not_modified;
        transfers.copies_made += more.copies_made;
        self.builds.image_builds += builds.image_builds;
        self.builds.image_joins += builds.image_joins;
        self.builds.image_reuses += builds.image_reuses;
        self.builds.image_failures += builds.image_failures;
        self.builds.image_declines += builds.image_declines;
        self.builds.page_builds += builds.page_builds;
        self.builds.page_joins += builds.page_joins;
        self.builds.page_reuses += builds.page_reuses;
    }
}

impl Live {
    fn view(&self, table: TableIndex, row: RowRef<'_>) -> Result<RowView> {
        let table = self.schema.table(table);
        let fields = decode_row(&table.columns, row.payload).context("decode a stored row")?;
        let scopes = table
            .stored_scopes(|column| fields[column].map(|field| field.value))
            .context("a stored row has no scopes")?;
        let scopes = scopes.iter();
        Ok(RowView {
            row_id: row.row_id.to_owned(),
            version: row.row_version,
            values: fields_to_json(table, &fields),
            scopes: scopes
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect(),
        })
    }
}

/// Runs what blocks where blocking is allowed.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .context("run a blocking task")?
}

fn compile(document: &Json) -> Result<Arc<Schema>> {
    let schema = Schema::from_json(&document.to_string()).context("compile the schema")?;
    Ok(Arc::new(schema))
}
