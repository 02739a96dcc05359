//! `[segments]`, `[blobs]` and `[signed_urls]`: where the bytes are, and who may fetch them how.
//!
//! What is not said follows from the database: beside a SQLite database both kinds are files in
//! folders of their own, named after it, and with the memory store they are in memory.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use tidewater_engine::EngineConfig;
use tidewater_model::limits;
use tidewater_objects::{BackendLimits, S3Config, SIGNED_URL_SECONDS_MAX};
use tidewater_server::Secret;

use super::{
    duration, place,
    store::{StoreKind, StoreSection},
};

/// Where segments or blobs are kept.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ObjectsKind {
    /// In memory, gone with the process.
    Memory,
    /// Files in a folder.
    Files,
    /// A SQLite database of their own.
    Sqlite,
    /// A bucket.
    S3,
}

/// `[segments]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SegmentsSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<ObjectsKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_max: Option<ByteSize>,
    #[serde(with = "humantime_serde")]
    pub(crate) lifetime: Duration,
    pub(crate) image_builds_max: usize,
    pub(crate) image_builds_waiting_max: usize,
    #[serde(with = "humantime_serde")]
    pub(crate) image_build_timeout: Duration,
    pub(crate) downloads_max: usize,
    pub(crate) copies_memory_bytes_max: ByteSize,
    pub(crate) copies_disk_bytes_max: ByteSize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scratch: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) s3: Option<S3Section>,
}

impl Default for SegmentsSection {
    fn default() -> Self {
        let engine = EngineConfig::default();
        let transfers = tidewater_server::TransferConfig::default();
        Self {
            kind: None,
            path: None,
            bytes_max: None,
            lifetime: duration(limits::SEGMENT_LIFETIME_MS_DEFAULT),
            image_builds_max: engine.image_builds_max,
            image_builds_waiting_max: engine.image_builds_waiting_max,
            image_build_timeout: engine.image_build_timeout,
            downloads_max: transfers.downloads_max,
            copies_memory_bytes_max: ByteSize::b(transfers.copies_memory_bytes_max),
            copies_disk_bytes_max: ByteSize::b(transfers.copies_disk_bytes_max),
            scratch: None,
            s3: None,
        }
    }
}

/// `[blobs]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BlobsSection {
    pub(crate) enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<ObjectsKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathBuf>,
    pub(crate) bytes_max: ByteSize,
    pub(crate) blob_bytes_max: ByteSize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) partition_bytes_max: Option<ByteSize>,
    pub(crate) uploads_max: usize,
    #[serde(with = "humantime_serde")]
    pub(crate) sweep_grace: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) sweep_interval: Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) s3: Option<S3Section>,
}

impl Default for BlobsSection {
    fn default() -> Self {
        let engine = EngineConfig::default();
        Self {
            enabled: true,
            kind: None,
            path: None,
            bytes_max: ByteSize::mib(256),
            blob_bytes_max: ByteSize::b(engine.blob_bytes_max),
            partition_bytes_max: None,
            uploads_max: tidewater_server::TransferConfig::default().uploads_max,
            sweep_grace: duration(engine.blob_grace_ms),
            sweep_interval: engine.blob_sweep_interval,
            s3: None,
        }
    }
}

/// `[segments.s3]` and `[blobs.s3]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct S3Section {
    pub(crate) bucket: String,
    #[serde(default = "default_region")]
    pub(crate) region: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    #[serde(default)]
    pub(crate) prefix: String,
    #[serde(default)]
    pub(crate) virtual_hosted: bool,
    #[serde(default)]
    pub(crate) allow_http: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) credentials_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) access_key_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret_access_key: Option<Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session_token: Option<Secret>,
    #[serde(default = "default_call_timeout", with = "humantime_serde")]
    pub(crate) call_timeout: Duration,
    #[serde(default = "default_connect_timeout", with = "humantime_serde")]
    pub(crate) connect_timeout: Duration,
    #[serde(default = "default_retries_max")]
    pub(crate) retries_max: usize,
    #[serde(default = "default_requests_at_once")]
    pub(crate) requests_at_once: usize,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

fn default_call_timeout() -> Duration {
    BackendLimits::default().call_timeout
}

