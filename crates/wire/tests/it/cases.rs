//! The project's own golden cases, as values: what `vectors/` was generated from.
//!
//! Names follow the catalogue of the protocol (§11.1, Appendix A) where it has the case.

mod invalid_request;
mod invalid_response;
mod push;
mod raw;
mod realtime;
mod request;
mod response;
mod segment;

use tidewater_wire::{Message, RowsSegment, WireVersion, row::Column};

pub(crate) use raw::{Payload, RawMessage};

/// A message that is read and written.
pub(crate) struct MessageCase {
    pub(crate) name: &'static str,
    pub(crate) message: Message,
}

impl MessageCase {
    pub(crate) fn version(&self) -> WireVersion {
        match &self.message {
            Message::Request(request) => request.version,
            Message::Response(response) => response.version,
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match &self.message {
            Message::Request(_) => "request",
            Message::Response(_) => "response",
        }
    }
}

/// A message or a segment that is refused.
pub(crate) struct InvalidCase {
    pub(crate) name: &'static str,
    /// The entry of the closed list (§1.7) that it violates.
    pub(crate) class: u8,
    pub(crate) bytes: Vec<u8>,
}

/// A rows segment that is read and written.
pub(crate) struct SegmentCase {
    pub(crate) name: &'static str,
    pub(crate) segment: RowsSegment,
}

/// A sparse row.
pub(crate) struct RowCase {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// A control message, by its text.
pub(crate) struct ControlCase {
    pub(crate) name: &'static str,
    pub(crate) text: String,
}

pub(crate) fn messages() -> Vec<MessageCase> {
    let versions = WireVersion::ALL.into_iter();
    versions
        .flat_map(|version| {
            let mut cases = request::cases(version);
            cases.extend(response::cases(version));
            cases
        })
        .collect()
}

pub(crate) use push::{
    cases as sparse_rows, columns as sparse_columns, invalid as invalid_sparse_rows,
};
pub(crate) use realtime::{cases as control_messages, invalid as invalid_control_messages};
pub(crate) use segment::{cases as segments, invalid as invalid_segments};

/// Messages that are refused, with the directory they belong to.
pub(crate) fn invalid_messages() -> Vec<(&'static str, WireVersion, InvalidCase)> {
    let requests = invalid_request::cases();
    let responses = invalid_response::cases();
    let requests = requests
        .into_iter()
        .map(|(version, case)| ("request", version, case));
    let responses = responses
        .into_iter()
        .map(|(version, case)| ("response", version, case));
    requests.chain(responses).collect()
}

/// The table of the cases: nine columns, so that bitmaps have a second byte.
pub(crate) fn notes_columns() -> Vec<Column> {
    push::columns()
}
