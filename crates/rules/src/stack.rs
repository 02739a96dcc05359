//! Parsing on a stack that the longest text cannot exhaust.
//!
//! The parsers recurse with what they read, with frames of kilobytes. Limits of length bound how
//! deep, and the worst text within them fits here several times; a runtime's thread would not
//! do. Memory is used only as far as a text reaches.

use std::{io, panic, thread};

const STACK_BYTES: usize = 128 * 1024 * 1024;

/// Runs `work` on a thread of its own and waits for it.
pub(crate) fn with_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("rules".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)?;
        match thread.join() {
            Ok(value) => Ok(value),
            Err(payload) => panic::resume_unwind(payload),
        }
    })
}
