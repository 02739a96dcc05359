//! Opens the places where segments and blobs are kept, as the configuration says.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use tidewater_engine::{Transfers, UrlSource};
use tidewater_objects::{
    Backend, BackendLimits, BlobStore, MemoryBlobs, MemorySegments, RemoteBlobs, RemoteSegments,
    SegmentStore, SigningKeys,
};
use tidewater_objects_sqlite::{SegmentsConfig, SqliteBlobs, SqliteSegments};

use crate::config::{
    Config, bytes, milliseconds,
    objects::{ObjectsKind, S3Section, UrlsFrom},
    store::StoreKind,
};

/// The segments of a configuration.
pub(crate) fn open_segments(config: &Config) -> anyhow::Result<Arc<dyn SegmentStore>> {
    let section = &config.segments;
    let lifetime_ms = milliseconds(section.lifetime);
    let path = || section.path.as_deref().context("segments.path is not set");
    Ok(match section.kind.unwrap_or(ObjectsKind::Memory) {
        ObjectsKind::Memory => {
            let bytes_max = section.bytes_max.map_or(0, bytes);
            Arc::new(MemorySegments::new(bytes_max, lifetime_ms))
        }
        // They can be made again: a crash may take some.
        ObjectsKind::Files => {
            Arc::new(RemoteSegments::new(directory(path()?, false)?, lifetime_ms))
        }
        ObjectsKind::Sqlite => {
            let bytes_max = section.bytes_max.map_or(u64::MAX, |size| size.as_u64());
            let config = SegmentsConfig {
                lifetime_ms,
                bytes_max,
            };
            Arc::new(SqliteSegments::open(path()?, config)?)
        }
        ObjectsKind::S3 => {
            let backend = bucket(section.s3.as_ref()).context("segments.s3")?;
            Arc::new(RemoteSegments::new(backend, lifetime_ms))
        }
    })
}

/// The blobs of a configuration, if it has any.
pub(crate) fn open_blobs(config: &Config) -> anyhow::Result<Option<Arc<dyn BlobStore>>> {
    let section = &config.blobs;
    if !section.enabled {
        return Ok(None);
    }
    let path = || section.path.as_deref().context("blobs.path is not set");
    Ok(Some(match section.kind.unwrap_or(ObjectsKind::Memory) {
        ObjectsKind::Memory => Arc::new(MemoryBlobs::new(section.bytes_max.as_u64())),
        ObjectsKind::Files => Arc::new(RemoteBlobs::new(directory(path()?, true)?)),
        ObjectsKind::Sqlite => Arc::new(SqliteBlobs::open(path()?)?),
        ObjectsKind::S3 => {
            let backend = bucket(section.s3.as_ref()).context("blobs.s3")?;
            Arc::new(RemoteBlobs::new(backend))
        }
    }))
}

/// Blobs and signed URLs, as the engine takes them.
pub(crate) fn transfers(config: &Config) -> anyhow::Result<Transfers> {
    let section = &config.signed_urls;
    let lifetime = section.ttl;
    let segment_urls = match section.segments {
        UrlsFrom::Off => UrlSource::None,
        UrlsFrom::Backend => UrlSource::Presigned { lifetime },
        UrlsFrom::Server => {
            let base_url = section.base_url.as_deref();
            let base_url = base_url.context("signed_urls.base_url is not set")?;
            let keys = signing_keys(config)?.context("signed_urls.keys is empty")?;
            UrlSource::Signed {
                keys: Arc::new(keys),
                base_url: format!("{}/signed/segments", base_url.trim_end_matches('/')),
                lifetime,
            }
        }
    };
    Ok(Transfers {
        blobs: open_blobs(config)?,
        segment_urls,
        blob_urls: section.blobs.then_some(lifetime),
        upload_urls: section.uploads.then_some(lifetime),
    })
}

/// The keys of URLs that this server signs; `None` where it signs none.
pub(crate) fn signing_keys(config: &Config) -> anyhow::Result<Option<SigningKeys>> {
    let section = &config.signed_urls;
    // A key that cannot be used is a mistake even while nothing is signed.
    let secrets = section.secrets()?;
    if secrets.is_empty() && section.segments != UrlsFrom::Server {
        return Ok(None);
    }
    let secrets = secrets
        .iter()
        .map(|secret| secret.expose().as_bytes().to_vec());
    let keys = SigningKeys::new(secrets.collect()).context("signed_urls.keys")?;
    Ok(Some(keys))
}

/// Where images are written and compressed copies are kept: beside the files of segments, so that
/// an image becomes a segment without being copied. What an earlier process left is removed.
pub(crate) fn prepare_scratch(config: &Config) -> anyhow::Result<Option<std::path::PathBuf>> {
    let section = &config.segments;
    let scratch = match (&section.scratch, &section.path) {
        (Some(scratch), _) => scratch.clone(),
        (None, Some(path)) if section.kind == Some(ObjectsKind::Files) => {
            path.with_extension("scratch")
        }
        (None, _) => match config.store.kind() {
            StoreKind::Memory => return Ok(None),
            StoreKind::Sqlite => config.store.path.with_extension("scratch"),
            // Nodes on one machine may have one folder, and each removes what is in its own.
            StoreKind::Postgres => {
                let port = config.server.listen.port();
                config.store.path.with_extension(format!("{port}.scratch"))
            }
        },
    };
    let during = || format!("prepare the folder {}", scratch.display());
    std::fs::create_dir_all(&scratch).with_context(during)?;
    for entry in std::fs::read_dir(&scratch).with_context(during)? {
        let entry = entry.with_context(during)?;
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with("tidewater-")
        {
            std::fs::remove_file(entry.path()).with_context(during)?;
        }
    }
    Ok(Some(scratch))
}

fn directory(path: &Path, durable: bool) -> anyhow::Result<Backend> {
    let limits = BackendLimits {
        // A disk that is this slow is broken; a large file on a slow one is not.
        call_timeout: Duration::from_secs(60),
        ..BackendLimits::default()
    };
    let backend = Backend::directory(path, durable, limits);
    backend.with_context(|| format!("open {} (is another process using it?)", path.display()))
}

fn bucket(section: Option<&S3Section>) -> anyhow::Result<Backend> {
    let section = section.context("the bucket is not set")?;
    Ok(Backend::s3(
        section.to_s3()?,
        &section.prefix,
        section.limits(),
    )?)
}
