//! Who may download a segment (§5.5).
//!
//! The address of a segment is no capability: whoever has seen one in a response may have lost
//! its scopes since. A download is granted to an actor whose *effective scopes, computed now*,
//! are those that the segment was published for, in this partition and in the live log epoch.
//!
//! **Invariant:** every check is made on every request, in the order below, and no byte of the
//! segment is loaded before the last one has passed.

use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc};

use tidewater_model::{AllowedScopes, ErrorCode, LogEpoch, PartitionId, ScopeFilter, ScopeValues};
use tidewater_objects::{
    Claim, ObjectError, ObjectStream, Publication, SegmentRecord, SegmentStore,
};
use tidewater_schema::Table;
use tidewater_wire::{MediaType, is_content_address, scope_digest};

use crate::{Engine, Identity, ResolveError, ResolveRequest, RoundError, scope};

/// A segment that the actor may have. Its bytes are opened when they are wanted: a request that
/// is answered "not modified" reads none.
#[derive(Clone)]
pub struct SegmentGrant {
    /// Its content address; also its entity tag.
    pub segment_id: String,
    /// What the bytes are.
    pub media_type: MediaType,
    /// How many there are.
    pub byte_length: u64,
    segments: Arc<dyn SegmentStore>,
}

impl SegmentGrant {
    /// Opens the uncompressed bytes, or a range of them cut at their end. `None` when the store
    /// dropped them meanwhile: then there is no such segment.
    pub async fn open(
        &self,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError> {
        self.segments.open(&self.segment_id, range).await
    }
}

impl fmt::Debug for SegmentGrant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SegmentGrant")
            .field("segment_id", &self.segment_id)
            .field("media_type", &self.media_type)
            .field("byte_length", &self.byte_length)
            .finish_non_exhaustive()
    }
}

/// Authorizes a download for the scopes it is asked for, a JSON object of string lists.
pub(crate) async fn authorize(
    engine: &Arc<Engine>,
    identity: &Identity,
    segment_id: &str,
    requested: &str,
) -> Result<SegmentGrant, RoundError> {
    let segments = &engine.parts.segments;
    let state = engine.partitions.touch(engine, &identity.partition).await?;
    if !is_content_address(segment_id) {
        return Err(not_found());
    }
    let record = segments
        .record(segment_id)
        .await
        .map_err(|error| RoundError::internal(&error, "look a segment up"))?
        .ok_or_else(not_found)?;
    let published = publications(&record, &identity.partition, &state.log_epoch);
    let now_ms = engine.parts.clock.now_ms();
    let first = check_unexpired(&published, now_ms)?;
    let media_type = first.context.key.media_type;
    let table = served_table(engine, &first.context.key.table)?;

    let requested = parse_requested(requested)?;
    scope::check_requested(table, &requested)?;
    let allowed = resolve_for_download(engine, identity, forbidden).await?;
    let effective = scope::effective(&requested, &allowed).ok_or_else(forbidden)?;
    check_digest(&published, &scope_digest(&effective), now_ms)?;

    Ok(SegmentGrant {
        segment_id: segment_id.to_owned(),
        media_type,
        byte_length: record.byte_length,
        segments: Arc::clone(segments),
    })
}

/// Grants what a token of ours names (§5.4): no credentials, no scopes, only the claim, which must
/// be one of a publication that has not ended.
pub(crate) async fn authorize_signed(
    engine: &Arc<Engine>,
    segment_id: &str,
    token: &str,
) -> Result<SegmentGrant, RoundError> {
    let denied = || RoundError::new(ErrorCode::Forbidden, "the signed URL is not valid");
    let keys = engine.parts.transfers.segment_urls.keys();
    let keys = keys.ok_or_else(denied)?;
    let now_ms = engine.parts.clock.now_ms();
    let claim = keys.verify(token, now_ms).map_err(|error| {
        tracing::debug!(%error, "a signed URL of a segment was refused");
        denied()
    })?;
    let Claim::Segment {
        segment_id: claimed,
        scope_digest,
        audience,
    } = claim
    else {
        return Err(denied());
    };
    if claimed != segment_id {
        return Err(denied());
    }
    let segments = &engine.parts.segments;
    let record = segments
        .record(segment_id)
        .await
        .map_err(|error| RoundError::internal(&error, "look a segment up"))?
        .ok_or_else(not_found)?;
    let mut named = record
        .publications
        .iter()
        .filter(|publication| publication.context.key.scope_digest == scope_digest)
        .filter(|publication| keys.is_audience(&audience, &publication.context.key.partition))
        .peekable();
    let media_type = match named.peek() {
        Some(first) => first.context.key.media_type,
        None => return Err(denied()),
    };
    if named.all(|publication| publication.is_expired(now_ms)) {
        return Err(expired());
    }
    Ok(SegmentGrant {
        segment_id: segment_id.to_owned(),
        media_type,
        byte_length: record.byte_length,
        segments: Arc::clone(segments),
    })
}

