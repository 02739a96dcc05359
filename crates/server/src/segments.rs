//! `GET /segments/{id}`: downloads with a fresh authorization each time (§5.5).
//!
//! **Invariant:** nothing about a segment leaves before the engine has granted it, a 304
//! included: an `ETag` is not a credential.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use axum::{
    extract::{Path, Request, State, rejection::PathRejection},
    response::Response,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    Server,
    error::ApiError,
    router::guard,
    transfer::{self, Object},
};

/// Requested scopes, as JSON.
const SCOPES_HEADER: HeaderName = HeaderName::from_static("x-syncular-scopes");

/// `GET /segments/{id}`
pub(crate) async fn handle(
    State(server): State<Arc<Server>>,
    path: Result<Path<HashMap<String, String>>, PathRejection>,
    request: Request,
) -> Response {
    guard(async move {
        let (parts, _) = request.into_parts();
        let identity = server.identify(&parts).await?;
        // By name: a prefix that the router is mounted under may have parameters of its own.
        let Path(path) = path.map_err(|_| ApiError::not_found())?;
        let id = path.get("segment_id").ok_or_else(ApiError::not_found)?;
        let scopes = requested_scopes(&parts.headers);
        let grant = server.engine.segment(&identity, id, &scopes).await?;
        let object = Object {
            vary: Some(VARY),
            coding: server.coding(&parts.headers),
            ..Object::segment(grant, PRIVATE)
        };
        let response = transfer::send(&server, &parts.method, &parts.headers, object).await?;
        let transfers = &server.transfers;
        transfers.count(&response, &transfers.counts.segment_downloads);
        Ok(response)
    })
    .await
}

/// Kept by the client alone, and asked about before each use.
const PRIVATE: HeaderValue = HeaderValue::from_static("private, max-age=0");
const VARY: HeaderValue =
    HeaderValue::from_static("Authorization, X-Syncular-Scopes, Accept-Encoding");

/// The requested scopes as text: UTF-8, else Latin-1 (OQ-33); absent means none.
fn requested_scopes(headers: &HeaderMap) -> Cow<'_, str> {
    let Some(value) = headers.get(SCOPES_HEADER) else {
        return Cow::Borrowed("{}");
    };
    match str::from_utf8(value.as_bytes()) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(value.as_bytes().iter().copied().map(char::from).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_that_are_not_utf_8_are_latin_1() {
        let mut headers = HeaderMap::new();
        assert_eq!(requested_scopes(&headers), "{}");
        headers.insert(
            SCOPES_HEADER,
            HeaderValue::from_bytes(b"{\"k\":[\"\xe9\"]}").unwrap(),
        );
        assert_eq!(requested_scopes(&headers), "{\"k\":[\"é\"]}");
        let utf_8 = "{\"k\":[\"é\"]}".as_bytes();
        headers.insert(SCOPES_HEADER, HeaderValue::from_bytes(utf_8).unwrap());
        assert_eq!(requested_scopes(&headers), "{\"k\":[\"é\"]}");
    }
}
