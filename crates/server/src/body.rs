//! Reads a request body into memory, within its bounds.
//!
//! Three bounds, checked as bytes come in: the size of this body after decompression, the bytes
//! of all bodies together, and the time without progress. A length that the client declares is
//! only ever a reason to refuse early; memory grows with what has arrived.

use std::{io, sync::Arc, time::Duration};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::{HeaderMap, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use crate::{
    PROGRESS_BYTES_MIN, Server,
    decoding::{ContentEncoding, Decoder},
    error::ApiError,
    quota::Share,
};

/// A request body in memory. Its bytes count as buffered until it is dropped.
#[derive(Debug)]
pub(crate) struct Buffered {
    pub(crate) bytes: Bytes,
    pub(crate) share: Share,
}

/// Reads and decodes the body of a request with these headers.
pub(crate) async fn read(
    server: &Arc<Server>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Buffered, ApiError> {
    let bytes_max = server.config.request_bytes_max;
    let encoding = ContentEncoding::of(headers)?;
    // The decoded body is never the smaller one where it matters, so this holds for both.
    if declared(headers).is_some_and(|declared| declared > bytes_max) {
        return Err(ApiError::too_large(bytes_max));
    }
    let share = server.buffered_bytes.take(0).ok_or_else(out_of_buffers)?;
    let chunks = Chunks::new(body, server.config.body_timeout);
    let sink = Sink {
        share,
        bytes_max,
        bytes: BytesMut::new(),
    };
    match Decoder::new(encoding).map_err(|error| internal(&error))? {
        None => read_plain(chunks, sink).await,
        Some(decoder) => read_encoded(chunks, sink, decoder).await,
    }
}

async fn read_plain(mut chunks: Chunks, mut sink: Sink) -> Result<Buffered, ApiError> {
    let Some(first) = chunks.next().await? else {
        return Ok(sink.finish());
    };
    if chunks.body.is_end_stream() {
        // Nearly every request: one chunk, used where it lies.
        sink.check(first.len())?;
        return Ok(Buffered {
            bytes: first,
            share: sink.share,
        });
    }
    sink.push(&first)?;
    while let Some(chunk) = chunks.next().await? {
        sink.push(&chunk)?;
    }
    Ok(sink.finish())
}

async fn read_encoded(
    mut chunks: Chunks,
    mut sink: Sink,
    mut decoder: Decoder,
) -> Result<Buffered, ApiError> {
    while let Some(chunk) = chunks.next().await? {
        let mut rest = &chunk[..];
        loop {
            let step = decoder.step(rest).map_err(|_| undecodable())?;
            let (consumed, quiet) = (step.consumed, step.decoded.is_empty());
            sink.push(step.decoded)?;
            rest = &rest[consumed..];
            if quiet && rest.is_empty() {
                break;
            }
            if quiet && consumed == 0 {
                return Err(undecodable());
            }
            // A small chunk can hold a long piece of work; others get their turn.
            tokio::task::yield_now().await;
        }
    }
    if !decoder.is_complete() {
        return Err(undecodable());
    }
    Ok(sink.finish())
}

/// What has arrived, and whether more may.
struct Sink {
    share: Share,
    bytes_max: usize,
    bytes: BytesMut,
}

impl Sink {
    /// Accounts for `more` bytes.
    fn check(&mut self, more: usize) -> Result<(), ApiError> {
        if more > self.bytes_max - self.bytes.len() {
            return Err(ApiError::too_large(self.bytes_max));
        }
        if !self.share.grow(more) {
            return Err(out_of_buffers());
        }
        Ok(())
    }

    fn push(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        self.check(piece.len())?;
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    fn finish(self) -> Buffered {
        Buffered {
            bytes: self.bytes.freeze(),
            share: self.share,
        }
    }
}

/// The chunks of a body, each awaited only so long.
pub(crate) struct Chunks {
    body: Body,
    pace: Pace,
}

impl Chunks {
    pub(crate) fn new(body: Body, timeout: Duration) -> Self {
        Self {
            body,
            pace: Pace::new(timeout),
        }
    }

    /// The next bytes; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            // What is here already needs no timer.
            let frame = match self.body.frame().now_or_never() {
                Some(frame) => frame,
                None => {
                    let deadline = self.pace.deadline();
                    let waited = tokio::time::timeout_at(deadline, self.body.frame()).await;
                    waited.map_err(|_| ApiError::too_slow())?
                }
            };
            let Some(frame) = frame else { return Ok(None) };
            let frame =
                frame.map_err(|_| ApiError::unreadable("the request body was cut short"))?;
            if let Ok(chunk) = frame.into_data()
                && !chunk.is_empty()
            {
                self.pace.moved(chunk.len());
                return Ok(Some(chunk));
            }
        }
    }
}

/// Tells a slow sender from one that has stopped or pretends not to have.
struct Pace {
    timeout: Duration,
    deadline: Option<Instant>,
    moved: usize,
}

impl Pace {
    fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            deadline: None,
            moved: 0,
        }
    }

    /// When the next bytes must be here.
    fn deadline(&mut self) -> Instant {
        *self
            .deadline
            .get_or_insert_with(|| Instant::now() + self.timeout)
    }

    fn moved(&mut self, bytes: usize) {
        self.moved += bytes;
        if self.moved >= PROGRESS_BYTES_MIN {
            self.moved = 0;
            self.deadline = None;
        }
    }
}

/// The length that the client declares.
pub(crate) fn declared(headers: &HeaderMap) -> Option<usize> {
    let text = headers.get(header::CONTENT_LENGTH)?.to_str().ok()?;
    // Digits that do not fit are the largest of lengths.
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().unwrap_or(usize::MAX))
}

pub(crate) fn undecodable() -> ApiError {
    ApiError::unreadable("the request body does not have its content encoding")
}

fn out_of_buffers() -> ApiError {
    ApiError::overloaded("the server holds too many request bodies")
}

pub(crate) fn internal(error: &io::Error) -> ApiError {
    tracing::error!(%error, "no decoder for a request body");
    ApiError::internal()
}
