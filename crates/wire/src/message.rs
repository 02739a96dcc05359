//! Either kind of message.

use bytes::Bytes;

use crate::{DecodeError, EncodeError, Request, Response};

/// A request or a response.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// From a client.
    Request(Request),
    /// From a server.
    Response(Response),
}

impl Message {
    /// Reads one complete message of either kind.
    pub fn decode(_bytes: &Bytes) -> Result<Self, DecodeError> {
        unimplemented!()
    }

    /// Writes the message.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        unimplemented!()
    }
}
