//! Requests (§1.5).

use bytes::{Bytes, BytesMut};

use crate::{
    DecodeError, EncodeError, PullHeader, PushCommit, RequestFrame, RequestHeader, RoundFailure,
    Subscription, WireVersion,
};

/// A request, frame by frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The wire version of the envelope.
    pub version: WireVersion,
    /// Every frame but END, in order.
    pub frames: Vec<RequestFrame>,
}

/// A request, by what a server does with it. Unknown frames are gone.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestParts {
    /// The wire version of the envelope.
    pub version: WireVersion,
    /// Who asks.
    pub header: RequestHeader,
    /// Why the client's previous round failed.
    pub round_failure: Option<RoundFailure>,
    /// The push half, in order.
    pub commits: Vec<PushCommit>,
    /// The pull half.
    pub pull: Option<Pull>,
}

/// The pull half of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Pull {
    /// How much, and how.
    pub header: PullHeader,
    /// Of what, in order.
    pub subscriptions: Vec<Subscription>,
}

impl Request {
    /// Reads one complete request. Text and bytes of the result are slices of `bytes`.
    pub fn decode(_bytes: &Bytes) -> Result<Self, DecodeError> {
        unimplemented!()
    }

    /// Writes the request.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        unimplemented!()
    }

    /// Sorts the frames by what a server does with them.
    pub fn into_parts(self) -> RequestParts {
        unimplemented!()
    }
}

/// Writes the envelope of a request.
pub fn begin_request(_version: WireVersion, _out: &mut BytesMut) {
    unimplemented!()
}

/// Writes one frame of a request.
pub fn put_request_frame(
    _frame: &RequestFrame,
    _version: WireVersion,
    _out: &mut BytesMut,
) -> Result<(), EncodeError> {
    unimplemented!()
}
