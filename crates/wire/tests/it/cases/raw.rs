//! Messages put together byte by byte, because an encoder would refuse to write them.

use bytes::BytesMut;
use tidewater_wire::{
    RequestFrame, ResponseFrame, WireVersion, put_request_frame, put_response_frame,
};

/// A message under construction. Nothing is checked.
#[derive(Clone)]
pub(crate) struct RawMessage {
    version: WireVersion,
    bytes: Vec<u8>,
}

impl RawMessage {
    pub(crate) fn request(version: WireVersion) -> Self {
        Self::new(version, 1)
    }

    pub(crate) fn response(version: WireVersion) -> Self {
        Self::new(version, 2)
    }

    fn new(version: WireVersion, kind: u8) -> Self {
        let mut bytes = b"SSP2".to_vec();
        bytes.extend(version.number().to_le_bytes());
        bytes.extend([kind, 0]);
        Self { version, bytes }
    }

    /// Adds a frame with any type and payload.
    pub(crate) fn frame(self, frame_type: u8, payload: Payload) -> Self {
        let len = u32::try_from(payload.0.len()).unwrap();
        self.raw(&[frame_type])
            .raw(&len.to_le_bytes())
            .raw(&payload.0)
    }

    /// Adds request frames in any order.
    pub(crate) fn requests(mut self, frames: &[RequestFrame]) -> Self {
        let mut out = BytesMut::new();
        for frame in frames {
            put_request_frame(frame, self.version, &mut out).unwrap();
        }
        self.bytes.extend(out);
        self
    }

    /// Adds response frames in any order.
    pub(crate) fn responses(mut self, frames: &[ResponseFrame]) -> Self {
        let mut out = BytesMut::new();
        for frame in frames {
            put_response_frame(frame, self.version, &mut out).unwrap();
        }
        self.bytes.extend(out);
        self
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    pub(crate) fn end(self) -> Vec<u8> {
        self.raw(&[0; 5]).bytes
    }

    /// The bytes so far, without END.
    pub(crate) fn unfinished(self) -> Vec<u8> {
        self.bytes
    }
}

/// The payload of a frame under construction. Nothing is checked.
#[derive(Clone, Default)]
pub(crate) struct Payload(pub(crate) Vec<u8>);

impl Payload {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn u8(self, value: u8) -> Self {
        self.raw(&[value])
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn i32(self, value: i32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn i64(self, value: i64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        self.u32(u32::try_from(bytes.len()).unwrap()).raw(bytes)
    }

    pub(crate) fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }
}
