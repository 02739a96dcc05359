//! Blobs on a backend: immutable bytes below their partition.
//!
//! **Invariant:** a blob's key is written by this server only, after it has hashed the content to
//! its end. What clients upload past the server goes to a key of its own and is taken over when
//! it is first referenced, so a presigned URL can neither show wrong bytes to anybody nor replace
//! right ones, whatever its holder sends and when.
//!
//! Blobs that the reference's clients uploaded by a presigned URL lie under the blob's own key
//! without metadata. They are verified when they are next held.

use std::{ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt};
use object_store::{Attribute, Attributes, path::Path};
use tidewater_model::PartitionId;

use super::{
    backend::{Backend, Update},
    documents::{self, BlobDocument, UsageDocument},
    keys::{self, BlobObject, Keys},
    upload::{self, Body, Expected, Target},
};
use crate::{
    BlobRecord, BlobStore, BlobUsage, NewBlob, ObjectError, ObjectErrorKind, ObjectStream, PutBlob,
    SignedUrl,
};

const PUT: &str = "store a blob";
const HEAD: &str = "look a blob up";
const HOLD: &str = "hold a blob";
const READ: &str = "read a blob";
const LIST: &str = "list blobs";
const SIGN: &str = "sign a URL";
const CLEAN: &str = "remove uploads";

/// Blobs on a backend. Clones share it.
#[derive(Clone)]
pub struct RemoteBlobs {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) backend: Backend,
    pub(super) keys: Keys,
}

/// A blob that is there.
pub(super) struct Found {
    pub(super) record: BlobRecord,
    /// Whether this server wrote it.
    is_verified: bool,
}

impl RemoteBlobs {
    /// Blobs on `backend`. A directory must be a durable one.
    pub fn new(backend: Backend) -> Self {
        let keys = backend.keys();
        Self {
            shared: Arc::new(Shared { backend, keys }),
        }
    }
}

#[async_trait]
impl BlobStore for RemoteBlobs {
    async fn put(&self, blob: NewBlob, now_ms: i64) -> Result<PutBlob, ObjectError> {
        let shared = &self.shared;
        let NewBlob {
            partition,
            id,
            media_type,
            bytes_max,
            body,
        } = blob;
        let path = shared
            .keys
            .blob(BlobObject::Content, &partition, &id)
            .ok_or_else(|| {
                ObjectError::new(ObjectErrorKind::ContentMismatch, PUT)
                    .with_detail("its name is not a content address")
            })?;
        let body: Body = body
            .map_err(|error| ObjectError::new(ObjectErrorKind::Interrupted, PUT).with_source(error))
            .boxed();
        let found = shared.find(PUT, &partition, &id).await?;
        let is_kept = shared.keep(&partition, &id, found.as_ref(), now_ms).await?;
        let expected = Expected { id: &id, bytes_max };
        if let Some(Found {
            record,
            is_verified: true,
        }) = found
            && is_kept
        {
            upload::verify(PUT, expected, body).await?;
            return Ok(PutBlob {
                record,
                is_new: false,
            });
        }
        let record = shared
            .store(&partition, &path, expected, media_type, body, now_ms)
            .await?;
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
        let found = self.shared.find(HEAD, partition, id).await?;
        Ok(found.map(|found| found.record))
    }

    async fn hold(
        &self,
        partition: &PartitionId,
        ids: &[&str],
        bytes_max: u64,
        now_ms: i64,
    ) -> Result<Vec<String>, ObjectError> {
        crate::check_held(ids.len())?;
        let shared = &self.shared;
        let at_once = shared.backend.limits().requests_at_once;
        let ids: Vec<String> = ids.iter().map(|&id| id.to_owned()).collect();
        let missing: Vec<Option<String>> = futures_util::stream::iter(ids)
            .map(|id| async move {
                let is_there = shared.hold(partition, &id, bytes_max, now_ms).await?;
                Ok::<_, ObjectError>((!is_there).then_some(id))
            })
            .buffered(at_once)
            .try_collect()
            .await?;
        Ok(missing.into_iter().flatten().collect())
    }

