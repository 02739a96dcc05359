//! All the rows that a filter selects, piece by piece from one snapshot.
//!
//! A stream is pulled: the store reads the next piece when the one before was taken, or at most
//! one piece ahead. **Invariant:** every piece is of the snapshot that the gate is of, and a
//! stream that is dropped gives its snapshot back.

use std::fmt;

use async_trait::async_trait;
use tidewater_model::{CommitSeq, PartitionId, ScopeFilter};
use tidewater_schema::TableIndex;

use crate::{Gate, RowPage, StoreError};

/// Asks for all current rows that a filter selects, by bytewise row id.
///
/// A piece ends like the page of a [`RowScan`](crate::RowScan).
#[derive(Clone, Debug, PartialEq)]
pub struct RowStreamRequest {
    /// The partition.
    pub partition: PartitionId,
    /// The table.
    pub table: TableIndex,
    /// Only rows whose scopes match; an empty filter selects nothing.
    pub filter: ScopeFilter,
    /// Most rows of a piece.
    pub rows_max: usize,
    /// Most payload bytes of a piece.
    pub bytes_max: usize,
}

/// The answer to a [`RowStreamRequest`].
pub struct RowStream {
    /// What guards the rows, from their snapshot.
    pub gate: Gate,
    /// The newest commit of the snapshot with a change to the table that carries one of the
    /// values of the filter's first variable, among those not pruned.
    pub newest_change: Option<CommitSeq>,
    pieces: Box<dyn RowPieces>,
}

/// Where a [`RowStream`] gets its pieces from.
#[async_trait]
pub trait RowPieces: Send {
    /// The next piece; `None` after the last. Never called again after that, or after an error.
    async fn next(&mut self) -> Result<Option<RowPage>, StoreError>;
}

impl RowStream {
    /// A stream of these pieces.
    pub fn new(
        gate: Gate,
        newest_change: Option<CommitSeq>,
        pieces: impl RowPieces + 'static,
    ) -> Self {
        Self {
            gate,
            newest_change,
            pieces: Box::new(pieces),
        }
    }

    /// The next piece; `None` after the last. A piece has a row, but for the only piece of a
    /// filter that selects none.
    pub async fn next(&mut self) -> Result<Option<RowPage>, StoreError> {
        self.pieces.next().await
    }
}

impl fmt::Debug for RowStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RowStream")
            .field("gate", &self.gate)
            .field("newest_change", &self.newest_change)
            .finish_non_exhaustive()
    }
}

/// Asks how large a scope is, in rows and in a span of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct ScopeSizeRequest {
    /// The partition.
    pub partition: PartitionId,
    /// The table.
    pub table: TableIndex,
    /// A scope variable.
    pub variable: String,
    /// Its values.
    pub values: Vec<String>,
    /// Exclusive start of the span.
    pub after: CommitSeq,
    /// Inclusive end of the span.
    pub through: CommitSeq,
    /// Nothing is counted further than this.
    pub limit: u64,
}

/// The answer to a [`ScopeSizeRequest`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ScopeSize {
    /// Current rows with one of the values.
    pub rows: u64,
    /// Commits of the span, once for each of the values that a change of theirs carries.
    pub commits: u64,
}
