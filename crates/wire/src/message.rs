//! The envelope around the frames of a message, and either kind of message (§1.2).
//!
//! Owns what is the same for requests and responses: the first 8 bytes, the walk from frame to
//! frame, and END, which comes last and only once. Which frame may follow which is decided by
//! [`crate::request`] and [`crate::response`].

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    DecodeError, DecodeErrorKind, EncodeError, Request, Response, WireVersion,
    frame_type::{END, FrameType, MessageKind},
    reader::{Reader, invalid_at},
    writer::FRAME_HEAD_LEN,
};

/// Magic, version, kind and flags.
pub(crate) const ENVELOPE_LEN: usize = 8;

const MAGIC: &[u8; 4] = b"SSP2";

/// A request or a response.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// From a client.
    Request(Request),
    /// From a server.
    Response(Response),
}

impl Message {
    /// Reads one complete message of either kind. Text and bytes of the result are slices of
    /// `bytes`.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let envelope = Envelope::read(&mut reader)?;
        match envelope.kind {
            MessageKind::Request => {
                Request::read_frames(bytes, reader, envelope.version).map(Self::Request)
            }
            MessageKind::Response => {
                Response::read_frames(bytes, reader, envelope.version).map(Self::Response)
            }
        }
    }

    /// Writes the message.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        match self {
            Self::Request(request) => request.encode(),
            Self::Response(response) => response.encode(),
        }
    }
}

/// What the first 8 bytes say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Envelope {
    pub(crate) version: WireVersion,
    pub(crate) kind: MessageKind,
}

impl Envelope {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let start = reader.position();
        if reader.take(MAGIC.len(), "envelope")? != MAGIC {
            return Err(invalid_at(start, "message does not begin with SSP2"));
        }
        let start = reader.position();
        let number = reader.u16("envelope")?;
        let version = WireVersion::from_number(number).ok_or(DecodeError {
            offset: start,
            kind: DecodeErrorKind::UnsupportedVersion(number),
        })?;
        let start = reader.position();
        let kind = MessageKind::from_tag(reader.u8("envelope")?)
            .ok_or_else(|| invalid_at(start, "message is neither a request nor a response"))?;
        let start = reader.position();
        if reader.u8("envelope")? != 0 {
            return Err(invalid_at(start, "envelope flags are not zero"));
        }
        Ok(Self { version, kind })
    }

    /// Reads an envelope that must be of `kind`.
    pub(crate) fn read_of(
        reader: &mut Reader<'_>,
        kind: MessageKind,
    ) -> Result<WireVersion, DecodeError> {
        let envelope = Self::read(reader)?;
        if envelope.kind == kind {
            return Ok(envelope.version);
        }
        let rule = match kind {
            MessageKind::Request => "message is not a request",
            MessageKind::Response => "message is not a response",
        };
        Err(invalid_at(MAGIC.len() + 2, rule))
    }

    pub(crate) fn put(self, out: &mut BytesMut) {
        out.put_slice(MAGIC);
        out.put_u16_le(self.version.number());
        out.put_u8(self.kind.tag());
        out.put_u8(0);
    }
}

/// A frame whose payload is not decoded yet.
#[derive(Debug)]
pub(crate) struct RawFrame<'a> {
    /// Where the frame starts, for errors about its place.
    pub(crate) offset: usize,
    pub(crate) byte: u8,
    /// `None` when the type has no layout.
    pub(crate) frame_type: Option<FrameType>,
    pub(crate) payload: Reader<'a>,
}

/// Walks over the frames of a message up to END, which must be the end of the input too.
#[derive(Debug)]
pub(crate) struct RawFrames<'a> {
    reader: Reader<'a>,
    envelope: Envelope,
}

impl<'a> RawFrames<'a> {
    /// `reader` stands behind the envelope.
    pub(crate) fn new(reader: Reader<'a>, envelope: Envelope) -> Self {
        Self { reader, envelope }
    }

    /// The next frame, or `None` at END.
    pub(crate) fn next(&mut self) -> Result<Option<RawFrame<'a>>, DecodeError> {
        let offset = self.reader.position();
        let byte = self.reader.u8("message")?;
        let len = self.reader.count("frame length")?;
        let payload = self.reader.part(len, "frame")?;
        if byte == END {
            payload.finish("END")?;
            self.reader.finish("message")?;
            return Ok(None);
        }
        let Envelope { version, kind } = self.envelope;
        let frame_type =
            FrameType::find_in(byte, version, kind).map_err(|kind| DecodeError { offset, kind })?;
        Ok(Some(RawFrame {
            offset,
            byte,
            frame_type,
            payload,
        }))
    }

    /// Where the next frame starts.
    pub(crate) fn position(&self) -> usize {
        self.reader.position()
    }
}

/// Writes the END frame, which completes a message of either kind.
pub fn put_end(out: &mut BytesMut) {
    out.put_slice(&[END, 0, 0, 0, 0]);
}

const _: () = assert!(FRAME_HEAD_LEN == 5);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(hex: &str, expected: &str) {
        let bytes = Bytes::from(hex::decode(hex.replace(' ', "")).unwrap());
        let error = Message::decode(&bytes).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn an_envelope_that_is_not_ours_is_refused_before_any_frame_is_read() {
        check("", "input ends inside envelope at byte 0");
        check("535350", "input ends inside envelope at byte 0");
        check("53535032 03", "input ends inside envelope at byte 4");
        check(
            "53535033 0300 01 00",
            "message does not begin with SSP2 at byte 0",
        );
        check(
            "53535032 0000 01 00",
            "wire version 0 is not supported at byte 4",
        );
        check(
            "53535032 e703 01 00",
            "wire version 999 is not supported at byte 4",
        );
        check(
            "53535032 0300 03 00",
            "message is neither a request nor a response at byte 6",
        );
        check(
            "53535032 0300 01 01",
            "envelope flags are not zero at byte 7",
        );
    }

    #[test]
    fn frames_end_with_one_empty_end() {
        let header = "53535032 0300 02 00  10 0d000000 00 01 02000000 02000000 6531 01";
        check(header, "input ends inside message at byte 26");
        check(
            &format!("{header} 00 01000000 00"),
            "END has trailing bytes at byte 31",
        );
        check(
            &format!("{header} 00 00000000 00"),
            "message has trailing bytes at byte 31",
        );
        check(
            &format!("{header} 30 06000000 00"),
            "input ends inside frame at byte 31",
        );
    }
}
