//! Control messages of the realtime channel, both directions (§8).
//!
//! Text messages are JSON: servers name an `event`, clients a `type` or an `event`. An event
//! nobody here knows is tolerated, a known one with missing or wrong data is malformed. Presence
//! documents are carried as the text they came as. Members are written in the protocol's order.

#[cfg(test)]
mod tests;
mod text;

use bytestring::ByteString;

use text::{Data, Object};

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

impl WakeReason {
    /// Every reason.
    pub const ALL: [Self; 3] = [
        Self::DeltaTooLarge,
        Self::CatchupRequired,
        Self::ResetRequired,
    ];

    /// The reason as it travels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DeltaTooLarge => "delta-too-large",
            Self::CatchupRequired => "catchup-required",
            Self::ResetRequired => "reset-required",
        }
    }
}

impl PresenceError {
    const ALL: [Self; 2] = [Self::Forbidden, Self::TooLarge];

    /// The code as it travels. It is no code of the catalogue.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forbidden => "presence.forbidden",
            Self::TooLarge => "presence.too_large",
        }
    }
}

impl ServerControl {
    /// Reads the text of a message.
    pub fn parse(text: &str) -> Result<Self, ControlError> {
        let message = Data::read(text, "message is not a JSON object")?;
        match &*message.text("event", "message has no event")? {
            "hello" => message.data().and_then(|data| parse_hello(&data)),
            "sync" => message.data().and_then(|data| parse_wake_up(&data)),
            "heartbeat" => Ok(Self::Heartbeat {
                timestamp: message.data()?.integer("timestamp", NO_TIMESTAMP)?,
            }),
            "presence" => message.data().and_then(|data| parse_fanout(&data)),
            _ => Ok(Self::Unknown),
        }
    }

    /// The text of the message.
    ///
    /// # Panics
    ///
    /// [`Self::Unknown`] has none.
    pub fn to_text(&self) -> String {
        match self {
            Self::Hello(hello) => Object::event("hello", hello_text(hello)),
            Self::WakeUp(wake_up) => Object::event(
                "sync",
                Object::new()
                    .integer("cursor", wake_up.cursor)
                    .boolean("requiresPull", true)
                    .text("reason", wake_up.reason.as_str())
                    .integer("timestamp", wake_up.timestamp),
            ),
            Self::Heartbeat { timestamp } => {
                Object::event("heartbeat", Object::new().integer("timestamp", *timestamp))
            }
            Self::Presence(fanout) => Object::event("presence", fanout_text(fanout)),
            Self::PresenceError {
                scope_key,
                error,
                timestamp,
            } => Object::event(
                "presence",
                Object::new()
                    .text("scopeKey", scope_key)
                    .text("error", error.as_str())
                    .integer("timestamp", *timestamp),
            ),
            Self::Unknown => panic!("an unknown event cannot be written"),
        }
    }
}

impl ClientControl {
    /// Reads the text of a message. Only a malformed presence is an error, and one that closes
    /// the connection.
    pub fn parse(text: &str) -> Result<Self, ControlError> {
        let Ok(message) = Data::read(text, "") else {
            return Ok(Self::Unknown);
        };
        if message.is("type", "ack") {
            let cursor = message.integer("cursor", "");
            return Ok(cursor.map_or(Self::Unknown, |cursor| Self::Ack { cursor }));
        }
        if !message.is("event", "presence") {
            return Ok(Self::Unknown);
        }
        let data = message.data()?;
        let scope_key = data.filled_text("scopeKey", NO_SCOPE_KEY)?;
        let doc = match data.raw("doc") {
            Some("null") => None,
            Some(_) => Some(data.object("doc", NO_DOC)?),
            None => return Err(ControlError(NO_DOC)),
        };
        Ok(Self::Presence { scope_key, doc })
    }

    /// The text of the message.
    ///
    /// # Panics
    ///
    /// [`Self::Unknown`] has none.
    pub fn to_text(&self) -> String {
        match self {
            Self::Ack { cursor } => Object::new()
                .text("type", "ack")
                .integer("cursor", *cursor)
                .finish(),
            Self::Presence { scope_key, doc } => Object::event(
                "presence",
                Object::new()
                    .text("scopeKey", scope_key)
                    .json("doc", doc.as_deref().unwrap_or("null")),
            ),
            Self::Unknown => panic!("an unknown message cannot be written"),
        }
    }
}