    async fn open(
        &self,
        partition: &PartitionId,
        id: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError> {
        let Some(path) = self.shared.keys.blob(BlobObject::Content, partition, id) else {
            return Ok(None);
        };
        self.shared.backend.open(READ, &path, range).await
    }

    async fn remove(
        &self,
        partition: &PartitionId,
        id: &str,
        unused_since_ms: i64,
        now_ms: i64,
    ) -> Result<bool, ObjectError> {
        self.shared
            .remove_unused(partition, id, unused_since_ms, now_ms)
            .await
    }

    async fn list(
        &self,
        partition: &PartitionId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobRecord>, ObjectError> {
        let shared = &self.shared;
        let prefix = shared.keys.blobs(BlobObject::Content, partition);
        let after = after.map(|id| id.trim_start_matches("sha256:"));
        let page = shared
            .backend
            .list_page(LIST, &prefix, after, limit)
            .await?;
        let records = page.into_iter().filter_map(|meta| {
            Some(BlobRecord {
                id: keys::id_of(&meta.location)?,
                byte_length: meta.size,
                media_type: None,
                created_at_ms: meta.last_modified.timestamp_millis(),
            })
        });
        Ok(records.collect())
    }

    async fn presign_get(
        &self,
        partition: &PartitionId,
        id: &str,
        lifetime: Duration,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        let Some(path) = self.shared.keys.blob(BlobObject::Content, partition, id) else {
            return Ok(None);
        };
        self.shared
            .backend
            .presign_get(SIGN, &path, lifetime, now_ms)
            .await
    }

    async fn presign_put(
        &self,
        partition: &PartitionId,
        id: &str,
        byte_length: u64,
        lifetime: Duration,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        let Some(path) = self.shared.keys.blob(BlobObject::Upload, partition, id) else {
            return Ok(None);
        };
        self.shared
            .backend
            .presign_put(SIGN, &path, byte_length, lifetime, now_ms)
            .await
    }

    async fn expire_uploads(&self, before_ms: i64) -> Result<u64, ObjectError> {
        let backend = &self.shared.backend;
        let listing = backend.list(CLEAN, &self.shared.keys.uploads());
        listing
            .try_filter(|meta| {
                let is_old = meta.last_modified.timestamp_millis() < before_ms;
                futures_util::future::ready(is_old && keys::id_of(&meta.location).is_some())
            })
            .map_ok(|meta| async move {
                backend.delete(CLEAN, &meta.location).await?;
                Ok(1)
            })
            .try_buffer_unordered(backend.limits().requests_at_once)
            .try_fold(0_u64, |sum, one: u64| async move { Ok(sum + one) })
            .await
    }

    async fn usage(&self, partition: &PartitionId) -> Result<BlobUsage, ObjectError> {
        let prefix = self.shared.keys.blobs(BlobObject::Content, partition);
        let depth = prefix.parts().count() + 1;
        let listing = self.shared.backend.list(LIST, &prefix);
        listing
            .try_fold(BlobUsage::default(), |mut usage, meta| async move {
                if meta.location.parts().count() == depth {
                    usage.blobs += 1;
                    usage.bytes += meta.size;
                }
                Ok(usage)
            })
            .await
    }
}

impl Shared {
    pub(super) async fn find(
        &self,
        during: &'static str,
        partition: &PartitionId,
        id: &str,
    ) -> Result<Option<Found>, ObjectError> {
        let Some(path) = self.keys.blob(BlobObject::Content, partition, id) else {
            return Ok(None);
        };
        let Some((meta, attributes)) = self.backend.head(during, &path).await? else {
            return Ok(None);
        };
        let written = if self.backend.has_attributes() {
            let attribute = Attribute::Metadata(documents::BLOB_ATTRIBUTE.into());
            attributes
                .get(&attribute)
                .and_then(|text| BlobDocument::from_attribute(text))
        } else {
            let written = self.read_usage(during, partition, id).await?.blob;
            // A removal that ended between the two looks took the blob first.
            if written.is_none() && self.backend.head(during, &path).await?.is_none() {
                return Ok(None);
            }
            written
        };
        // Nobody but this server writes where objects have no metadata.
        let is_verified = written.is_some() || !self.backend.has_attributes();
        let written = written.unwrap_or_else(|| BlobDocument {
            byte_length: Some(meta.size),
            media_type: None,
            created_at_ms: meta.last_modified.timestamp_millis(),
        });
        Ok(Some(Found {
            record: BlobRecord {
                id: id.to_owned(),
                byte_length: meta.size,
                media_type: written.media_type,
                created_at_ms: written.created_at_ms,
            },
            is_verified,
        }))
    }

    async fn read_usage(
        &self,
        during: &'static str,
        partition: &PartitionId,
        id: &str,
    ) -> Result<UsageDocument, ObjectError> {
        let Some(path) = self.keys.blob(BlobObject::Usage, partition, id) else {
            return Ok(UsageDocument::default());
        };
        let document = self.backend.read_document(during, &path).await?;
        UsageDocument::parse(during, document.as_ref().map(|(json, _)| &**json))
    }

    async fn hold(
        &self,
        partition: &PartitionId,
        id: &str,
        bytes_max: u64,
        now_ms: i64,
    ) -> Result<bool, ObjectError> {
        let found = self.find(HOLD, partition, id).await?;
        let must_verify = found.as_ref().is_none_or(|found| !found.is_verified);
        if must_verify && self.backend.has_attributes() {
            return self
                .take_over(partition, id, found, bytes_max, now_ms)
                .await;
        }
        self.keep(partition, id, found.as_ref(), now_ms).await
    }

    /// Verifies what was uploaded past the server and makes it a blob; whether it is one.
    async fn take_over(
        &self,
        partition: &PartitionId,
        id: &str,
        found: Option<Found>,
        bytes_max: u64,
        now_ms: i64,
    ) -> Result<bool, ObjectError> {
        let (Some(target), Some(upload)) = (
            self.keys.blob(BlobObject::Content, partition, id),
            self.keys.blob(BlobObject::Upload, partition, id),
        ) else {
            return Ok(false);
        };
        // Bytes of a client of the reference lie where the blob belongs.
        for source in [Some(&upload), found.is_some().then_some(&target)] {
            let Some(source) = source else { continue };
            let Some(stream) = self.backend.open(HOLD, source, None).await? else {
                continue;
            };
            let expected = Expected { id, bytes_max };
            let stored = if stream.total_length() > bytes_max {
                Err(ObjectError::new(ObjectErrorKind::TooLarge, HOLD))
            } else {
                let body = stream.into_chunks();
                self.store(partition, &target, expected, None, body, now_ms)
                    .await
            };
            match stored {
                Ok(_) => {
                    self.backend.delete(HOLD, &upload).await?;
                    return Ok(true);
                }
                Err(error) if is_verdict(&error) => {
                    if source == &upload {
                        self.backend.delete(HOLD, &upload).await?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Writes a blob that is not there, with what is known about it.
    async fn store(
        &self,
        partition: &PartitionId,
        path: &Path,
        expected: Expected<'_>,
        media_type: Option<String>,
        body: Body,
        now_ms: i64,
    ) -> Result<BlobRecord, ObjectError> {
        let written = BlobDocument {
            byte_length: None,
            media_type: media_type.filter(|text| text.len() <= MEDIA_TYPE_BYTES_MAX),
            created_at_ms: now_ms,
        };
        let has_attributes = self.backend.has_attributes();
        let attributes = |byte_length| {
            let mut attributes = Attributes::new();
            if has_attributes {
                let written = BlobDocument {
                    byte_length,
                    ..written.clone()
                };
                let attribute = Attribute::Metadata(documents::BLOB_ATTRIBUTE.into());
                attributes.insert(attribute, written.to_attribute().into());
            }
            attributes
        };
        let before_visible: BoxFuture<'_, Result<(), ObjectError>> = if has_attributes {
            Box::pin(std::future::ready(Ok(())))
        } else {
            Box::pin(self.write_usage(partition, expected.id, &written, now_ms))
        };
        let target = Target {
            path,
            attributes: &attributes,
            before_visible,
        };
        let length = upload::upload(&self.backend, PUT, target, expected, body).await?;
        if has_attributes {
            self.check_not_removed(PUT, partition, expected.id, now_ms)
                .await?;
        }
        Ok(BlobRecord {
            id: expected.id.to_owned(),
            byte_length: length,
            media_type: written.media_type,
            created_at_ms: now_ms,
        })
    }

    /// Keeps beside the blob what its object has no place for.
    async fn write_usage(
        &self,
        partition: &PartitionId,
        id: &str,
        written: &BlobDocument,
        now_ms: i64,
    ) -> Result<(), ObjectError> {
        let path = self
            .keys
            .blob(BlobObject::Usage, partition, id)
            .expect("it is about to be stored");
        let written = written.clone();
        let decide = move |document: Option<&[u8]>| {
            let mut usage = UsageDocument::parse(PUT, document)?;
            super::usage::check_not_removing(PUT, &usage, now_ms)?;
            usage.removing_since_ms = None;
            usage.blob = Some(written.clone());
            Ok(Update::Write(documents::to_json(&usage), ()))
        };
        self.backend.update(PUT, path, decide).await?;
        Ok(())
    }
}

/// Metadata of an object has 2 KiB, of which an uploader's words get a quarter.
const MEDIA_TYPE_BYTES_MAX: usize = 512;

/// Whether an upload itself is at fault, not the backend.
fn is_verdict(error: &ObjectError) -> bool {
    matches!(
        error.kind,
        ObjectErrorKind::ContentMismatch | ObjectErrorKind::TooLarge
    )
}
