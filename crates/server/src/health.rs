//! Whether the process lives and whether it should get traffic.
//!
//! Liveness looks at nothing: a database that is out must not get the process restarted.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Response};
use http::StatusCode;
use serde_json::json;
use tidewater_engine::{Engine, Readiness, ReadinessPhase, RoundError};
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
        let readiness = server.engine.readiness();
        match tokio::time::timeout(CHECK_TIMEOUT, readiness).await {
            Ok(Ok(readiness)) => describe(readiness, &server.engine),
            Ok(Err(error)) => {
                tracing::warn!(%error, "storage is not ready");
                Err(not_ready("storage does not answer"))
            }
            Err(_) => Err(not_ready("storage does not answer in time")),
        }
    })
    .await
}

/// A partition with a pending projection is refused by itself: the others are served, so the
/// process stays ready and says what is pending.
fn describe(readiness: Readiness, engine: &Engine) -> Result<Response, ApiError> {
    let running = engine.schema().version();
    match readiness {
        Readiness::Ready { pending } if pending.is_empty() => Ok(reply::json(
            &json!({ "status": "ready", "schemaVersion": running }),
        )),
        Readiness::Ready { pending } => Ok(reply::json(&json!({
            "status": "ready",
            "schemaVersion": running,
            "phase": ReadinessPhase::BackfillCheckpoint.as_str(),
            "pendingCheckpoints": pending,
        }))),
        Readiness::OtherSchema { stored } => {
            tracing::warn!(stored, running, "the database is at another schema version");
            let details = json!({
                "phase": ReadinessPhase::StorageMigration.as_str(),
                "storedSchemaVersion": stored,
                "runningSchemaVersion": running,
            });
            let message = "the database is at another schema version than this server";
            let error = RoundError::new(ErrorCode::SchemaNotReady, message);
            Err(ApiError::from(error.with_details(details)))
        }
    }
}

fn not_ready(message: &'static str) -> ApiError {
    ApiError::new(ErrorCode::SchemaNotReady, message).with_status(StatusCode::SERVICE_UNAVAILABLE)
}

/// Below the timeout of common probes.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
