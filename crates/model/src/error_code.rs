//! The closed catalogue of errors that travel on the wire (§10.2).
//!
//! One table gives each code its name, category, retryability, recommended action and the
//! status a binding maps it to; clients rely on all of them being the same everywhere. Codes
//! that never travel are not here: they belong to the crate that raises them.

/// Declares the catalogue: one line per code, so that no property can be forgotten.
macro_rules! catalogue {
    ($($variant:ident $name:literal $category:ident $retryable:literal $action:ident $status:literal;)+) => {
        /// A code of the catalogue.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum ErrorCode {
            $(#[doc = concat!("`", $name, "`")] $variant,)+
        }

        impl ErrorCode {
            /// Every code, in catalogue order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The code as it travels.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The kind of error, for grouping.
            pub fn category(self) -> Category {
                match self { $(Self::$variant => Category::$category,)+ }
            }

            /// Whether the same request may succeed later, unchanged.
            pub fn is_retryable(self) -> bool {
                match self { $(Self::$variant => $retryable,)+ }
            }

            /// What the client should do about it.
            pub fn action(self) -> RecommendedAction {
                match self { $(Self::$variant => RecommendedAction::$action,)+ }
            }

            /// The catalogue's status number, for the binding that has such a thing.
            ///
            /// `sync.invalid_request` and `operation.invalid_request` also travel with 413 and
            /// 415 where §1.3 says so.
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }
        }
    };
}

catalogue! {
    OperationUnknown "operation.unknown" NotFound false RegenerateClient 404;
    OperationForbidden "operation.forbidden" Forbidden false CheckPermissions 403;
    OperationInvalidRequest "operation.invalid_request" InvalidRequest false FixRequest 400;
    OperationResultTooLarge "operation.result_too_large" InvalidRequest false FixRequest 400;
    OperationStorageUnsupported "operation.storage_unsupported" Internal false InspectServer 500;
    OperationQueryFailed "operation.query_failed" Internal false InspectServer 500;
    OperationExecutionFailed "operation.execution_failed" Internal false InspectServer 500;
    AuthRequired "sync.auth_required" AuthRequired true RefreshAuth 401;
    AuthLeaseRequired "sync.auth_lease_required" AuthRequired true RefreshAuth 401;
    AuthLeaseRevoked "sync.auth_lease_revoked" AuthRequired true RefreshAuth 401;
    Forbidden "sync.forbidden" Forbidden false CheckPermissions 403;
    InvalidRequest "sync.invalid_request" InvalidRequest false FixRequest 400;
    InvalidClientId "sync.invalid_client_id" InvalidRequest false ResetClientId 400;
    InvalidSubscription "sync.invalid_subscription" InvalidRequest false FixRequest 400;
    EmptyCommit "sync.empty_commit" InvalidRequest false FixRequest 400;
    UnknownTable "sync.unknown_table" SchemaMismatch false RegenerateClient 400;
    RowMissing "sync.row_missing" NotFound false ForceResync 404;
    RowDeleted "sync.row_deleted" NotFound false FixRequest 404;
    VersionConflict "sync.version_conflict" Conflict false ResolveConflict 409;
    ConstraintViolation "sync.constraint_violation" InvalidRequest false FixRequest 400;
    ReferenceViolation "sync.reference_violation" InvalidRequest false FixRequest 400;
    MissingScopes "sync.missing_scopes" Internal false InspectServer 500;
    CrdtMergeFailed "sync.crdt_merge_failed" Internal false InspectServer 500;
    IdempotencyCacheMiss "sync.idempotency_cache_miss" Internal true RetryLater 500;
    InternalError "sync.internal_error" Internal true RetryLater 500;
    StorageStaleRead "sync.storage_stale_read" Internal false InspectServer 500;
    SchemaNotReady "sync.schema_not_ready" Internal true RetryLater 503;
    TooManyOperations "sync.too_many_operations" InvalidRequest false SplitBatch 400;
    NotFound "sync.not_found" NotFound false ForceResync 404;
    SegmentExpired "sync.segment_expired" NotFound true RetryLater 404;
    CursorExpired "sync.cursor_expired" ResetRequired false Rebootstrap 400;
    ScopeRevoked "sync.scope_revoked" ScopeRevoked false CheckPermissions 403;
    RateLimited "sync.rate_limited" RateLimited true RetryLater 429;
    SchemaMismatch "sync.schema_mismatch" SchemaMismatch false RegenerateClient 400;
    ClientSchemaUnsupported "sync.client_schema_unsupported" SchemaMismatch false UpgradeClient 400;
    ClientWireUnsupported "sync.client_wire_unsupported" SchemaMismatch false UpgradeClient 400;
    WebsocketConnectionLimit "sync.websocket_connection_limit" RateLimited true RetryLater 429;
    BlobNotFound "blob.not_found" NotFound false FixRequest 404;
    BlobForbidden "blob.forbidden" Forbidden false CheckPermissions 403;
    BlobHashMismatch "blob.hash_mismatch" InvalidRequest false FixRequest 400;
    BlobTooLarge "blob.too_large" InvalidRequest false FixRequest 413;
}

