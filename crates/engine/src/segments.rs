//! Who may download a segment (§5.5).
//!
//! The address of a segment is no capability: whoever has seen one in a response may have lost
//! its scopes since. A download is granted to an actor whose *effective scopes, computed now*,
//! are those that the segment was published for, in this partition and in the live log epoch.
//!
//! **Invariant:** every check is made on every request, in the order below, and no byte of the
//! segment is loaded before the last one has passed.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use tidewater_model::{AllowedScopes, ErrorCode, LogEpoch, PartitionId, ScopeFilter, ScopeValues};
use tidewater_objects::{Publication, SegmentRecord};
use tidewater_schema::Table;
use tidewater_wire::{MediaType, is_content_address, scope_digest};

use crate::{Engine, Identity, ResolveError, ResolveRequest, RoundError, scope};

/// A segment that the actor may have.
#[derive(Clone, Eq, PartialEq)]
pub struct SegmentGrant {
    /// Its content address; also its entity tag.
    pub segment_id: String,
    /// What the bytes are.
    pub media_type: MediaType,
    /// The uncompressed segment.
    pub bytes: Bytes,
}

/// Without the rows: they have no place in a log.
impl fmt::Debug for SegmentGrant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SegmentGrant")
            .field("segment_id", &self.segment_id)
            .field("media_type", &self.media_type)
            .field("byte_length", &self.bytes.len())
            .finish()
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
    let allowed = resolve(engine, identity).await?;
    let effective = scope::effective(&requested, &allowed).ok_or_else(forbidden)?;
    check_digest(&published, &scope_digest(&effective), now_ms)?;

    let failed = |error| RoundError::internal(&error, "read a segment");
    let stream = segments.open(segment_id, None).await.map_err(failed)?;
    let stream = stream.ok_or_else(not_found)?;
    let bytes = stream.collect(usize::MAX).await.map_err(failed)?;
    Ok(SegmentGrant {
        segment_id: segment_id.to_owned(),
        media_type,
        bytes,
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
async fn resolve(engine: &Engine, identity: &Identity) -> Result<AllowedScopes, RoundError> {
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
            Err(forbidden())
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
