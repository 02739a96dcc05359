//! The server over real sockets: what a client sees byte for byte, and what a hostile or broken
//! one cannot do.

// Tells clippy that helpers outside of test functions are tests, too.
#![cfg(test)]

mod blobs;
mod bodies;
mod client;
mod compression;
mod console;
mod cors;
mod downloads;
mod embed;
mod front;
mod host;
mod limits;
mod messages;
mod segments;
mod shutdown;
mod store;
