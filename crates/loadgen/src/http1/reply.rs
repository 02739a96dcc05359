//! Replies from bytes: head, body framing, content encoding. No sockets here.

use std::io::{Read as _, Write};

use bytes::{Buf as _, Bytes, BytesMut};

use crate::error::RoundError;

/// A complete reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// As it travelled; see [`Reply::decoded`].
    pub(crate) body: Bytes,
    encoding: Encoding,
}

/// The head of a reply.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    pub(super) framing: Framing,
    pub(super) keep_alive: bool,
    status: u16,
    encoding: Encoding,
}

/// How the end of the body is found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

#[derive(Clone, Debug, PartialEq)]
enum Encoding {
    Identity,
    Gzip,
    Zstd,
    Other(String),
}

const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// What a compressed body may decode to.
const DECODED_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Takes a body from the input in pieces, whatever its framing.
#[derive(Debug)]
pub(super) struct Body {
    framing: Framing,
    at: At,
}

/// Where in a body the input stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum At {
    /// In so many bytes of the body, or of a chunk.
    Data(usize),
    /// Before the size of a chunk.
    Size,
    /// Before the end of a chunk, which may be the last.
    ChunkEnd {
        is_last: bool,
    },
    Over,
}

impl Body {
    pub(super) fn new(framing: Framing) -> Self {
        let at = match framing {
            Framing::Length(0) => At::Over,
            Framing::Length(length) => At::Data(length),
            Framing::Chunked => At::Size,
            Framing::UntilClose => At::Data(usize::MAX),
        };
        Self { framing, at }
    }

    pub(super) fn is_over(&self) -> bool {
        self.at == At::Over
    }

    /// The next piece, if there is one in `input`.
    pub(super) fn take(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, RoundError> {
        loop {
            match self.at {
                At::Over => return Ok(None),
                At::Data(left) => {
                    let taken = input.len().min(left);
                    if taken == 0 {
                        return Ok(None);
                    }
                    self.at = match self.framing {
                        Framing::UntilClose => self.at,
                        _ if taken < left => At::Data(left - taken),
                        Framing::Chunked => At::ChunkEnd { is_last: false },
                        Framing::Length(_) => At::Over,
                    };
                    return Ok(Some(input.split_to(taken).freeze()));
                }
                At::Size => {
                    let Some((head_len, size)) = chunk_size(input)? else {
                        return Ok(None);
                    };
                    input.advance(head_len);
                    self.at = match size {
                        0 => At::ChunkEnd { is_last: true },
                        size => At::Data(size),
                    };
                }
                At::ChunkEnd { is_last } => {
                    if input.len() < CHUNK_END.len() {
                        return Ok(None);
                    }
                    check_chunk_end(&input[..CHUNK_END.len()])?;
                    input.advance(CHUNK_END.len());
                    self.at = if is_last { At::Over } else { At::Size };
                }
            }
        }
    }

    /// The connection was closed.
    pub(super) fn end(&mut self) -> Result<(), RoundError> {
        if self.framing != Framing::UntilClose {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        self.at = At::Over;
        Ok(())
    }
}

/// Undoes a content encoding on the way to a sink.
pub(super) enum Undo<W: Write> {
    Nothing(W),
    Gzip(Box<flate2::write::GzDecoder<W>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, W>>),
}

impl<W: Write> Undo<W> {
    pub(super) fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Nothing(sink) => sink.write_all(bytes),
            Self::Gzip(decoder) => decoder.write_all(bytes),
            Self::Zstd(decoder) => decoder.write_all(bytes),
        }
    }

    pub(super) fn finish(&mut self) -> std::io::Result<()> {
        match self {
            Self::Nothing(sink) => sink.flush(),
            Self::Gzip(decoder) => decoder.try_finish(),
            Self::Zstd(decoder) => decoder.flush(),
        }
    }
}

impl Head {
    pub(super) fn status(&self) -> u16 {
        self.status
    }

    /// What a body with this head goes through.
    pub(super) fn undo<W: Write>(&self, sink: W) -> Result<Undo<W>, RoundError> {
        Ok(match &self.encoding {
            Encoding::Identity => Undo::Nothing(sink),
            Encoding::Gzip => Undo::Gzip(Box::new(flate2::write::GzDecoder::new(sink))),
            Encoding::Zstd => Undo::Zstd(Box::new(zstd::stream::write::Decoder::new(sink)?)),
            Encoding::Other(name) => {
                return Err(RoundError::Http(format!("content encoding {name}")));
            }
        })
    }

    pub(super) fn with_body(self, body: Bytes) -> Reply {
        Reply {
            status: self.status,
            body,
            encoding: self.encoding,
        }
    }
}

