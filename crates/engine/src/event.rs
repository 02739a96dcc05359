//! What observers are told after a commit is durable.

use std::sync::Arc;

use tidewater_model::{ActorId, ClientId, CommitSeq, PartitionId};
use tidewater_store::CommitWrite;

/// A commit that is durable: acknowledged, or about to be.
#[derive(Clone, Debug)]
pub struct CommitEvent {
    /// Everything the commit wrote. Its `applied` part is present.
    pub commit: Arc<CommitWrite>,
}

impl CommitEvent {
    /// The partition.
    pub fn partition(&self) -> &PartitionId {
        &self.commit.key.partition
    }

    /// Who pushed it.
    pub fn actor(&self) -> &ActorId {
        &self.commit.actor
    }

    /// From which replica.
    pub fn client(&self) -> &ClientId {
        &self.commit.key.client
    }

    /// Its place in the log.
    pub fn commit_seq(&self) -> CommitSeq {
        self.commit
            .applied
            .as_ref()
            .map_or(CommitSeq::START, |applied| applied.commit_seq)
    }
}
