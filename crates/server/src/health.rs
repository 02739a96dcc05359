//! Whether the process lives and whether it should get traffic.
//!
//! Liveness looks at nothing: a database that is out must not get the process restarted.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Response};
use http::StatusCode;
use serde_json::json;
use tidewater_model::ErrorCode;

use crate::{Server, error::ApiError, reply, router::guard};

/// `GET /health`
pub(crate) async fn health() -> Response {
    reply::json(&json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /ready`
pub(crate) async fn ready(State(server): State<Arc<Server>>) -> Response {
    guard(async move {
        if server.is_draining() {
            return Err(not_ready("the server is shutting down"));
        }
        let check = server.engine.store().check();
        match tokio::time::timeout(CHECK_TIMEOUT, check).await {
            Ok(Ok(())) => Ok(reply::json(&json!({ "status": "ready" }))),
            Ok(Err(error)) => {
                tracing::warn!(%error, "storage is not ready");
                Err(not_ready("storage does not answer"))
            }
            Err(_) => Err(not_ready("storage does not answer in time")),
        }
    })
    .await
}

fn not_ready(message: &'static str) -> ApiError {
    ApiError::new(ErrorCode::SchemaNotReady, message).with_status(StatusCode::SERVICE_UNAVAILABLE)
}

/// Below the timeout of common probes.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
