//! The binary as its users have it: commands, exit codes, a server that is told to stop.

// Tells clippy that helpers outside of test functions are tests, too.
#![cfg(test)]

mod bulk;
mod checkpoint;
mod commands;
mod crash;
mod load;
mod migrate;
mod objects;
mod postgres;
mod process;
mod restore;
mod sample;
