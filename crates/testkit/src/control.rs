//! The switches of an instance as JSON: `/i/{id}/control/{action}`.
//!
//! Every action answers 200 with a JSON object, or 4xx or 5xx with `{"error": …}`. An unknown
//! action, a wrong method and a body that is not what the action takes are refused, so a harness
//! never believes in a switch that did nothing.

use std::time::Duration;

use anyhow::{Context, Result};
use axum::{
    Json,
    body::to_bytes,
    extract::Request,
    response::{IntoResponse, Response},
};
use http::{Method, StatusCode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tidewater_engine::{Clock, Retention};
use tidewater_wire::control::WakeReason;

use crate::{Instance, ResolverMode, Rule, ScopeLists, TableRule, host::failure};

/// Size of a control request.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Carries out one action.
pub(crate) async fn answer(instance: &Instance, action: &str, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_BYTES_MAX).await else {
        return failure(StatusCode::BAD_REQUEST, "the body cannot be read");
    };
    let query = parts.uri.query().unwrap_or_default();
    let answered = match parts.method {
        Method::GET => look(instance, action, query).await,
        Method::POST => act(instance, action, &body).await,
        _ => None,
    };
    match answered {
        Some(Ok(value)) => Json(value).into_response(),
        Some(Err(error)) => {
            let status = match error.downcast_ref::<BadRequest>() {
                Some(_) => StatusCode::BAD_REQUEST,
                None => StatusCode::INTERNAL_SERVER_ERROR,
            };
            failure(status, format!("{error:#}"))
        }
        None => failure(
            StatusCode::NOT_FOUND,
            format!("there is no control {} {action}", parts.method),
        ),
    }
}

/// Says how things are; `None` when there is no such action.
async fn look(instance: &Instance, action: &str, query: &str) -> Option<Result<Value>> {
    Some(match action {
        "clock" => Ok(json!({ "nowMs": instance.clock().now_ms() })),
        "head" => head(instance).await,
        "horizon" => horizon(instance).await,
        "epoch" => epoch(instance).await,
        "realtime" => Ok(realtime(instance).await),
        "rows" => rows(instance, query).await,
        "transfers" => Ok(transfers(instance).await),
        _ => return None,
    })
}

