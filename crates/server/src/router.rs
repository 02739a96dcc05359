//! The routes (§1.1).
//!
//! No middleware, but for pages of other origins where those are allowed: what every request needs
//! is done by the handlers, so that the route that matters pays for nothing else. Unknown paths
//! and wrong methods get the same JSON as every other failure, because clients parse the body of
//! every status from 400 up.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc};

use axum::{
    Router,
    extract::Request,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use futures_util::FutureExt as _;
use http::{HeaderValue, StatusCode, header};
use tidewater_model::ErrorCode;

use crate::{Server, blobs, console, cors, error::ApiError, health, segments, signed, sync};

/// The routes of a server, to be served by [`crate::serve`] or mounted in another axum service.
///
/// Mounted elsewhere, [`crate::TrustedHeader`] needs axum's `ConnectInfo<SocketAddr>`.
pub fn router(server: Arc<Server>) -> Router {
    let mut router = Router::new()
        .route("/sync", only(post(sync::handle), "POST"))
        .route(
            "/segments/{segment_id}",
            only(get(segments::handle), "GET, HEAD"),
        )
        .route(
            "/blobs/{blob_id}",
            only(get(blobs::download).put(blobs::put), "GET, HEAD, PUT"),
        )
        .route(
            "/blobs/{blob_id}/upload-grant",
            only(post(blobs::grant_upload), "POST"),
        )
        .route(
            "/signed/segments/{segment_id}",
            only(get(signed::segment), "GET, HEAD"),
        )
        .route("/health", only(get(health::health), "GET, HEAD"))
        .route("/ready", only(get(health::ready), "GET, HEAD"));
    router = cors::allow(router.fallback(unknown), &server.config.allowed_origins);
    // What is added from here on, no page of another origin can read.
    if server.console.is_some() {
        router = console::add_routes(router);
    }
    router.with_state(server)
}

/// Adds the answer to other methods.
pub(crate) fn only<S>(route: MethodRouter<S>, allowed: &'static str) -> MethodRouter<S>
where
    S: Clone + Send + Sync + 'static,
{
    route.fallback(move || async move { wrong_method(allowed) })
}

async fn unknown(_: Request) -> Response {
    ApiError::not_found().into_response()
}

fn wrong_method(allowed: &'static str) -> Response {
    let error = ApiError::new(ErrorCode::InvalidRequest, "the method is not allowed here")
        .with_status(StatusCode::METHOD_NOT_ALLOWED);
    let mut response = error.into_response();
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Answers a request, whatever happens: a bug in a handler is a failed request, not a closed
/// connection.
pub(crate) async fn guard(answer: impl Future<Output = Result<Response, ApiError>>) -> Response {
    match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            tracing::debug!(code = error.code().as_str(), "request refused");
            error.into_response()
        }
        Err(panic) => {
            tracing::error!(panic = text(panic.as_ref()), "a handler panicked");
            ApiError::internal().into_response()
        }
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&'static str>().copied();
    literal
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_an_internal_error_without_its_text() {
        let response = guard(async { panic!("the row was {}", "secret") }).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(
            body.contains("sync.internal_error") && !body.contains("secret"),
            "{body}"
        );
    }
}
