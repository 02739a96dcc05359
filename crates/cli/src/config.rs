//! The configuration file and what overrides it.
//!
//! One document, every key optional, unknown keys refused. Sizes and times are text with a unit,
//! secrets are a type that is never printed. Environment variables `TIDEWATER_SECTION__KEY`
//! override the file. This is the only place that reads the environment.
//!
//! Paths are relative to the folder of the file, so that a configuration means the same from
//! wherever it is used.

pub(crate) mod nats;
pub(crate) mod objects;
mod overrides;
mod realtime;
pub(crate) mod store;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tidewater_engine::EngineConfig;
use tidewater_rules::RulesConfig;
use tidewater_server::{
    ConnectionConfig, IpNet, Origin, ScopeTable, Secret, ServerConfig, TransferConfig,
};

use self::{
    nats::NatsSection,
    objects::{BlobsSection, SegmentsSection, SignedUrlsSection},
    store::StoreSection,
};

pub(crate) use self::realtime::RealtimeSection;

/// Everything an operator can set.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) server: ServerSection,
    pub(crate) realtime: RealtimeSection,
    pub(crate) store: StoreSection,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nats: Option<NatsSection>,
    pub(crate) schema: SchemaSection,
    pub(crate) auth: AuthSection,
    pub(crate) scopes: ScopesSection,
    pub(crate) engine: EngineSection,
    pub(crate) retention: RetentionSection,
    pub(crate) segments: SegmentsSection,
    pub(crate) blobs: BlobsSection,
    pub(crate) signed_urls: SignedUrlsSection,
    pub(crate) console: ConsoleSection,
    pub(crate) log: LogConfig,
    pub(crate) rules: RulesConfig,
}

/// `[server]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerSection {
    pub(crate) listen: SocketAddr,
    pub(crate) request_bytes_max: ByteSize,
    pub(crate) buffered_bytes_max: ByteSize,
    pub(crate) rounds_max: usize,
    pub(crate) connections_max: usize,
    pub(crate) compress: bool,
    #[serde(with = "humantime_serde")]
    pub(crate) auth_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) header_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) body_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) write_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) drain_timeout: Duration,
    pub(crate) cors: CorsSection,
}

/// `[server.cors]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CorsSection {
    pub(crate) allowed_origins: Vec<Origin>,
}

impl Default for ServerSection {
    fn default() -> Self {
        let server = ServerConfig::default();
        let connections = server.connections;
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8787)),
            request_bytes_max: size(server.request_bytes_max),
            buffered_bytes_max: size(server.buffered_bytes_max),
            rounds_max: server.rounds_max,
            connections_max: connections.connections_max,
            compress: server.compress,
            auth_timeout: server.auth_timeout,
            header_timeout: connections.header_timeout,
            body_timeout: server.body_timeout,
            write_timeout: connections.write_timeout,
            drain_timeout: connections.drain_timeout,
            cors: CorsSection::default(),
        }
    }
}

impl ServerSection {
    /// As the server takes it.
    pub(crate) fn to_server(&self, realtime: &RealtimeSection) -> ServerConfig {
        ServerConfig {
            request_bytes_max: bytes(self.request_bytes_max),
            buffered_bytes_max: bytes(self.buffered_bytes_max),
            rounds_max: self.rounds_max,
            auth_timeout: self.auth_timeout,
            body_timeout: self.body_timeout,
            compress: self.compress,
            allowed_origins: self.cors.allowed_origins.clone(),
            transfers: TransferConfig::default(),
            connections: ConnectionConfig {
                connections_max: self.connections_max,
                header_timeout: self.header_timeout,
                write_timeout: self.write_timeout,
                drain_timeout: self.drain_timeout,
            },
            realtime: realtime.to_server(),
        }
    }
}

/// `[schema]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SchemaSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathBuf>,
    /// Older schemas that are served beside it, newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) window: Vec<PathBuf>,
    /// Checkpoints that this server completes, so that it serves partitions where they are
    /// pending.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) checkpoints: BTreeSet<String>,
}

/// `[auth]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AuthSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tokens_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trusted_header: Option<TrustedHeaderSection>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tokens: Vec<TokenEntry>,
}

/// `[[auth.tokens]]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenEntry {
    pub(crate) token: Secret,
    pub(crate) actor: String,
    pub(crate) partition: String,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub(crate) claims: serde_json::Map<String, serde_json::Value>,
}

/// A file with tokens and nothing else.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokensFile {
    tokens: Vec<TokenEntry>,
}

/// `[auth.trusted_header]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrustedHeaderSection {
    pub(crate) actor_header: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) partition_header: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) claims_header: Option<String>,
    pub(crate) proxies: Vec<IpNet>,
}

/// `[scopes]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ScopesSection {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) actors: BTreeMap<String, ScopeTable>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) claims: BTreeMap<String, String>,
}

