//! Small JSON answers that must not be kept by a cache.

use axum::{body::Body, response::Response};
use http::{HeaderValue, header};
use serde::Serialize;

/// A 200 with `value` as its body.
pub(crate) fn json(value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("values made here have text keys");
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
