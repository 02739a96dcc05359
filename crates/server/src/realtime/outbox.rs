//! What waits to be written to one socket.
//!
//! Payloads are shared with every other receiver; only a frame's head, a few bytes, is made per
//! socket. The queue is bounded by its user, who asks [`Outbox::has_room`] before it adds
//! anything that a peer does not ask for.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite;
use tungstenite::protocol::frame::{
    FrameHeader,
    coding::{CloseCode, Control, Data, OpCode},
};

/// Frames in the order they will be written.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Never holds an empty piece.
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Outbox {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether more may be added.
    pub(crate) fn has_room(&self) -> bool {
        self.len < WAITING_BYTES_MAX
    }

    /// A text message.
    pub(crate) fn push_text(&mut self, text: Bytes) {
        self.push(OpCode::Data(Data::Text), None, text);
    }

    /// A binary message that begins with `tag`.
    pub(crate) fn push_tagged(&mut self, tag: u8, payload: Bytes) {
        self.push(OpCode::Data(Data::Binary), Some(tag), payload);
    }

    /// A ping without content.
    pub(crate) fn push_ping(&mut self) {
        self.push(OpCode::Control(Control::Ping), None, Bytes::new());
    }

    /// The answer to a ping.
    pub(crate) fn push_pong(&mut self, payload: Bytes) {
        self.push(OpCode::Control(Control::Pong), None, payload);
    }

    /// A goodbye. `reason` is short and fixed.
    pub(crate) fn push_close(&mut self, code: CloseCode, reason: &str) {
        let code: u16 = code.into();
        let payload = [&code.to_be_bytes()[..], reason.as_bytes()].concat();
        self.push(OpCode::Control(Control::Close), None, payload.into());
    }

    fn push(&mut self, opcode: OpCode, tag: Option<u8>, payload: Bytes) {
        let header = FrameHeader {
            opcode,
            ..FrameHeader::default()
        };
        let len = payload.len() + usize::from(tag.is_some());
        let mut head = Vec::with_capacity(HEAD_LEN_MAX + 1);
        header
            .format(u64::try_from(len).unwrap_or(u64::MAX), &mut head)
            .expect("a vector takes every byte");
        head.extend(tag);
        if payload.len() <= COPIED_BYTES_MAX {
            head.extend_from_slice(&payload);
            self.add(head.into());
        } else {
            self.add(head.into());
            self.add(payload);
        }
    }

    fn add(&mut self, piece: Bytes) {
        self.len += piece.len();
        self.pieces.push_back(piece);
    }

    /// Writes as much as the stream takes now; says how many bytes that were.
    pub(crate) fn poll_write(
        &mut self,
        stream: Pin<&mut (impl AsyncWrite + ?Sized)>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut used = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece);
            used += 1;
        }
        let written = ready!(stream.poll_write_vectored(context, &slices[..used]))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(written);
        Poll::Ready(Ok(written))
    }

    fn advance(&mut self, mut written: usize) {
        self.len -= written;
        while let Some(piece) = self.pieces.front_mut() {
            if written < piece.len() {
                piece.advance(written);
                return;
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
        // What a burst needed is not kept for the quiet hours after it.
        self.pieces.shrink_to(PIECES_KEPT);
    }
}

/// Two bytes and eight of length: servers do not mask.
const HEAD_LEN_MAX: usize = 10;
/// Payloads up to here are copied behind their head: cheaper than a piece of their own.
const COPIED_BYTES_MAX: usize = 128;
/// Bytes that may wait before nothing more is taken from a mailbox or a response.
pub(crate) const WAITING_BYTES_MAX: usize = 64 * 1024;
/// Pieces written at once.
const SLICES_MAX: usize = 32;
/// Pieces that an empty queue keeps room for.
const PIECES_KEPT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_whole_however_little_the_stream_takes() {
        let mut outbox = Outbox::default();
        outbox.push_text(Bytes::from_static(b"hi"));
        outbox.push_tagged(1, vec![7; 300].into());
        outbox.push_ping();
        outbox.push_close(CloseCode::Away, "bye");
        let mut expected = vec![0x81, 2, b'h', b'i', 0x82, 126, 1, 45, 1];
        expected.extend([7; 300]);
        expected.extend([0x89, 0, 0x88, 5, 0x03, 0xe9, b'b', b'y', b'e']);
        assert_eq!(outbox.len, expected.len());
        let mut written = Vec::new();
        while let Some(piece) = outbox.pieces.front() {
            written.push(piece[0]);
            outbox.advance(1);
        }
        assert_eq!(written, expected);
        assert!(outbox.is_empty());
    }

    #[test]
    fn an_empty_chunk_is_a_message_of_its_tag() {
        let mut outbox = Outbox::default();
        outbox.push_tagged(1, Bytes::new());
        assert_eq!(outbox.pieces[0], [0x82, 1, 1][..]);
    }
}
