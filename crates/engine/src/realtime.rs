//! Realtime: deltas, wake-ups and presence for the connections of this process (§8).
//!
//! The decisions are in a core without tasks, I/O or clock: `room` holds the connections of one
//! partition, and `deliver`, `registrations`, `presence`, `sequencer` what it decides with.
//! Around it is a thin shell: `hub` brings it durable commits in order, `load` asks who may see
//! what, `session` is the handle a socket holds, `seams` is what the host and other nodes say.
//!
//! **Invariant:** a connection gets a delta only when every commit before it that its scopes see
//! was delivered to it or pulled by it. Where that is not certain it gets a wake-up.
//!
//! Not here: sockets, frames of a transport, and the deadline of a single write.

mod config;
mod deliver;
mod frame;
mod hub;
mod load;
mod mailbox;
mod presence;
mod registrations;
mod room;
mod seams;
mod sequencer;
mod session;
#[cfg(test)]
mod tests;
mod views;

pub use self::{
    config::HubConfig,
    mailbox::{CloseReason, Outgoing},
    session::Session,
};
pub(crate) use self::{
    hub::Hub,
    room::Ticket,
    session::{Asker, connect, pulled},
};

/// Where realtime stands in this process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RealtimeStats {
    /// Open connections.
    pub sessions: usize,
    /// Those that must pull before they get deltas again.
    pub suppressed_sessions: usize,
    /// Rounds that are being answered over a connection.
    pub rounds_in_flight: usize,
    /// Bytes that wait for connections.
    pub queued_bytes: usize,
    /// Presence documents.
    pub presence_documents: usize,
    /// Deltas handed to connections since the start.
    pub deltas: u64,
    /// Wake-ups handed to connections since the start.
    pub wake_ups: u64,
}
