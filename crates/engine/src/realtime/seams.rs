//! What the host says to the realtime channel, and what other nodes do.
//!
//! Several nodes may share one database. What each tells the others (`nodes`) may come twice, late
//! or out of order. When some of it may have been lost, [`Engine::catch_up_all`] looks at the
//! database instead.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tidewater_model::{ActorId, CommitSeq, PartitionId};
use tidewater_store::{StoreError, signals::Signal};
use tidewater_wire::control::WakeReason;

use super::load;
use crate::{Engine, RealtimeStats};

/// Partitions whose registry entries are read at once.
const CATCH_UPS_AT_ONCE: usize = 16;

impl Engine {
    /// Asks anew what the connected clients of an actor may see, or of everybody in the
    /// partition (§8.7). From now on nothing is sent that is not allowed any more; returns when
    /// every answer is in force here. A connection without an answer holds nothing. Other nodes
    /// are told, and do the same.
    pub async fn refresh_scopes(
        self: &Arc<Self>,
        partition: &PartitionId,
        actor: Option<&ActorId>,
    ) {
        self.nodes.tell(Signal::RefreshScopes {
            partition: partition.clone(),
            actor: actor.cloned(),
        });
        self.refresh_here(partition, actor).await;
    }

    /// Does so for the connections of this process.
    pub(crate) async fn refresh_here(
        self: &Arc<Self>,
        partition: &PartitionId,
        actor: Option<&ActorId>,
    ) {
        if let Some(room) = self.hub.find(partition) {
            load::refresh(self, &room, actor).await;
        }
    }

    /// The partitions that have connections here.
    pub(crate) fn rooms(&self) -> Vec<PartitionId> {
        let rooms = self.hub.rooms();
        rooms.iter().map(|room| room.partition.clone()).collect()
    }

    /// Tells every connected client of the partition to pull (§8.3), on every node.
    pub fn wake(&self, partition: &PartitionId, reason: WakeReason) {
        self.nodes.tell(Signal::Wake {
            partition: partition.clone(),
            reason,
        });
        self.wake_here(partition, reason);
    }

    /// Does so for the connections of this process.
    pub(crate) fn wake_here(&self, partition: &PartitionId, reason: WakeReason) {
        if let Some(room) = self.hub.find(partition) {
            let now_ms = self.hub.now_ms();
            self.hub.with(&room, |room| room.wake_all(reason, now_ms));
        }
    }

    /// Where realtime stands in this process.
    pub fn realtime_stats(&self) -> RealtimeStats {
        self.hub.stats()
    }

    /// Another process has made this commit: it is read from the log and delivered. One that is
    /// known already is no news, so a process may be told of its own commits.
    pub(crate) fn commits_elsewhere(&self, partition: &PartitionId, commit_seq: CommitSeq) {
        self.partitions.advance_head(partition, commit_seq);
        self.hub.announce_head(partition, commit_seq);
    }

    /// Looks at a partition's registry entry, and delivers what was missed. Another log epoch
    /// tells its connections to start over.
    pub(crate) async fn catch_up(&self, partition: &PartitionId) -> Result<(), StoreError> {
        let state = self.partitions.look_again(self, partition).await?;
        self.hub.restart(partition, &state.log_epoch, state.head);
        self.hub.announce_head(partition, state.head);
        Ok(())
    }

    /// Words of other nodes may have been lost: catches up with every partition that has
    /// connections here. Returns the first failure, and does the rest.
    pub(crate) async fn catch_up_all(self: &Arc<Self>) -> Result<(), StoreError> {
        let rooms = self.rooms().into_iter();
        let catch_ups = rooms.map(|partition| {
            let engine = Arc::clone(self);
            async move { engine.catch_up(&partition).await }
        });
        let mut outcomes = stream::iter(catch_ups).buffer_unordered(CATCH_UPS_AT_ONCE);
        let mut first = Ok(());
        while let Some(outcome) = outcomes.next().await {
            first = first.and(outcome);
        }
        first
    }

    /// Hands every change of presence in this process to `hook`, as bytes for
    /// [`Engine::presence_elsewhere`] of the other nodes. The hook is called in the order of the
    /// changes and must not block. Only the first hook counts.
    pub(crate) fn on_presence(&self, hook: impl Fn(&PartitionId, Bytes) + Send + Sync + 'static) {
        self.hub.on_presence(Box::new(hook));
    }

    /// All there is to tell a node that has heard nothing yet: each document of this process.
    pub(crate) fn presence_here(&self) -> Vec<(PartitionId, Bytes)> {
        let rooms = self.hub.rooms();
        let notices = rooms.iter().flat_map(|room| {
            let notices = self.hub.with(room, |room| room.notices());
            notices
                .into_iter()
                .map(|notice| (room.partition.clone(), notice))
        });
        notices.collect()
    }

    /// Takes what another node said about presence.
    pub(crate) fn presence_elsewhere(&self, node_id: &str, partition: &PartitionId, notice: &[u8]) {
        self.hub.hear(&Arc::from(node_id), partition, notice);
    }

    /// Another node is gone, and with it the documents of its connections.
    pub(crate) fn node_lost(&self, node_id: &str) {
        self.hub.lose_node(&Arc::from(node_id));
    }
}
