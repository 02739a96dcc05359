//! Writes a COMMIT frame from parts that lie in a store, without building the frame first.
//!
//! This is the hot path of pulls and deltas: the payloads a store gives out are copied once,
//! into the buffer that goes to the socket.

use bytes::BytesMut;
use tidewater_model::StoredScopes;

use crate::{
    EncodeError,
    frame_type::FrameType,
    response::{put_change, put_head},
    writer::FrameWriter,
};

/// Writes one COMMIT frame of one table at the end of a buffer.
///
/// The bytes are those [`crate::put_response_frame`] writes for the same commit. What goes wrong
/// on the way is kept and reported by [`Self::finish`]; then, and when the writer is dropped
/// unfinished, the buffer is as it was before.
#[derive(Debug)]
pub struct CommitWriter<'a> {
    frame: FrameWriter<'a>,
    /// Where the number of changes stands.
    count_at: usize,
    count: u32,
    failure: Option<EncodeError>,
}

impl<'a> CommitWriter<'a> {
    /// Starts the frame; its dictionary holds `table` alone.
    pub fn begin(
        out: &'a mut BytesMut,
        commit_seq: i64,
        created_at_ms: i64,
        actor_id: &str,
        table: &str,
    ) -> Self {
        let mut frame = FrameWriter::begin(out, FrameType::Commit.byte());
        let failure = put_head(&mut frame, commit_seq, created_at_ms, actor_id)
            .and_then(|()| {
                frame.u32(1);
                frame.text(table, "table")
            })
            .err();
        let count_at = frame.position();
        frame.u32(0);
        Self {
            frame,
            count_at,
            count: 0,
            failure,
        }
    }

    /// Adds one change: an upsert with its version and row, or a delete.
    pub fn change(&mut self, row_id: &str, row: Option<(i64, &[u8])>, scopes: &StoredScopes) {
        if self.failure.is_some() {
            return;
        }
        let put = put_change(&mut self.frame, 0, row_id, row, scopes.iter());
        let count = self.count.checked_add(1);
        match (put, count) {
            (Ok(()), Some(count)) => self.count = count,
            (Ok(()), None) => self.failure = Some(EncodeError::TooLong("changes")),
            (Err(error), _) => self.failure = Some(error),
        }
    }

    /// Changes so far.
    pub fn change_count(&self) -> u32 {
        self.count
    }

    /// Completes the frame.
    pub fn finish(mut self) -> Result<(), EncodeError> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        self.frame.patch_u32(self.count_at, self.count);
        self.frame.finish()
    }
}
