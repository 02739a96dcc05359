//! What an operator can set about the engine.

use std::time::Duration;

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
    /// How long a validator or planner may take; then its commit is rejected, or fails.
    pub hook_timeout: Duration,
    /// Largest rows segment sent inside a response (§5.7).
    pub inline_segment_bytes_max: usize,
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
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            operations_per_request_max: limits::OPERATIONS_PER_REQUEST_DEFAULT,
            appended_operations_max: limits::APPENDED_OPERATIONS_DEFAULT,
            crdt_bytes_max: 8 * 1024 * 1024,
            hook_timeout: Duration::from_secs(5),
            inline_segment_bytes_max: limits::INLINE_SEGMENT_BYTES_DEFAULT,
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
