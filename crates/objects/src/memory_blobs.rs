//! Blobs in memory, for tests and for trying things out: everything is gone with the process.
//!
//! **Invariant:** the bytes of all blobs stay within the bound; what does not fit is refused,
//! because nothing here may be dropped.

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use parking_lot::Mutex;
use tidewater_model::PartitionId;
use tidewater_wire::{ContentHasher, is_content_address};

use crate::{
    BlobRecord, BlobStore, BlobUsage, HOLD_MS, NewBlob, ObjectError, ObjectErrorKind, ObjectStream,
    PutBlob, SignedUrl,
};

const PUT: &str = "store a blob";

/// Blobs in memory. Clones share them.
#[derive(Clone)]
pub struct MemoryBlobs {
    shared: Arc<Shared>,
}

struct Shared {
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    blobs: BTreeMap<(PartitionId, String), Stored>,
    bytes: u64,
}

struct Stored {
    record: BlobRecord,
    bytes: Bytes,
    used_at_ms: i64,
}

impl MemoryBlobs {
    /// No blobs yet, and never more than so many bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                bytes_max,
                state: Mutex::default(),
            }),
        }
    }
}

#[async_trait]
impl BlobStore for MemoryBlobs {
    async fn put(&self, blob: NewBlob, now_ms: i64) -> Result<PutBlob, ObjectError> {
        let partition = blob.partition.clone();
        let id = blob.id.clone();
        let media_type = blob.media_type.clone();
        let bytes = read(blob, self.shared.bytes_max).await?;
        let byte_length = u64::try_from(bytes.len()).expect("a length fits in 64 bits");
        let mut state = self.shared.state.lock();
        if let Some(stored) = state.blobs.get_mut(&(partition.clone(), id.clone())) {
            stored.used_at_ms = stored.used_at_ms.max(now_ms);
            return Ok(PutBlob {
                record: stored.record.clone(),
                is_new: false,
            });
        }
        if byte_length > self.shared.bytes_max.saturating_sub(state.bytes) {
            return Err(ObjectError::new(ObjectErrorKind::Unavailable, PUT)
                .with_detail("the blobs in memory are full"));
        }
        let record = BlobRecord {
            id: id.clone(),
            byte_length,
            media_type,
            created_at_ms: now_ms,
        };
        state.bytes += byte_length;
        let stored = Stored {
            record: record.clone(),
            bytes,
            used_at_ms: now_ms,
        };
        state.blobs.insert((partition, id), stored);
        Ok(PutBlob {
            record,
            is_new: true,
        })
    }

    async fn head(
        &self,
        partition: &PartitionId,
        id: &str,
    ) -> Result<Option<BlobRecord>, ObjectError> {
        let state = self.shared.state.lock();
        let stored = state.blobs.get(&(partition.clone(), id.to_owned()));
        Ok(stored.map(|stored| stored.record.clone()))
    }

    async fn hold(
        &self,
        partition: &PartitionId,
        ids: &[&str],
        _bytes_max: u64,
        now_ms: i64,
    ) -> Result<Vec<String>, ObjectError> {
        crate::check_held(ids.len())?;
        let mut state = self.shared.state.lock();
        let mut missing = Vec::new();
        for &id in ids {
            match state.blobs.get_mut(&(partition.clone(), id.to_owned())) {
                Some(stored) => stored.used_at_ms = stored.used_at_ms.max(now_ms),
                None => missing.push(id.to_owned()),
            }
        }
        Ok(missing)
    }

    async fn open(
        &self,
        partition: &PartitionId,
        id: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError> {
        let state = self.shared.state.lock();
        let stored = state.blobs.get(&(partition.clone(), id.to_owned()));
        Ok(stored.map(|stored| ObjectStream::from_bytes(&stored.bytes, range)))
    }

    async fn remove(
        &self,
        partition: &PartitionId,
        id: &str,
        unused_since_ms: i64,
        now_ms: i64,
    ) -> Result<bool, ObjectError> {
        let before_ms = unused_since_ms.min(now_ms.saturating_sub(2 * HOLD_MS));
        let mut state = self.shared.state.lock();
        let key = (partition.clone(), id.to_owned());
        if state
            .blobs
            .get(&key)
            .is_none_or(|stored| stored.used_at_ms >= before_ms)
        {
            return Ok(false);
        }
        let stored = state.blobs.remove(&key).expect("it was just seen");
        state.bytes -= stored.record.byte_length;
        Ok(true)
    }

    async fn list(
        &self,
        partition: &PartitionId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobRecord>, ObjectError> {
        let state = self.shared.state.lock();
        let first = (partition.clone(), after.unwrap_or_default().to_owned());
        let records = state
            .blobs
            .range(first..)
            .take_while(|((other, _), _)| other == partition)
            .map(|(_, stored)| &stored.record)
            .filter(|record| after != Some(&*record.id))
            .take(limit)
            .cloned();
        Ok(records.collect())
    }

    async fn presign_get(
        &self,
        _partition: &PartitionId,
        _id: &str,
        _lifetime: Duration,
        _now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        Ok(None)
    }

    async fn presign_put(
        &self,
        _partition: &PartitionId,
        _id: &str,
        _byte_length: u64,
        _lifetime: Duration,
        _now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        Ok(None)
    }

    async fn expire_uploads(&self, _before_ms: i64) -> Result<u64, ObjectError> {
        Ok(0)
    }

    async fn usage(&self, partition: &PartitionId) -> Result<BlobUsage, ObjectError> {
        let state = self.shared.state.lock();
        let mut usage = BlobUsage::default();
        for ((other, _), stored) in &state.blobs {
            if other == partition {
                usage.blobs += 1;
                usage.bytes += stored.record.byte_length;
            }
        }
        Ok(usage)
    }
}

/// Reads the content, never more of it than is allowed, and checks that it is what its name says.
async fn read(blob: NewBlob, bytes_max: u64) -> Result<Bytes, ObjectError> {
    let mismatch = || ObjectError::new(ObjectErrorKind::ContentMismatch, PUT);
    if !is_content_address(&blob.id) {
        return Err(mismatch().with_detail("its name is not a content address"));
    }
    let bytes_max = blob.bytes_max.min(bytes_max);
    let mut body = blob.body;
    let mut hasher = ContentHasher::new();
    let mut all = BytesMut::new();
    let interrupted =
        |error| ObjectError::new(ObjectErrorKind::Interrupted, PUT).with_source(error);
    while let Some(chunk) = body.try_next().await.map_err(interrupted)? {
        let length = all.len().saturating_add(chunk.len());
        if u64::try_from(length).map_or(true, |length| length > bytes_max) {
            return Err(ObjectError::new(ObjectErrorKind::TooLarge, PUT)
                .with_detail(format!("it has more than {bytes_max} bytes")));
        }
        hasher.update(&chunk);
        all.extend_from_slice(&chunk);
    }
    if hasher.finish() != blob.id {
        return Err(mismatch());
    }
    Ok(all.freeze())
}
