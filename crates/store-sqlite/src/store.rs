//! The store: opens the database, sends each call to the thread that answers it.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use tidewater_model::{ClientId, CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_schema::{Schema, TableIndex};
use tidewater_store::{
    ActivityBatch, Checkpoint, CheckpointChange, CheckpointKey, CheckpointOutcome, ClientRecord,
    Gate, Lane, LoadRequest, Loaded, PartitionRecord, PartitionTouch, Pruned, PushKey,
    ReactionRecord, ReactionStatus, RetentionInputs, RowKey, RowPage, RowScan, RowStream,
    RowStreamRequest, SchemaState, ScopeSize, ScopeSizeRequest, ScopesTest, Store, StoreError,
    StoreErrorKind, StoredResult, StoredRow, TableScan, Window, WindowRequest, WriteLanes,
    WriteTxn,
};

use crate::{
    blobs, checkpoints, clients,
    config::SqliteConfig,
    connection,
    connection::Role,
    error::{disconnected, failed},
    guard,
    home::Home,
    layout::CurrentLayout,
    load, migrate, operator, partitions, prune,
    readers::Readers,
    scan, stream, window,
    worker::{Seat, Worker},
    writer::Writer,
};

/// A SQLite database.
#[derive(Debug)]
pub struct SqliteStore {
    /// The threads hold the files: a store that is closed lets go of them.
    home: Weak<Home>,
    accept_restored: bool,
    layout: Arc<CurrentLayout>,
    readers: Readers,
    streams: Readers,
    writer: Writer,
}

impl SqliteStore {
    /// Opens a database, or creates it, for this store alone.
    ///
    /// Blocks: recovering the log of a server that was killed may take a while.
    ///
    /// # Errors
    ///
    /// Refused when another store has the database open.
    pub fn open(config: SqliteConfig) -> Result<Self, StoreError> {
        let home = Arc::new(Home::claim(&config.location)?);
        let config = Arc::new(config);
        let layout = Arc::new(CurrentLayout::default());
        let start = |name: String, role: Role| {
            let connection = connection::open(&home, &config, role)?;
            let seat = Seat {
                home: Arc::clone(&home),
                config: Arc::clone(&config),
                layout: Arc::clone(&layout),
                role,
            };
            Worker::start(name, connection, seat).map_err(|error| {
                StoreError::new(StoreErrorKind::Unavailable, "start a thread").with_source(error)
            })
        };
        // The writer first: it creates the file and turns the log on.
        let writer = Writer::new(start("sqlite-writer".to_owned(), Role::Writer)?);
        let readers = (0..config.readers.get())
            .map(|number| start(format!("sqlite-reader-{number}"), Role::Reader))
            .collect::<Result<_, _>>()?;
        let streams = (0..STREAMS_MAX)
            .map(|number| start(format!("sqlite-stream-{number}"), Role::Reader))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            accept_restored: config.accept_restored,
            home: Arc::downgrade(&home),
            layout,
            readers: Readers::new(readers),
            streams: Readers::new(streams),
            writer,
        })
    }

    /// Closes the database: what was begun is finished, and the log is moved into the file.
    ///
    /// Blocks. Dropping the store does the same. A write transaction that is still in the hands
    /// of a caller keeps the database open until it is dropped.
    pub fn close(&self) {
        self.readers.close();
        self.streams.close();
        self.writer.close();
    }

    fn home(&self) -> Result<Arc<Home>, StoreError> {
        self.home
            .upgrade()
            .ok_or_else(|| disconnected("find the database"))
    }

    /// Takes the database for the one that lives here from now on, after it was opened with
    /// [`SqliteConfig::accept_restored`].
    pub async fn adopt(&self) -> Result<(), StoreError> {
        let home = self.home()?;
        self.writer
            .run_bare("adopt the database", move |session| {
                guard::adopt(session.connection)?;
                home.adopt();
                home.mark(session.connection);
                Ok(())
            })
            .await
    }

    /// What [`Store::prepare`] would do with a schema, step by step, for people to read.
    ///
    /// # Errors
    ///
    /// The refusal that `prepare` would answer.
    pub async fn plan_migration(&self, schema: &Arc<Schema>) -> Result<Vec<String>, StoreError> {
        let schema = Arc::clone(schema);
        self.readers
            .run("plan a migration", move |session| {
                let steps = migrate::plan(session, &schema)?;
                Ok(steps.iter().map(ToString::to_string).collect())
            })
            .await
    }
}

