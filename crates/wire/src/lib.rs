//! Bytes to messages and back, for wire versions 1, 2 and 3 (§1, §5.2).
//!
//! No sockets, no clock, and no idea what a table means: columns are given by the caller.
//!
//! Two rules hold in the whole crate. **A length that came from the peer never sizes an
//! allocation**: it is checked against the bytes that are there. **One value has one encoding**:
//! a decoder refuses what an encoder would not have written, so decoding and encoding again
//! gives the same bytes.

#![warn(missing_docs)]

mod blob_ref;
mod canonical;
mod commit_writer;
mod content;
pub mod control;
mod error;
mod frame;
mod frame_type;
mod json;
mod message;
mod reader;
mod rejection;
pub mod render;
mod request;
mod response;
pub mod row;
mod scanner;
pub mod segment;
mod version;
mod writer;

pub use blob_ref::BlobRef;
pub use canonical::{canonical_scopes, scope_digest};
pub use commit_writer::CommitWriter;
pub use content::{ContentHasher, content_address, is_content_address};
pub use error::{DecodeError, DecodeErrorKind, EncodeError};
pub use frame::{
    Accept, Change, ChangeRow, CommitFrame, ErrorFrame, LeaseFrame, MediaType, OpResult, Operation,
    OperationAction, PullHeader, PushCommit, PushOutcome, PushResult, PushResultDetails,
    RejectionDetail, RequestFrame, RequestHeader, ResponseFrame, ResponseHeader, RoundFailure,
    SegmentRef, SubEnd, SubStart, SubStatus, Subscription, UnknownFrame,
};
pub use message::{Message, put_end};
pub use rejection::RejectionDetails;
pub use request::{Pull, Request, RequestParts, begin_request, put_request_frame};
pub use response::{Response, begin_response, put_response_frame};
pub use scanner::{Expect, MessageScanner, ScanError, Scanned};
pub use segment::{RowsSegment, SegmentRow, SegmentWriter, check_rows_segment};
pub use version::WireVersion;
