//! Finds the end of a message in a stream of bytes (§1.4, §8.7).

use bytes::Bytes;

use crate::DecodeError;

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

/// Why a stream cannot go on.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ScanError {
    /// The first 8 bytes are no envelope.
    #[error("{0}")]
    Header(#[from] DecodeError),
    /// The message is larger than the cap.
    #[error("message is larger than {0} bytes")]
    TooLarge(usize),
}

/// Collects chunks until a message is complete.
#[derive(Debug)]
pub struct MessageScanner(());

impl MessageScanner {
    /// A scanner for messages of at most `bytes_max` bytes.
    pub fn new(_bytes_max: usize, _expect: Expect) -> Self {
        unimplemented!()
    }

    /// Takes the next chunk.
    pub fn push(&mut self, _chunk: &[u8]) -> Result<Option<Scanned>, ScanError> {
        unimplemented!()
    }
}
