//! The store: sends each call to a connection of the pool.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use tidewater_model::{ClientId, CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_schema::{Schema, TableIndex};
use tidewater_store::{
    ActivityBatch, Checkpoint, CheckpointChange, CheckpointKey, CheckpointOutcome, ClientKey,
    ClientRecord, Gate, Job, LoadRequest, Loaded, PartitionRecord, PartitionTouch, Pruned, PushKey,
    ReactionRecord, ReactionStatus, RetentionInputs, RowKey, RowPage, RowScan, RowStream,
    RowStreamRequest, SchemaState, ScopeSize, ScopeSizeRequest, ScopesTest, Store, StoreError,
    StoreErrorKind, StoredResult, StoredRow, TableScan, Window, WindowRequest, WriteLanes,
    WriteTxn,
    signals::{NodeId, Signals},
};
use tokio_postgres::types::Type;

use crate::{
    blobs, checkpoints, clients,
    config::PostgresConfig,
    error::get,
    gate, guard,
    lanes::Lanes,
    layout::CurrentLayout,
    link::{Link, Mode, Pool, retried},
    load::{self, RowQuestions},
    migrate, operator,
    params::{Param, Step},
    partitions, pooler, prune,
    scan::scan_rows,
    side::{Side, SideConfig},
    signals::PostgresSignals,
    stream, tls, verify, window,
    writer::{self, PostgresTxn},
};

/// A PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    config: PostgresConfig,
    layout: CurrentLayout,
    lanes: Lanes,
    pool: Pool,
    streams: Pool,
    node: NodeId,
    side: OnceLock<Arc<Side>>,
    /// Whether somebody tells the other nodes of our commits after they are made.
    has_signals: AtomicBool,
}

impl PostgresStore {
    /// A store on a database, which is connected to when it is first asked for something.
    ///
    /// # Errors
    ///
    /// When the certificates to trust are not read.
    pub fn new(config: PostgresConfig) -> Result<Self, StoreError> {
        Ok(Self {
            pool: Pool::new(&config, config.connections_max)?,
            streams: Pool::new(&config, config.streams_max)?,
            node: fresh_node()?,
            side: OnceLock::new(),
            has_signals: AtomicBool::new(false),
            layout: CurrentLayout::default(),
            lanes: Lanes::default(),
            config,
        })
    }

    /// Closes the connections: those in use when they are given back.
    pub fn close(&self) {
        self.pool.close();
        self.streams.close();
        if let Some(side) = self.side.get() {
            side.stop();
        }
    }

    /// Signals to and from the other nodes of this database, over one more connection, which is
    /// made in the background of the runtime that this is called in.
    ///
    /// Until somebody has them, every transaction announces its commits itself. From then on
    /// whoever has them is to publish what was committed, unless
    /// [`PostgresConfig::announces_within`] says otherwise.
    ///
    /// # Errors
    ///
    /// When the certificates to trust are not read.
    pub fn signals(&self) -> Result<Arc<dyn Signals>, StoreError> {
        let side = Arc::clone(self.side()?);
        self.has_signals.store(true, Ordering::Relaxed);
        Ok(Arc::new(PostgresSignals {
            node: self.node.clone(),
            side,
            announces: !self.config.announces_within,
        }))
    }

    /// The connection for signals and locks, begun when it is first asked for.
    fn side(&self) -> Result<&Arc<Side>, StoreError> {
        if let Some(side) = self.side.get() {
            return Ok(side);
        }
        let config = &self.config;
        let (address, trust) = match &config.direct {
            Some((address, trust)) => (address, trust),
            None => (&config.address, &config.trust),
        };
        let tls = tls::connector(trust)?;
        Ok(self.side.get_or_init(|| {
            Arc::new(Side::start(SideConfig {
                address: address.clone(),
                tls,
                node: self.node.clone(),
                listens: config.announces,
                keepalive: config.keepalive,
                patience: config.checkout_timeout,
            }))
        }))
    }

