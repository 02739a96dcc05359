//! Blobs: who may store one, who may fetch one, and what a push must find (§5.9).
//!
//! Bytes come first and are referenced by a row afterwards, so between the two a blob belongs to
//! nobody. What protects it then is its age, and what keeps a reference from dangling is a hold:
//!
//! * A push **holds** what it references before it enters its lane (`held`). What was not there
//!   is refused when the commit is decided, and so is a hold that has become too old by then.
//! * The sweep (`sweep`) asks the index of references and then removes **on condition** that
//!   nobody stored or held the blob since a time before that. One of the two wins, in the blob
//!   store: either the hold was first and the blob stays, or the removal was and it is missing.
//!
//! So no object store is asked anything under a partition's lock, and no reference ever dangles.
//!
//! **Invariant:** whether a blob exists is told only to those who may read a row that references
//! it, or while no row does. To all others every answer is the same, made by the same work.

mod held;
mod quota;
mod sweep;
#[cfg(test)]
mod tests;

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_core::stream::BoxStream;
use tidewater_model::{AllowedScopes, ErrorCode, PartitionId};
use tidewater_objects::{
    BlobStore, BlobUsage, BodyError, NewBlob, ObjectError, ObjectErrorKind, ObjectStream, SignedUrl,
};
use tidewater_store::ScopesTest;
use tidewater_wire::is_content_address;

pub use self::sweep::Swept;
pub(crate) use self::{
    held::{Held, hold},
    quota::Quota,
    sweep::{sweep, sweep_forever},
};
use crate::{
    Engine, Identity, RoundError, push::is_allowed, segments::resolve_for_download, transfers::cut,
};

/// A blob on its way in.
pub struct BlobUpload {
    /// Its decoded size, where the sender says it.
    pub byte_length: Option<u64>,
    /// Its media type as the sender says it: advice only.
    pub media_type: Option<String>,
    /// Its decoded bytes.
    pub body: BoxStream<'static, Result<Bytes, BodyError>>,
}

/// How a blob may be uploaded (§5.9.3).
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum UploadGrant {
    /// It need not be: it is there.
    Present,
    /// By this URL, once, with exactly the bytes that were announced.
    Url(SignedUrl),
    /// Through this server.
    Direct,
}

/// A blob that the actor may have.
#[derive(Clone, Debug)]
pub enum BlobGrant {
    /// By this URL; it is the only one.
    Url(SignedUrl),
    /// From here.
    Bytes(BlobBytes),
}

/// The bytes of a blob, opened when they are wanted.
#[derive(Clone)]
pub struct BlobBytes {
    /// The content address; also its entity tag.
    pub blob_id: String,
    /// How many there are.
    pub byte_length: u64,
    partition: PartitionId,
    blobs: Arc<dyn BlobStore>,
}

impl BlobBytes {
    /// Opens the bytes, or a range of them cut at their end. `None` when they are gone.
    pub async fn open(
        &self,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError> {
        self.blobs.open(&self.partition, &self.blob_id, range).await
    }
}

impl fmt::Debug for BlobBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BlobBytes")
            .field("blob_id", &self.blob_id)
            .field("byte_length", &self.byte_length)
            .finish_non_exhaustive()
    }
}

/// Stores a blob; one that is there already stays as it is.
pub(crate) async fn upload(
    engine: &Arc<Engine>,
    identity: &Identity,
    blob_id: &str,
    upload: BlobUpload,
) -> Result<(), RoundError> {
    engine.partitions.touch(engine, &identity.partition).await?;
    let blobs = store(engine)?;
    check_id(blob_id)?;
    let config = &engine.parts.config;
    if upload
        .byte_length
        .is_some_and(|length| length > config.blob_bytes_max)
    {
        return Err(too_large(config.blob_bytes_max));
    }
    let room = quota::reserve(engine, &identity.partition, upload.byte_length).await?;
    let blob = NewBlob {
        partition: identity.partition.clone(),
        id: blob_id.to_owned(),
        media_type: upload.media_type,
        bytes_max: room.bytes_max(),
        body: upload.body,
    };
    match blobs.put(blob, engine.parts.clock.now_ms()).await {
        Ok(put) => {
            if put.is_new {
                room.take(put.record.byte_length);
            }
            Ok(())
        }
        Err(error) => Err(match error.kind {
            ObjectErrorKind::ContentMismatch => hash_mismatch(),
            ObjectErrorKind::TooLarge => too_large(room.bytes_max()),
            ObjectErrorKind::Interrupted => {
                RoundError::new(ErrorCode::InvalidRequest, "the upload ended early")
            }
            ObjectErrorKind::Unavailable | ObjectErrorKind::Corrupt | ObjectErrorKind::Refused => {
                RoundError::internal(&error, "store a blob")
            }
        }),
    }
}

