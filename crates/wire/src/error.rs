//! Why bytes could not be decoded, and where.

use tidewater_model::ErrorCode;

/// A message, segment or row that is not what the protocol allows.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{kind} at byte {offset}")]
pub struct DecodeError {
    /// Bytes from the start of the message, segment or row to the fault.
    pub offset: usize,
    /// What was wrong.
    pub kind: DecodeErrorKind,
}

impl DecodeError {
    /// The catalogue code a peer is answered with (§1.7).
    pub fn code(&self) -> ErrorCode {
        match self.kind {
            DecodeErrorKind::EmptyCommit => ErrorCode::EmptyCommit,
            _ => ErrorCode::InvalidRequest,
        }
    }
}

/// The ways bytes can be malformed (§1.7).
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The bytes end inside the named thing.
    #[error("input ends inside {0}")]
    Truncated(&'static str),
    /// Bytes are left over after the named thing.
    #[error("{0} has trailing bytes")]
    Trailing(&'static str),
    /// A commit without operations: the only kind with a code of its own.
    #[error("commit has no operations")]
    EmptyCommit,
    /// The envelope names a wire version nobody speaks.
    #[error("wire version {0} is not supported")]
    UnsupportedVersion(u16),
    /// A rule of the closed list is broken; the text says which.
    #[error("{0}")]
    Invalid(&'static str),
}

impl DecodeErrorKind {
    /// A frame type that only the other message kind has.
    pub(crate) const OTHER_KIND: &'static str = "frame type belongs to the other message kind";
}

/// A value that has no encoding.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The named thing is longer than its 32-bit length can say.
    #[error("{0} is too long for the wire")]
    TooLong(&'static str),
    /// An unknown frame carries a type that has a layout of its own.
    #[error("frame type {0:#04x} has a layout, so no unknown frame may carry it")]
    RegisteredType(u8),
    /// A decoder would refuse it; the text says why.
    #[error("{0}")]
    Invalid(&'static str),
}
