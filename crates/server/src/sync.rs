//! `POST /sync` (§1.1, §1.3, §1.4).
//!
//! The route that nearly all requests take: one pass from bytes to bytes, nothing allocated that
//! the request does not need. The order of its checks is the protocol's: content type,
//! authentication, size, decompression, then the engine.
//!
//! **Invariant:** a streamed round counts as in flight until its last byte was handed to the
//! connection, so clients that do not read are seen and bounded.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use futures_core::Stream;
use http::{HeaderMap, HeaderValue, header};
use tidewater_engine::RoundBody;
use tidewater_model::limits;
use tracing::Instrument as _;

use crate::{
    Server, body,
    encoding::{Coding, Encoder, StreamBody},
    error::{ApiError, TOO_MANY_ROUNDS},
    quota::Share,
    round_log::RoundLog,
    router::guard,
};

/// The content type of requests and of successful responses.
const SYNC_MEDIA_TYPE: &str = "application/vnd.syncular.sync.v2";

/// `POST /sync`
pub(crate) async fn handle(State(server): State<Arc<Server>>, request: Request) -> Response {
    guard(answer(&server, request)).await
}

async fn answer(server: &Arc<Server>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    if !is_sync_message(&parts.headers) {
        return Err(ApiError::unsupported(
            "the content type is not that of a sync message",
        ));
    }
    // Before authentication: a refusal must cost next to nothing.
    let round = server.rounds.take(1);
    let round = round.ok_or_else(|| ApiError::overloaded(TOO_MANY_ROUNDS))?;
    let identity = server.identify(&parts).await?;
    let buffered = body::read(server, &parts.headers, body).await?;
    let log = RoundLog::begin(&identity.partition, buffered.bytes.len());
    let answered = server.engine.round(identity, buffered.bytes);
    let answered = match &log {
        Some(log) => answered.instrument(log.span().clone()).await,
        None => answered.await,
    };
    let rounds = match answered {
        Ok(rounds) => rounds,
        Err(error) => {
            let error = ApiError::from(error);
            if let Some(log) = log {
                log.failed(error.code());
            }
            return Err(error);
        }
    };
    let coding = server.coding(&parts.headers);
    match rounds.try_into_whole() {
        Ok(bytes) => {
            if let Some(log) = log {
                log.finished(bytes.len());
            }
            whole(bytes, coding)
        }
        Err(rounds) => {
            let held = (round, buffered.share);
            streamed(
                RoundBytes {
                    rounds,
                    sent: 0,
                    log,
                    _held: held,
                },
                coding,
            )
        }
    }
}

fn is_sync_message(headers: &HeaderMap) -> bool {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    value.is_some_and(|value| {
        let media_type = value.split(';').next().unwrap_or_default().trim();
        media_type.eq_ignore_ascii_case(SYNC_MEDIA_TYPE)
    })
}

/// A response that is all there goes out with its length.
fn whole(bytes: Bytes, coding: Option<Coding>) -> Result<Response, ApiError> {
    let coding = coding.filter(|_| bytes.len() >= limits::COMPRESSED_BODY_BYTES_MIN);
    let bytes = match coding {
        None => bytes,
        Some(coding) => coding
            .compress(&bytes)
            .map_err(|error| no_encoder(&error))?,
    };
    Ok(success(Body::from(bytes), coding))
}

/// Anything longer goes out as it is made.
fn streamed(bytes: RoundBytes, coding: Option<Coding>) -> Result<Response, ApiError> {
    let encoder = coding.map(|coding| Encoder::new(coding, None)).transpose();
    let encoder = encoder.map_err(|error| no_encoder(&error))?;
    Ok(success(StreamBody::body(bytes, encoder), coding))
}

fn success(body: Body, coding: Option<Coding>) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let media_type = HeaderValue::from_static(SYNC_MEDIA_TYPE);
    headers.insert(header::CONTENT_TYPE, media_type);
    if let Some(coding) = coding {
        headers.insert(header::CONTENT_ENCODING, coding.header());
    }
    response
}

fn no_encoder(error: &std::io::Error) -> ApiError {
    tracing::error!(%error, "no encoder for a response");
    ApiError::internal()
}

/// The bytes of a streamed response with what they hold until they are gone.
struct RoundBytes {
    rounds: RoundBody,
    sent: usize,
    log: Option<RoundLog>,
    _held: (Share, Share),
}

impl Stream for RoundBytes {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let next = Pin::new(&mut self.rounds).poll_next(context);
        match &next {
            Poll::Ready(Some(chunk)) => self.sent += chunk.len(),
            Poll::Ready(None) => {
                let sent = self.sent;
                if let Some(log) = self.log.take() {
                    log.finished(sent);
                }
            }
            Poll::Pending => {}
        }
        next
    }
}

impl Drop for RoundBytes {
    fn drop(&mut self) {
        if let Some(log) = self.log.take() {
            log.abandoned(self.sent);
        }
    }
}
