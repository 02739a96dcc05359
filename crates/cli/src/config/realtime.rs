//! `[realtime]`: the sockets of the server and the fan-out of the engine, which are one thing to
//! an operator.

use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tidewater_engine::HubConfig;
use tidewater_server::RealtimeConfig;

use super::{bytes, size};

/// `[realtime]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RealtimeSection {
    pub(crate) sockets_max: usize,
    pub(crate) sockets_per_partition_max: usize,
    pub(crate) sockets_per_actor_max: usize,
    pub(crate) sockets_per_client_max: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_cookie: Option<String>,
    #[serde(with = "humantime_serde")]
    pub(crate) ticket_lifetime: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) heartbeat: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) idle_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) write_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) age_max: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) drain_spread: Duration,
    pub(crate) delta_bytes_max: ByteSize,
    pub(crate) unacknowledged_deltas_max: u32,
    pub(crate) mailbox_bytes_max: ByteSize,
    pub(crate) queued_bytes_max: ByteSize,
    pub(crate) presence_bytes_max: ByteSize,
    pub(crate) presence_keys_max: usize,
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub(crate) presence_window: Option<Duration>,
}

impl Default for RealtimeSection {
    fn default() -> Self {
        let server = RealtimeConfig::default();
        let hub = HubConfig::default();
        Self {
            sockets_max: server.sockets_max,
            sockets_per_partition_max: server.sockets_per_partition_max,
            sockets_per_actor_max: server.sockets_per_actor_max,
            sockets_per_client_max: server.sockets_per_client_max,
            token_cookie: server.token_cookie,
            ticket_lifetime: server.ticket_lifetime,
            heartbeat: server.heartbeat,
            idle_timeout: server.idle_timeout,
            write_timeout: server.write_timeout,
            age_max: server.age_max,
            drain_spread: server.drain_spread,
            delta_bytes_max: size(hub.delta_bytes_max),
            unacknowledged_deltas_max: hub.unacknowledged_deltas_max,
            mailbox_bytes_max: size(hub.mailbox_bytes_max),
            queued_bytes_max: size(hub.queued_bytes_max),
            presence_bytes_max: size(hub.presence_bytes_max),
            presence_keys_max: hub.presence_keys_max,
            presence_window: hub.presence_window,
        }
    }
}

impl RealtimeSection {
    /// As the server takes it.
    pub(crate) fn to_server(&self) -> RealtimeConfig {
        RealtimeConfig {
            sockets_max: self.sockets_max,
            sockets_per_partition_max: self.sockets_per_partition_max,
            sockets_per_actor_max: self.sockets_per_actor_max,
            sockets_per_client_max: self.sockets_per_client_max,
            token_cookie: self.token_cookie.clone(),
            ticket_lifetime: self.ticket_lifetime,
            heartbeat: self.heartbeat,
            idle_timeout: self.idle_timeout,
            write_timeout: self.write_timeout,
            age_max: self.age_max,
            drain_spread: self.drain_spread,
        }
    }

    /// As the engine takes it.
    pub(crate) fn to_hub(&self) -> HubConfig {
        HubConfig {
            delta_bytes_max: bytes(self.delta_bytes_max),
            unacknowledged_deltas_max: self.unacknowledged_deltas_max,
            mailbox_bytes_max: bytes(self.mailbox_bytes_max),
            queued_bytes_max: bytes(self.queued_bytes_max),
            presence_bytes_max: bytes(self.presence_bytes_max),
            presence_keys_max: self.presence_keys_max,
            presence_window: self.presence_window,
            ..HubConfig::default()
        }
    }
}
