//! Finds the end of a message in a stream of bytes (§1.4, §8.7).
//!
//! Messages are self-delimiting: 8 bytes of envelope, then frames that carry their length, up to
//! END. Where the stream is cut into chunks means nothing. The scanner keeps at most as many
//! bytes as it was allowed at construction, whatever a frame claims to be.

use bytes::{Buf, Bytes, BytesMut};

use crate::{
    DecodeError,
    frame_type::{END, MessageKind},
    message::{ENVELOPE_LEN, Envelope},
    reader::Reader,
    writer::FRAME_HEAD_LEN,
};

/// Which kinds of message a scanner lets through.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Expect {
    /// Requests only.
    Request,
    /// Requests and responses.
    Any,
}

/// A complete message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Scanned {
    /// Envelope to END. Its frames are not decoded yet.
    pub message: Bytes,
    /// How many bytes came after END; they are gone.
    pub surplus: usize,
}

/// Why a stream cannot go on. Further chunks are refused too.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ScanError {
    /// The first 8 bytes are no envelope of the expected kind.
    #[error("{0}")]
    Header(#[from] DecodeError),
    /// The message is larger than this many bytes.
    #[error("message is larger than {0} bytes")]
    TooLarge(usize),
}

/// Collects chunks until a message is complete, then starts with the next one.
#[derive(Debug)]
pub struct MessageScanner {
    bytes_max: usize,
    expect: Expect,
    /// Never more than `bytes_max`.
    buffer: BytesMut,
    /// Where the next frame starts; 0 until the envelope is complete.
    frame_at: usize,
}

impl MessageScanner {
    /// A scanner for messages of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize, expect: Expect) -> Self {
        Self {
            bytes_max,
            expect,
            buffer: BytesMut::new(),
            frame_at: 0,
        }
    }

    /// Whether no message has begun.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Takes the next chunk and gives the message that it completes.
    pub fn push(&mut self, chunk: &[u8]) -> Result<Option<Scanned>, ScanError> {
        let room = self.bytes_max - self.buffer.len();
        let (taken, left) = chunk.split_at(chunk.len().min(room));
        self.buffer.extend_from_slice(taken);
        let Some(end) = self.find_end()? else {
            return if left.is_empty() {
                Ok(None)
            } else {
                Err(ScanError::TooLarge(self.bytes_max))
            };
        };
        let message = self.buffer.split_to(end).freeze();
        let surplus = self.buffer.len() + left.len();
        self.buffer.clear();
        self.frame_at = 0;
        Ok(Some(Scanned { message, surplus }))
    }

    /// Walks from frame to frame as far as bytes are there.
    fn find_end(&mut self) -> Result<Option<usize>, ScanError> {
        if self.frame_at == 0 {
            if self.buffer.len() < ENVELOPE_LEN {
                return Ok(None);
            }
            self.check_envelope()?;
            self.frame_at = ENVELOPE_LEN;
        }
        while let Some(head) = self.buffer[self.frame_at..].first_chunk::<FRAME_HEAD_LEN>() {
            let mut head = &head[..];
            let frame_type = head.get_u8();
            let end = usize::try_from(head.get_u32_le())
                .ok()
                .and_then(|len| self.frame_at.checked_add(FRAME_HEAD_LEN)?.checked_add(len))
                .filter(|&end| end <= self.bytes_max)
                .ok_or(ScanError::TooLarge(self.bytes_max))?;
            if end > self.buffer.len() {
                break;
            }
            if frame_type == END {
                return Ok(Some(end));
            }
            self.frame_at = end;
        }
        Ok(None)
    }

    fn check_envelope(&self) -> Result<(), DecodeError> {
        let mut reader = Reader::new(&self.buffer);
        match self.expect {
            Expect::Request => Envelope::read_of(&mut reader, MessageKind::Request).map(|_| ()),
            Expect::Any => Envelope::read(&mut reader).map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 64;

    fn request() -> Vec<u8> {
        hex::decode(
            "535350320100010001\
             0a000000020000006331020000000\
             30d00000000000000000000000000000007\
             0000000000",
        )
        .unwrap()
    }

    fn scanner() -> MessageScanner {
        MessageScanner::new(BYTES_MAX, Expect::Request)
    }

    #[test]
    fn chunk_boundaries_mean_nothing() {
        let request = request();
        for split in 0..request.len() {
            let mut scanner = scanner();
            assert_eq!(scanner.push(&request[..split]), Ok(None), "{split}");
            assert_eq!(scanner.push(&[]), Ok(None), "{split}");
            let scanned = scanner.push(&request[split..]).unwrap().unwrap();
            assert_eq!(scanned.message, request);
            assert_eq!(scanned.surplus, 0);
        }
    }

    #[test]
    fn a_stream_of_single_bytes_holds_one_message_after_the_other() {
        let mut scanner = scanner();
        for _ in 0..3 {
            assert!(scanner.is_empty());
            let mut messages = Vec::new();
            for byte in request() {
                messages.extend(scanner.push(&[byte]).unwrap());
            }
            assert_eq!(messages.len(), 1);
            assert_eq!(messages[0].message, request());
        }
    }

    #[test]
    fn bytes_after_the_end_are_counted() {
        let mut bytes = request();
        bytes.extend([0xaa; 100]);
        let scanned = scanner().push(&bytes).unwrap().unwrap();
        assert_eq!(scanned.message, request());
        assert_eq!(scanned.surplus, 100);
    }

    #[test]
    fn a_bad_envelope_is_fatal() {
        for (index, byte) in [(0, b'X'), (4, 9), (6, 2), (6, 3), (7, 1)] {
            let mut bytes = request();
            bytes[index] = byte;
            let mut scanner = scanner();
            assert_eq!(scanner.push(&bytes[..7]), Ok(None));
            let error = scanner.push(&bytes[7..8]).unwrap_err();
            assert!(matches!(error, ScanError::Header(_)), "{index}");
            assert_eq!(scanner.push(&bytes[8..]), Err(error));
        }
    }

    #[test]
    fn a_response_passes_only_when_it_may() {
        let mut bytes = request();
        bytes[6] = 2;
        let mut any = MessageScanner::new(BYTES_MAX, Expect::Any);
        assert!(any.push(&bytes).unwrap().is_some());
    }

    #[test]
    fn a_message_of_exactly_the_cap_passes_and_one_byte_more_does_not() {
        let request = request();
        let mut exact = MessageScanner::new(request.len(), Expect::Request);
        assert!(exact.push(&request).unwrap().is_some());
        let cap = request.len() - 1;
        let mut short = MessageScanner::new(cap, Expect::Request);
        assert_eq!(short.push(&request), Err(ScanError::TooLarge(cap)));
    }

    #[test]
    fn a_frame_that_claims_too_much_is_refused_at_its_head() {
        let mut bytes = request()[..8].to_vec();
        bytes.extend([0x30, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(scanner().push(&bytes), Err(ScanError::TooLarge(BYTES_MAX)));
    }

    #[test]
    fn bytes_without_an_end_are_not_kept_beyond_the_cap() {
        let mut scanner = scanner();
        let mut bytes = request()[..8].to_vec();
        while bytes.len() + 5 <= BYTES_MAX {
            bytes.extend([0x30, 0, 0, 0, 0]);
        }
        assert_eq!(scanner.push(&bytes), Ok(None));
        let error = scanner.push(&[0x30; 5]).unwrap_err();
        assert_eq!(error, ScanError::TooLarge(BYTES_MAX));
        assert!(scanner.buffer.len() <= BYTES_MAX);
    }
}
