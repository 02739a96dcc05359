//! The engine as its host sees it: one value, shared by every binding.

use std::sync::Arc;

use bytes::Bytes;
use tidewater_model::{ClientId, PartitionId};
use tidewater_objects::{BlobUsage, SegmentStore};
use tidewater_schema::Schema;
use tidewater_store::{
    PartitionRecord, Pruned, Store, StoreError,
    signals::{Signal, Signals},
};
use tokio::sync::broadcast;

use crate::{
    BlobGrant, BlobUpload, BuildStats, Clock, CommitEvent, EngineConfig, Hooks, Identity, Ids,
    Retention, RoundBody, RoundError, ScopeResolver, SegmentGrant, Session, Swept, Transfers,
    UploadGrant,
    activity::Activity,
    blobs,
    builds::Builds,
    nodes::Nodes,
    partition::{PartitionState, Partitions},
    push::{
        lane::Lanes,
        totals::{Counters, PushTotals},
    },
    realtime::{self, Hub},
    retention, round, segments,
};

/// What an engine is made of.
pub struct EngineParts {
    /// The database.
    pub store: Arc<dyn Store>,
    /// The schema served.
    pub schema: Arc<Schema>,
    /// Where segments are kept until they are fetched.
    pub segments: Arc<dyn SegmentStore>,
    /// Blobs and signed URLs.
    pub transfers: Transfers,
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
    pub(crate) builds: Builds,
    pub(crate) quota: blobs::Quota,
    pub(crate) commits: broadcast::Sender<CommitEvent>,
    pub(crate) push_totals: Counters,
    pub(crate) nodes: Nodes,
    pub(crate) hub: Arc<Hub>,
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
        let hub = Hub::new(
            Arc::clone(&parts.store),
            Arc::clone(&parts.schema),
            Arc::clone(&parts.clock),
            parts.config.hub.clone(),
        );
        Ok(Arc::new(Self {
            has_references,
            hub,
            builds: Builds::new(&parts.config),
            quota: blobs::Quota::default(),
            parts,
            partitions: Partitions::default(),
            activity: Activity::default(),
            lanes,
            commits,
            push_totals: Counters::default(),
            nodes: Nodes::default(),
        }))
    }

    /// Answers one sync request (§1.4). An error is a failure before the first byte; everything
    /// later travels inside the body.
    pub async fn round(
        self: &Arc<Self>,
        identity: Identity,
        request: Bytes,
    ) -> Result<RoundBody, RoundError> {
        round::answer(self, identity, request, None).await
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

    /// Grants the segment that a signed URL of ours names, to whoever has it (§5.4). The token is
    /// the query parameter `st`.
    pub async fn signed_segment(
        self: &Arc<Self>,
        segment_id: &str,
        token: &str,
    ) -> Result<SegmentGrant, RoundError> {
        segments::authorize_signed(self, segment_id, token).await
    }

    /// Stores a blob for whoever is authenticated (§5.9.3). Its content is hashed and measured
    /// while it streams in; nothing of it is visible before it was found to be what its id says.
    pub async fn upload_blob(
        self: &Arc<Self>,
        identity: &Identity,
        blob_id: &str,
        upload: BlobUpload,
    ) -> Result<(), RoundError> {
        blobs::upload(self, identity, blob_id, upload).await
    }

    /// Says how a blob of this size may be uploaded (§5.9.3).
    pub async fn grant_upload(
        self: &Arc<Self>,
        identity: &Identity,
        blob_id: &str,
        byte_length: u64,
    ) -> Result<UploadGrant, RoundError> {
        blobs::grant_upload(self, identity, blob_id, byte_length).await
    }

    /// Grants a blob to an actor who may read a row that references it now (§5.9.5).
    pub async fn download_blob(
        self: &Arc<Self>,
        identity: &Identity,
        blob_id: &str,
    ) -> Result<BlobGrant, RoundError> {
        blobs::download(self, identity, blob_id).await
    }

    /// What the blobs of a partition take; `blob.not_found` without a blob store.
    pub async fn blob_usage(&self, partition: &PartitionId) -> Result<BlobUsage, RoundError> {
        blobs::usage(self, partition).await
    }

    /// Removes the blobs of a partition that nothing references and nobody used for the grace
    /// period (§5.9.2). Maintenance does this by itself.
    pub async fn sweep_blobs(&self, partition: &PartitionId) -> Result<Swept, RoundError> {
        blobs::sweep(self, partition).await
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
        // Also what was read again while the log was being replaced.
        self.activity.forget(partition);
        self.nodes.tell(Signal::Registry {
            partition: partition.clone(),
        });
        self.hub.restart(partition, &record.log_epoch, record.head);
        Ok(record)
    }

    /// Shares the database with other nodes: hears of what they do, and tells them. It takes
    /// effect with [`Engine::run_maintenance`], and before anything is served.
    pub fn join_nodes(&self, signals: Arc<dyn Signals>) {
        // Until it is known that signals arrive.
        self.partitions.distrust();
        let heard = Arc::clone(&signals);
        self.on_presence(move |partition, bytes| {
            heard.publish(Signal::Presence {
                partition: partition.clone(),
                bytes,
            });
        });
        self.nodes.join(signals);
    }

    /// Writes gathered activity, prunes every partition from time to time, follows the other
    /// nodes, until it is dropped.
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
        self.hub.settled().await;
        let flushed = self.flush_activity().await;
        self.nodes.leave().await;
        flushed
    }

    /// What pushes have come to since the engine was opened.
    pub fn push_totals(&self) -> PushTotals {
        self.push_totals.read()
    }

    /// Follows the commits that become durable from now on. An observer that falls behind by
    /// more than a thousand misses some and is told so.
    pub fn follow_commits(&self) -> broadcast::Receiver<CommitEvent> {
        self.commits.subscribe()
    }

    /// What was built of segments, and what was spared by joining and reuse.
    pub fn build_stats(&self) -> BuildStats {
        self.builds.counts.stats()
    }

    /// Segments that are kept.
    pub fn segments(&self) -> &Arc<dyn SegmentStore> {
        &self.parts.segments
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
