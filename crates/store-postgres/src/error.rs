//! What PostgreSQL's failures mean to the caller.
//!
//! The server's messages may quote values of rows. Where they can, only the code is passed on.

use deadpool_postgres::PoolError;
use tidewater_store::{StorageCode, StoreError, StoreErrorKind};
use tokio_postgres::{Error, error::SqlState};

/// Turns a failure of PostgreSQL during an operation into one of the contract.
pub(crate) fn failed(during: &'static str) -> impl Fn(Error) -> StoreError {
    move |error| failure(&error, during)
}

/// The failure of the contract for one of PostgreSQL.
pub(crate) fn failure(error: &Error, during: &'static str) -> StoreError {
    let mut failure = StoreError::new(kind(error), during);
    failure.detail = Some(describe(error));
    failure
}

/// The failure to get a connection.
pub(crate) fn no_connection(error: PoolError, during: &'static str) -> StoreError {
    let detail = match &error {
        PoolError::Timeout(_) => "no connection became free in time".to_owned(),
        PoolError::Closed => "the store is closed".to_owned(),
        PoolError::Backend(error) => describe(error),
        _ => error.to_string(),
    };
    let mut unavailable = StoreError::new(StoreErrorKind::Unavailable, during);
    unavailable.detail = Some(detail);
    unavailable
}

/// Something stored that cannot be what was written.
pub(crate) fn corrupt(during: &'static str, detail: impl Into<String>) -> StoreError {
    let mut error = StoreError::new(StoreErrorKind::Corrupt, during);
    error.detail = Some(detail.into());
    error
}

/// The class of a failure: the first two characters of its SQLSTATE.
pub(crate) fn class(error: &Error) -> &str {
    let code = error.code().map_or("", SqlState::code);
    code.get(..2).unwrap_or_default()
}

/// Whether a write failed because of the values that were written: they break a constraint, hold
/// what PostgreSQL cannot, or are too long for an index.
pub(crate) fn is_about_values(error: &Error) -> bool {
    matches!(class(error), "22" | "23" | "54")
}

/// Whether the server has ended the connection, or somebody else has.
pub(crate) fn ends_connection(error: &Error) -> bool {
    let ending = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    ];
    error.is_closed() || error.code().is_some_and(|code| ending.contains(code))
}

/// Whether a write broke a constraint.
pub(crate) fn is_violation(error: &Error) -> bool {
    class(error) == "23"
}

/// Whether a statement itself is at fault, and not the database.
pub(crate) fn is_about_statement(error: &Error) -> bool {
    matches!(
        class(error),
        "0A" | "21" | "22" | "25" | "2F" | "38" | "39" | "42" | "54"
    ) || error.code() == Some(&SqlState::QUERY_CANCELED)
}

/// A failure as text for operators, without values.
pub(crate) fn describe(error: &Error) -> String {
    match error.as_db_error() {
        Some(server) if matches!(class(error), "22" | "23") => {
            let of = [server.table(), server.constraint(), server.column()];
            let of: Vec<&str> = of.into_iter().flatten().collect();
            format!("SQLSTATE {} {}", server.code().code(), of.join(" "))
        }
        Some(server) => format!("{} (SQLSTATE {})", server.message(), server.code().code()),
        None => {
            let source = std::error::Error::source(error);
            source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        }
    }
}

fn kind(error: &Error) -> StoreErrorKind {
    let Some(code) = error.code() else {
        // Without a code it was not the server who spoke. What it answered may not be what we
        // asked for, which is a value of the wrong type; all else is the connection.
        let is_conversion = error.to_string().contains("deserializ");
        return if is_conversion {
            StoreErrorKind::Corrupt
        } else {
            StoreErrorKind::Unavailable
        };
    };
    match *code {
        SqlState::CHARACTER_NOT_IN_REPERTOIRE | SqlState::UNTRANSLATABLE_CHARACTER => {
            return StoreErrorKind::Refused(StorageCode::TextUnsupported);
        }
        SqlState::PROGRAM_LIMIT_EXCEEDED => {
            return StoreErrorKind::Refused(StorageCode::TextUnsupported);
        }
        SqlState::LOCK_NOT_AVAILABLE
        | SqlState::READ_ONLY_SQL_TRANSACTION
        | SqlState::INSUFFICIENT_PRIVILEGE
        | SqlState::INVALID_SQL_STATEMENT_NAME
        | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => return StoreErrorKind::Unavailable,
        _ => {}
    }
    match class(error) {
        "40" => StoreErrorKind::Contention,
        "08" | "28" | "3D" | "53" | "55" | "57" | "58" => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Corrupt,
    }
}

/// A value in a row.
pub(crate) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a tokio_postgres::Row,
    column: usize,
    during: &'static str,
) -> Result<T, StoreError> {
    row.try_get(column).map_err(failed(during))
}
