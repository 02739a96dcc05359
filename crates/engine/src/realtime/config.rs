//! What an operator can set about fan-out. What concerns sockets is the binding's.

use std::time::Duration;

/// Bounds of deltas, mailboxes and presence. Every default is fit for production.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// A larger delta becomes a wake-up (§8.2).
    pub delta_bytes_max: usize,
    /// Deltas on their way that the client has not acknowledged; at this many it must pull.
    pub unacknowledged_deltas_max: u32,
    /// Bytes that wait for one connection; beyond them its deltas become one wake-up.
    pub mailbox_bytes_max: usize,
    /// Bytes that wait for all connections together.
    pub queued_bytes_max: usize,
    /// Largest presence document (§8.6).
    pub presence_bytes_max: usize,
    /// Keys on which one connection may have a document at once.
    pub presence_keys_max: usize,
    /// Documents on one key; one more is refused as if the key were not held.
    pub presence_documents_per_key_max: usize,
    /// At most one update of a document per this long, the newest; `None` is without a limit.
    pub presence_window: Option<Duration>,
    /// Bytes of commits that wait for their turn in one partition; beyond them they are read
    /// from the log again.
    pub pending_commits_bytes_max: usize,
    /// A missed stretch of the log with more changes than this is not read: wake-ups instead.
    pub gap_changes_max: usize,
    /// Distinct scope values that a missed stretch is read for at most.
    pub gap_values_max: usize,
    /// Scope values that one connection is registered for; with more it gets wake-ups only.
    pub registered_values_max: usize,
    /// Connections whose scopes are resolved at once after a refresh.
    pub refreshes_at_once: usize,
}

impl Default for HubConfig {
    fn default() -> Self {
        Self {
            delta_bytes_max: 1024 * 1024,
            unacknowledged_deltas_max: 4_096,
            mailbox_bytes_max: 2 * 1024 * 1024,
            queued_bytes_max: 256 * 1024 * 1024,
            presence_bytes_max: 16_384,
            presence_keys_max: 64,
            presence_documents_per_key_max: 1_024,
            presence_window: None,
            pending_commits_bytes_max: 16 * 1024 * 1024,
            gap_changes_max: 1_000,
            gap_values_max: 1_000,
            registered_values_max: 20_000,
            refreshes_at_once: 16,
        }
    }
}