/// Changes something; `None` when there is no such action.
async fn act(instance: &Instance, action: &str, body: &[u8]) -> Option<Result<Value>> {
    Some(match action {
        "allowed-scopes" => read(body).map(|wish: AllowedScopes| {
            instance.resolver().allow(&wish.actor_id, wish.allowed);
            json!({})
        }),
        "resolver" => read(body).map(|wish: Resolver| {
            instance.resolver().set_mode(wish.mode);
            json!({})
        }),
        "clock" => read(body)
            .map(|wish: Advance| json!({ "nowMs": instance.clock().advance(wish.advance_ms) })),
        "validators" => judge_rows(instance, body).await,
        "commit-validator" => judge_commits(instance, body).await,
        "prune" => prune(instance, body).await,
        "signed-url-ttl" => set_signed_url_ttl(instance, body).await,
        "blob-presign" => read(body).map(|wish: BlobPresign| {
            instance.set_blob_presign(wish.enabled);
            json!({})
        }),
        "sweep-blobs" => sweep_blobs(instance).await,
        "fail-next-idempotency-lookup" => {
            instance.blind_next_outcome();
            Ok(json!({}))
        }
        "refresh-scopes" => refresh_scopes(instance, body).await,
        "wake" => wake(instance, body).await,
        "restart" => instance.restart().await.map(|()| json!({})),
        "backup" => instance.back_up().await.map(|()| json!({})),
        "restore" => restore(instance).await,
        "schema" => upgrade(instance, body).await,
        _ => return None,
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AllowedScopes {
    actor_id: String,
    allowed: ScopeLists,
}

#[derive(Deserialize)]
struct Resolver {
    mode: ResolverMode,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Advance {
    advance_ms: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SignedUrlTtl {
    ttl_seconds: Option<u64>,
}

#[derive(Deserialize)]
struct BlobPresign {
    enabled: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Prune {
    active_window_ms: Option<i64>,
    age_force_ms: Option<i64>,
    min_retained_commits: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RefreshScopes {
    actor_id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wake {
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Upgrade {
    schema: Value,
}

/// The request is at fault and not the server.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BadRequest(String);

/// Reads a body; nothing counts as an empty object.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| BadRequest(error.to_string()).into())
}

async fn head(instance: &Instance) -> Result<Value> {
    let head = instance.head().await?.get();
    Ok(json!({ "head": head, "maxCommitSeq": head }))
}

async fn horizon(instance: &Instance) -> Result<Value> {
    Ok(json!({ "horizonSeq": instance.horizon().await?.seq().get() }))
}

async fn epoch(instance: &Instance) -> Result<Value> {
    let epoch = instance.log_epoch().await?;
    Ok(json!({ "logEpoch": epoch.as_ref().map(|epoch| epoch.as_str()) }))
}

async fn realtime(instance: &Instance) -> Value {
    let stats = instance.realtime().await;
    json!({
        "sessions": stats.sessions,
        "suppressedSessions": stats.suppressed_sessions,
        "queuedBytes": stats.queued_bytes,
        "presenceDocuments": stats.presence_documents,
        "deltas": stats.deltas,
        "wakeUps": stats.wake_ups,
    })
}

async fn refresh_scopes(instance: &Instance, body: &[u8]) -> Result<Value> {
    let wish: RefreshScopes = read(body)?;
    instance.refresh_scopes(wish.actor_id.as_deref()).await;
    Ok(json!({}))
}

async fn wake(instance: &Instance, body: &[u8]) -> Result<Value> {
    let wish: Wake = read(body)?;
    let wanted = wish.reason.as_deref();
    let wanted = wanted.unwrap_or(WakeReason::CatchupRequired.as_str());
    let reason = WakeReason::ALL
        .into_iter()
        .find(|reason| reason.as_str() == wanted)
        .ok_or_else(|| BadRequest(format!("there is no reason {wanted:?}")))?;
    instance.wake(reason).await;
    Ok(json!({}))
}

async fn rows(instance: &Instance, query: &str) -> Result<Value> {
    let table = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("table="))
        .ok_or_else(|| BadRequest("name the table: ?table=T".to_owned()))?;
    if instance.schema().await.find(table).is_none() {
        return Err(BadRequest(format!("there is no table {table:?}")).into());
    }
    Ok(json!({ "rows": instance.rows(table).await? }))
}

async fn prune(instance: &Instance, body: &[u8]) -> Result<Value> {
    let wish: Prune = read(body)?;
    let default = Retention::default();
    let horizon = instance
        .prune(Retention {
            active_window_ms: wish.active_window_ms.unwrap_or(default.active_window_ms),
            forced_age_ms: wish.age_force_ms.unwrap_or(default.forced_age_ms),
            retained_commits: wish
                .min_retained_commits
                .unwrap_or(default.retained_commits),
        })
        .await?;
    Ok(json!({ "horizonSeq": horizon.seq().get() }))
}

async fn set_signed_url_ttl(instance: &Instance, body: &[u8]) -> Result<Value> {
    let wish: SignedUrlTtl = read(body)?;
    let lifetime = wish.ttl_seconds.map(Duration::from_secs);
    instance.set_signed_url_lifetime(lifetime).await?;
    Ok(json!({}))
}

async fn sweep_blobs(instance: &Instance) -> Result<Value> {
    let swept = instance.sweep_blobs().await?;
    Ok(json!({
        "lookedAt": swept.looked_at,
        "referenced": swept.referenced,
        "removed": swept.removed,
        "removedBytes": swept.removed_bytes,
    }))
}

async fn transfers(instance: &Instance) -> Value {
    let counts = instance.counts().await;
    let (transfers, builds) = (counts.transfers, counts.builds);
    json!({
        "segmentDownloads": transfers.segment_downloads,
        "signedDownloads": transfers.signed_downloads,
        "blobDownloads": transfers.blob_downloads,
        "blobUploads": transfers.blob_uploads,
        "uploadGrants": transfers.upload_grants,
        "notModified": transfers.not_modified,
        "copiesMade": transfers.copies_made,
        "bucketDownloads": counts.bucket_downloads,
        "bucketUploads": counts.bucket_uploads,
        "imageBuilds": builds.image_builds,
        "imageJoins": builds.image_joins,
        "imageReuses": builds.image_reuses,
        "pageBuilds": builds.page_builds,
        "pageJoins": builds.page_joins,
        "pageReuses": builds.page_reuses,
    })
}

async fn judge_rows(instance: &Instance, body: &[u8]) -> Result<Value> {
    let rules: Vec<TableRule> = read(body)?;
    let schema = instance.schema().await;
    let set = instance.validator().judge_rows(&schema, rules);
    set.map_err(|error| BadRequest(error.to_string()))?;
    Ok(json!({}))
}

async fn judge_commits(instance: &Instance, body: &[u8]) -> Result<Value> {
    let wish: Value = read(body)?;
    let is_nothing = wish.is_null() || wish == json!({});
    let rule = if is_nothing {
        None
    } else {
        Some(Rule::try_from(wish).map_err(BadRequest)?)
    };
    let schema = instance.schema().await;
    let set = instance.validator().judge_commits(&schema, rule);
    set.map_err(|error| BadRequest(error.to_string()))?;
    Ok(json!({}))
}

async fn restore(instance: &Instance) -> Result<Value> {
    instance.restore().await?;
    epoch(instance).await
}

async fn upgrade(instance: &Instance, body: &[u8]) -> Result<Value> {
    let wish: Upgrade = read(body)?;
    instance
        .upgrade(&wish.schema)
        .await
        .context("upgrade the schema")?;
    Ok(json!({ "schemaVersion": instance.schema().await.version() }))
}
