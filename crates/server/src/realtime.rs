//! The realtime channel (§8).
mod handshake;
mod inbound;
mod outbox;
mod seats;
mod tickets;
