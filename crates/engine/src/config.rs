//! What an operator can set about the engine.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use tidewater_model::limits;

use crate::HubConfig;

/// Policy of the engine. Every default is fit for production.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Operations over all commits of one request (§6.1).
    pub operations_per_request_max: usize,
    /// Operations that references may append to one commit (§6.11).
    pub appended_operations_max: usize,
    /// A CRDT document larger than this is not merged: neither as it is stored and pushed
    /// together, nor as the result (§5.10).
    pub crdt_bytes_max: usize,
    /// How long the validators of one commit and its planner may take, all of them together, from
    /// when the commit is begun to be decided: they hold the writer. A validator that is not done
    /// by then rejects the commit, a planner fails it.
    pub hook_timeout: Duration,
    /// Largest rows segment sent inside a response (§5.7).
    pub inline_segment_bytes_max: usize,
    /// Commits to its scope that a client may have missed before it is told to start over, if
    /// its scope has at most half as many rows (§8.4). `u64::MAX` lets everybody walk the log.
    pub catch_up_commits_max: u64,
    /// Images that are built at the same time; the others wait. 0 turns images off: every
    /// bootstrap is then sent as rows (§5.3).
    pub image_builds_max: usize,
    /// Images that are built or wait to be; further bootstraps are sent as rows.
    pub image_builds_waiting_max: usize,
    /// How long the build of an image may take, with its wait for the database.
    pub image_build_timeout: Duration,
    /// Where images are written before they are published; `None` is where temporary files go.
    /// In the file system of the segment store, publishing one is a rename.
    pub image_directory: Option<PathBuf>,
    /// How often segments that have expired are removed.
    pub segment_expire_interval: Duration,
    /// How long the record of an expired segment stays, in milliseconds, so that a late client
    /// learns that it has expired.
    pub segment_record_kept_ms: i64,
    /// Whether other nodes use the same segments: then one of them removes those that expired.
    pub segments_are_shared: bool,
    /// Largest blob (§5.9.3).
    pub blob_bytes_max: u64,
    /// Bytes of all blobs of a partition; `u64::MAX` is no bound. With one, usage is asked from
    /// the blob store about once a minute for each partition that uploads.
    pub blob_partition_bytes_max: u64,
    /// How long a blob without a reference is kept since it was last uploaded or pushed, in
    /// milliseconds; at least two hours (§5.9.2).
    pub blob_grace_ms: i64,
    /// How often blobs without a reference are looked for.
    pub blob_sweep_interval: Duration,
    /// How long the resolver of scopes may take; then the round fails (OQ-36).
    pub resolver_timeout: Duration,
    /// Commits waiting for the writer, over all partitions; more are refused with a hint.
    pub queued_commits_max: usize,
    /// Bytes of commits waiting for the writer.
    pub queued_bytes_max: usize,
    /// Payload bytes of one incremental section or snapshot page; more comes with the next.
    pub section_bytes_max: usize,
    /// How often gathered activity is written.
    pub activity_interval: Duration,
    /// How often every partition is pruned.
    pub prune_interval: Duration,
    /// What pruning keeps.
    pub retention: Retention,
    /// How old a recorded outcome becomes before it is forgotten, in milliseconds (§2.3).
    ///
    /// A client that sends a commit again later than this is answered as if for the first time:
    /// its commit is applied twice. So it is at least as long as any client may be away with a
    /// commit whose answer it never got; never less than [`Retention::forced_age_ms`] counts.
    pub outcome_age_ms: i64,
    /// How often outcomes that are too old are looked for.
    pub outcome_prune_interval: Duration,
    /// Deltas, mailboxes, presence.
    pub hub: HubConfig,
    /// Checkpoints that this process completes, so that it serves partitions where they are
    /// pending; others refuse those (§2.4).
    pub declared_checkpoints: BTreeSet<String>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            operations_per_request_max: limits::OPERATIONS_PER_REQUEST_DEFAULT,
            appended_operations_max: limits::APPENDED_OPERATIONS_DEFAULT,
            crdt_bytes_max: 8 * 1024 * 1024,
            hook_timeout: Duration::from_secs(5),
            inline_segment_bytes_max: limits::INLINE_SEGMENT_BYTES_DEFAULT,
            catch_up_commits_max: 50_000,
            image_builds_max: 2,
            image_builds_waiting_max: 64,
            image_build_timeout: Duration::from_secs(300),
            image_directory: None,
            segment_expire_interval: Duration::from_secs(600),
            segment_record_kept_ms: 60 * 60 * 1_000,
            segments_are_shared: false,
            blob_bytes_max: limits::BLOB_BYTES_DEFAULT,
            blob_partition_bytes_max: u64::MAX,
            blob_grace_ms: DAY_MS,
            blob_sweep_interval: Duration::from_secs(60 * 60),
            resolver_timeout: Duration::from_secs(10),
            queued_commits_max: 4_096,
            queued_bytes_max: 64 * 1024 * 1024,
            section_bytes_max: 8 * 1024 * 1024,
            activity_interval: Duration::from_secs(1),
            prune_interval: Duration::from_secs(300),
            retention: Retention::default(),
            outcome_age_ms: 90 * DAY_MS,
            outcome_prune_interval: Duration::from_secs(24 * 60 * 60),
            hub: HubConfig::default(),
            declared_checkpoints: BTreeSet::new(),
        }
    }
}

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// What pruning keeps (§4.6).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Retention {
    /// A client seen within this time holds back pruning, in milliseconds.
    pub active_window_ms: i64,
    /// Commits older than this are pruned whoever needs them, in milliseconds.
    pub forced_age_ms: i64,
    /// Commits that are always kept.
    pub retained_commits: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            active_window_ms: limits::ACTIVE_WINDOW_MS_DEFAULT,
            forced_age_ms: limits::FORCED_AGE_MS_DEFAULT,
            retained_commits: limits::RETAINED_COMMITS_DEFAULT,
        }
    }
}
