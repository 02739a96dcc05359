//! Who wins between a push that needs a blob and the sweep that removes it.
//!
//! One small document per blob, written conditionally, says when the blob was last held and
//! whether the sweep is removing it. A push writes the time before it looks at the blob; the sweep
//! writes its mark before it looks at the blob's age. Whoever writes second sees the first.
//!
//! A blob that was stored or held lately needs no writing: the sweep leaves alone what is
//! younger than twice [`HOLD_MS`], so a push costs one look at each blob it references.

use tidewater_model::PartitionId;

use super::{
    backend::Update,
    blobs::{Found, Shared},
    documents::{self, UsageDocument},
    keys::BlobObject,
};
use crate::{HOLD_MS, ObjectError, ObjectErrorKind};

const HOLD: &str = "hold a blob";
const REMOVE: &str = "remove a blob";

/// A mark of the sweep that is older than this was left by one that was interrupted. No removal
/// takes as long: its calls have deadlines.
const REMOVAL_MS: i64 = 10 * 60 * 1_000;

impl Shared {
    /// Sees to it that a blob which is there stays; whether it is.
    pub(super) async fn keep(
        &self,
        partition: &PartitionId,
        id: &str,
        found: Option<&Found>,
        now_ms: i64,
    ) -> Result<bool, ObjectError> {
        let Some(found) = found else {
            return Ok(false);
        };
        let safe_since_ms = now_ms.saturating_sub(HOLD_MS);
        if found.record.created_at_ms >= safe_since_ms {
            return Ok(true);
        }
        let path = self
            .keys
            .blob(BlobObject::Usage, partition, id)
            .expect("the blob was found");
        let decide = move |document: Option<&[u8]>| {
            let mut usage = UsageDocument::parse(HOLD, document)?;
            check_not_removing(HOLD, &usage, now_ms)?;
            if usage.held_at_ms >= Some(safe_since_ms) && usage.removing_since_ms.is_none() {
                return Ok(Update::Keep(()));
            }
            usage.held_at_ms = usage.held_at_ms.max(Some(now_ms));
            usage.removing_since_ms = None;
            Ok(Update::Write(documents::to_json(&usage), ()))
        };
        self.backend.update(HOLD, path, decide).await?;
        // It may have been removed before it was held.
        Ok(self.find(HOLD, partition, id).await?.is_some())
    }

    /// Fails while the sweep is removing the blob that was just stored: whether it stays is not
    /// known.
    pub(super) async fn check_not_removed(
        &self,
        during: &'static str,
        partition: &PartitionId,
        id: &str,
        now_ms: i64,
    ) -> Result<(), ObjectError> {
        let path = self
            .keys
            .blob(BlobObject::Usage, partition, id)
            .expect("it was just stored");
        let document = self.backend.read_document(during, &path).await?;
        let json = document.as_ref().map(|(json, _)| &**json);
        let usage = UsageDocument::parse(during, json)?;
        check_not_removing(during, &usage, now_ms)
    }

    /// Removes a blob that was not used since a time; whether it did.
    pub(super) async fn remove_unused(
        &self,
        partition: &PartitionId,
        id: &str,
        unused_since_ms: i64,
        now_ms: i64,
    ) -> Result<bool, ObjectError> {
        let before_ms = unused_since_ms.min(now_ms.saturating_sub(2 * HOLD_MS));
        let is_old = |found: &Option<Found>| {
            found
                .as_ref()
                .is_some_and(|found| found.record.created_at_ms < before_ms)
        };
        if !is_old(&self.find(REMOVE, partition, id).await?) {
            return Ok(false);
        }
        let usage_path = self
            .keys
            .blob(BlobObject::Usage, partition, id)
            .expect("the blob was found");
        let mark = move |document: Option<&[u8]>| {
            let mut usage = UsageDocument::parse(REMOVE, document)?;
            if usage.held_at_ms >= Some(before_ms) || is_being_removed(&usage, now_ms) {
                return Ok(Update::Keep(false));
            }
            usage.removing_since_ms = Some(now_ms);
            Ok(Update::Write(documents::to_json(&usage), true))
        };
        if !self
            .backend
            .update(REMOVE, usage_path.clone(), mark)
            .await?
        {
            return Ok(false);
        }
        // It may have been removed and uploaded again before the mark.
        if !is_old(&self.find(REMOVE, partition, id).await?) {
            let unmark = move |document: Option<&[u8]>| {
                let mut usage = UsageDocument::parse(REMOVE, document)?;
                usage.removing_since_ms = None;
                Ok(Update::Write(documents::to_json(&usage), ()))
            };
            self.backend.update(REMOVE, usage_path, unmark).await?;
            return Ok(false);
        }
        let path = self
            .keys
            .blob(BlobObject::Content, partition, id)
            .expect("the blob was found");
        self.backend.delete(REMOVE, &path).await?;
        self.backend.delete(REMOVE, &usage_path).await?;
        Ok(true)
    }
}

fn is_being_removed(usage: &UsageDocument, now_ms: i64) -> bool {
    usage
        .removing_since_ms
        .is_some_and(|since_ms| now_ms.saturating_sub(since_ms) < REMOVAL_MS)
}

/// Fails while the sweep is removing a blob.
pub(super) fn check_not_removing(
    during: &'static str,
    usage: &UsageDocument,
    now_ms: i64,
) -> Result<(), ObjectError> {
    if !is_being_removed(usage, now_ms) {
        return Ok(());
    }
    Err(ObjectError::new(ObjectErrorKind::Unavailable, during)
        .with_detail("the sweep is removing the blob"))
}
