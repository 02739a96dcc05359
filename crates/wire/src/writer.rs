//! Writes the primitive encodings into one frame (Conventions).
//!
//! A frame that fails halfway leaves nothing behind: what was written of it is taken back, so a
//! streaming producer can answer with another frame instead.

use bytes::{BufMut, BytesMut};
use tidewater_model::ScopeFilter;

use crate::{EncodeError, json, reader::is_safe_integer};

/// Type byte and length of a frame.
pub(crate) const FRAME_HEAD_LEN: usize = 5;

/// Writes one frame at the end of a buffer.
#[derive(Debug)]
pub(crate) struct FrameWriter<'a> {
    out: &'a mut BytesMut,
    /// Where the frame starts.
    start: usize,
    finished: bool,
}

impl<'a> FrameWriter<'a> {
    pub(crate) fn begin(out: &'a mut BytesMut, frame_type: u8) -> Self {
        let start = out.len();
        out.put_u8(frame_type);
        out.put_u32_le(0);
        Self {
            out,
            start,
            finished: false,
        }
    }

    /// Completes the frame by writing its length.
    pub(crate) fn finish(mut self) -> Result<(), EncodeError> {
        let payload_len = self.out.len() - self.start - FRAME_HEAD_LEN;
        let payload_len = wire_len(payload_len, "frame")?;
        self.patch_u32(self.start + 1, payload_len);
        self.finished = true;
        Ok(())
    }

    /// Where the next byte goes.
    pub(crate) fn position(&self) -> usize {
        self.out.len()
    }

    /// Overwrites the four bytes at `position`.
    pub(crate) fn patch_u32(&mut self, position: usize, value: u32) {
        self.out[position..position + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.out.put_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.out.put_u8(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.out.put_u16_le(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.out.put_u32_le(value);
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.out.put_i32_le(value);
    }

    pub(crate) fn i64(&mut self, value: i64) -> Result<(), EncodeError> {
        if !is_safe_integer(value) {
            return Err(EncodeError::Invalid("integer is outside of ±(2^53 − 1)"));
        }
        self.out.put_i64_le(value);
        Ok(())
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub(crate) fn count(&mut self, count: usize, what: &'static str) -> Result<(), EncodeError> {
        let count = wire_len(count, what)?;
        self.u32(count);
        Ok(())
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8], what: &'static str) -> Result<(), EncodeError> {
        self.count(bytes.len(), what)?;
        self.raw(bytes);
        Ok(())
    }

    pub(crate) fn text(&mut self, text: &str, what: &'static str) -> Result<(), EncodeError> {
        self.bytes(text.as_bytes(), what)
    }

    /// A text that must not be empty.
    pub(crate) fn filled_text(
        &mut self,
        text: &str,
        what: &'static str,
        rule: &'static str,
    ) -> Result<(), EncodeError> {
        if text.is_empty() {
            return Err(EncodeError::Invalid(rule));
        }
        self.text(text, what)
    }

    pub(crate) fn json(&mut self, text: &str, what: &'static str) -> Result<(), EncodeError> {
        if !json::is_valid(text) {
            return Err(EncodeError::Invalid("text is not one JSON document"));
        }
        self.text(text, what)
    }

    /// Writes an optional field.
    pub(crate) fn optional<T>(
        &mut self,
        value: Option<T>,
        put: impl FnOnce(&mut Self, T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.bool(value.is_some());
        value.map_or(Ok(()), |value| put(self, value))
    }

    /// Writes a map from scope variable to values.
    pub(crate) fn scopes(
        &mut self,
        scopes: &ScopeFilter,
        what: &'static str,
    ) -> Result<(), EncodeError> {
        self.count(scopes.entries().len(), what)?;
        for entry in scopes.entries() {
            self.text(&entry.variable, what)?;
            self.count(entry.values.len(), what)?;
            for value in &entry.values {
                self.text(value, what)?;
            }
        }
        Ok(())
    }
}

impl Drop for FrameWriter<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.out.truncate(self.start);
        }
    }
}

/// A length or count as it travels.
pub(crate) fn wire_len(len: usize, what: &'static str) -> Result<u32, EncodeError> {
    u32::try_from(len).map_err(|_| EncodeError::TooLong(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_not_finished_leaves_nothing_behind() {
        let mut out = BytesMut::from(&b"before"[..]);
        let mut frame = FrameWriter::begin(&mut out, 7);
        frame.u8(1);
        frame.i64(i64::MAX).unwrap_err();
        drop(frame);
        assert_eq!(&out[..], b"before");
    }

    #[test]
    fn a_finished_frame_carries_its_length() {
        let mut out = BytesMut::new();
        let mut frame = FrameWriter::begin(&mut out, 7);
        frame.u16(0x0201);
        frame.finish().unwrap();
        assert_eq!(&out[..], [7, 2, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn a_length_over_32_bits_is_refused() {
        assert_eq!(wire_len(7, "text"), Ok(7));
        if let Ok(huge) = usize::try_from(1_u64 << 32) {
            assert_eq!(wire_len(huge, "text"), Err(EncodeError::TooLong("text")));
        }
    }
}