fn default_connect_timeout() -> Duration {
    BackendLimits::default().connect_timeout
}

fn default_retries_max() -> usize {
    BackendLimits::default().retries_max
}

fn default_requests_at_once() -> usize {
    BackendLimits::default().requests_at_once
}

/// Keys of a bucket.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    access_key_id: Option<String>,
    secret_access_key: Option<Secret>,
    session_token: Option<Secret>,
}

/// `[signed_urls]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SignedUrlsSection {
    pub(crate) segments: UrlsFrom,
    pub(crate) blobs: bool,
    pub(crate) uploads: bool,
    #[serde(with = "humantime_serde")]
    pub(crate) ttl: Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keys_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) keys: Vec<Secret>,
}

impl Default for SignedUrlsSection {
    fn default() -> Self {
        Self {
            segments: UrlsFrom::Off,
            blobs: false,
            uploads: false,
            ttl: Duration::from_secs(SIGNED_URL_SECONDS_MAX),
            base_url: None,
            keys_file: None,
            keys: Vec::new(),
        }
    }
}

/// Who signs and serves URLs of segments.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum UrlsFrom {
    /// Nobody: clients use the routes that ask for credentials.
    #[default]
    Off,
    /// This server.
    Server,
    /// The bucket.
    Backend,
}

/// A file with keys and nothing else, the newest first.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysFile {
    keys: Vec<Secret>,
}

impl SegmentsSection {
    /// Fills in what follows from the database, and makes paths those of the file's folder.
    pub(super) fn resolve(&mut self, folder: &Path, store: &StoreSection) {
        let kind = *self.kind.get_or_insert_with(|| default_kind(store));
        let path = self.path.take().map(|path| folder.join(path));
        self.path = path.or_else(|| default_path(kind, store, "segments"));
        self.scratch = self.scratch.take().map(|path| folder.join(path));
        self.bytes_max = self.bytes_max.or(match kind {
            ObjectsKind::Memory => Some(ByteSize::mib(256)),
            ObjectsKind::Sqlite => Some(ByteSize::gib(8)),
            // Bounded by the lifetime alone.
            ObjectsKind::Files | ObjectsKind::S3 => None,
        });
        if let Some(s3) = &mut self.s3 {
            s3.resolve(folder);
        }
    }

    /// Whether the section can be meant.
    pub(crate) fn check(&self, store: &StoreSection) -> anyhow::Result<()> {
        check_nodes("segments", self.kind, self.s3.as_ref(), store)?;
        check_place(
            "segments",
            self.kind,
            self.path.as_deref(),
            self.s3.as_ref(),
        )?;
        ensure!(
            self.bytes_max.is_none()
                || !matches!(self.kind, Some(ObjectsKind::Files | ObjectsKind::S3)),
            "segments.bytes_max bounds memory and sqlite only: files and buckets are bounded by \
             segments.lifetime"
        );
        ensure!(
            self.downloads_max > 0,
            "segments.downloads_max is 0: nothing would ever be downloaded"
        );
        ensure!(
            self.lifetime >= Duration::from_secs(60),
            "segments.lifetime is below a minute: segments would be gone before they are fetched"
        );
        Ok(())
    }
}

impl BlobsSection {
    /// Fills in what follows from the database, and makes paths those of the file's folder.
    pub(super) fn resolve(&mut self, folder: &Path, store: &StoreSection) {
        let kind = *self.kind.get_or_insert_with(|| default_kind(store));
        let path = self.path.take().map(|path| folder.join(path));
        self.path = path.or_else(|| default_path(kind, store, "blobs"));
        if let Some(s3) = &mut self.s3 {
            s3.resolve(folder);
        }
    }

    /// Whether the section can be meant.
    pub(crate) fn check(&self, store: &StoreSection) -> anyhow::Result<()> {
        if !self.enabled {
            return Ok(());
        }
        check_nodes("blobs", self.kind, self.s3.as_ref(), store)?;
        check_place("blobs", self.kind, self.path.as_deref(), self.s3.as_ref())?;
        ensure!(
            self.kind != Some(ObjectsKind::Memory) || store.kind() == StoreKind::Memory,
            "blobs.kind is memory, and rows that outlive the process would refer to blobs that do \
             not: set it to files, sqlite or s3"
        );
        ensure!(
            self.uploads_max > 0,
            "blobs.uploads_max is 0: nothing would ever be uploaded"
        );
        let least = duration(2 * tidewater_objects::HOLD_MS);
        ensure!(
            self.sweep_grace >= least,
            "blobs.sweep_grace must be at least {}: blobs that a push has just checked would be \
             swept",
            minutes(least)
        );
        Ok(())
    }
}

