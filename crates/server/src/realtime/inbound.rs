//! From bytes of a socket to what the client said.
//!
//! A pure state machine over RFC 6455 frames and the channel's rules (§8.1, §8.7). Payloads are
//! unmasked where they were read and go straight to where they are gathered, so a socket on
//! which nothing happens has no buffer at all.
//!
//! **Invariant:** nothing a peer claims about a length allocates anything, and what is gathered
//! is charged to a quota that all connections share.

use std::{io::Cursor, sync::Arc};

use bytes::Bytes;
use tidewater_wire::{Expect, MessageScanner, ScanError, control::ROUND_TAG};
use tungstenite::protocol::frame::{
    FrameHeader,
    coding::{CloseCode, Control, Data, OpCode},
};

use crate::quota::{Quota, Share};

/// Something complete that arrived.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Incoming {
    /// A control message of the channel.
    Text(String),
    /// The request of a round, complete.
    Request(Bytes),
    /// To be answered with the same bytes.
    Ping(Bytes),
    /// The peer says goodbye.
    Close,
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Violation {
    /// What the close frame says.
    pub(crate) code: CloseCode,
    /// Why, for people.
    pub(crate) reason: &'static str,
}

/// What is being read.
#[derive(Debug)]
enum Message {
    /// No message has begun.
    None,
    Text(Vec<u8>, Option<Share>),
    /// A chunk of a round; whether its tag was read.
    Binary {
        is_tagged: bool,
    },
}

/// The payload of a frame under way.
#[derive(Debug)]
struct Payload {
    opcode: OpCode,
    is_final: bool,
    mask: [u8; 4],
    /// How much of the payload was read, modulo the mask's length.
    phase: usize,
    left: u64,
}

/// The reading side of one connection.
#[derive(Debug)]
pub(crate) struct Inbound {
    head: [u8; HEAD_LEN_MAX],
    head_len: usize,
    payload: Option<Payload>,
    message: Message,
    /// The payload of a control frame; those may come between the frames of a message.
    control: Vec<u8>,
    scanner: MessageScanner,
    is_busy: bool,
    is_over: bool,
    budget: Arc<Quota>,
    /// The request that is gathered, charged to the budget.
    held: Option<Share>,
}

impl Inbound {
    /// Requests of up to `request_bytes_max` are put together.
    pub(crate) fn new(request_bytes_max: usize, budget: Arc<Quota>) -> Self {
        Self {
            head: [0; HEAD_LEN_MAX],
            head_len: 0,
            payload: None,
            message: Message::None,
            control: Vec::new(),
            scanner: MessageScanner::new(request_bytes_max, Expect::Request),
            is_busy: false,
            is_over: false,
            budget,
            held: None,
        }
    }

    /// The response of the round is on its way: the next request may begin.
    pub(crate) fn round_ended(&mut self) {
        self.is_busy = false;
    }

    /// Whether the peer has begun something that it has not finished.
    pub(crate) fn is_waiting(&self) -> bool {
        self.head_len > 0
            || self.payload.is_some()
            || !matches!(self.message, Message::None)
            || !self.scanner.is_empty()
    }

    /// What the request that has just been completed is charged with.
    pub(crate) fn take_share(&mut self) -> Option<Share> {
        self.held.take()
    }

    /// Takes what was read. The bytes are unmasked in place.
    pub(crate) fn push(
        &mut self,
        mut bytes: &mut [u8],
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), Violation> {
        while !bytes.is_empty() && !self.is_over {
            let taken = match &mut self.payload {
                None => self.read_head(bytes, incoming)?,
                Some(payload) => {
                    let part = payload.unmask(bytes);
                    let (opcode, ends) = (payload.opcode, payload.left == 0);
                    self.take(opcode, &bytes[..part], incoming)?;
                    if ends {
                        self.end_frame(incoming)?;
                    }
                    part
                }
            };
            bytes = &mut bytes[taken..];
        }
        Ok(())
    }

    /// Reads as much of a frame's head as there is; says how many bytes that were.
    fn read_head(
        &mut self,
        bytes: &[u8],
        incoming: &mut Vec<Incoming>,
    ) -> Result<usize, Violation> {
        let before = self.head_len;
        let added = bytes.len().min(HEAD_LEN_MAX - before);
        self.head[before..before + added].copy_from_slice(&bytes[..added]);
        let mut cursor = Cursor::new(&self.head[..before + added]);
        let parsed = FrameHeader::parse(&mut cursor)
            .map_err(|_| protocol_error("the frame has an unknown opcode"))?;
        let Some((header, len)) = parsed else {
            self.head_len = before + added;
            return Ok(added);
        };
        let taken = usize::try_from(cursor.position()).unwrap_or(HEAD_LEN_MAX) - before;
        self.head_len = 0;
        self.begin_frame(&header, len)?;
        if len == 0 {
            self.end_frame(incoming)?;
        }
        Ok(taken)
    }

