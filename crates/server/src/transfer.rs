//! Sends immutable objects: whole, in part, compressed, or not at all (§5.5, §5.8, §5.9.5).
//!
//! What segments and blobs have in common once a request is authorized. Bytes go from the store
//! to the connection in bounded chunks, as fast as the client takes them.
//!
//! **Invariant:** a download counts until its last byte was handed to the connection, so clients
//! that do not read are seen and bounded.

use std::{
    io,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_core::{Stream, future::BoxFuture};
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body::{Frame, SizeHint};
use tidewater_engine::{RoundError, SegmentGrant};
use tidewater_model::{ErrorCode, limits};
use tidewater_objects::{ObjectError, ObjectStream};

use crate::{
    Server, TransferConfig,
    conditional::Wanted,
    copies::Copies,
    counts::{Counter, Counts, TransferCounts},
    encoding::Coding,
    error::ApiError,
    quota::{Quota, Share},
};

/// What transfers of one server share.
pub(crate) struct Transfers {
    pub(crate) downloads: Arc<Quota>,
    pub(crate) uploads: Arc<Quota>,
    pub(crate) copies: Arc<Copies>,
    pub(crate) counts: Counts,
}

impl Transfers {
    pub(crate) fn new(config: &TransferConfig) -> Self {
        Self {
            downloads: Quota::new(config.downloads_max),
            uploads: Quota::new(config.uploads_max),
            copies: Copies::new(config.clone()),
            counts: Counts::default(),
        }
    }

    pub(crate) fn counts(&self) -> TransferCounts {
        let counts = &self.counts;
        TransferCounts {
            segment_downloads: counts.segment_downloads.get(),
            signed_downloads: counts.signed_downloads.get(),
            blob_downloads: counts.blob_downloads.get(),
            blob_uploads: counts.blob_uploads.get(),
            upload_grants: counts.upload_grants.get(),
            not_modified: counts.not_modified.get(),
            copies_made: self.copies.made(),
        }
    }

    /// Counts an answer: as unchanged, or as what it is otherwise.
    pub(crate) fn count(&self, response: &Response, counter: &Counter) {
        if response.status() == StatusCode::NOT_MODIFIED {
            self.counts.not_modified.add();
        } else {
            counter.add();
        }
    }
}

/// Opens the bytes of an object, or those of a range.
pub(crate) type Open = Arc<dyn Fn(Option<Range<u64>>) -> Opening + Send + Sync>;
/// An object being opened.
pub(crate) type Opening = BoxFuture<'static, Result<ObjectStream, RoundError>>;

/// An object that the client may have.
pub(crate) struct Object {
    /// Its content address; quoted, its entity tag.
    pub(crate) id: String,
    /// Its size.
    pub(crate) byte_length: u64,
    /// Who may keep it and how long.
    pub(crate) cache_control: HeaderValue,
    /// What else the answer depends on.
    pub(crate) vary: Option<HeaderValue>,
    /// The coding it is sent in, if it is worth it.
    pub(crate) coding: Option<Coding>,
    /// Whether it is to be saved and not to be shown: somebody else may have chosen its bytes.
    pub(crate) is_attachment: bool,
    /// Opens it.
    pub(crate) open: Open,
}

impl Object {
    /// A segment that was granted.
    pub(crate) fn segment(grant: SegmentGrant, cache_control: HeaderValue) -> Self {
        let grant = Arc::new(grant);
        Self {
            id: grant.segment_id.clone(),
            byte_length: grant.byte_length,
            cache_control,
            vary: None,
            coding: None,
            is_attachment: false,
            open: Arc::new(move |range| {
                let grant = Arc::clone(&grant);
                Box::pin(async move { opened(grant.open(range).await, ErrorCode::NotFound) })
            }),
        }
    }
}

/// What was opened, or why there is nothing to send.
pub(crate) fn opened(
    opened: Result<Option<ObjectStream>, ObjectError>,
    gone: ErrorCode,
) -> Result<ObjectStream, RoundError> {
    opened
        .map_err(|error| RoundError::internal(&error, "open an object"))?
        .ok_or_else(|| RoundError::new(gone, "what was asked for is gone"))
}

/// Answers a request for an object. Nothing is opened for a client that has it.
pub(crate) async fn send(
    server: &Server,
    method: &Method,
    headers: &HeaderMap,
    object: Object,
) -> Result<Response, ApiError> {
    let tag = format!("\"{}\"", object.id);
    let wanted = Wanted::of(method, headers, &tag, object.byte_length);
    let mut response = Response::new(Body::empty());
    let out = response.headers_mut();
    out.insert(
        header::ETAG,
        HeaderValue::try_from(tag).map_err(|_| ApiError::internal())?,
    );
    out.insert(header::CACHE_CONTROL, object.cache_control.clone());
    if let Some(vary) = object.vary.clone() {
        out.insert(header::VARY, vary);
    }
    out.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    if object.is_attachment {
        out.insert(header::CONTENT_DISPOSITION, ATTACHMENT);
    }
    match wanted {
        Wanted::Nothing => *response.status_mut() = StatusCode::NOT_MODIFIED,
        Wanted::Unsatisfiable => return Err(ApiError::unsatisfiable(object.byte_length)),
        Wanted::Whole => send_whole(server, method, object, &mut response).await?,
        Wanted::Part(range) => send_part(server, range, object, &mut response).await?,
    }
    Ok(response)
}

async fn send_whole(
    server: &Server,
    method: &Method,
    object: Object,
    response: &mut Response,
) -> Result<(), ApiError> {
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, OCTET_STREAM);
    let worth_it = u64::try_from(limits::COMPRESSED_BODY_BYTES_MIN)
        .is_ok_and(|least| object.byte_length >= least);
    let coding = object.coding.filter(|_| worth_it);
    if *method == Method::HEAD {
        // The length of what is compressed is not known before it is.
        if coding.is_none() {
            identity_headers(response);
            let length = HeaderValue::from(object.byte_length);
            response
                .headers_mut()
                .insert(header::CONTENT_LENGTH, length);
        }
        return Ok(());
    }
    let mut share = download_share(server)?;
    if let Some(coding) = coding {
        let open = Arc::clone(&object.open);
        let copies = &server.transfers.copies;
        let body = copies.body(&object.id, coding, object.byte_length, share, move || {
            open(None)
        });
        share = match body.await {
            Ok(body) => {
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_ENCODING, coding.header());
                *response.body_mut() = body;
                return Ok(());
            }
            Err(share) => share,
        };
    }
    let stream = (object.open)(None).await?;
    identity_headers(response);
    *response.body_mut() = stream_body(stream, share);
    Ok(())
}

