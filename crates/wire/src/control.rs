//! Control messages of the realtime channel (§8).

use bytestring::ByteString;

/// First byte of a binary message that is a delta.
pub const DELTA_TAG: u8 = 0x00;
/// First byte of a binary message that is a chunk of a round.
pub const ROUND_TAG: u8 = 0x01;

/// A control message from the server.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerControl {
    /// The first message on a connection.
    Hello(Hello),
    /// Pull now (`sync`).
    WakeUp(WakeUp),
    /// Still here.
    Heartbeat {
        /// Unix milliseconds.
        timestamp: i64,
    },
    /// What a peer publishes.
    Presence(PresenceFanout),
    /// What became of the receiver's own publication.
    PresenceError {
        /// The key it was published on.
        scope_key: ByteString,
        /// Why it was refused.
        error: PresenceError,
        /// Unix milliseconds.
        timestamp: i64,
    },
    /// An event this version does not know.
    Unknown,
}

/// `hello`
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hello {
    /// Names the connection.
    pub session_id: ByteString,
    /// The authenticated actor.
    pub actor_id: ByteString,
    /// The client.
    pub client_id: ByteString,
    /// What the client is known to have applied, or −1.
    pub cursor: i64,
    /// The newest commit.
    pub latest_cursor: i64,
    /// Whether the client must pull first.
    pub requires_sync: bool,
    /// Unix milliseconds.
    pub timestamp: i64,
}

/// `sync`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WakeUp {
    /// The highest sequence observed.
    pub cursor: i64,
    /// Why no delta came.
    pub reason: WakeReason,
    /// Unix milliseconds.
    pub timestamp: i64,
}

/// Why a client must pull (§8.3).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum WakeReason {
    /// The delta exceeds the limit.
    DeltaTooLarge,
    /// Something was not delivered.
    CatchupRequired,
    /// The log does not continue.
    ResetRequired,
}

/// `presence` from a peer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PresenceFanout {
    /// The key.
    pub scope_key: ByteString,
    /// The peer's actor.
    pub actor_id: ByteString,
    /// The peer's client.
    pub client_id: ByteString,
    /// What the peer did.
    pub change: PresenceChange,
    /// Unix milliseconds.
    pub timestamp: i64,
}

/// What a peer did; documents are the text of a JSON object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PresenceChange {
    /// Its first document on the key.
    Join(ByteString),
    /// A replacement.
    Update(ByteString),
    /// No document any more.
    Leave,
}

/// Why a publication was refused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PresenceError {
    /// The connection does not hold the key.
    Forbidden,
    /// The document is too large.
    TooLarge,
}

/// A control message from a client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ClientControl {
    /// Everything up to here is applied.
    Ack {
        /// The place.
        cursor: i64,
    },
    /// A presence document, or its withdrawal.
    Presence {
        /// The key; not empty.
        scope_key: ByteString,
        /// The text of a JSON object; `None` withdraws.
        doc: Option<ByteString>,
    },
    /// To be ignored: an unknown event, no JSON, or an ack without a usable cursor.
    Unknown,
}

/// A known event with missing or wrong data.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("malformed control message: {0}")]
pub struct ControlError(pub &'static str);

impl ServerControl {
    /// Reads the text of a message.
    pub fn parse(_text: &str) -> Result<Self, ControlError> {
        unimplemented!()
    }

    /// The text of the message.
    pub fn to_text(&self) -> String {
        unimplemented!()
    }
}

impl ClientControl {
    /// Reads the text of a message.
    pub fn parse(_text: &str) -> Result<Self, ControlError> {
        unimplemented!()
    }

    /// The text of the message.
    pub fn to_text(&self) -> String {
        unimplemented!()
    }
}