impl ErrorCode {
    /// The code that travels as `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == name)
    }
}

/// The kind of an error (§10.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Category {
    /// The credentials are missing or stale.
    AuthRequired,
    /// The row or schema moved on.
    Conflict,
    /// The actor may not do this.
    Forbidden,
    /// The server failed.
    Internal,
    /// The request is wrong and stays wrong.
    InvalidRequest,
    /// The thing named is not there.
    NotFound,
    /// Too much, for now.
    RateLimited,
    /// The client must bootstrap again.
    ResetRequired,
    /// Client and server disagree about the schema or the wire version.
    SchemaMismatch,
    /// The grant is gone.
    ScopeRevoked,
}

impl Category {
    /// The category as it travels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AuthRequired => "auth-required",
            Self::Conflict => "conflict",
            Self::Forbidden => "forbidden",
            Self::Internal => "internal",
            Self::InvalidRequest => "invalid-request",
            Self::NotFound => "not-found",
            Self::RateLimited => "rate-limited",
            Self::ResetRequired => "reset-required",
            Self::SchemaMismatch => "schema-mismatch",
            Self::ScopeRevoked => "scope-revoked",
        }
    }
}

/// What the receiver of an error should do (§10.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RecommendedAction {
    /// Ask for permission.
    CheckPermissions,
    /// Correct the request before sending it again.
    FixRequest,
    /// Pull everything again.
    ForceResync,
    /// An operator must look at the server.
    InspectServer,
    /// Bootstrap again.
    Rebootstrap,
    /// Get fresh credentials.
    RefreshAuth,
    /// Generate the client code from the current schema.
    RegenerateClient,
    /// Take a new client id.
    ResetClientId,
    /// Merge with the server's row.
    ResolveConflict,
    /// Send the same request later.
    RetryLater,
    /// Send fewer operations at once.
    SplitBatch,
    /// Install a newer client.
    UpgradeClient,
}

impl RecommendedAction {
    /// The action as it travels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CheckPermissions => "checkPermissions",
            Self::FixRequest => "fixRequest",
            Self::ForceResync => "forceResync",
            Self::InspectServer => "inspectServer",
            Self::Rebootstrap => "rebootstrap",
            Self::RefreshAuth => "refreshAuth",
            Self::RegenerateClient => "regenerateClient",
            Self::ResetClientId => "resetClientId",
            Self::ResolveConflict => "resolveConflict",
            Self::RetryLater => "retryLater",
            Self::SplitBatch => "splitBatch",
            Self::UpgradeClient => "upgradeClient",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_name() {
        for &code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_name(code.as_str()), Some(code));
        }
        assert_eq!(ErrorCode::from_name("sync.unheard_of"), None);
    }

    /// §10.2: a client waits and sends again exactly for these.
    #[test]
    fn the_retryable_codes_are_those_of_the_catalogue() {
        let retryable: Vec<&str> = ErrorCode::ALL
            .iter()
            .filter(|code| code.is_retryable())
            .map(|code| code.as_str())
            .collect();
        let expected = [
            "sync.auth_required",
            "sync.auth_lease_required",
            "sync.auth_lease_revoked",
            "sync.idempotency_cache_miss",
            "sync.internal_error",
            "sync.schema_not_ready",
            "sync.segment_expired",
            "sync.rate_limited",
            "sync.websocket_connection_limit",
        ];
        assert_eq!(retryable, expected);
    }

    #[test]
    fn an_internal_error_never_looks_like_the_fault_of_the_client() {
        for &code in ErrorCode::ALL {
            let internal = code.category() == Category::Internal;
            assert_eq!(internal, code.status() >= 500, "{}", code.as_str());
        }
    }
}