impl S3Section {
    fn resolve(&mut self, folder: &Path) {
        self.credentials_file = self.credentials_file.take().map(|path| folder.join(path));
    }

    /// The bucket with its credentials: those of the section, else those of its file, else those
    /// of the environment, else what the machine is given by its cloud.
    pub(crate) fn to_s3(&self) -> anyhow::Result<S3Config> {
        let credentials = self.credentials()?;
        ensure!(
            credentials.access_key_id.is_some() == credentials.secret_access_key.is_some(),
            "an access key and its secret belong together: one of them is missing"
        );
        let expose = |secret: Secret| secret.expose().to_owned();
        Ok(S3Config {
            bucket: self.bucket.clone(),
            region: self.region.clone(),
            endpoint: self.endpoint.clone(),
            access_key_id: credentials.access_key_id,
            secret_access_key: credentials.secret_access_key.map(expose),
            session_token: credentials.session_token.map(expose),
            virtual_hosted: self.virtual_hosted,
            allow_http: self.allow_http,
        })
    }

    /// Bounds of requests to the bucket.
    pub(crate) fn limits(&self) -> BackendLimits {
        BackendLimits {
            call_timeout: self.call_timeout,
            connect_timeout: self.connect_timeout,
            retries_max: self.retries_max,
            requests_at_once: self.requests_at_once,
        }
    }

    fn credentials(&self) -> anyhow::Result<Credentials> {
        if self.access_key_id.is_some() || self.secret_access_key.is_some() {
            return Ok(Credentials {
                access_key_id: self.access_key_id.clone(),
                secret_access_key: self.secret_access_key.clone(),
                session_token: self.session_token.clone(),
            });
        }
        if let Some(file) = &self.credentials_file {
            return read_secrets(file);
        }
        Ok(Credentials {
            access_key_id: environment("AWS_ACCESS_KEY_ID"),
            secret_access_key: environment("AWS_SECRET_ACCESS_KEY").map(Secret::new),
            session_token: environment("AWS_SESSION_TOKEN").map(Secret::new),
        })
    }

    fn check(&self, section: &str) -> anyhow::Result<()> {
        ensure!(!self.bucket.is_empty(), "{section}.s3.bucket is empty");
        ensure!(
            self.prefix.is_empty() || self.prefix.ends_with('/'),
            "{section}.s3.prefix must end in a slash"
        );
        if let Some(endpoint) = &self.endpoint {
            ensure!(
                endpoint.starts_with("https://")
                    || self.allow_http && endpoint.starts_with("http://"),
                "{section}.s3.endpoint does not begin with https://: set allow_http for a service \
                 on this machine"
            );
        }
        ensure!(
            !self.call_timeout.is_zero() && !self.connect_timeout.is_zero(),
            "{section}.s3: a timeout is 0"
        );
        ensure!(
            self.requests_at_once > 0,
            "{section}.s3.requests_at_once is 0"
        );
        self.to_s3().with_context(|| format!("{section}.s3"))?;
        Ok(())
    }
}

impl SignedUrlsSection {
    pub(super) fn resolve(&mut self, folder: &Path) {
        self.keys_file = self.keys_file.take().map(|path| folder.join(path));
    }

    /// The keys of the section and of its file, the newest first.
    pub(crate) fn secrets(&self) -> anyhow::Result<Vec<Secret>> {
        let mut secrets = self.keys.clone();
        if let Some(file) = &self.keys_file {
            let file: KeysFile = read_secrets(file)?;
            secrets.extend(file.keys);
        }
        Ok(secrets)
    }

