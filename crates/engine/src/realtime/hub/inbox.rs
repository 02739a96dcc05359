//! Where announcements wait for a room, bounded in bytes: whoever announces waits for nobody.

use std::sync::Arc;

use tidewater_model::CommitSeq;
use tidewater_store::CommitWrite;

use crate::realtime::{HubConfig, room::Room, sequencer};

/// What was announced and not looked at.
#[derive(Default)]
pub(super) struct Inbox {
    commits: Vec<Arc<CommitWrite>>,
    bytes: usize,
    /// The newest place.
    head: CommitSeq,
    /// Somebody looks at it.
    pub(super) is_delivering: bool,
}

impl Inbox {
    pub(super) fn put(
        &mut self,
        seq: CommitSeq,
        commit: Option<&Arc<CommitWrite>>,
        config: &HubConfig,
    ) {
        self.head = self.head.max(seq);
        let Some(commit) = commit else { return };
        let bytes = sequencer::weight(commit);
        // One that does not fit is read from the log.
        if self.commits.is_empty() || self.bytes + bytes <= config.pending_commits_bytes_max {
            self.bytes += bytes;
            self.commits.push(Arc::clone(commit));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commits.is_empty() && self.head == CommitSeq::START
    }

    pub(super) fn empty_into(&mut self, room: &mut Room) {
        for commit in std::mem::take(&mut self.commits) {
            if let Some(applied) = &commit.applied {
                room.announce(applied.commit_seq, Some(&commit));
            }
        }
        room.announce(std::mem::take(&mut self.head), None);
        self.bytes = 0;
    }
}