    /// Who announces commits inside their transactions, if anybody does.
    fn announcer(&self) -> Option<&NodeId> {
        let config = &self.config;
        let is_said_later = self.has_signals.load(Ordering::Relaxed) && !config.announces_within;
        (config.announces && !is_said_later).then_some(&self.node)
    }

    /// How often this store has waited for the database: every time it did not have an answer
    /// that it could not go on without.
    pub fn round_trips(&self) -> u64 {
        self.pool.round_trips() + self.streams.round_trips()
    }

    /// What [`Store::prepare`] would do with a schema, step by step, for people to read.
    ///
    /// # Errors
    ///
    /// The refusal that `prepare` would answer.
    pub async fn plan_migration(&self, schema: &Arc<Schema>) -> Result<Vec<String>, StoreError> {
        const DURING: &str = "plan a migration";
        let steps = retried!(self.pool, DURING, link => migrate::plan(&mut link, schema))?;
        Ok(steps.iter().map(ToString::to_string).collect())
    }

    /// Takes the database for what is served from here on, whatever its history. It is prepared
    /// with [`PostgresConfig::accept_restored`] before.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn adopt(&self) -> Result<(), StoreError> {
        let accept_timelines = self.config.accept_new_timelines;
        retried!(self.pool, "adopt the database", link =>
            guard::adopt(&mut link, accept_timelines))
    }

    /// What in the database does not agree with the rest of it, a sentence each. Reads all of it.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn verify(&self) -> Result<Vec<String>, StoreError> {
        let layout = self.layout.get();
        retried!(self.pool, "verify the database", link => verify::verify(&mut link, &layout))
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn prepare(&self, schema: &Arc<Schema>) -> Result<(), StoreError> {
        const DURING: &str = "prepare the database";
        pooler::check(&self.pool, &self.streams).await?;
        let prepared = retried!(self.pool, DURING, link => migrate::prepare(&mut link, schema))?;
        if prepared.loses_commits {
            tracing::info!("synchronous_commit is off in the database and on for our commits");
            self.pool.ask_for_durability();
        }
        let mut layout = prepared.layout;
        layout.timeline = retried!(self.pool, DURING, link => guard::check(
            &mut link, self.config.accept_restored, self.config.accept_new_timelines))?;
        self.layout.replace(Arc::new(layout));
        Ok(())
    }

    fn write_lanes(&self) -> WriteLanes {
        WriteLanes::PerPartition
    }

    async fn touch_partition(&self, touch: PartitionTouch) -> Result<PartitionRecord, StoreError> {
        retried!(self.pool, "touch a partition", link => partitions::touch(&mut link, &touch))
    }

    async fn find_partition(
        &self,
        partition: &PartitionId,
    ) -> Result<Option<PartitionRecord>, StoreError> {
        retried!(self.pool, "find a partition", link => partitions::find(&mut link, partition))
    }

    async fn list_partitions(
        &self,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<PartitionRecord>, StoreError> {
        retried!(self.pool, "list partitions", link => partitions::list(&mut link, after, limit))
    }

    async fn rotate_epoch(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        at_ms: i64,
    ) -> Result<PartitionRecord, StoreError> {
        retried!(self.pool, "rotate an epoch", link =>
            partitions::rotate_epoch(&mut link, partition, epoch, at_ms, self.announcer()))
    }

    async fn read_window(&self, request: WindowRequest) -> Result<Window, StoreError> {
        let layout = self.layout.get();
        let table = layout.table(request.table).name();
        retried!(self.pool, "read the log", link =>
            window::read_window(&mut link, table, &request))
    }

    async fn scan_rows(&self, scan: RowScan) -> Result<RowPage, StoreError> {
        let layout = self.layout.get();
        let table = layout.table(scan.table);
        retried!(self.pool, "scan rows", link => scan_rows(&mut link, table, &scan, true))
    }

    async fn stream_rows(&self, request: RowStreamRequest) -> Result<RowStream, StoreError> {
        stream::stream_rows(&self.streams, self.layout.get(), request).await
    }

    async fn scope_size(&self, request: ScopeSizeRequest) -> Result<ScopeSize, StoreError> {
        let layout = self.layout.get();
        let table = layout.table(request.table).name();
        retried!(self.pool, "measure a scope", link =>
            stream::scope_size(&mut link, table, &request))
    }

    async fn scan_table(&self, scan: TableScan) -> Result<RowPage, StoreError> {
        let layout = self.layout.get();
        let table = layout.table(scan.table);
        retried!(self.pool, "scan a table", link =>
            operator::scan_table(&mut link, table, &scan))
    }

    async fn list_reactions(
        &self,
        partition: &PartitionId,
        status: Option<ReactionStatus>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ReactionRecord>, StoreError> {
        retried!(self.pool, "list reactions", link =>
            operator::list_reactions(&mut link, partition, status, after, limit))
    }

    async fn prune_push_results(
        &self,
        partition: &PartitionId,
        after: Option<&PushKey>,
        recorded_before_ms: i64,
        limit: usize,
    ) -> Result<(Option<PushKey>, u64), StoreError> {
        retried!(self.pool, "prune outcomes", link => operator::prune_push_results(
            &mut link, partition, after, recorded_before_ms, limit))
    }

    async fn find_rows(&self, keys: Vec<RowKey>) -> Result<Vec<Option<StoredRow>>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        const DURING: &str = "find rows";
        let layout = self.layout.get();
        let questions = RowQuestions::new(&keys);
        let answers = retried!(self.pool, DURING, link =>
            link.transact(Mode::Read, questions.steps(&layout), DURING))?;
        questions.read(&answers)
    }

    async fn newest_change(
        &self,
        partition: &PartitionId,
        table: TableIndex,
        variable: &str,
        values: &[String],
    ) -> Result<Option<CommitSeq>, StoreError> {
        const DURING: &str = "find the newest change";
        let layout = self.layout.get();
        let table = layout.table(table).name();
        let answers = retried!(self.pool, DURING, link => link.transact(
            Mode::Read, vec![window::newest(partition, table, variable, values)], DURING))?;
        window::only_newest(&answers[0], DURING)
    }

    async fn find_push_result(&self, key: &PushKey) -> Result<Option<StoredResult>, StoreError> {
        const DURING: &str = "find an outcome";
        let keys = std::slice::from_ref(key);
        let mut answers = retried!(self.pool, DURING, link =>
            link.transact(Mode::Read, vec![load::results(keys)], DURING))?;
        load::only_result(&answers.pop().unwrap_or_default(), DURING)
    }

    async fn find_client(
        &self,
        partition: &PartitionId,
        client: &ClientId,
    ) -> Result<Option<ClientRecord>, StoreError> {
        const DURING: &str = "find a client";
        let keys = [ClientKey {
            partition: partition.clone(),
            client: client.clone(),
        }];
        let answers = retried!(self.pool, DURING, link =>
            link.transact(Mode::Read, vec![clients::find(&keys)], DURING))?;
        let row = answers[0].first();
        row.map(|row| clients::record(row, 1, DURING)).transpose()
    }

    async fn list_clients(
        &self,
        partition: &PartitionId,
        after: Option<&ClientId>,
        limit: usize,
    ) -> Result<Vec<(ClientId, ClientRecord)>, StoreError> {
        const DURING: &str = "list clients";
        let answers = retried!(self.pool, DURING, link =>
            link.transact(Mode::Read, vec![clients::list(partition, after, limit)], DURING))?;
        let rows = answers[0].iter();
        rows.map(|row| {
            let client = ClientId::new(get::<&str>(row, 0, DURING)?);
            Ok((client, clients::record(row, 1, DURING)?))
        })
        .collect()
    }

    async fn put_activity(&self, batch: ActivityBatch) -> Result<(), StoreError> {
        retried!(self.pool, "write activity", link =>
            partitions::put_activity(&mut link, &batch))
    }

    async fn retention_inputs(
        &self,
        partition: &PartitionId,
        seen_since_ms: i64,
        aged_before_ms: i64,
    ) -> Result<RetentionInputs, StoreError> {
        retried!(self.pool, "read retention inputs", link =>
            prune::retention_inputs(&mut link, partition, seen_since_ms, aged_before_ms))
    }

    async fn prune(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        horizon: HorizonSeq,
    ) -> Result<Pruned, StoreError> {
        prune::prune(&self.pool, partition, epoch, horizon).await
    }

    async fn find_blob_row(
        &self,
        partition: &PartitionId,
        blob_id: &str,
        wanted: ScopesTest,
    ) -> Result<Option<RowKey>, StoreError> {
        let layout = self.layout.get();
        retried!(self.pool, "find a row by its blob", link =>
            blobs::find_blob_row(&mut link, &layout, partition, blob_id, &wanted))
    }

    async fn are_referenced(
        &self,
        partition: &PartitionId,
        blob_ids: Vec<String>,
    ) -> Result<Vec<bool>, StoreError> {
        if blob_ids.is_empty() {
            return Ok(Vec::new());
        }
        retried!(self.pool, "look for references", link =>
            blobs::are_referenced(&mut link, partition, &blob_ids))
    }

    async fn begin_write(
        &self,
        wanted: LoadRequest,
    ) -> Result<(Box<dyn WriteTxn>, Loaded), StoreError> {
        let turns = self.lanes.take(&wanted.partitions).await;
        let layout = self.layout.get();
        let (link, loaded) = self.begin(&wanted, &layout).await?;
        let timeout = self.config.query_timeout;
        let announcer = self.announcer().cloned();
        let txn = PostgresTxn::new(link, layout, timeout, turns, announcer, &wanted, &loaded);
        Ok((Box::new(txn), loaded))
    }

    async fn read_gate(&self, partition: &PartitionId) -> Result<Gate, StoreError> {
        const DURING: &str = "read a gate";
        let answers = retried!(self.pool, DURING, link =>
            link.transact(Mode::Read, vec![gate::read(&[partition])], DURING))?;
        gate::only(&answers[0], DURING)
    }

    async fn schema_state(&self) -> Result<SchemaState, StoreError> {
        retried!(self.pool, "read the state of the schema", link =>
            checkpoints::schema_state(&mut link))
    }

    async fn raise_fence(&self, partition: &PartitionId, version: i32) -> Result<i32, StoreError> {
        retried!(self.pool, "raise a fence", link =>
            checkpoints::raise_fence(&mut link, partition, version))
    }

    async fn change_checkpoint(
        &self,
        key: &CheckpointKey,
        change: CheckpointChange,
    ) -> Result<(CheckpointOutcome, Checkpoint), StoreError> {
        retried!(self.pool, "change a checkpoint", link =>
            checkpoints::change(&mut link, key, change))
    }

    async fn list_checkpoints(
        &self,
        after: Option<&CheckpointKey>,
        limit: usize,
    ) -> Result<Vec<Checkpoint>, StoreError> {
        retried!(self.pool, "list checkpoints", link =>
            checkpoints::list(&mut link, after, limit))
    }

    async fn holds(&self, job: Job) -> Result<bool, StoreError> {
        self.side()?.holds(job).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        const DURING: &str = "check the database";
        let text = || Param::new("answers", Type::TEXT);
        retried!(self.pool, DURING, link =>
            link.transact(Mode::Read, vec![Step::new("SELECT $1::text", vec![text()])], DURING))
        .map(drop)
    }
}

impl PostgresStore {
    async fn begin(
        &self,
        wanted: &LoadRequest,
        layout: &crate::layout::Layout,
    ) -> Result<(Link, Loaded), StoreError> {
        let mut tries = 0;
        loop {
            let mut link = self.pool.lease("begin a write transaction").await?;
            match writer::begin(&mut link, layout, wanted).await {
                Ok(loaded) => return Ok((link, loaded)),
                Err(error) if link.may_retry(&error, tries) => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// A name for this process that nobody had before.
fn fresh_node() -> Result<NodeId, StoreError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        StoreError::new(StoreErrorKind::Unavailable, "name this node").with_source(error)
    })?;
    Ok(NodeId::new(format!("{:032x}", u128::from_be_bytes(bytes))))
}
