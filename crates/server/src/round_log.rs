//! The one line about a round, whatever it came over.

use std::time::Instant;

use tidewater_model::{ErrorCode, PartitionId};
use tracing::Span;

/// What the one line about a round says. Exists only where that line is wanted.
pub(crate) struct RoundLog {
    span: Span,
    received: usize,
    begun: Instant,
}

impl RoundLog {
    /// Begins to watch a round, if somebody wants to know.
    pub(crate) fn begin(partition: &PartitionId, received: usize) -> Option<Self> {
        let span = tracing::info_span!(
            target: "tidewater::round",
            "round",
            %partition,
            client_id = tracing::field::Empty,
        );
        (!span.is_disabled()).then(|| Self {
            span,
            received,
            begun: Instant::now(),
        })
    }

    /// The response is on its way.
    pub(crate) fn finished(self, sent: usize) {
        let (received, micros) = (self.received, self.micros());
        self.span.in_scope(|| {
            tracing::info!(target: "tidewater::round", received, sent, micros, "answered");
        });
    }

    /// Nobody took the rest of the response.
    pub(crate) fn abandoned(self, sent: usize) {
        let (received, micros) = (self.received, self.micros());
        self.span.in_scope(|| {
            tracing::info!(target: "tidewater::round", received, sent, micros, "client left");
        });
    }

    /// The round was refused.
    pub(crate) fn failed(self, code: ErrorCode) {
        let (received, micros, code) = (self.received, self.micros(), code.as_str());
        self.span.in_scope(|| {
            tracing::info!(target: "tidewater::round", received, code, micros, "refused");
        });
    }

    /// What the round happens in.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
