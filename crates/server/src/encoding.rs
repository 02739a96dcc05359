//! Compresses responses by negotiation (§1.3, §5.8).
//!
//! Content addresses are over uncompressed bytes, so compression belongs to the transfer and is
//! done here, once, as bytes leave. Levels are the cheapest ones: a sync server is bound by its
//! processors, and the step from the first level to the next saves few bytes.
//!
//! **Invariant:** bytes that the source has given are not held back while the source has nothing
//! more to give, so a client sees each part of a response when it is ready.

use std::{
    io::{self, Write as _},
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures_core::Stream;
use http::{HeaderMap, HeaderValue, header};
use http_body::Frame;
use zstd::stream::{raw::CParameter, write::Encoder as ZstdEncoder};

/// A content encoding that a client accepts.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Coding {
    Gzip,
    Zstd,
}

impl Coding {
    /// What the client prefers among what we can do; `None` means the bytes as they are.
    pub(crate) fn negotiate(headers: &HeaderMap) -> Option<Self> {
        let mut gzip = None;
        let mut zstd = None;
        let mut any = None;
        for value in headers.get_all(header::ACCEPT_ENCODING) {
            for item in value.to_str().ok()?.split(',') {
                let (name, weight) = weighted(item);
                let slot = match name {
                    name if name.eq_ignore_ascii_case("zstd") => &mut zstd,
                    name if name.eq_ignore_ascii_case("gzip") => &mut gzip,
                    name if name.eq_ignore_ascii_case("x-gzip") => &mut gzip,
                    "*" => &mut any,
                    _ => continue,
                };
                *slot = Some(weight);
            }
        }
        let gzip = gzip.or(any).unwrap_or(0);
        let zstd = zstd.or(any).unwrap_or(0);
        match (zstd, gzip) {
            (0, 0) => None,
            (zstd, gzip) if zstd >= gzip => Some(Self::Zstd),
            _ => Some(Self::Gzip),
        }
    }

    /// The name in `Content-Encoding`.
    pub(crate) fn header(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }

    /// Compresses bytes that are all there.
    pub(crate) fn compress(self, bytes: &[u8]) -> io::Result<Bytes> {
        let mut encoder = Encoder::new(self, Some(bytes.len()))?;
        encoder.push(bytes)?;
        encoder.finish()?;
        Ok(encoder.take())
    }
}

/// One element of `Accept-Encoding` with its weight in thousandths. Nonsense weighs nothing.
fn weighted(item: &str) -> (&str, u16) {
    let mut parts = item.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let weight = parts.find_map(|part| part.strip_prefix(['q', 'Q'])?.strip_prefix('='));
    (name, weight.map_or(WEIGHT_MAX, thousandths))
}

/// A number between 0 and 1 with up to three decimals, in thousandths.
fn thousandths(text: &str) -> u16 {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return 0;
    }
    match whole {
        "0" => format!("{decimals:0<3}").parse().unwrap_or(0),
        "1" => WEIGHT_MAX,
        _ => 0,
    }
}

const WEIGHT_MAX: u16 = 1_000;

/// A compressing encoder that collects what it has made.
pub(crate) enum Encoder {
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(ZstdEncoder<'static, Vec<u8>>),
}

impl Encoder {
    /// An encoder, for `size` bytes where that is known: small inputs then need small tables.
    pub(crate) fn new(coding: Coding, size: Option<usize>) -> io::Result<Self> {
        Ok(match coding {
            Coding::Gzip => Self::Gzip(GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL))),
            Coding::Zstd => {
                let mut encoder = ZstdEncoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.set_parameter(CParameter::WindowLog(ZSTD_WINDOW_LOG))?;
                encoder.set_pledged_src_size(size.and_then(|size| u64::try_from(size).ok()))?;
                Self::Zstd(encoder)
            }
        })
    }

    /// Encodes `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Gzip(encoder) => encoder.write_all(bytes),
            Self::Zstd(encoder) => encoder.write_all(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Gzip(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
        }
    }

    /// Ends the encoded stream.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Gzip(encoder) => encoder.try_finish(),
            Self::Zstd(encoder) => encoder.do_finish(),
        }
    }

    /// What was made and not taken yet.
    pub(crate) fn made(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Gzip(encoder) => encoder.get_mut(),
            Self::Zstd(encoder) => encoder.get_mut(),
        }
    }

    fn take(&mut self) -> Bytes {
        Bytes::from(std::mem::take(self.made()))
    }
}

/// A response body made of the chunks of a stream, compressed if there is an encoder.
pub(crate) struct StreamBody<S> {
    source: S,
    encoder: Option<Encoder>,
    /// What of the source's last chunk was not encoded yet.
    rest: Bytes,
    /// Whether the encoder holds bytes that were not flushed.
    unflushed: bool,
    finished: bool,
}

impl<S> StreamBody<S>
where
    S: Stream<Item = Bytes> + Send + Unpin + 'static,
{
    /// The chunks of `source` as a body.
    pub(crate) fn body(source: S, encoder: Option<Encoder>) -> Body {
        let rest = Bytes::new();
        Body::new(Self {
            source,
            encoder,
            rest,
            unflushed: false,
            finished: false,
        })
    }
}

impl<S: Stream<Item = Bytes> + Unpin> http_body::Body for StreamBody<S> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let Some(encoder) = &mut this.encoder else {
            return Pin::new(&mut this.source)
                .poll_next(context)
                .map(|chunk| chunk.map(frame));
        };
        loop {
            if this.finished {
                return Poll::Ready(None);
            }
            let (step, enough) = if this.rest.is_empty() {
                match Pin::new(&mut this.source).poll_next(context) {
                    Poll::Ready(Some(chunk)) => {
                        this.rest = chunk;
                        continue;
                    }
                    Poll::Ready(None) => {
                        this.finished = true;
                        (encoder.finish(), 1)
                    }
                    Poll::Pending if this.unflushed => {
                        this.unflushed = false;
                        (encoder.flush(), 1)
                    }
                    Poll::Pending => return Poll::Pending,
                }
            } else {
                let piece = this.rest.split_to(this.rest.len().min(PIECE_BYTES));
                this.unflushed = true;
                (encoder.push(&piece), FRAME_BYTES_MIN)
            };
            match step {
                Ok(()) if encoder.made().len() < enough => {}
                Ok(()) => return Poll::Ready(Some(Ok(Frame::data(encoder.take())))),
                Err(error) => {
                    this.finished = true;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

fn frame(chunk: Bytes) -> io::Result<Frame<Bytes>> {
    Ok(Frame::data(chunk))
}

/// Encoded at once: below a millisecond of work.
const PIECE_BYTES: usize = 64 * 1024;
/// Encoded bytes that are worth a write while more is to come.
const FRAME_BYTES_MIN: usize = 16 * 1024;
const GZIP_LEVEL: u32 = 1;
const ZSTD_LEVEL: i32 = 1;
/// 256 KiB: a window is memory for as long as the client takes to read.
const ZSTD_WINDOW_LOG: u32 = 18;

#[cfg(test)]
mod tests;
