//! A bucket that clients reach past the server, in front of an instance's blobs.
//!
//! Presigned URLs lead to the host of the test: `…/i/{id}/bucket/{token}`. Who has one needs no
//! credentials, for one method, one blob and until it ends, as with a provider. It can be switched
//! off, and then the backend has no such URLs and everything goes through the server.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{body::Body, extract::Request, response::Response};
use futures_util::StreamExt as _;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use tidewater_model::PartitionId;
use tidewater_objects::{
    BlobRecord, BlobStore, BlobUsage, BodyError, NewBlob, ObjectError, ObjectErrorKind,
    ObjectStream, PutBlob, SignedUrl,
};

use crate::host::failure;

/// Blobs with URLs of their own.
pub(crate) struct Bucket {
    inner: Arc<dyn BlobStore>,
    base_url: String,
    is_presigning: AtomicBool,
    next_token: AtomicU64,
    grants: Mutex<BTreeMap<String, Grant>>,
    downloads: AtomicU64,
    uploads: AtomicU64,
}

/// What a URL is good for.
#[derive(Clone)]
struct Grant {
    method: Method,
    partition: PartitionId,
    id: String,
    /// Of an upload.
    byte_length: u64,
    expires_at_ms: i64,
}

/// URLs that are remembered; the oldest are forgotten.
const GRANTS_MAX: usize = 10_000;

impl Bucket {
    pub(crate) fn new(inner: Arc<dyn BlobStore>, base_url: &str) -> Self {
        Self {
            inner,
            base_url: base_url.to_owned(),
            is_presigning: AtomicBool::new(false),
            next_token: AtomicU64::new(1),
            grants: Mutex::default(),
            downloads: AtomicU64::new(0),
            uploads: AtomicU64::new(0),
        }
    }

    /// Whether there are URLs from now on. Those that were given out stay good.
    pub(crate) fn set_presigning(&self, enabled: bool) {
        self.is_presigning.store(enabled, Ordering::SeqCst);
    }

    /// Blobs fetched and stored past the server.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        (read(&self.downloads), read(&self.uploads))
    }

    fn grant(&self, mut grant: Grant, lifetime: Duration, now_ms: i64) -> Option<SignedUrl> {
        if !self.is_presigning.load(Ordering::SeqCst) {
            return None;
        }
        let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        let expires_at_ms = (now_ms.div_euclid(1_000) + seconds) * 1_000;
        grant.expires_at_ms = expires_at_ms;
        let number = self.next_token.fetch_add(1, Ordering::SeqCst);
        // Guessing one is no concern of a test.
        let token = format!("{number:012}");
        let mut grants = self.grants.lock();
        if grants.len() >= GRANTS_MAX {
            grants.pop_first();
        }
        grants.insert(token.clone(), grant);
        Some(SignedUrl {
            url: format!("{}/bucket/{token}", self.base_url),
            expires_at_ms,
        })
    }

    /// Answers a request with such a URL, as a provider would.
    pub(crate) async fn answer(&self, token: &str, now_ms: i64, request: Request) -> Response {
        let known = self.grants.lock().get(token).cloned();
        let Some(grant) = known.filter(|grant| grant.method == *request.method()) else {
            return failure(StatusCode::FORBIDDEN, "the signature does not match");
        };
        if now_ms >= grant.expires_at_ms {
            return failure(StatusCode::FORBIDDEN, "the URL has expired");
        }
        let answered = if grant.method == Method::PUT {
            self.take(grant, now_ms, request).await
        } else {
            self.give(&grant).await
        };
        answered.unwrap_or_else(|error| {
            let status = match error.kind {
                ObjectErrorKind::ContentMismatch
                | ObjectErrorKind::TooLarge
                | ObjectErrorKind::Interrupted => StatusCode::BAD_REQUEST,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            failure(status, error)
        })
    }

    async fn give(&self, grant: &Grant) -> Result<Response, ObjectError> {
        let opened = self.inner.open(&grant.partition, &grant.id, None).await?;
        let Some(stream) = opened else {
            return Ok(failure(StatusCode::NOT_FOUND, "there is no such key"));
        };
        self.downloads.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(Body::from_stream(stream.into_chunks())))
    }

    async fn take(
        &self,
        grant: Grant,
        now_ms: i64,
        request: Request,
    ) -> Result<Response, ObjectError> {
        let body = request.into_body().into_data_stream();
        let blob = NewBlob {
            partition: grant.partition,
            id: grant.id,
            media_type: None,
            bytes_max: grant.byte_length,
            body: body.map(|chunk| chunk.map_err(BodyError::from)).boxed(),
        };
        self.inner.put(blob, now_ms).await?;
        self.uploads.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(Body::empty()))
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl BlobStore for Bucket {
    async fn put(&self, blob: NewBlob, now_ms: i64) -> Result<PutBlob, ObjectError> {
        self.inner.put(blob, now_ms).await
    }

    async fn head(
        &self,
        partition: &PartitionId,
        id: &str,
    ) -> Result<Option<BlobRecord>, ObjectError> {
        self.inner.head(partition, id).await
    }

    async fn hold(
        &self,
        partition: &PartitionId,
        ids: &[&str],
        bytes_max: u64,
        now_ms: i64,
    ) -> Result<Vec<String>, ObjectError> {
        self.inner.hold(partition, ids, bytes_max, now_ms).await
    }

    async fn open(
        &self,
        partition: &PartitionId,
        id: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError> {
        self.inner.open(partition, id, range).await
    }

    async fn remove(
        &self,
        partition: &PartitionId,
        id: &str,
        unused_since_ms: i64,
        now_ms: i64,
    ) -> Result<bool, ObjectError> {
        self.inner
            .remove(partition, id, unused_since_ms, now_ms)
            .await
    }

    async fn list(
        &self,
        partition: &PartitionId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobRecord>, ObjectError> {
        self.inner.list(partition, after, limit).await
    }

    async fn presign_get(
        &self,
        partition: &PartitionId,
        id: &str,
        lifetime: Duration,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        let grant = Grant {
            method: Method::GET,
            partition: partition.clone(),
            id: id.to_owned(),
            byte_length: 0,
            expires_at_ms: 0,
        };
        Ok(self.grant(grant, lifetime, now_ms))
    }

    async fn presign_put(
        &self,
        partition: &PartitionId,
        id: &str,
        byte_length: u64,
        lifetime: Duration,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        let grant = Grant {
            method: Method::PUT,
            partition: partition.clone(),
            id: id.to_owned(),
            byte_length,
            expires_at_ms: 0,
        };
        Ok(self.grant(grant, lifetime, now_ms))
    }

    async fn expire_uploads(&self, before_ms: i64) -> Result<u64, ObjectError> {
        self.inner.expire_uploads(before_ms).await
    }

    async fn usage(&self, partition: &PartitionId) -> Result<BlobUsage, ObjectError> {
        self.inner.usage(partition).await
    }
}
