//! Why a round could not be answered, and what the client is told.

use std::borrow::Cow;

use tidewater_model::ErrorCode;
use tidewater_store::{StorageCode, StoreError, StoreErrorKind};
use tidewater_wire::{DecodeError, ErrorFrame};

/// A request-level failure: a code of the catalogue with text that is safe to send (§10.1).
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}: {message}", .code.as_str())]
pub struct RoundError {
    /// The code; its category, retryability and action follow from it.
    pub code: ErrorCode,
    /// Text for people. Never exception text, never row content.
    pub message: Cow<'static, str>,
    /// A JSON object.
    pub details: Option<String>,
}

impl RoundError {
    /// A failure with a fixed message.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            details: None,
        }
    }

    /// Adds details, a JSON object.
    #[must_use]
    pub fn with_details(mut self, details: serde_json::Value) -> Self {
        self.details = Some(details.to_string());
        self
    }

    /// Anything outside the catalogue: what happened goes to the log, once, and the client
    /// learns only that the server failed.
    pub fn internal(cause: &dyn std::error::Error, during: &'static str) -> Self {
        let mut chain = cause.to_string();
        let mut source = cause.source();
        while let Some(next) = source {
            chain.push_str(": ");
            chain.push_str(&next.to_string());
            source = next.source();
        }
        tracing::error!(during, error = %chain, "round failed");
        Self::new(ErrorCode::InternalError, "internal server error")
    }

    /// Too much waits already; `retry_after_ms` is when to come back.
    pub fn rate_limited(retry_after_ms: u64) -> Self {
        Self::new(
            ErrorCode::RateLimited,
            "the server has too many commits waiting",
        )
        .with_details(serde_json::json!({ "retryAfterMs": retry_after_ms }))
    }

    /// The frame that carries the failure once streaming has begun.
    pub fn to_frame(&self) -> ErrorFrame {
        ErrorFrame {
            code: self.code.as_str().into(),
            message: self.message.as_ref().into(),
            category: self.code.category().as_str().into(),
            retryable: self.code.is_retryable(),
            recommended_action: self.code.action().as_str().into(),
            details: self.details.as_deref().map(Into::into),
        }
    }
}

impl From<DecodeError> for RoundError {
    fn from(error: DecodeError) -> Self {
        let details = match error.kind {
            tidewater_wire::DecodeErrorKind::UnsupportedVersion(_) => {
                serde_json::json!({ "supportedWireVersions": [1, 2, 3] })
            }
            _ => serde_json::json!({ "detail": error.to_string() }),
        };
        Self::new(error.code(), "the request could not be decoded").with_details(details)
    }
}

impl From<StoreError> for RoundError {
    fn from(error: StoreError) -> Self {
        // Another server has migrated the database; this one is to be stopped.
        if error.kind == StoreErrorKind::Refused(StorageCode::WriterFenceRejected) {
            tracing::error!(%error, "a commit was refused");
            let message = "server schema is not ready for this request";
            return Self::new(ErrorCode::SchemaNotReady, message);
        }
        Self::internal(&error, error.during)
    }
}
