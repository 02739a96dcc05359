//! Writes a COMMIT frame from borrowed parts.

use bytes::BytesMut;
use tidewater_model::StoredScopes;

use crate::EncodeError;

/// Writes one COMMIT frame of one table straight into a buffer.
#[derive(Debug)]
pub struct CommitWriter<'a> {
    _out: &'a mut BytesMut,
}

impl<'a> CommitWriter<'a> {
    /// Starts the frame.
    pub fn begin(
        out: &'a mut BytesMut,
        _commit_seq: i64,
        _created_at_ms: i64,
        _actor_id: &str,
        _table: &str,
    ) -> Self {
        Self { _out: out }
    }

    /// Adds one change: an upsert with version and row, or a delete.
    pub fn change(&mut self, _row_id: &str, _row: Option<(i64, &[u8])>, _scopes: &StoredScopes) {
        unimplemented!()
    }

    /// Completes the frame.
    pub fn finish(self) -> Result<(), EncodeError> {
        unimplemented!()
    }
}