const PROTOCOL_VERSION: i64 = 1;

const NO_TIMESTAMP: &str = "timestamp is no safe integer";
const NO_SCOPE_KEY: &str = "scope key is no text, or empty";
const NO_DOC: &str = "document is neither an object nor null";

fn parse_hello(data: &Data<'_>) -> Result<ServerControl, ControlError> {
    if data.integer("protocolVersion", "protocol version is no integer")? != PROTOCOL_VERSION {
        return Err(ControlError("protocol version is not 1"));
    }
    Ok(ServerControl::Hello(Hello {
        session_id: data.text("sessionId", "session id is no text")?,
        actor_id: data.text("actorId", "actor id is no text")?,
        client_id: data.text("clientId", "client id is no text")?,
        cursor: data.integer("cursor", "cursor is no safe integer")?,
        latest_cursor: data.integer("latestCursor", "latest cursor is no safe integer")?,
        requires_sync: data.boolean("requiresSync", "requiresSync is no boolean")?,
        timestamp: data.integer("timestamp", NO_TIMESTAMP)?,
    }))
}

fn hello_text(hello: &Hello) -> Object {
    Object::new()
        .integer("protocolVersion", PROTOCOL_VERSION)
        .text("sessionId", &hello.session_id)
        .text("actorId", &hello.actor_id)
        .text("clientId", &hello.client_id)
        .integer("cursor", hello.cursor)
        .integer("latestCursor", hello.latest_cursor)
        .boolean("requiresSync", hello.requires_sync)
        .integer("timestamp", hello.timestamp)
}

fn parse_wake_up(data: &Data<'_>) -> Result<ServerControl, ControlError> {
    if !data.boolean("requiresPull", "requiresPull is no boolean")? {
        return Err(ControlError("requiresPull is not true"));
    }
    let reason = data.text("reason", "reason is no text")?;
    let reason = WakeReason::ALL
        .into_iter()
        .find(|known| reason == known.as_str())
        .ok_or(ControlError("reason is none of the three"))?;
    Ok(ServerControl::WakeUp(WakeUp {
        cursor: data.integer("cursor", "cursor is no safe integer")?,
        reason,
        timestamp: data.integer("timestamp", NO_TIMESTAMP)?,
    }))
}

fn parse_fanout(data: &Data<'_>) -> Result<ServerControl, ControlError> {
    let scope_key = data.filled_text("scopeKey", NO_SCOPE_KEY)?;
    let timestamp = data.integer("timestamp", NO_TIMESTAMP)?;
    if data.raw("error").is_some() {
        let error = data.text("error", "presence error is no text")?;
        let error = PresenceError::ALL
            .into_iter()
            .find(|known| error == known.as_str())
            .ok_or(ControlError("presence error is none of the two"))?;
        return Ok(ServerControl::PresenceError {
            scope_key,
            error,
            timestamp,
        });
    }
    let change = match &*data.text("kind", "presence kind is no text")? {
        "join" => PresenceChange::Join(data.object("doc", NO_DOC)?),
        "update" => PresenceChange::Update(data.object("doc", NO_DOC)?),
        "leave" if data.raw("doc") == Some("null") => PresenceChange::Leave,
        "leave" => return Err(ControlError("leave has a document")),
        _ => return Err(ControlError("presence kind is none of the three")),
    };
    Ok(ServerControl::Presence(PresenceFanout {
        scope_key,
        actor_id: data.text("actorId", "actor id is no text")?,
        client_id: data.text("clientId", "client id is no text")?,
        change,
        timestamp,
    }))
}

fn fanout_text(fanout: &PresenceFanout) -> Object {
    let (kind, doc) = match &fanout.change {
        PresenceChange::Join(doc) => ("join", &**doc),
        PresenceChange::Update(doc) => ("update", &**doc),
        PresenceChange::Leave => ("leave", "null"),
    };
    Object::new()
        .text("scopeKey", &fanout.scope_key)
        .text("kind", kind)
        .text("actorId", &fanout.actor_id)
        .text("clientId", &fanout.client_id)
        .json("doc", doc)
        .integer("timestamp", fanout.timestamp)
}
