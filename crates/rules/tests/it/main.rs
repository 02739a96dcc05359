//! Rules of a configuration in front of a real engine, on every store.

// Tells clippy that helpers outside of test functions are tests, too.
#![cfg(test)]

mod assertions;
mod expressions;
mod server;
