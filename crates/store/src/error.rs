//! A database that could not do what it was asked.

use std::error::Error;

/// Why a storage operation failed.
#[derive(Debug, thiserror::Error)]
#[error("{during}: {kind}{}", .detail.as_deref().map(|text| format!(": {text}")).unwrap_or_default())]
pub struct StoreError {
    /// What the caller can do about it.
    pub kind: StoreErrorKind,
    /// The operation that failed, as a verb phrase: "append commit".
    pub during: &'static str,
    /// For the operator, never for a client.
    pub detail: Option<String>,
    /// The driver's own error, for the log only.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// A failure without a driver error behind it.
    pub fn new(kind: StoreErrorKind, during: &'static str) -> Self {
        Self {
            kind,
            during,
            detail: None,
            source: None,
        }
    }

    /// A refusal that an operator must act on.
    pub fn refused(code: StorageCode, during: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: StoreErrorKind::Refused(code),
            during,
            detail: Some(detail.into()),
            source: None,
        }
    }

    /// Adds the driver's error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// The distinctions a caller acts on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StoreErrorKind {
    /// The transaction lost to another one; run it again from the start.
    #[error("lost to a concurrent transaction")]
    Contention,
    /// The database is down, full, locked or slow; try later.
    #[error("database is unavailable")]
    Unavailable,
    /// What is stored breaks an invariant; someone must look.
    #[error("stored data is corrupt")]
    Corrupt,
    /// A rule of storage was broken by the caller or the deployment.
    #[error("refused with {}", .0.as_str())]
    Refused(StorageCode),
}

/// Host codes of storage (§10.3). They never travel to a client.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum StorageCode {
    /// A recorded column differs from the schema's at the same version.
    StoredLayoutMismatch,
    /// The database's own catalogue differs from the schema.
    PhysicalLayoutMismatch,
    /// The database was written under a newer schema version.
    SchemaNewer,
    /// The schema changed in a way that stored rows cannot follow.
    SchemaIncompatible,
    /// Another process has the database open.
    DatabaseInUse,
    /// The database is not the one that was served here, or an older state of it.
    DatabaseRestored,
    /// A newer schema's writers have taken the partition over.
    WriterFenceRejected,
    /// The checkpoint was never declared, or is activated.
    CheckpointNotDeclared,
    /// Writers that know nothing of the projection may still write.
    CheckpointFenceMissing,
    /// The epoch changed between reading the pruning inputs and pruning.
    PruneEpochMismatch,
    /// The partition was never touched.
    PartitionUnregistered,
    /// This store has no SQL, or not for this table.
    QueryUnsupported,
    /// A name or a text that this store cannot hold: U+0000, or too long for an index.
    TextUnsupported,
}

impl StorageCode {
    /// The code as an operator sees it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StoredLayoutMismatch => "sync.storage.stored_layout_mismatch",
            Self::PhysicalLayoutMismatch => "sync.storage.physical_layout_mismatch",
            Self::SchemaNewer => "sync.storage.schema_newer",
            Self::SchemaIncompatible => "sync.storage.schema_incompatible",
            Self::DatabaseInUse => "sync.storage.database_in_use",
            Self::DatabaseRestored => "sync.storage.database_restored",
            Self::WriterFenceRejected => "sync.storage.writer_fence_rejected",
            Self::CheckpointNotDeclared => "sync.storage.checkpoint_not_declared",
            Self::CheckpointFenceMissing => "sync.storage.checkpoint_fence_missing",
            Self::PruneEpochMismatch => "sync.storage.prune_epoch_mismatch",
            Self::PartitionUnregistered => "sync.storage.partition_unregistered",
            Self::QueryUnsupported => "sync.storage.query_unsupported",
            Self::TextUnsupported => "sync.storage.text_unsupported",
        }
    }
}
