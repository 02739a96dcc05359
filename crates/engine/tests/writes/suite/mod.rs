//! What a push does, from the bytes of a request to the rows, the log and the answer.
//!
//! `server` is an engine with everything around it under the test's hand, on a `watched` store;
//! `asking` builds requests and reads responses; `host` has validators and planners to plug in.

mod asking;
mod host;
mod server;
mod watched;

mod batches;
mod crdt;
mod failures;
mod model;
mod reactions;
mod references;
mod unique;
mod validators;
mod window;