    fn begin_frame(&mut self, header: &FrameHeader, len: u64) -> Result<(), Violation> {
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Err(protocol_error("no extension was agreed upon"));
        }
        let mask = header
            .mask
            .ok_or_else(|| protocol_error("frames of clients are masked"))?;
        match (header.opcode, &self.message) {
            (OpCode::Control(_), _) => {
                if !header.is_final || len > CONTROL_BYTES_MAX {
                    return Err(protocol_error("the control frame is too large"));
                }
                self.control.clear();
            }
            (OpCode::Data(Data::Continue), Message::None) => {
                return Err(protocol_error("there is nothing to continue"));
            }
            (OpCode::Data(Data::Continue), _) => {}
            (OpCode::Data(Data::Text), Message::None) => {
                self.message = Message::Text(Vec::new(), None);
            }
            (OpCode::Data(_), Message::None) => {
                self.message = Message::Binary { is_tagged: false };
            }
            (OpCode::Data(_), _) => {
                return Err(protocol_error("the message before has not ended"));
            }
        }
        self.payload = Some(Payload {
            opcode: header.opcode,
            is_final: header.is_final,
            mask,
            phase: 0,
            left: len,
        });
        Ok(())
    }

    /// Takes a part of a frame's payload.
    fn take(
        &mut self,
        opcode: OpCode,
        part: &[u8],
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), Violation> {
        if matches!(opcode, OpCode::Control(_)) {
            self.control.extend_from_slice(part);
            return Ok(());
        }
        match &mut self.message {
            Message::Text(text, held) => {
                if part.len() > TEXT_BYTES_MAX - text.len() {
                    return Err(Violation {
                        code: CloseCode::Size,
                        reason: "the control message is too large",
                    });
                }
                charge(&self.budget, held, part.len())?;
                text.extend_from_slice(part);
                Ok(())
            }
            Message::Binary { is_tagged } => {
                let mut part = part;
                if !std::mem::replace(is_tagged, true) {
                    let Some((&tag, chunk)) = part.split_first() else {
                        return Ok(());
                    };
                    if tag != ROUND_TAG {
                        return Err(policy("the tag is not that of a round"));
                    }
                    part = chunk;
                }
                self.take_chunk(part, incoming)
            }
            Message::None => Err(protocol_error("there is no message")),
        }
    }

    fn take_chunk(&mut self, chunk: &[u8], incoming: &mut Vec<Incoming>) -> Result<(), Violation> {
        if chunk.is_empty() {
            return Ok(());
        }
        if self.is_busy {
            return Err(policy("a round is in flight"));
        }
        charge(&self.budget, &mut self.held, chunk.len())?;
        let scanned = self.scanner.push(chunk).map_err(|error| match error {
            ScanError::Header(_) => policy("the round does not begin with a request"),
            ScanError::TooLarge(_) => policy("the request is too large"),
        })?;
        let Some(scanned) = scanned else {
            return Ok(());
        };
        if scanned.surplus > 0 {
            return Err(policy("there are bytes after the request"));
        }
        self.is_busy = true;
        incoming.push(Incoming::Request(scanned.message));
        Ok(())
    }

    fn end_frame(&mut self, incoming: &mut Vec<Incoming>) -> Result<(), Violation> {
        let Some(payload) = self.payload.take() else {
            return Ok(());
        };
        match payload.opcode {
            OpCode::Control(control) => return self.end_control(control, incoming),
            OpCode::Data(_) if !payload.is_final => return Ok(()),
            OpCode::Data(_) => {}
        }
        if let Message::Text(text, _) = std::mem::replace(&mut self.message, Message::None) {
            let text = String::from_utf8(text).map_err(|_| Violation {
                code: CloseCode::Invalid,
                reason: "the text is not UTF-8",
            })?;
            incoming.push(Incoming::Text(text));
        }
        Ok(())
    }

    fn end_control(
        &mut self,
        control: Control,
        incoming: &mut Vec<Incoming>,
    ) -> Result<(), Violation> {
        match control {
            Control::Ping => incoming.push(Incoming::Ping(Bytes::copy_from_slice(&self.control))),
            Control::Pong => {}
            Control::Close => {
                self.is_over = true;
                incoming.push(Incoming::Close);
            }
            Control::Reserved(_) => return Err(protocol_error("the opcode is unknown")),
        }
        self.control.clear();
        Ok(())
    }
}

/// Adds to what is held of a budget.
fn charge(budget: &Arc<Quota>, held: &mut Option<Share>, bytes: usize) -> Result<(), Violation> {
    let fits = match held {
        Some(share) => share.grow(bytes),
        None => {
            *held = budget.take(bytes);
            held.is_some()
        }
    };
    fits.then_some(()).ok_or(Violation {
        code: CloseCode::Again,
        reason: "the server holds too much",
    })
}

impl Payload {
    /// Unmasks what belongs to the frame; says how much that is.
    fn unmask(&mut self, bytes: &mut [u8]) -> usize {
        let part = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        for (index, byte) in bytes[..part].iter_mut().enumerate() {
            *byte ^= self.mask[(self.phase + index) % 4];
        }
        self.phase = (self.phase + part) % 4;
        self.left = self
            .left
            .saturating_sub(u64::try_from(part).unwrap_or(u64::MAX));
        part
    }
}

fn protocol_error(reason: &'static str) -> Violation {
    Violation {
        code: CloseCode::Protocol,
        reason,
    }
}

/// A violation of the channel's own rules.
pub(crate) fn policy(reason: &'static str) -> Violation {
    Violation {
        code: CloseCode::Policy,
        reason,
    }
}

/// Two bytes, eight of length, four of mask.
const HEAD_LEN_MAX: usize = 14;
/// RFC 6455, 5.5.
const CONTROL_BYTES_MAX: u64 = 125;
/// Above every presence document that is answered with `presence.too_large` and not with a
/// closed connection.
const TEXT_BYTES_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests;
