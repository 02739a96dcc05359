//! `GET /segments/{id}`: downloads with a fresh authorization each time (§5.5).
//!
//! **Invariant:** nothing about a segment leaves before the engine has granted it, a 304
//! included: an `ETag` is not a credential.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use axum::{
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    response::Response,
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tidewater_model::limits;

use crate::{
    Server,
    encoding::{Coding, Encoder, StreamBody},
    error::ApiError,
    router::guard,
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
        let coding = server.coding(&parts.headers);
        let tag = format!("\"{}\"", grant.segment_id);
        let mut response = if is_known(&parts.headers, &tag) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            full(grant.bytes, coding)?
        };
        let headers = response.headers_mut();
        let tag = HeaderValue::try_from(tag).map_err(|_| ApiError::internal())?;
        headers.insert(header::ETAG, tag);
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("private, max-age=0"),
        );
        headers.insert(
            header::VARY,
            HeaderValue::from_static("Authorization, X-Syncular-Scopes, Accept-Encoding"),
        );
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        Ok(response)
    })
    .await
}

fn full(bytes: Bytes, coding: Option<Coding>) -> Result<Response, ApiError> {
    let coding = coding.filter(|_| bytes.len() >= limits::COMPRESSED_BODY_BYTES_MIN);
    let body = match coding {
        None => Body::from(bytes),
        Some(coding) => {
            let encoder = Encoder::new(coding, Some(bytes.len())).map_err(|error| {
                tracing::error!(%error, "no encoder for a segment");
                ApiError::internal()
            })?;
            StreamBody::body(stream::iter([bytes]), Some(encoder))
        }
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    if let Some(coding) = coding {
        headers.insert(header::CONTENT_ENCODING, coding.header());
    }
    Ok(response)
}

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

/// Whether `If-None-Match` names the tag: in a list, weakly, or by `*`.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        // No tag of ours contains a comma.
        .flat_map(|list| list.split(',').map(str::trim))
        .any(|candidate| {
            candidate == "*" || candidate.strip_prefix("W/").unwrap_or(candidate) == tag
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(if_none_match: &[&'static str], known: bool) {
        let mut headers = HeaderMap::new();
        for value in if_none_match {
            headers.append(header::IF_NONE_MATCH, HeaderValue::from_static(value));
        }
        assert_eq!(
            is_known(&headers, "\"sha256:ab\""),
            known,
            "{if_none_match:?}"
        );
    }

    #[test]
    fn a_tag_is_found_in_a_list_and_compared_weakly() {
        check(&[], false);
        check(&["\"sha256:ab\""], true);
        check(&["W/\"sha256:ab\""], true);
        check(&["\"x\", W/\"sha256:ab\" ,\"y\""], true);
        check(&["\"x\"", "\"sha256:ab\""], true);
        check(&["*"], true);
        check(&["sha256:ab"], false);
        check(&["\"sha256:abc\""], false);
        check(&["w/\"sha256:ab\""], false);
    }

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
