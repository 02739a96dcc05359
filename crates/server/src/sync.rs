//! `POST /sync` (§1.1, §1.3, §1.4).
//!
//! The route that nearly all requests take: one pass from bytes to bytes, nothing allocated that
//! the request does not need. The order of its checks is the protocol's: content type,
//! authentication, size, decompression, then the engine.
//!
//! **Invariant:** a round counts as in flight until its last byte was handed to the connection,
//! so clients that do not read are seen and bounded.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use axum::{
    body::Body,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use futures_core::Stream;
use futures_util::{FutureExt as _, StreamExt as _};
use http::{HeaderMap, HeaderValue, header};
use tidewater_engine::RoundBody;
use tidewater_model::limits;
use tracing::{Instrument as _, Span};

use crate::{
    Server, body,
    encoding::{Coding, Encoder, StreamBody},
    error::ApiError,
    quota::Share,
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
    let round = round.ok_or_else(|| ApiError::overloaded("the server answers too many rounds"))?;
    let identity = server.identify(&parts).await?;
    let buffered = body::read(server, &parts.headers, body).await?;
    let span = tracing::info_span!(
        target: "tidewater::round",
        "round",
        partition = %identity.partition,
        client_id = tracing::field::Empty,
    );
    let log = RoundLog::begin(span, buffered.bytes.len());
    let answered = server.engine.round(identity, buffered.bytes);
    let answered = match &log {
        Some(log) => answered.instrument(log.span.clone()).await,
        None => answered.await,
    };
    let rounds = match answered {
        Ok(rounds) => rounds,
        Err(error) => {
            let error = ApiError::from(error);
            if let Some(log) = log {
                log.failed(&error);
            }
            return Err(error);
        }
    };
    let coding = server
        .config
        .compress
        .then(|| Coding::negotiate(&parts.headers))
        .flatten();
    let bytes = RoundBytes {
        rounds,
        first: None,
        sent: 0,
        log,
        _held: (round, buffered.share),
    };
    respond(bytes, coding).await
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

/// A body of one chunk goes out with its length; everything else is streamed.
async fn respond(mut bytes: RoundBytes, coding: Option<Coding>) -> Result<Response, ApiError> {
    let first = bytes.next().await.unwrap_or_default();
    let (body, coding) = match bytes.next().now_or_never() {
        Some(None) if first.len() < limits::COMPRESSED_BODY_BYTES_MIN => (Body::from(first), None),
        Some(None) => match coding {
            Some(coding) => (Body::from(compress(coding, &first)?), Some(coding)),
            None => (Body::from(first), None),
        },
        more => {
            let encoder = coding.map(|coding| Encoder::new(coding, None)).transpose();
            let encoder = encoder.map_err(|error| no_encoder(&error))?;
            let second = more.flatten();
            bytes.first = Some((first, second));
            (StreamBody::body(bytes, encoder), coding)
        }
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(SYNC_MEDIA_TYPE),
    );
    if let Some(coding) = coding {
        headers.insert(header::CONTENT_ENCODING, coding.header());
    }
    Ok(response)
}

fn compress(coding: Coding, bytes: &[u8]) -> Result<Bytes, ApiError> {
    coding.compress(bytes).map_err(|error| no_encoder(&error))
}

fn no_encoder(error: &std::io::Error) -> ApiError {
    tracing::error!(%error, "no encoder for a response");
    ApiError::internal()
}

/// The bytes of a response with what they hold until they are gone.
struct RoundBytes {
    rounds: RoundBody,
    /// Chunks that were looked at already and go first.
    first: Option<(Bytes, Option<Bytes>)>,
    sent: usize,
    log: Option<RoundLog>,
    _held: (Share, Share),
}

impl Stream for RoundBytes {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some((first, second)) = self.first.take() {
            self.first = second.map(|second| (second, None));
            return Poll::Ready(Some(first));
        }
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

/// What the one line about a round says. Exists only where that line is wanted.
struct RoundLog {
    span: Span,
    received: usize,
    begun: Instant,
}

impl RoundLog {
    fn begin(span: Span, received: usize) -> Option<Self> {
        (!span.is_disabled()).then(|| Self {
            span,
            received,
            begun: Instant::now(),
        })
    }

    fn finished(self, sent: usize) {
        let (received, micros) = (self.received, self.micros());
        self.span.in_scope(|| {
            tracing::info!(target: "tidewater::round", received, sent, micros, "answered");
        });
    }

    fn abandoned(self, sent: usize) {
        let (received, micros) = (self.received, self.micros());
        self.span.in_scope(|| {
            tracing::info!(target: "tidewater::round", received, sent, micros, "client left");
        });
    }

    fn failed(self, error: &ApiError) {
        let (received, micros, code) = (self.received, self.micros(), error.code().as_str());
        self.span.in_scope(|| {
            tracing::info!(target: "tidewater::round", received, code, micros, "refused");
        });
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
