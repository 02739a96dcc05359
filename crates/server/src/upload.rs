//! A request body as a stream of decoded bytes, for what is too large to be held (§5.9.3).
//!
//! The same bounds as for bodies in memory, but for the size: that is the receiver's, which
//! counts what it takes. A sender that stalls is given up.

use std::sync::Arc;

use axum::body::Body;
use bytes::{Buf as _, Bytes};
use futures_core::stream::BoxStream;
use futures_util::{StreamExt as _, stream};
use http::HeaderMap;
use parking_lot::Mutex;
use tidewater_objects::BodyError;

use crate::{
    Server,
    body::{Chunks, internal, undecodable},
    decoding::{ContentEncoding, Decoder},
    error::ApiError,
};

/// What a stream failed with, to be told to its sender.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fault(Arc<Mutex<Option<ApiError>>>);

impl Fault {
    /// The sender's mistake; `None` where it made none.
    pub(crate) fn take(&self) -> Option<ApiError> {
        self.0.lock().take()
    }
}

/// The decoded bytes of a request's body, and where to look when they end in an error.
pub(crate) fn stream(
    server: &Server,
    headers: &HeaderMap,
    body: Body,
) -> Result<(BoxStream<'static, Result<Bytes, BodyError>>, Fault), ApiError> {
    let encoding = ContentEncoding::of(headers)?;
    let decoder = Decoder::new(encoding).map_err(|error| internal(&error))?;
    let upload = Upload {
        chunks: Chunks::new(body, server.config.body_timeout),
        decoder,
        rest: Bytes::new(),
        has_more: false,
    };
    let fault = Fault::default();
    let told = fault.clone();
    let bytes = stream::try_unfold(upload, move |mut upload| {
        let told = told.clone();
        async move {
            match upload.next().await {
                Ok(bytes) => Ok(bytes.map(|bytes| (bytes, upload))),
                Err(error) => {
                    let code = error.code().as_str();
                    *told.0.lock() = Some(error);
                    Err(BodyError::from(code))
                }
            }
        }
    });
    Ok((bytes.boxed(), fault))
}

struct Upload {
    chunks: Chunks,
    decoder: Option<Decoder>,
    /// What was received and not decoded yet.
    rest: Bytes,
    /// Whether the decoder may give more without more input.
    has_more: bool,
}

impl Upload {
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let Some(decoder) = &mut self.decoder else {
            return self.chunks.next().await;
        };
        loop {
            if self.rest.is_empty() && !self.has_more {
                match self.chunks.next().await? {
                    Some(chunk) => self.rest = chunk,
                    None if decoder.is_complete() => return Ok(None),
                    None => return Err(undecodable()),
                }
            }
            let step = decoder.step(&self.rest).map_err(|_| undecodable())?;
            let (consumed, decoded) = (step.consumed, Bytes::copy_from_slice(step.decoded));
            self.has_more = !decoded.is_empty();
            if decoded.is_empty() && consumed == 0 && !self.rest.is_empty() {
                return Err(undecodable());
            }
            self.rest.advance(consumed);
            if !decoded.is_empty() {
                return Ok(Some(decoded));
            }
        }
    }
}