impl Reply {
    /// The body without its content encoding.
    pub(crate) fn decoded(&self) -> Result<Bytes, RoundError> {
        match &self.encoding {
            Encoding::Identity => Ok(self.body.clone()),
            Encoding::Gzip => read_all(flate2::read::GzDecoder::new(&*self.body)),
            Encoding::Zstd => read_all(zstd::stream::read::Decoder::new(&*self.body)?),
            Encoding::Other(name) => Err(RoundError::Http(format!("content encoding {name}"))),
        }
    }
}

fn read_all(decoder: impl std::io::Read) -> Result<Bytes, RoundError> {
    let mut out = Vec::new();
    decoder.take(DECODED_BYTES_MAX).read_to_end(&mut out)?;
    Ok(out.into())
}

/// Takes the head of a reply from the front of `input`, or nothing while it is incomplete.
pub(super) fn parse_head(input: &mut BytesMut) -> Result<Option<Head>, RoundError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response
        .parse(input)
        .map_err(|error| RoundError::Http(error.to_string()))?;
    let httparse::Status::Complete(head_len) = parsed else {
        return if input.len() > HEAD_BYTES_MAX {
            Err(RoundError::Http("head does not end".to_owned()))
        } else {
            Ok(None)
        };
    };
    let status = response.code.unwrap_or(0);
    let mut head = Head {
        framing: match status {
            100..=199 | 204 | 304 => Framing::Length(0),
            _ => Framing::UntilClose,
        },
        keep_alive: response.version == Some(1),
        status,
        encoding: Encoding::Identity,
    };
    for header in &*response.headers {
        head.read_header(header)?;
    }
    head.keep_alive &= head.framing != Framing::UntilClose;
    input.advance(head_len);
    Ok(Some(head))
}

impl Head {
    fn read_header(&mut self, header: &httparse::Header<'_>) -> Result<(), RoundError> {
        let value = || {
            str::from_utf8(header.value)
                .map(str::trim)
                .map_err(|_| RoundError::Http(format!("header {} is not text", header.name)))
        };
        if header.name.eq_ignore_ascii_case("content-length") {
            let length = value()?
                .parse()
                .map_err(|_| RoundError::Http("content-length is not a number".to_owned()))?;
            if self.framing == Framing::UntilClose {
                self.framing = Framing::Length(length);
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if value()?.eq_ignore_ascii_case("chunked") {
                self.framing = Framing::Chunked;
            }
        } else if header.name.eq_ignore_ascii_case("connection") {
            self.keep_alive &= !value()?.eq_ignore_ascii_case("close");
        } else if header.name.eq_ignore_ascii_case("content-encoding") {
            self.encoding = match value()? {
                "identity" => Encoding::Identity,
                "gzip" => Encoding::Gzip,
                "zstd" => Encoding::Zstd,
                other => Encoding::Other(other.to_owned()),
            };
        }
        Ok(())
    }
}

/// Moves complete chunks from `input` to `body`; true when the last one is through.
pub(super) fn take_chunk(input: &mut BytesMut, body: &mut BytesMut) -> Result<bool, RoundError> {
    loop {
        let Some((head_len, size)) = chunk_size(input)? else {
            return Ok(false);
        };
        let end = head_len
            .checked_add(size)
            .and_then(|end| end.checked_add(CHUNK_END.len()))
            .ok_or_else(|| RoundError::Http("chunk is too large".to_owned()))?;
        if input.len() < end {
            return Ok(false);
        }
        // No trailers: no server of this protocol sends any, and we did not ask for them.
        check_chunk_end(&input[end - CHUNK_END.len()..end])?;
        body.extend_from_slice(&input[head_len..head_len + size]);
        input.advance(end);
        if size == 0 {
            return Ok(true);
        }
    }
}

/// Length of the line with a chunk's size, and the size; nothing while the line is incomplete.
fn chunk_size(input: &[u8]) -> Result<Option<(usize, usize)>, RoundError> {
    let parsed = httparse::parse_chunk_size(input)
        .map_err(|_| RoundError::Http("chunk size is not a number".to_owned()))?;
    let httparse::Status::Complete((head_len, size)) = parsed else {
        return Ok(None);
    };
    let size =
        usize::try_from(size).map_err(|_| RoundError::Http("chunk is too large".to_owned()))?;
    Ok(Some((head_len, size)))
}

fn check_chunk_end(bytes: &[u8]) -> Result<(), RoundError> {
    if bytes == CHUNK_END {
        return Ok(());
    }
    Err(RoundError::Http(
        "chunk does not end where it says".to_owned(),
    ))
}

const CHUNK_END: &[u8] = b"\r\n";