/// The publications that count. Those of another partition or timeline do not exist here.
fn publications<'a>(
    record: &'a SegmentRecord,
    partition: &PartitionId,
    log_epoch: &LogEpoch,
) -> Vec<&'a Publication> {
    let counts = |publication: &&Publication| {
        let key = &publication.context.key;
        key.partition == *partition && key.log_epoch == *log_epoch
    };
    record.publications.iter().filter(counts).collect()
}

/// Finds one that has not ended.
fn check_unexpired<'a>(
    published: &[&'a Publication],
    now_ms: i64,
) -> Result<&'a Publication, RoundError> {
    if published.is_empty() {
        return Err(not_found());
    }
    published
        .iter()
        .copied()
        .find(|publication| !publication.is_expired(now_ms))
        .ok_or_else(expired)
}

/// Whether the segment was published for these effective scopes.
fn check_digest(published: &[&Publication], digest: &str, now_ms: i64) -> Result<(), RoundError> {
    let mut matching = published
        .iter()
        .filter(|publication| publication.context.key.scope_digest == digest)
        .peekable();
    if matching.peek().is_none() {
        return Err(forbidden());
    }
    if matching.all(|publication| publication.is_expired(now_ms)) {
        return Err(expired());
    }
    Ok(())
}

fn served_table<'a>(engine: &'a Engine, name: &str) -> Result<&'a Arc<Table>, RoundError> {
    let schema = engine.schema();
    schema
        .find(name)
        .map(|index| schema.table(index))
        .ok_or_else(not_found)
}

fn parse_requested(text: &str) -> Result<ScopeFilter, RoundError> {
    let invalid = || {
        RoundError::new(
            ErrorCode::InvalidRequest,
            "the requested scopes must be a JSON object of string lists",
        )
    };
    let lists: BTreeMap<String, Vec<String>> = serde_json::from_str(text).map_err(|_| invalid())?;
    let entries = lists
        .into_iter()
        .map(|(variable, values)| ScopeValues { variable, values })
        .collect();
    ScopeFilter::new(entries).ok_or_else(invalid)
}

/// Only a live answer of the resolver authorizes a download: leases never do (§7.3).
pub(crate) async fn resolve_for_download(
    engine: &Engine,
    identity: &Identity,
    denied: fn() -> RoundError,
) -> Result<AllowedScopes, RoundError> {
    let request = ResolveRequest {
        identity,
        client_id: None,
    };
    let answer = engine.parts.resolver.resolve(request);
    match tokio::time::timeout(engine.parts.config.resolver_timeout, answer).await {
        Ok(Ok(allowed)) => {
            scope::check_allowed(engine.schema(), &allowed)?;
            Ok(allowed)
        }
        Ok(Err(error @ (ResolveError::Failed(_) | ResolveError::Outage(_)))) => {
            tracing::warn!(partition = %identity.partition, %error, "download denied");
            Err(denied())
        }
        Ok(Err(ResolveError::Code(code))) => {
            Err(RoundError::new(code, "the host refused the request"))
        }
        Err(elapsed) => Err(RoundError::internal(&elapsed, "resolve scopes")),
    }
}

fn not_found() -> RoundError {
    RoundError::new(ErrorCode::NotFound, "there is no such segment")
}

fn expired() -> RoundError {
    RoundError::new(ErrorCode::SegmentExpired, "the segment has expired")
}

fn forbidden() -> RoundError {
    RoundError::new(ErrorCode::Forbidden, "the segment is not for these scopes")
}

#[cfg(test)]
mod tests;
