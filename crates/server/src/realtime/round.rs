//! One round over a socket: the same call as over HTTP, answered in chunks (§8.7).
//!
//! A chunk is asked for only when there is room for it, so a client that does not read makes the
//! response wait and nothing pile up. What fails before the first chunk is answered as a
//! response of its own, and the connection goes on; after it nothing can be said any more and the
//! connection ends.
//!
//! **Invariant:** the round is over for the socket before the chunk with END is written, so the
//! next request is never mistaken for a violation.

use std::panic::AssertUnwindSafe;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture};
use tidewater_engine::{RoundBody, RoundError};
use tidewater_wire::WireVersion;

use crate::{quota::Share, round_log::RoundLog};

/// A round in flight.
pub(crate) struct Round {
    state: State,
    version: WireVersion,
    /// What was made and not taken.
    made: Bytes,
    sent: usize,
    log: Option<RoundLog>,
    /// What counts as in use until the response is gone.
    _held: (Option<Share>, Option<Share>),
}

enum State {
    /// Nothing of the response is there yet.
    Asked(BoxFuture<'static, Result<RoundBody, RoundError>>),
    /// It is made as it is taken.
    Answered(RoundBody),
    /// All of it is made.
    Ended,
}

/// A part of the response.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// May be empty.
    pub(crate) bytes: Bytes,
    /// Whether this ends the round.
    pub(crate) is_last: bool,
}

/// Why there is no next chunk.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The round failed before its first byte.
    Refused(RoundError),
    /// A bug.
    Panicked,
}

impl Round {
    /// Begins to watch `asked`, the engine's answer.
    pub(crate) fn begin(
        asked: BoxFuture<'static, Result<RoundBody, RoundError>>,
        version: WireVersion,
        log: Option<RoundLog>,
        held: (Option<Share>, Option<Share>),
    ) -> Self {
        Self {
            state: State::Asked(asked),
            version,
            made: Bytes::new(),
            sent: 0,
            log,
            _held: held,
        }
    }

    /// The version of the request, and of whatever answers it.
    pub(crate) fn version(&self) -> WireVersion {
        self.version
    }

    /// Whether nothing was sent yet.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.sent == 0
    }

    /// The next part of the response. May be dropped and asked for again.
    pub(crate) async fn next(&mut self) -> Result<Chunk, Stop> {
        while self.made.is_empty() && !matches!(self.state, State::Ended) {
            self.make().await?;
        }
        let len = self.made.len().min(CHUNK_BYTES_MAX);
        let bytes = self.made.split_to(len);
        self.sent += len;
        if self.made.is_empty() {
            self.look_ahead();
        }
        let is_last = self.made.is_empty() && matches!(self.state, State::Ended);
        if is_last && let Some(log) = self.log.take() {
            log.finished(self.sent);
        }
        Ok(Chunk { bytes, is_last })
    }

    /// Waits for more of the response, or its end.
    async fn make(&mut self) -> Result<(), Stop> {
        match &mut self.state {
            State::Asked(asked) => {
                let answered = AssertUnwindSafe(asked).catch_unwind().await;
                let answered = answered.map_err(|_| Stop::Panicked)?;
                match answered {
                    Ok(body) => self.state = State::Answered(body),
                    Err(error) => {
                        if let Some(log) = self.log.take() {
                            log.failed(error.code);
                        }
                        return Err(Stop::Refused(error));
                    }
                }
            }
            State::Answered(body) => {
                let next = AssertUnwindSafe(body.next()).catch_unwind().await;
                match next.map_err(|_| Stop::Panicked)? {
                    Some(made) => self.made = made,
                    None => self.state = State::Ended,
                }
            }
            State::Ended => {}
        }
        Ok(())
    }

    /// Finds out whether this was all, without waiting.
    fn look_ahead(&mut self) {
        if let State::Answered(body) = &mut self.state {
            let next = std::panic::catch_unwind(AssertUnwindSafe(|| body.next().now_or_never()));
            match next {
                Ok(Some(Some(made))) => self.made = made,
                Ok(Some(None)) => self.state = State::Ended,
                // It waits; or it panicked, which it will say again when it is asked again.
                Ok(None) | Err(_) => {}
            }
        }
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if let Some(log) = self.log.take() {
            log.abandoned(self.sent);
        }
    }
}

/// A response is written in chunks of up to this many bytes.
const CHUNK_BYTES_MAX: usize = 64 * 1024;
