//! URLs that are their own permission: `GET /signed/segments/{id}?st={token}` (§5.4).
//!
//! The engine signs them in the round that authorized the client, and verifies them here: for
//! devices, or for a content delivery network in front. No credentials are asked for and none are
//! looked at. What is sent is never encoded (§5.8), and may be kept by anybody for as long as the
//! URL works: its bytes cannot change, and a cache must not make a permission longer.

use std::{collections::HashMap, sync::Arc};

use axum::{
    extract::{Path, Query, Request, State, rejection::PathRejection},
    response::Response,
};
use http::{HeaderValue, Uri};
use serde::Deserialize;
use tidewater_model::ErrorCode;
use tidewater_objects::SigningKeys;

use crate::{
    Server,
    error::ApiError,
    router::guard,
    transfer::{self, Object},
};

/// The query of a signed URL. Other parameters are somebody else's.
#[derive(Deserialize)]
struct SignedQuery {
    st: String,
}

/// `GET /signed/segments/{id}?st={token}`
pub(crate) async fn segment(
    State(server): State<Arc<Server>>,
    path: Result<Path<HashMap<String, String>>, PathRejection>,
    request: Request,
) -> Response {
    guard(async move {
        let (parts, _) = request.into_parts();
        let Path(path) = path.map_err(|_| ApiError::not_found())?;
        let id = path.get("segment_id").ok_or_else(ApiError::not_found)?;
        let token = token(&parts.uri)?;
        let grant = server.engine.signed_segment(id, &token).await?;
        let now_ms = server.engine.clock().now_ms();
        let object = Object::segment(grant, cache_control(&token, now_ms));
        let response = transfer::send(&server, &parts.method, &parts.headers, object).await?;
        let transfers = &server.transfers;
        transfers.count(&response, &transfers.counts.signed_downloads);
        Ok(response)
    })
    .await
}

/// The token of a signed URL.
pub(crate) fn token(uri: &Uri) -> Result<String, ApiError> {
    let query = Query::<SignedQuery>::try_from_uri(uri);
    let refused = |_| ApiError::new(ErrorCode::Forbidden, "the URL is not signed");
    Ok(query.map_err(refused)?.0.st)
}

/// How long anybody may keep what a URL gave: as long as the URL works.
pub(crate) fn cache_control(token: &str, now_ms: i64) -> HeaderValue {
    let left_ms = SigningKeys::expiry_ms(token).map(|ends| ends.saturating_sub(now_ms));
    let seconds = left_ms.map_or(0, |left_ms| (left_ms / 1_000).max(0));
    HeaderValue::try_from(format!("public, max-age={seconds}, immutable"))
        .unwrap_or(HeaderValue::from_static("no-store"))
}