/// Says how a blob of this size may be uploaded.
pub(crate) async fn grant_upload(
    engine: &Arc<Engine>,
    identity: &Identity,
    blob_id: &str,
    byte_length: u64,
) -> Result<UploadGrant, RoundError> {
    engine.partitions.touch(engine, &identity.partition).await?;
    let blobs = store(engine)?;
    check_id(blob_id)?;
    let config = &engine.parts.config;
    if byte_length > config.blob_bytes_max {
        return Err(too_large(config.blob_bytes_max));
    }
    let Some(lifetime) = engine.parts.transfers.upload_urls.map(cut) else {
        return Ok(UploadGrant::Direct);
    };
    let partition = &identity.partition;
    if may_know(engine, identity, blob_id).await?
        && held::is_present(engine, blobs.as_ref(), partition, blob_id).await?
    {
        return Ok(UploadGrant::Present);
    }
    let room = quota::reserve(engine, partition, Some(byte_length)).await?;
    let now_ms = engine.parts.clock.now_ms();
    let url = blobs
        .presign_put(partition, blob_id, byte_length, lifetime, now_ms)
        .await
        .map_err(|error| RoundError::internal(&error, "presign an upload"))?;
    match url {
        Some(url) => {
            // What is granted counts for as long as it may arrive.
            room.keep_until(url.expires_at_ms);
            Ok(UploadGrant::Url(url))
        }
        None => Ok(UploadGrant::Direct),
    }
}

/// Grants a blob to an actor who may read a row that references it, as of now.
pub(crate) async fn download(
    engine: &Arc<Engine>,
    identity: &Identity,
    blob_id: &str,
) -> Result<BlobGrant, RoundError> {
    engine.partitions.touch(engine, &identity.partition).await?;
    let blobs = store(engine)?;
    if !is_content_address(blob_id) {
        return Err(not_found());
    }
    let partition = &identity.partition;
    if !may_read(engine, identity, blob_id).await? {
        return Err(forbidden());
    }
    let failed = |error| RoundError::internal(&error, "look a blob up");
    let record = blobs.head(partition, blob_id).await.map_err(failed)?;
    let record = record.ok_or_else(not_found)?;
    if let Some(lifetime) = engine.parts.transfers.blob_urls.map(cut) {
        let now_ms = engine.parts.clock.now_ms();
        let url = blobs.presign_get(partition, blob_id, lifetime, now_ms);
        if let Some(url) = url.await.map_err(failed)? {
            return Ok(BlobGrant::Url(url));
        }
    }
    Ok(BlobGrant::Bytes(BlobBytes {
        blob_id: blob_id.to_owned(),
        byte_length: record.byte_length,
        partition: partition.clone(),
        blobs: Arc::clone(blobs),
    }))
}

/// What the blobs of a partition take.
pub(crate) async fn usage(
    engine: &Engine,
    partition: &PartitionId,
) -> Result<BlobUsage, RoundError> {
    let usage = store(engine)?.usage(partition).await;
    usage.map_err(|error| RoundError::internal(&error, "measure blobs"))
}

/// Whether a row that the actor may read references the blob (§5.9.5).
async fn may_read(engine: &Engine, identity: &Identity, blob_id: &str) -> Result<bool, RoundError> {
    let allowed: AllowedScopes = resolve_for_download(engine, identity, forbidden).await?;
    let schema = Arc::clone(engine.schema());
    let wanted =
        ScopesTest::new(move |table, scopes| is_allowed(schema.table(table), scopes, &allowed));
    let found = engine
        .store()
        .find_blob_row(&identity.partition, blob_id, wanted)
        .await?;
    Ok(found.is_some())
}

/// Whether the actor may be told that the blob is there. One that no row references is known to
/// those who know its hash.
async fn may_know(engine: &Engine, identity: &Identity, blob_id: &str) -> Result<bool, RoundError> {
    let asked = vec![blob_id.to_owned()];
    let referenced = engine
        .store()
        .are_referenced(&identity.partition, asked)
        .await?;
    if referenced != [true] {
        return Ok(true);
    }
    match may_read(engine, identity, blob_id).await {
        // Without permissions there is nothing to tell, and an upload needs none.
        Err(error) if error.code == ErrorCode::BlobForbidden => Ok(false),
        answer => answer,
    }
}

/// The store of blobs, where there is one.
fn store(engine: &Engine) -> Result<&Arc<dyn BlobStore>, RoundError> {
    engine.parts.transfers.blobs.as_ref().ok_or_else(not_found)
}

fn check_id(blob_id: &str) -> Result<(), RoundError> {
    if is_content_address(blob_id) {
        Ok(())
    } else {
        Err(hash_mismatch())
    }
}

fn not_found() -> RoundError {
    RoundError::new(ErrorCode::BlobNotFound, "there is no such blob")
}

fn forbidden() -> RoundError {
    RoundError::new(ErrorCode::BlobForbidden, "no row gives access to this blob")
}

fn hash_mismatch() -> RoundError {
    RoundError::new(
        ErrorCode::BlobHashMismatch,
        "the blob id is not the hash of the content",
    )
}

fn too_large(bytes_max: u64) -> RoundError {
    RoundError::new(ErrorCode::BlobTooLarge, "the blob is too large")
        .with_details(serde_json::json!({ "bytesMax": bytes_max }))
}

/// Longest that a blob store may take over what a push or a grant asks of it.
const STORE_TIMEOUT: Duration = Duration::from_secs(60);
