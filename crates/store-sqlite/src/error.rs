//! What SQLite's failures mean to the caller.

use rusqlite::{Error, ErrorCode};
use tidewater_store::{StoreError, StoreErrorKind};

/// Turns a failure of SQLite during an operation into one of the contract.
pub(crate) fn failed(during: &'static str) -> impl Fn(Error) -> StoreError {
    move |error| StoreError::new(kind(&error), during).with_source(error)
}

/// Something stored that cannot be what was written.
pub(crate) fn corrupt(during: &'static str, detail: impl Into<String>) -> StoreError {
    let mut error = StoreError::new(StoreErrorKind::Corrupt, during);
    error.detail = Some(detail.into());
    error
}

/// The connection's thread is gone or has no connection.
pub(crate) fn disconnected(during: &'static str) -> StoreError {
    let mut error = StoreError::new(StoreErrorKind::Unavailable, during);
    error.detail = Some("the store is closed or its connection is broken".to_owned());
    error
}

/// Whether a write broke a constraint.
pub(crate) fn is_violation(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation)
}

fn kind(error: &Error) -> StoreErrorKind {
    match error.sqlite_error_code() {
        Some(
            ErrorCode::CannotOpen
            | ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::DiskFull
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::NoLargeFileSupport
            | ErrorCode::OperationAborted
            | ErrorCode::OperationInterrupted
            | ErrorCode::OutOfMemory
            | ErrorCode::PermissionDenied
            | ErrorCode::ReadOnly
            | ErrorCode::SchemaChanged
            | ErrorCode::SystemIoFailure,
        ) => StoreErrorKind::Unavailable,
        // What is left is a damaged file, a missing table or a value of the wrong kind.
        _ => StoreErrorKind::Corrupt,
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::{ffi, types::Type};

    use super::*;

    #[track_caller]
    fn check(code: i32, expected: StoreErrorKind) {
        let error = Error::SqliteFailure(ffi::Error::new(code), None);
        assert_eq!(failed("test")(error).kind, expected);
    }

    #[test]
    fn what_may_pass_is_unavailable_and_what_is_damaged_is_corrupt() {
        check(ffi::SQLITE_FULL, StoreErrorKind::Unavailable);
        check(ffi::SQLITE_IOERR_FSYNC, StoreErrorKind::Unavailable);
        check(ffi::SQLITE_BUSY, StoreErrorKind::Unavailable);
        check(ffi::SQLITE_BUSY_SNAPSHOT, StoreErrorKind::Unavailable);
        check(ffi::SQLITE_READONLY, StoreErrorKind::Unavailable);
        check(ffi::SQLITE_CANTOPEN, StoreErrorKind::Unavailable);
        check(ffi::SQLITE_CORRUPT, StoreErrorKind::Corrupt);
        check(ffi::SQLITE_CORRUPT_INDEX, StoreErrorKind::Corrupt);
        check(ffi::SQLITE_NOTADB, StoreErrorKind::Corrupt);
        check(ffi::SQLITE_ERROR, StoreErrorKind::Corrupt);
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_corrupt() {
        let error = Error::InvalidColumnType(0, "cursor".to_owned(), Type::Text);
        assert_eq!(failed("test")(error).kind, StoreErrorKind::Corrupt);
    }

    #[test]
    fn every_code_of_family_19_is_a_violation() {
        for code in [
            ffi::SQLITE_CONSTRAINT,
            ffi::SQLITE_CONSTRAINT_UNIQUE,
            ffi::SQLITE_CONSTRAINT_CHECK,
            ffi::SQLITE_CONSTRAINT_TRIGGER,
            ffi::SQLITE_CONSTRAINT_NOTNULL,
        ] {
            let error = Error::SqliteFailure(ffi::Error::new(code), None);
            assert!(is_violation(&error));
        }
    }
}
