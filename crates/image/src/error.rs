//! An image that could not be made.

use std::{error::Error, io};

use rusqlite::ErrorCode;

/// Why an image was not made.
#[derive(Debug, thiserror::Error)]
#[error("{during}: {kind}")]
pub struct ImageError {
    /// What the caller can do about it.
    pub kind: ImageErrorKind,
    /// The operation that failed, as a verb phrase: "write a row".
    pub during: &'static str,
    /// The driver's own error, for the log only.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

/// The distinctions a caller acts on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ImageErrorKind {
    /// These rows have no image, now or later: they are to be sent as rows.
    #[error("the rows cannot be an image")]
    Unsuited,
    /// The disk is full, slow or gone. The same image may succeed later.
    #[error("the disk failed")]
    Disk,
    /// A stored row does not decode under its own table; someone must look.
    #[error("stored data is corrupt")]
    Corrupt,
}

impl ImageError {
    pub(crate) fn new(kind: ImageErrorKind, during: &'static str) -> Self {
        Self {
            kind,
            during,
            source: None,
        }
    }

    pub(crate) fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    pub(crate) fn disk(during: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::new(ImageErrorKind::Disk, during).with_source(error)
    }

    pub(crate) fn database(during: &'static str) -> impl Fn(rusqlite::Error) -> Self {
        move |error| Self::new(kind(&error), during).with_source(error)
    }
}

/// What a new database refuses is in the rows or in the table; what fails otherwise is the disk.
fn kind(error: &rusqlite::Error) -> ImageErrorKind {
    match error.sqlite_error_code() {
        Some(
            ErrorCode::ConstraintViolation
            | ErrorCode::TooBig
            | ErrorCode::TypeMismatch
            | ErrorCode::Unknown,
        ) => ImageErrorKind::Unsuited,
        _ => ImageErrorKind::Disk,
    }
}