/// Streams that are read at the same time; others wait for one of them to end.
const STREAMS_MAX: usize = 2;

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close();
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn prepare(&self, schema: &Arc<Schema>) -> Result<(), StoreError> {
        let schema = Arc::clone(schema);
        let current = Arc::clone(&self.layout);
        let home = self.home()?;
        let accept_restored = self.accept_restored;
        self.writer
            .run_bare("prepare the database", move |session| {
                if !accept_restored && !home.is_temporary() {
                    guard::check(session.connection, home.path())?;
                    home.adopt();
                }
                let layout = migrate::prepare(session, &schema)?;
                current.replace(Arc::new(layout));
                home.mark(session.connection);
                Ok(())
            })
            .await
    }

    fn write_lanes(&self) -> WriteLanes {
        WriteLanes::One
    }

    fn adopt_lane(&self, lane: Lane) -> Option<Lane> {
        self.writer.adopt(lane)
    }

    async fn touch_partition(&self, touch: PartitionTouch) -> Result<PartitionRecord, StoreError> {
        self.writer
            .run("touch a partition", move |session| {
                partitions::touch(session, &touch)
            })
            .await
    }

    async fn find_partition(
        &self,
        partition: &PartitionId,
    ) -> Result<Option<PartitionRecord>, StoreError> {
        const DURING: &str = "find a partition";
        let partition = partition.clone();
        self.readers
            .run(DURING, move |session| {
                partitions::find(&mut session.queries, &partition, DURING)
            })
            .await
    }

    async fn list_partitions(
        &self,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<PartitionRecord>, StoreError> {
        let after = after.cloned();
        self.readers
            .run("list partitions", move |session| {
                partitions::list(session, after.as_ref(), limit)
            })
            .await
    }

    async fn rotate_epoch(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        at_ms: i64,
    ) -> Result<PartitionRecord, StoreError> {
        let (partition, epoch) = (partition.clone(), epoch.clone());
        self.writer
            .run("rotate an epoch", move |session| {
                partitions::rotate_epoch(session, &partition, &epoch, at_ms)
            })
            .await
    }

    async fn read_window(&self, request: WindowRequest) -> Result<Window, StoreError> {
        self.readers
            .run("read the log", move |session| {
                window::read_window(session, &request)
            })
            .await
    }

    async fn scan_rows(&self, scan: RowScan) -> Result<RowPage, StoreError> {
        const DURING: &str = "scan rows";
        self.readers
            .run(DURING, move |session| {
                session.snapshot(DURING, |session| scan::scan_rows(session, &scan))
            })
            .await
    }

    async fn stream_rows(&self, request: RowStreamRequest) -> Result<RowStream, StoreError> {
        stream::stream_rows(&self.streams, request).await
    }

    async fn scope_size(&self, request: ScopeSizeRequest) -> Result<ScopeSize, StoreError> {
        self.readers
            .run("measure a scope", move |session| {
                stream::scope_size(session, &request)
            })
            .await
    }

    async fn scan_table(&self, scan: TableScan) -> Result<RowPage, StoreError> {
        const DURING: &str = "scan a table";
        self.readers
            .run(DURING, move |session| {
                session.snapshot(DURING, |session| {
                    operator::scan_table(session, &scan, DURING)
                })
            })
            .await
    }

    async fn list_reactions(
        &self,
        partition: &PartitionId,
        status: Option<ReactionStatus>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ReactionRecord>, StoreError> {
        let (partition, after) = (partition.clone(), after.map(str::to_owned));
        self.readers
            .run("list reactions", move |session| {
                operator::list_reactions(session, &partition, status, after.as_deref(), limit)
            })
            .await
    }

    async fn prune_push_results(
        &self,
        partition: &PartitionId,
        after: Option<&PushKey>,
        recorded_before_ms: i64,
        limit: usize,
    ) -> Result<(Option<PushKey>, u64), StoreError> {
        let (partition, after) = (partition.clone(), after.cloned());
        self.writer
            .run("prune outcomes", move |session| {
                let after = after.as_ref();
                operator::prune_push_results(session, &partition, after, recorded_before_ms, limit)
            })
            .await
    }

    async fn newest_change(
        &self,
        partition: &PartitionId,
        table: TableIndex,
        variable: &str,
        values: &[String],
    ) -> Result<Option<CommitSeq>, StoreError> {
        let partition = partition.clone();
        let variable = variable.to_owned();
        let values = values.to_vec();
        self.readers
            .run("find the newest change", move |session| {
                window::newest_change(session, &partition, table, &variable, &values)
            })
            .await
    }

    async fn find_rows(&self, keys: Vec<RowKey>) -> Result<Vec<Option<StoredRow>>, StoreError> {
        const DURING: &str = "find rows";
        self.readers
            .run(DURING, move |session| {
                session.snapshot(DURING, |session| load::find_rows(session, &keys))
            })
            .await
    }

    async fn find_push_result(&self, key: &PushKey) -> Result<Option<StoredResult>, StoreError> {
        const DURING: &str = "find an outcome";
        let key = key.clone();
        self.readers
            .run(DURING, move |session| {
                load::find_push_result(&mut session.queries, &key, DURING)
            })
            .await
    }

    async fn find_client(
        &self,
        partition: &PartitionId,
        client: &ClientId,
    ) -> Result<Option<ClientRecord>, StoreError> {
        const DURING: &str = "find a client";
        let (partition, client) = (partition.clone(), client.clone());
        self.readers
            .run(DURING, move |session| {
                clients::find_client(&mut session.queries, &partition, &client, DURING)
            })
            .await
    }

    async fn list_clients(
        &self,
        partition: &PartitionId,
        after: Option<&ClientId>,
        limit: usize,
    ) -> Result<Vec<(ClientId, ClientRecord)>, StoreError> {
        let (partition, after) = (partition.clone(), after.cloned());
        self.readers
            .run("list clients", move |session| {
                clients::list_clients(session, &partition, after.as_ref(), limit)
            })
            .await
    }

    async fn put_activity(&self, batch: ActivityBatch) -> Result<(), StoreError> {
        let home = self.home()?;
        self.writer
            .run("write activity", move |session| {
                partitions::put_activity(session, &batch)?;
                // Beside what is written from time to time anyhow.
                home.mark(session.connection);
                Ok(())
            })
            .await
    }

    async fn retention_inputs(
        &self,
        partition: &PartitionId,
        seen_since_ms: i64,
        aged_before_ms: i64,
    ) -> Result<RetentionInputs, StoreError> {
        let partition = partition.clone();
        self.readers
            .run("read retention inputs", move |session| {
                prune::retention_inputs(session, &partition, seen_since_ms, aged_before_ms)
            })
            .await
    }

    async fn prune(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        horizon: HorizonSeq,
    ) -> Result<Pruned, StoreError> {
        const DURING: &str = "prune the log";
        let (name, epoch) = (partition.clone(), epoch.clone());
        let (previous, horizon) = self
            .writer
            .run(DURING, move |session| {
                prune::raise_horizon(session, &name, &epoch, horizon)
            })
            .await?;
        let mut removed_commits = 0;
        loop {
            let name = partition.clone();
            let piece = self
                .writer
                .run(DURING, move |session| {
                    prune::delete_piece(session, &name, horizon)
                })
                .await?;
            removed_commits += piece.commits;
            if piece.is_last {
                return Ok(Pruned {
                    previous,
                    horizon,
                    removed_commits,
                });
            }
        }
    }

    async fn find_blob_row(
        &self,
        partition: &PartitionId,
        blob_id: &str,
        wanted: ScopesTest,
    ) -> Result<Option<RowKey>, StoreError> {
        let (partition, blob_id) = (partition.clone(), blob_id.to_owned());
        self.readers
            .run("find a row by its blob", move |session| {
                blobs::find_blob_row(session, &partition, &blob_id, &wanted)
            })
            .await
    }

    async fn are_referenced(
        &self,
        partition: &PartitionId,
        blob_ids: Vec<String>,
    ) -> Result<Vec<bool>, StoreError> {
        let partition = partition.clone();
        self.readers
            .run("look for references", move |session| {
                blobs::are_referenced(session, &partition, &blob_ids)
            })
            .await
    }

    async fn begin_write(
        &self,
        wanted: LoadRequest,
    ) -> Result<(Box<dyn WriteTxn>, Loaded), StoreError> {
        self.writer.begin(wanted).await
    }

    async fn read_gate(&self, partition: &PartitionId) -> Result<Gate, StoreError> {
        const DURING: &str = "read a gate";
        let partition = partition.clone();
        self.readers
            .run(DURING, move |session| session.gate(&partition, DURING))
            .await
    }

    async fn schema_state(&self) -> Result<SchemaState, StoreError> {
        self.readers
            .run("read the state of the schema", checkpoints::schema_state)
            .await
    }

    async fn raise_fence(&self, partition: &PartitionId, version: i32) -> Result<i32, StoreError> {
        let partition = partition.clone();
        self.writer
            .run("raise a fence", move |session| {
                checkpoints::raise_fence(session, &partition, version)
            })
            .await
    }

    async fn change_checkpoint(
        &self,
        key: &CheckpointKey,
        change: CheckpointChange,
    ) -> Result<(CheckpointOutcome, Checkpoint), StoreError> {
        let key = key.clone();
        self.writer
            .run("change a checkpoint", move |session| {
                checkpoints::change(session, &key, change)
            })
            .await
    }

    async fn list_checkpoints(
        &self,
        after: Option<&CheckpointKey>,
        limit: usize,
    ) -> Result<Vec<Checkpoint>, StoreError> {
        let after = after.cloned();
        self.readers
            .run("list checkpoints", move |session| {
                checkpoints::list(session, after.as_ref(), limit)
            })
            .await
    }

    async fn check(&self) -> Result<(), StoreError> {
        const DURING: &str = "check the database";
        self.readers
            .run(DURING, |session| {
                let pinged = session.queries.ping.find(&[], |_| Ok(()));
                pinged.map(drop).map_err(failed(DURING))
            })
            .await
    }
}