/// `[engine]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EngineSection {
    pub(crate) operations_per_request_max: usize,
    pub(crate) appended_operations_max: usize,
    pub(crate) crdt_bytes_max: ByteSize,
    pub(crate) inline_segment_bytes_max: ByteSize,
    pub(crate) section_bytes_max: ByteSize,
    pub(crate) queued_commits_max: usize,
    pub(crate) queued_bytes_max: ByteSize,
    #[serde(with = "humantime_serde")]
    pub(crate) resolver_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) hook_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) activity_interval: Duration,
}

impl Default for EngineSection {
    fn default() -> Self {
        let engine = EngineConfig::default();
        Self {
            operations_per_request_max: engine.operations_per_request_max,
            appended_operations_max: engine.appended_operations_max,
            crdt_bytes_max: size(engine.crdt_bytes_max),
            inline_segment_bytes_max: size(engine.inline_segment_bytes_max),
            section_bytes_max: size(engine.section_bytes_max),
            queued_commits_max: engine.queued_commits_max,
            queued_bytes_max: size(engine.queued_bytes_max),
            resolver_timeout: engine.resolver_timeout,
            hook_timeout: engine.hook_timeout,
            activity_interval: engine.activity_interval,
        }
    }
}

/// `[retention]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetentionSection {
    pub(crate) retained_commits: u64,
    #[serde(with = "humantime_serde")]
    pub(crate) active_window: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) forced_age: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) outcome_age: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) interval: Duration,
}

impl Default for RetentionSection {
    fn default() -> Self {
        let engine = EngineConfig::default();
        Self {
            retained_commits: engine.retention.retained_commits,
            active_window: duration(engine.retention.active_window_ms),
            forced_age: duration(engine.retention.forced_age_ms),
            outcome_age: duration(engine.outcome_age_ms),
            interval: engine.prune_interval,
        }
    }
}

/// `[console]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ConsoleSection {
    pub(crate) enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin_token: Option<Secret>,
}

/// `[log]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogConfig {
    pub(crate) filter: String,
    pub(crate) format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            filter: "info".to_owned(),
            format: LogFormat::default(),
        }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

impl Config {
    /// Reads a file, applies the environment, resolves paths.
    pub(crate) fn load(file: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let table = parse(&text, file)?;
        let mut config = overrides::apply(table, overrides::environment())?;
        config.resolve(file.parent().unwrap_or_else(|| Path::new("")));
        Ok(config)
    }

    /// Makes paths those of the file's folder, and fills in what follows from other settings.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        let within = |path: &mut Option<PathBuf>| *path = path.take().map(|path| folder.join(path));
        self.store.resolve(folder);
        if let Some(nats) = &mut self.nats {
            nats.resolve(folder);
        }
        within(&mut self.schema.path);
        for older in &mut self.schema.window {
            *older = folder.join(&older);
        }
        within(&mut self.auth.tokens_file);
        self.segments.resolve(folder, &self.store);
        self.blobs.resolve(folder, &self.store);
        self.signed_urls.resolve(folder);
    }

    /// The tokens of the configuration and those of the tokens file.
    pub(crate) fn tokens(&self) -> anyhow::Result<Vec<TokenEntry>> {
        let mut tokens = self.auth.tokens.clone();
        if let Some(file) = &self.auth.tokens_file {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("read {}", file.display()))?;
            let more: TokensFile =
                toml::from_str(&text).map_err(|error| place(&error, &text, file))?;
            tokens.extend(more.tokens);
        }
        Ok(tokens)
    }

    /// The configuration in effect, without its secrets.
    pub(crate) fn to_toml(&self) -> anyhow::Result<String> {
        toml::to_string_pretty(self).context("print the configuration")
    }

    /// The same on one line, for the log.
    pub(crate) fn to_json(&self) -> anyhow::Result<String> {
        serde_json::to_string(self).context("print the configuration")
    }
}

/// Reads a document and checks it, so that what is wrong in it can be named by its place.
fn parse(text: &str, file: &Path) -> anyhow::Result<toml::Table> {
    toml::from_str::<Config>(text).map_err(|error| place(&error, text, file))?;
    toml::from_str(text).map_err(|error| place(&error, text, file))
}

/// The error with its place. Not the error's own text: that quotes the line, secrets and all.
fn place(error: &toml::de::Error, text: &str, file: &Path) -> anyhow::Error {
    let file = file.display();
    let message = error.message();
    let Some(span) = error.span() else {
        return anyhow!("{file}: {message}");
    };
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    anyhow!("{file}:{line}:{column}: {message}")
}

fn size(bytes: usize) -> ByteSize {
    ByteSize::b(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// A size in memory. What does not fit an address cannot be used up either.
pub(crate) fn bytes(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

fn duration(milliseconds: i64) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default())
}

/// Whole milliseconds, as the engine counts.
pub(crate) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
