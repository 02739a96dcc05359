//! Bytes to messages and back, for wire versions 1, 2 and 3 (§1, §5.2).
//!
//! No sockets, no clock, and no idea what a table means: columns are given by the caller.
//!
//! Two rules hold in the whole crate. **A length that came from the peer never sizes an
//! allocation**: it is checked against the bytes that are there. **One value has one encoding**:
//! a decoder refuses what an encoder would not have written, so decoding and encoding again
//! gives the same bytes.

#![warn(missing_docs)]

mod error;
mod frame;
mod version;

pub use error::{DecodeError, DecodeErrorKind};
pub use frame::{
    Accept, Change, ChangeRow, CommitFrame, ErrorFrame, LeaseFrame, MediaType, OpResult, Operation,
    OperationAction, PullHeader, PushCommit, PushOutcome, PushResult, PushResultDetails,
    RejectionDetail, RequestFrame, RequestHeader, ResponseFrame, ResponseHeader, RoundFailure,
    SegmentRef, SubEnd, SubStart, SubStatus, Subscription, UnknownFrame,
};
pub use version::WireVersion;