async fn send_part(
    server: &Server,
    range: Range<u64>,
    object: Object,
    response: &mut Response,
) -> Result<(), ApiError> {
    let share = download_share(server)?;
    let text = format!(
        "bytes {}-{}/{}",
        range.start,
        range.end - 1,
        object.byte_length
    );
    let stream = (object.open)(Some(range)).await?;
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, OCTET_STREAM);
    headers.insert(
        header::CONTENT_RANGE,
        HeaderValue::try_from(text).map_err(|_| ApiError::internal())?,
    );
    identity_headers(response);
    *response.body_mut() = stream_body(stream, share);
    Ok(())
}

/// Only bytes as they are can be asked for in part: a part of a copy would be of no use to who
/// gets another copy, or none, the next time.
fn identity_headers(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
}

fn download_share(server: &Server) -> Result<Share, ApiError> {
    let share = server.transfers.downloads.take(1);
    share.ok_or_else(|| ApiError::overloaded("the server sends too many objects"))
}

/// The bytes of an open object as a body of known length.
fn stream_body(stream: ObjectStream, share: Share) -> Body {
    let range = stream.range();
    let length = range.end.saturating_sub(range.start);
    let chunks = stream
        .into_chunks()
        .map(|chunk| chunk.map_err(io::Error::other));
    ChunkBody::body(chunks, Some(length), share)
}

/// A body of the chunks of a stream, with what is held until they are gone.
pub(crate) struct ChunkBody<S> {
    chunks: S,
    /// What is still to come, where that is known.
    left: Option<u64>,
    is_over: bool,
    share: Option<Share>,
}

impl<S> ChunkBody<S>
where
    S: Stream<Item = io::Result<Bytes>> + Send + 'static,
{
    pub(crate) fn body(chunks: S, length: Option<u64>, share: Share) -> Body {
        Body::new(ChunkBody {
            chunks: Box::pin(chunks),
            left: length,
            is_over: false,
            share: Some(share),
        })
    }
}

impl<S> http_body::Body for ChunkBody<S>
where
    S: Stream<Item = io::Result<Bytes>> + Unpin,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let next = Pin::new(&mut self.chunks).poll_next(context);
        match next {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(chunk))) => {
                let sent = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
                self.left = self.left.map(|left| left.saturating_sub(sent));
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
            Poll::Ready(Some(Err(error))) => {
                // Nothing can be told to the client any more but that this is not all.
                tracing::warn!(%error, "a download was cut short");
                self.is_over = true;
                self.share = None;
                Poll::Ready(Some(Err(error)))
            }
            Poll::Ready(None) => {
                self.is_over = true;
                self.share = None;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const ATTACHMENT: HeaderValue = HeaderValue::from_static("attachment");
/// Whatever the bytes are, no browser is to make something of them.
const OCTET_STREAM: HeaderValue = HeaderValue::from_static("application/octet-stream");
