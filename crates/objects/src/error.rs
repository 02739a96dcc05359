//! A store of segments or blobs that could not do what it was asked.
//!
//! What is not there is a value (`None`), never an error.

use std::error::Error;

/// Why an operation on a segment store or a blob store failed.
#[derive(Debug, thiserror::Error)]
#[error("{during}: {kind}{}", .detail.as_deref().map(|text| format!(": {text}")).unwrap_or_default())]
pub struct ObjectError {
    /// What the caller can do about it.
    pub kind: ObjectErrorKind,
    /// The operation that failed, as a verb phrase: "publish a segment".
    pub during: &'static str,
    /// For the operator, never for a client.
    pub detail: Option<String>,
    /// The backend's own error, for the log only.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

/// The distinctions a caller acts on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ObjectErrorKind {
    /// The backend is down, slow, full or busy. The same call may succeed later.
    #[error("the object store is unavailable")]
    Unavailable,
    /// The content is bigger than its bound.
    #[error("the content is too large")]
    TooLarge,
    /// The content is not what its address or its length says, or the address is stored with
    /// other content. Nothing was stored.
    #[error("the content does not match its address")]
    ContentMismatch,
    /// Who sends the content stopped before its end. Nothing was stored.
    #[error("the content ended early")]
    Interrupted,
    /// What is stored cannot be read; someone must look.
    #[error("what is stored is corrupt")]
    Corrupt,
    /// The backend refuses what it is asked: its configuration or its credentials are wrong.
    #[error("the object store refuses the request")]
    Refused,
}

impl ObjectError {
    /// A failure without a backend's error behind it.
    pub fn new(kind: ObjectErrorKind, during: &'static str) -> Self {
        Self {
            kind,
            during,
            detail: None,
            source: None,
        }
    }

    /// Adds what an operator should know.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds the backend's error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self.kind {
            ObjectErrorKind::Unavailable => true,
            ObjectErrorKind::TooLarge
            | ObjectErrorKind::ContentMismatch
            | ObjectErrorKind::Interrupted
            | ObjectErrorKind::Corrupt
            | ObjectErrorKind::Refused => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_failed_and_what_an_operator_should_know() {
        let error = ObjectError::new(ObjectErrorKind::TooLarge, "publish a segment");
        assert_eq!(
            error.to_string(),
            "publish a segment: the content is too large"
        );
        let error = error.with_detail("raise the bound");
        assert_eq!(
            error.to_string(),
            "publish a segment: the content is too large: raise the bound"
        );
        assert!(!error.is_retryable());
        assert!(ObjectError::new(ObjectErrorKind::Unavailable, "find").is_retryable());
    }
}
