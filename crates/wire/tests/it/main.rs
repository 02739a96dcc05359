//! The codec against golden vectors, against the published codecs, and against itself.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cases;
mod control_oracle;
mod generate;
mod mutate;
mod oracle;
mod properties;
mod row_properties;
mod vectors;
