//! Why one exchange with the server gave no usable answer.
//!
//! A run goes on after such an error and counts it by its label; whether the commits in it were
//! written is unknown, so they are never taken for acknowledged.

use tidewater_wire::DecodeError;

/// An exchange that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoundError {
    /// The connection could not be opened, or broke.
    #[error("connection: {0}")]
    Connection(#[from] std::io::Error),
    /// Nothing, or not all of it, came in time.
    #[error("no answer in time")]
    Timeout,
    /// The answer is not HTTP as this client reads it.
    #[error("answer is not HTTP: {0}")]
    Http(String),
    /// Another status than 200, with the code of the error body if there was one.
    #[error("status {status} {code}")]
    Status { status: u16, code: String },
    /// The body is no SSP2 response.
    #[error("response: {0}")]
    Decode(#[from] DecodeError),
    /// The response ended with an ERROR frame.
    #[error("ERROR frame {0}")]
    Frame(String),
    /// The server has the subscription start over, with this code.
    #[error("subscription is reset {0}")]
    Reset(String),
    /// The response is well formed and breaks the protocol, or this run's assumptions.
    #[error("{0}")]
    Unexpected(String),
}

impl RoundError {
    pub(crate) fn unexpected(text: impl Into<String>) -> Self {
        Self::Unexpected(text.into())
    }

    /// What it is counted as: texts with numbers in them would each be a kind of their own.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Connection(error) => format!("connection: {}", error.kind()),
            Self::Http(_) => "answer is not HTTP".to_owned(),
            Self::Timeout
            | Self::Status { .. }
            | Self::Decode(_)
            | Self::Frame(_)
            | Self::Reset(_)
            | Self::Unexpected(_) => self.to_string(),
        }
    }
}
