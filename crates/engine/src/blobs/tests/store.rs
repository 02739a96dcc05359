//! A blob store that lets a test act in front of a removal or after a hold, and that makes URLs
//! when it is told to.

use std::{
    ops::Range,
    pin::Pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidewater_model::PartitionId;
use tidewater_objects::{
    BlobRecord, BlobStore, BlobUsage, MemoryBlobs, NewBlob, ObjectError, ObjectStream, PutBlob,
    SignedUrl,
};

type Act = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) struct TestBlobs {
    inner: MemoryBlobs,
    before_remove: Mutex<Option<Act>>,
    after_hold: Mutex<Option<Act>>,
    presigns: AtomicBool,
    presigned: AtomicU64,
    lost: Mutex<Vec<String>>,
}

impl Default for TestBlobs {
    fn default() -> Self {
        Self {
            inner: MemoryBlobs::new(1 << 20),
            before_remove: Mutex::default(),
            after_hold: Mutex::default(),
            presigns: AtomicBool::new(false),
            presigned: AtomicU64::new(0),
            lost: Mutex::default(),
        }
    }
}

impl TestBlobs {
    /// Does this once, directly before the next removal.
    pub(super) fn before_remove(&self, act: impl Future<Output = ()> + Send + 'static) {
        *self.before_remove.lock() = Some(Box::pin(act));
    }

    /// Does this once, directly after the next hold.
    pub(super) fn after_hold(&self, act: impl Future<Output = ()> + Send + 'static) {
        *self.after_hold.lock() = Some(Box::pin(act));
    }

    /// Makes URLs from now on.
    pub(super) fn presign(&self) {
        self.presigns.store(true, Ordering::SeqCst);
    }

    /// URLs made so far.
    pub(super) fn presigned(&self) -> u64 {
        self.presigned.load(Ordering::SeqCst)
    }

    /// Loses a blob, as a disk would.
    pub(super) async fn lose(&self, id: &str) {
        self.lost.lock().push(id.to_owned());
    }

    fn has_lost(&self, id: &str) -> bool {
        self.lost.lock().iter().any(|lost| lost == id)
    }

    fn url(&self, url: String, lifetime: Duration, now_ms: i64) -> Option<SignedUrl> {
        if !self.presigns.load(Ordering::SeqCst) {
            return None;
        }
        self.presigned.fetch_add(1, Ordering::SeqCst);
        let expires_at_ms = now_ms + i64::try_from(lifetime.as_millis()).unwrap();
        Some(SignedUrl { url, expires_at_ms })
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl BlobStore for TestBlobs {
    async fn put(&self, blob: NewBlob, now_ms: i64) -> Result<PutBlob, ObjectError> {
        self.inner.put(blob, now_ms).await
    }

    async fn head(
        &self,
        partition: &PartitionId,
        id: &str,
    ) -> Result<Option<BlobRecord>, ObjectError> {
        if self.has_lost(id) {
            return Ok(None);
        }
        self.inner.head(partition, id).await
    }

    async fn hold(
        &self,
        partition: &PartitionId,
        ids: &[&str],
        bytes_max: u64,
        now_ms: i64,
    ) -> Result<Vec<String>, ObjectError> {
        let mut missing = self.inner.hold(partition, ids, bytes_max, now_ms).await?;
        let lost = ids.iter().filter(|id| self.has_lost(id));
        missing.extend(lost.map(|id| (*id).to_owned()));
        let act = self.after_hold.lock().take();
        if let Some(act) = act {
            act.await;
        }
        Ok(missing)
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
        let act = self.before_remove.lock().take();
        if let Some(act) = act {
            act.await;
        }
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
        Ok(self.url(format!("get:{partition}:{id}"), lifetime, now_ms))
    }

    async fn presign_put(
        &self,
        partition: &PartitionId,
        id: &str,
        byte_length: u64,
        lifetime: Duration,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        let url = format!("put:{partition}:{id}:{byte_length}");
        Ok(self.url(url, lifetime, now_ms))
    }

    async fn expire_uploads(&self, before_ms: i64) -> Result<u64, ObjectError> {
        self.inner.expire_uploads(before_ms).await
    }

    async fn usage(&self, partition: &PartitionId) -> Result<BlobUsage, ObjectError> {
        self.inner.usage(partition).await
    }
}
