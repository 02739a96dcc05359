//! The engine as its host sees it: one value, shared by every binding.

use std::sync::Arc;

use bytes::Bytes;
use tidewater_model::{ClientId, PartitionId};
use tidewater_objects::MemorySegments;
use tidewater_schema::Schema;
use tidewater_store::{PartitionRecord, Pruned, Store, StoreError};
use tokio::sync::broadcast;

use crate::{
    Clock, CommitEvent, EngineConfig, Hooks, Identity, Ids, Retention, RoundBody, RoundError,
    ScopeResolver, SegmentGrant, Session,
    activity::Activity,
    partition::{PartitionState, Partitions},
    push::lane::Lanes,
    realtime, retention, round, segments,
};

/// What an engine is made of.
pub struct EngineParts {
    /// The database.
    pub store: Arc<dyn Store>,
    /// The schema served.
    pub schema: Arc<Schema>,
    /// Where segments are kept until they are fetched.
    pub segments: Arc<MemorySegments>,
    /// Who may see what.
    pub resolver: Arc<dyn ScopeResolver>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Fresh names.
    pub ids: Arc<dyn Ids>,
    /// Validators, mergers, the reaction planner.
    pub hooks: Hooks,
    /// Policy.
    pub config: EngineConfig,
}

/// Answers rounds and downloads on one database and one schema.
pub struct Engine {
    pub(crate) parts: EngineParts,
    pub(crate) partitions: Partitions,
    pub(crate) activity: Activity,
    pub(crate) lanes: Lanes,
    pub(crate) commits: broadcast::Sender<CommitEvent>,
    /// Whether any table declares a reference: most schemas pay nothing for them.
    pub(crate) has_references: bool,
}

/// Commits an observer may fall behind before it misses some.
const COMMIT_EVENTS_BUFFERED: usize = 1_024;

impl Engine {
    /// Prepares the database for the schema, or refuses.
    pub async fn open(parts: EngineParts) -> Result<Arc<Self>, StoreError> {
        parts.store.prepare(&parts.schema).await?;
        let (commits, _) = broadcast::channel(COMMIT_EVENTS_BUFFERED);
        let lanes = Lanes::new(&parts.config, parts.store.write_lanes());
        let has_references = parts
            .schema
            .tables()
            .iter()
            .any(|table| !table.references.is_empty());
        Ok(Arc::new(Self {
            has_references,
            parts,
            partitions: Partitions::default(),
            activity: Activity::default(),
            lanes,
            commits,
        }))
    }

    /// Answers one sync request (§1.4). An error is a failure before the first byte; everything
    /// later travels inside the body.
    pub async fn round(
        self: &Arc<Self>,
        identity: Identity,
        request: Bytes,
    ) -> Result<RoundBody, RoundError> {
        round::answer(self, identity, request).await
    }

    /// Opens a realtime connection of a client (§8.1).
    pub async fn connect(
        self: &Arc<Self>,
        identity: Identity,
        client: ClientId,
    ) -> Result<Session, RoundError> {
        realtime::connect(self, identity, client).await
    }

    /// Authorizes the download of a segment for the scopes it is asked for (§5.5).
    ///
    /// `requested` is the text of `X-Syncular-Scopes`, a JSON object of string lists.
    pub async fn segment(
        self: &Arc<Self>,
        identity: &Identity,
        segment_id: &str,
        requested: &str,
    ) -> Result<SegmentGrant, RoundError> {
        segments::authorize(self, identity, segment_id, requested).await
    }

    /// Prunes the log of one partition as far as `retention` allows (§4.6).
    pub async fn prune(
        &self,
        partition: &PartitionId,
        retention: Retention,
    ) -> Result<Pruned, RoundError> {
        retention::prune(self, partition, retention).await
    }

    /// Gives the partition a new log epoch: what must follow a restore, before serving (§2.1).
    pub async fn rotate_epoch(
        &self,
        partition: &PartitionId,
    ) -> Result<PartitionRecord, RoundError> {
        let epoch = tidewater_model::LogEpoch::new(self.parts.ids.fresh());
        let now_ms = self.parts.clock.now_ms();
        self.activity.forget(partition);
        let record = self
            .parts
            .store
            .rotate_epoch(partition, &epoch, now_ms)
            .await?;
        self.partitions.set(PartitionState::from(&record));
        Ok(record)
    }

    /// Writes gathered activity, prunes every partition from time to time, until it is dropped.
    pub async fn run_maintenance(self: Arc<Self>) {
        retention::run_maintenance(&self).await;
    }

    /// Writes the activity gathered since the last time.
    pub async fn flush_activity(&self) -> Result<(), StoreError> {
        self.activity.flush(self.parts.store.as_ref()).await
    }

    /// Finishes the writes that were accepted and writes gathered activity. Rounds that arrive
    /// afterwards are refused with `sync.internal_error`, which clients retry.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.lanes.close().await;
        self.flush_activity().await
    }

    /// Follows the commits that become durable from now on. An observer that falls behind by
    /// more than a thousand misses some and is told so.
    pub fn follow_commits(&self) -> broadcast::Receiver<CommitEvent> {
        self.commits.subscribe()
    }

    /// The schema served.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.parts.schema
    }

    /// The database.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.parts.store
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.parts.clock
    }
}
