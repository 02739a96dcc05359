//! What an instance is made from, as a value and as JSON.
//!
//! A harness in another language sends the JSON, so it is read tolerantly: members that are not
//! named here are ignored. What is named but not served yet is refused, because a test that
//! believes in it would test nothing.

use std::{fs, io, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tidewater_engine::{EngineConfig, HubConfig};
use tidewater_objects::SIGNED_URL_SECONDS_MAX;
use tidewater_server::{RealtimeConfig, ServerConfig};

/// What an instance is made from. As JSON, members that are not named here are ignored.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSpec {
    /// A schema document, in the IR or the runtime form.
    pub schema: Json,
    /// The partition everybody is in.
    #[serde(default = "default_partition")]
    pub partition: String,
    /// Where the clock begins, Unix milliseconds.
    #[serde(default = "default_now_ms")]
    pub now_ms: i64,
    /// Limits other than the defaults.
    #[serde(default)]
    pub limits: InstanceLimits,
    /// Signed URLs of segments: absent, null and false are none, true and `{}` those that live as
    /// long as is allowed, `{ttlSeconds}` others.
    #[serde(default)]
    pub signed_urls: Json,
    /// Not served yet: refused unless absent, null or false.
    #[serde(default, skip_serializing)]
    pub leases: Json,
    /// Distinguishes the ids of this instance from those of others; the host counts them.
    #[serde(default)]
    pub seed: Option<u64>,
}

impl InstanceSpec {
    /// An instance with this schema and defaults for everything else.
    pub fn new(schema: Json) -> Self {
        Self {
            schema,
            partition: default_partition(),
            now_ms: default_now_ms(),
            limits: InstanceLimits::default(),
            signed_urls: Json::Null,
            leases: Json::Null,
            seed: None,
        }
    }

    /// What the instance in a folder was made from; `None` when the folder has none.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>> {
        match fs::read(folder.join(FILE)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context("read an instance's description"),
        }
    }

    /// Keeps it for [`InstanceSpec::read`].
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_vec(self)?;
        fs::write(folder.join(FILE), text).context("keep the instance's description")
    }

    /// Refuses what this server cannot do yet.
    pub(crate) fn check(&self) -> Result<()> {
        if !matches!(self.leases, Json::Null | Json::Bool(false)) {
            bail!("leases is not supported by this server");
        }
        self.signed_url_lifetime().map(drop)
    }

    /// How long signed URLs of segments live; `None` where there are none.
    pub(crate) fn signed_url_lifetime(&self) -> Result<Option<Duration>> {
        let seconds = match &self.signed_urls {
            Json::Null | Json::Bool(false) => return Ok(None),
            Json::Bool(true) => None,
            Json::Object(wish) => wish.get("ttlSeconds"),
            other => bail!("signedUrls is neither an object nor a boolean: {other}"),
        };
        let Some(seconds) = seconds else {
            return Ok(Some(Duration::from_secs(SIGNED_URL_SECONDS_MAX)));
        };
        let seconds = seconds.as_u64();
        let seconds = seconds.context("signedUrls.ttlSeconds is no number of seconds")?;
        Ok(Some(Duration::from_secs(seconds)))
    }
}

/// The description in an instance's folder.
const FILE: &str = "instance.json";

fn default_partition() -> String {
    "p1".to_owned()
}

/// A day in July 2026.
fn default_now_ms() -> i64 {
    1_782_993_600_000
}

/// Limits of an instance; what is absent has the default of production.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceLimits {
    /// Operations over all commits of one request.
    pub max_operations_per_request: Option<usize>,
    /// Largest rows segment sent inside a response.
    pub inline_segment_max_bytes: Option<usize>,
    /// Payload bytes of one incremental section or snapshot page.
    pub section_max_bytes: Option<usize>,
    /// Largest request body after decompression.
    #[serde(alias = "maxBodyBytes", alias = "maxRequestBytes")]
    pub max_request_body_bytes: Option<usize>,
    /// Commits that may wait for the writer.
    pub max_queued_commits: Option<usize>,
    /// Largest blob.
    #[serde(alias = "blobBytesMax")]
    pub max_blob_bytes: Option<u64>,
    /// How long a blob without a reference is left alone.
    pub blob_grace_ms: Option<i64>,
    /// Images that are built at the same time; at 0 there are none.
    pub max_image_builds: Option<usize>,
    /// How long a published segment can be fetched.
    #[serde(alias = "segmentLifetimeMs")]
    pub segment_ttl_ms: Option<i64>,
    /// Largest delta; a larger commit is pulled.
    pub max_delta_bytes: Option<usize>,
    /// Bytes that may wait for one socket.
    pub max_mailbox_bytes: Option<usize>,
    /// Largest presence document.
    pub max_presence_bytes: Option<usize>,
    /// How long a socket may take for what waits for it, in real time.
    pub socket_write_timeout_ms: Option<u64>,
    /// How often a socket asks whether its peer is there, in real time.
    pub socket_heartbeat_ms: Option<u64>,
    /// How long a socket's peer may say nothing, in real time.
    pub socket_idle_timeout_ms: Option<u64>,
}

impl InstanceLimits {
    pub(crate) fn engine(&self) -> EngineConfig {
        let default = EngineConfig::default();
        EngineConfig {
            operations_per_request_max: self
                .max_operations_per_request
                .unwrap_or(default.operations_per_request_max),
            inline_segment_bytes_max: self
                .inline_segment_max_bytes
                .unwrap_or(default.inline_segment_bytes_max),
            section_bytes_max: self.section_max_bytes.unwrap_or(default.section_bytes_max),
            queued_commits_max: self
                .max_queued_commits
                .unwrap_or(default.queued_commits_max),
            blob_bytes_max: self.max_blob_bytes.unwrap_or(default.blob_bytes_max),
            blob_grace_ms: self.blob_grace_ms.unwrap_or(default.blob_grace_ms),
            image_builds_max: self.max_image_builds.unwrap_or(default.image_builds_max),
            hub: HubConfig {
                delta_bytes_max: self.max_delta_bytes.unwrap_or(default.hub.delta_bytes_max),
                mailbox_bytes_max: self
                    .max_mailbox_bytes
                    .unwrap_or(default.hub.mailbox_bytes_max),
                presence_bytes_max: self
                    .max_presence_bytes
                    .unwrap_or(default.hub.presence_bytes_max),
                ..default.hub
            },
            ..default
        }
    }

    pub(crate) fn server(&self) -> ServerConfig {
        let default = ServerConfig::default();
        ServerConfig {
            request_bytes_max: self
                .max_request_body_bytes
                .unwrap_or(default.request_bytes_max),
            realtime: RealtimeConfig {
                write_timeout: self
                    .socket_write_timeout_ms
                    .map_or(default.realtime.write_timeout, Duration::from_millis),
                heartbeat: self
                    .socket_heartbeat_ms
                    .map_or(default.realtime.heartbeat, Duration::from_millis),
                idle_timeout: self
                    .socket_idle_timeout_ms
                    .map_or(default.realtime.idle_timeout, Duration::from_millis),
                // Everybody may be one actor, and there are as many clients as a test needs.
                sockets_per_actor_max: default.realtime.sockets_max,
                ..default.realtime
            },
            ..default
        }
    }
}
