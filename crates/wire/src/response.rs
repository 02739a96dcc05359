//! Responses (§1.6).

use bytes::{Bytes, BytesMut};

use crate::{DecodeError, EncodeError, ResponseFrame, WireVersion};

/// A response, frame by frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The wire version of the envelope.
    pub version: WireVersion,
    /// Every frame but END, in order.
    pub frames: Vec<ResponseFrame>,
}

impl Response {
    /// Reads one complete response. Text and bytes of the result are slices of `bytes`.
    pub fn decode(_bytes: &Bytes) -> Result<Self, DecodeError> {
        unimplemented!()
    }

    /// Writes the response.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        unimplemented!()
    }
}

/// Writes the envelope of a response.
pub fn begin_response(_version: WireVersion, _out: &mut BytesMut) {
    unimplemented!()
}

/// Writes one frame of a response.
pub fn put_response_frame(
    _frame: &ResponseFrame,
    _version: WireVersion,
    _out: &mut BytesMut,
) -> Result<(), EncodeError> {
    unimplemented!()
}

/// Writes the END frame, which completes a message of either kind.
pub fn put_end(_out: &mut BytesMut) {
    unimplemented!()
}
