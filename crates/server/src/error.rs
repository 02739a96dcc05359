//! The one place where a failure becomes a status and a body (§1.1, §10.1).
//!
//! Every failure before the first byte of a success is JSON with the same members in the same
//! order, whatever the route. Nothing but the catalogue's own words and fixed text goes out.

use std::borrow::Cow;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::value::RawValue;
use tidewater_engine::RoundError;
use tidewater_model::ErrorCode;

/// A failed request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: ErrorCode,
    message: Cow<'static, str>,
    details: Option<String>,
    /// Size of what was asked for in part, where it has no such part.
    content_length: Option<u64>,
}

impl ApiError {
    /// A failure with the catalogue's status.
    pub(crate) fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        let status =
            StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self {
            status,
            code,
            message: message.into(),
            details: None,
            content_length: None,
        }
    }

    /// The same failure with another status, where chapter 2 of the protocol says so.
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// No identity.
    pub(crate) fn auth_required() -> Self {
        Self::new(ErrorCode::AuthRequired, "authentication is required")
    }

    /// A body that is not what the route takes, or is encoded in a way we do not read.
    pub(crate) fn unsupported(message: &'static str) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
            .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE)
    }

    /// A body above the cap.
    pub(crate) fn too_large(bytes_max: usize) -> Self {
        let mut error = Self::new(ErrorCode::InvalidRequest, "the request body is too large")
            .with_status(StatusCode::PAYLOAD_TOO_LARGE);
        error.details = Some(format!("{{\"bytesMax\":{bytes_max}}}"));
        error
    }

    /// A body that cannot be read.
    pub(crate) fn unreadable(message: &'static str) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    /// A peer that is too slow. Retryable: it is the network's fault more often than not.
    pub(crate) fn too_slow() -> Self {
        Self::new(
            ErrorCode::InternalError,
            "the request body did not arrive in time",
        )
        .with_status(StatusCode::REQUEST_TIMEOUT)
    }

    /// Too much at once.
    pub(crate) fn overloaded(message: &'static str) -> Self {
        Self::limit(ErrorCode::RateLimited, message)
    }

    /// The same with a code of its own.
    pub(crate) fn limit(code: ErrorCode, message: &'static str) -> Self {
        let mut error = Self::new(code, message);
        error.details = Some(format!("{{\"retryAfterMs\":{OVERLOAD_RETRY_AFTER_MS}}}"));
        error
    }

    /// Anything outside the catalogue. What happened belongs in the log, not here.
    pub(crate) fn internal() -> Self {
        Self::new(ErrorCode::InternalError, "internal server error")
    }

    /// An unknown path.
    pub(crate) fn not_found() -> Self {
        Self::new(ErrorCode::NotFound, "there is nothing at this path")
    }

    /// Bytes that something of this size does not have.
    pub(crate) fn unsatisfiable(length: u64) -> Self {
        let mut error = Self::new(ErrorCode::InvalidRequest, "there are no such bytes")
            .with_status(StatusCode::RANGE_NOT_SATISFIABLE);
        error.content_length = Some(length);
        error
    }

    /// The catalogue code.
    pub(crate) fn code(&self) -> ErrorCode {
        self.code
    }

    /// The body.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let details = self
            .details
            .clone()
            .and_then(|text| RawValue::from_string(text).ok());
        let body = ErrorBody {
            code: self.code.as_str(),
            category: self.code.category().as_str(),
            retryable: self.code.is_retryable(),
            recommended_action: self.code.action().as_str(),
            message: &self.message,
            details,
        };
        serde_json::to_vec(&body).expect("text and checked JSON always serialize")
    }

    /// Seconds after which a client should come back, from `details.retryAfterMs`.
    fn retry_after_seconds(&self) -> Option<u64> {
        if !matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            return None;
        }
        let details: serde_json::Value = serde_json::from_str(self.details.as_deref()?).ok()?;
        // Never 0: a client would come back at once.
        Some(
            details
                .get("retryAfterMs")?
                .as_u64()?
                .div_ceil(1_000)
                .max(1),
        )
    }
}

/// The members of an error body, in order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorBody<'a> {
    code: &'a str,
    category: &'a str,
    retryable: bool,
    recommended_action: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Box<RawValue>>,
}

impl From<RoundError> for ApiError {
    fn from(error: RoundError) -> Self {
        Self {
            details: error.details,
            ..Self::new(error.code, error.message)
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(length) = self.content_length
            && let Ok(range) = HeaderValue::try_from(format!("bytes */{length}"))
        {
            headers.insert(header::CONTENT_RANGE, range);
        }
        if let Some(seconds) = self.retry_after_seconds() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A round too many, on a binding that answers in its own words.
pub(crate) fn rounds_overloaded() -> RoundError {
    let mut error = RoundError::new(ErrorCode::RateLimited, TOO_MANY_ROUNDS);
    error.details = Some(format!("{{\"retryAfterMs\":{OVERLOAD_RETRY_AFTER_MS}}}"));
    error
}

/// What a client is told whose round is one too many.
pub(crate) const TOO_MANY_ROUNDS: &str = "the server answers too many rounds";
/// When to come back to a server that is at one of its limits.
const OVERLOAD_RETRY_AFTER_MS: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(error: &ApiError) -> String {
        String::from_utf8(error.to_json()).unwrap()
    }

    #[test]
    fn the_members_come_in_one_order() {
        assert_eq!(
            text(&ApiError::too_large(7)),
            r#"{"code":"sync.invalid_request","category":"invalid-request","retryable":false,"recommendedAction":"fixRequest","message":"the request body is too large","details":{"bytesMax":7}}"#
        );
        assert!(!text(&ApiError::internal()).contains("details"));
    }

    #[test]
    fn details_that_are_not_json_are_left_out() {
        let mut error = ApiError::internal();
        error.details = Some("{oops".to_owned());
        assert!(!text(&error).contains("oops"));
    }

    #[test]
    fn a_hint_in_the_details_becomes_a_header_of_whole_seconds() {
        let response = ApiError::from(RoundError::rate_limited(1_001)).into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
        let response = ApiError::from(RoundError::rate_limited(0)).into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }

    #[test]
    fn only_429_and_503_carry_a_hint() {
        let mut error = ApiError::internal();
        error.details = Some(r#"{"retryAfterMs":5000}"#.to_owned());
        assert_eq!(
            error.into_response().headers().get(header::RETRY_AFTER),
            None
        );
    }
}