    /// Whether the section can be meant, with where the bytes are.
    pub(crate) fn check(
        &self,
        segments: &SegmentsSection,
        blobs: &BlobsSection,
    ) -> anyhow::Result<()> {
        let max = Duration::from_secs(SIGNED_URL_SECONDS_MAX);
        ensure!(
            self.ttl >= Duration::from_secs(1) && self.ttl <= max,
            "signed_urls.ttl must be between 1 second and {}",
            minutes(max)
        );
        let is_bucket = |kind: Option<ObjectsKind>| kind == Some(ObjectsKind::S3);
        ensure!(
            self.segments != UrlsFrom::Backend || is_bucket(segments.kind),
            "signed_urls.segments is backend, and only a bucket signs URLs: set segments.kind to s3"
        );
        ensure!(
            !(self.blobs || self.uploads) || blobs.enabled && is_bucket(blobs.kind),
            "signed_urls.blobs and signed_urls.uploads are URLs of a bucket: set blobs.kind to s3"
        );
        if self.segments != UrlsFrom::Server {
            return Ok(());
        }
        let base_url = self.base_url.as_deref();
        let base_url = base_url.context("signed_urls.base_url is not set")?;
        ensure!(
            base_url.starts_with("https://") || base_url.starts_with("http://"),
            "signed_urls.base_url {base_url:?} does not begin with https://"
        );
        ensure!(
            !base_url.contains(['?', '#']),
            "signed_urls.base_url {base_url:?} has a query"
        );
        Ok(())
    }
}

fn default_kind(store: &StoreSection) -> ObjectsKind {
    match store.kind() {
        // What several nodes use has to be where all of them see it.
        StoreKind::Postgres if store.has_other_nodes() => ObjectsKind::S3,
        StoreKind::Sqlite | StoreKind::Postgres => ObjectsKind::Files,
        StoreKind::Memory => ObjectsKind::Memory,
    }
}

/// A place beside the database and named after it: two servers can have theirs in one folder.
fn default_path(kind: ObjectsKind, store: &StoreSection, what: &str) -> Option<PathBuf> {
    let name = store.path.file_stem().unwrap_or_default().to_string_lossy();
    let name = match kind {
        ObjectsKind::Memory | ObjectsKind::S3 => return None,
        ObjectsKind::Files => format!("{name}.{what}"),
        ObjectsKind::Sqlite => format!("{name}.{what}.db"),
    };
    Some(store.path.with_file_name(name))
}

/// A device may fetch what one node stored from another: every node must see it.
fn check_nodes(
    section: &str,
    kind: Option<ObjectsKind>,
    s3: Option<&S3Section>,
    store: &StoreSection,
) -> anyhow::Result<()> {
    ensure!(
        !store.has_other_nodes() || kind == Some(ObjectsKind::S3) && s3.is_some(),
        "store.kind is postgres, which several nodes may use at once, and {section} would be kept \
         where only this one sees them: set {section}.kind to s3 with {section}.s3, or set \
         store.postgres.single_node if this is the only node"
    );
    Ok(())
}

fn check_place(
    section: &str,
    kind: Option<ObjectsKind>,
    path: Option<&Path>,
    s3: Option<&S3Section>,
) -> anyhow::Result<()> {
    if let Some(s3) = s3 {
        ensure!(
            kind == Some(ObjectsKind::S3),
            "{section}.s3 is set and {section}.kind is not s3"
        );
        s3.check(section)?;
    }
    match kind {
        Some(ObjectsKind::S3) => ensure!(s3.is_some(), "{section}.s3 is not set"),
        Some(ObjectsKind::Files) => ensure!(
            path.is_none_or(|path| !path.is_file()),
            "{section}.path is a file: with kind files it is a folder"
        ),
        Some(ObjectsKind::Sqlite) => ensure!(
            path.is_none_or(|path| !path.is_dir()),
            "{section}.path is a folder: with kind sqlite it is a file"
        ),
        Some(ObjectsKind::Memory) | None => {}
    }
    Ok(())
}

/// Reads a file of secrets.
fn read_secrets<T: serde::de::DeserializeOwned>(file: &Path) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    toml::from_str(&text).map_err(|error| place(&error, &text, file))
}

fn environment(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?.into_string().ok()?;
    Some(value).filter(|value| !value.is_empty())
}

fn minutes(duration: Duration) -> String {
    format!("{} minutes", duration.as_secs() / 60)
}
