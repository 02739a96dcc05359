//! One HTTP/1.1 connection: requests out, replies in, kept alive between them.
//!
//! Our own and not a library's, because the generator shares the machine with the server it
//! measures: one `write`, one `read` and no task of its own per exchange. It does what a server
//! of this protocol needs from a client and nothing more: no redirects, no pipelining, no TLS.
//!
//! A connection that failed is dropped and opened again by the next exchange. Replies grow while
//! they are read and stop at [`REPLY_BYTES_MAX`].

mod reply;
#[cfg(test)]
mod tests;

use std::{
    io::{ErrorKind, Write as _},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use reply::Body;
pub(crate) use reply::Reply;

use crate::{error::RoundError, target::Target};

/// Longer than any response of a sane server; a 100,000-row page has 7 MB.
const REPLY_BYTES_MAX: usize = 512 * 1024 * 1024;
/// A server may have closed a connection that was idle for longer.
const IDLE_MAX: Duration = Duration::from_secs(4);
const READ_BYTES: usize = 64 * 1024;

/// A client's connection. Opened when it is first used.
#[derive(Debug)]
pub(crate) struct Connection {
    target: Target,
    timeout: Duration,
    open: Option<Open>,
    output: Vec<u8>,
}

#[derive(Debug)]
struct Open {
    stream: TcpStream,
    input: BytesMut,
    used_at: Instant,
}

impl Connection {
    pub(crate) fn new(target: Target, timeout: Duration) -> Self {
        Self {
            target,
            timeout,
            open: None,
            output: Vec::new(),
        }
    }

    /// Closes it; the next exchange opens another.
    pub(crate) fn close(&mut self) {
        self.open = None;
        self.output = Vec::new();
    }

    /// Where it goes, and how long an exchange may take.
    pub(crate) fn target(&self) -> (&Target, Duration) {
        (&self.target, self.timeout)
    }

    /// Sends `POST` with `headers`, which are complete lines, and reads the reply.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Result<Reply, RoundError> {
        self.start("POST", path, headers);
        write!(self.output, "content-length: {}\r\n\r\n", body.len())?;
        self.output.extend_from_slice(body);
        self.exchange().await
    }

    /// Sends `GET` with `headers`, which are complete lines, and reads the reply.
    pub(crate) async fn get(&mut self, path: &str, headers: &str) -> Result<Reply, RoundError> {
        self.start("GET", path, headers);
        self.output.extend_from_slice(b"\r\n");
        self.exchange().await
    }

    /// Sends `GET` for a URL of this server with `headers` and writes the body, without its content
    /// encoding, to `sink` as it comes.
    pub(crate) async fn get_into(
        &mut self,
        path: Path<'_>,
        headers: &str,
        sink: impl std::io::Write,
    ) -> Result<Fetched, RoundError> {
        match path {
            Path::Mounted(path) => self.start("GET", path, headers),
            Path::Absolute(path) => self.start_at("GET", "", path, headers),
        }
        self.output.extend_from_slice(b"\r\n");
        let mut open = self.ready().await?;
        let timeout = self.timeout;
        // Each wait is bounded, and not the whole: a storm of large downloads takes its time.
        let waited = tokio::time::timeout(timeout, async {
            open.stream.write_all(&self.output).await?;
            read_head(&mut open).await
        });
        let head = waited.await.map_err(|_| RoundError::Timeout)??;
        if head.status() != 200 {
            let body = tokio::time::timeout(timeout, read_body(&mut open, head.framing)).await;
            let body = body.map_err(|_| RoundError::Timeout)??;
            return Ok(Fetched::Refused(head.with_body(body)));
        }
        let mut sink = head.undo(sink)?;
        let mut body = Body::new(head.framing);
        let mut travelled = 0;
        loop {
            while let Some(piece) = body.take(&mut open.input)? {
                travelled += u64::try_from(piece.len()).unwrap_or(u64::MAX);
                sink.write_all(&piece)?;
            }
            if body.is_over() {
                break;
            }
            let more = tokio::time::timeout(timeout, read_more(&mut open)).await;
            if more.map_err(|_| RoundError::Timeout)?? == 0 {
                body.end()?;
            }
        }
        sink.finish()?;
        self.keep(open, head.keep_alive);
        Ok(Fetched::Streamed { travelled })
    }

    fn start(&mut self, method: &str, path: &str, headers: &str) {
        let prefix = self.target.prefix.clone();
        self.start_at(method, &prefix, path, headers);
    }

    fn start_at(&mut self, method: &str, prefix: &str, path: &str, headers: &str) {
        let authority = &self.target.authority;
        self.output.clear();
        for part in [
            method,
            " ",
            prefix,
            path,
            " HTTP/1.1\r\nhost: ",
            authority,
            "\r\n",
            headers,
        ] {
            self.output.extend_from_slice(part.as_bytes());
        }
    }

    async fn exchange(&mut self) -> Result<Reply, RoundError> {
        let mut open = self.ready().await?;
        let exchange = async {
            open.stream.write_all(&self.output).await?;
            read_reply(&mut open).await
        };
        let (reply, keep_alive) = tokio::time::timeout(self.timeout, exchange)
            .await
            .map_err(|_| RoundError::Timeout)??;
        self.keep(open, keep_alive);
        Ok(reply)
    }

    /// The open connection, or a new one.
    async fn ready(&mut self) -> Result<Open, RoundError> {
        match self.open.take() {
            Some(open) if open.used_at.elapsed() < IDLE_MAX => Ok(open),
            _ => self.connect().await,
        }
    }

    /// Keeps a connection whose exchange is over, if it can be used again.
    fn keep(&mut self, mut open: Open, keep_alive: bool) {
        if keep_alive && open.input.is_empty() {
            open.used_at = Instant::now();
            self.open = Some(open);
        }
    }

    /// The path and query of a URL that this connection can ask for.
    pub(crate) fn path_of<'u>(&self, url: &'u str) -> Option<&'u str> {
        let rest = url.strip_prefix("http://")?;
        let (authority, _) = rest.split_at(rest.find('/')?);
        let ours = &self.target.authority;
        let is_ours = authority == ours || ours.strip_suffix(":80") == Some(authority);
        is_ours.then(|| &rest[authority.len()..])
    }

    async fn connect(&self) -> Result<Open, RoundError> {
        let connect = TcpStream::connect(self.target.address);
        let stream = tokio::time::timeout(self.timeout, connect)
            .await
            .map_err(|_| RoundError::Timeout)??;
        stream.set_nodelay(true)?;
        Ok(Open {
            stream,
            input: BytesMut::new(),
            used_at: Instant::now(),
        })
    }
}

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path<'a> {
    /// Below the mount of the protocol.
    Mounted(&'a str),
    /// Anywhere on the server.
    Absolute(&'a str),
}

/// What became of a request whose body was not to be kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fetched {
    /// It went to its sink; so many bytes travelled.
    Streamed { travelled: u64 },
    /// There was another one, with another status than 200.
    Refused(Reply),
}

async fn read_head(open: &mut Open) -> Result<reply::Head, RoundError> {
    loop {
        if let Some(head) = reply::parse_head(&mut open.input)? {
            return Ok(head);
        }
        need_more(open).await?;
    }
}

/// Reads one reply, and tells whether the connection can be used again.
async fn read_reply(open: &mut Open) -> Result<(Reply, bool), RoundError> {
    let head = read_head(open).await?;
    let body = read_body(open, head.framing).await?;
    let keep_alive = head.keep_alive && open.input.is_empty();
    Ok((head.with_body(body), keep_alive))
}

async fn read_body(open: &mut Open, framing: reply::Framing) -> Result<Bytes, RoundError> {
    match framing {
        reply::Framing::Length(length) => {
            if length > REPLY_BYTES_MAX {
                return Err(too_large());
            }
            while open.input.len() < length {
                need_more(open).await?;
            }
            Ok(open.input.split_to(length).freeze())
        }
        reply::Framing::Chunked => {
            let mut body = BytesMut::new();
            while !reply::take_chunk(&mut open.input, &mut body)? {
                if body.len() > REPLY_BYTES_MAX {
                    return Err(too_large());
                }
                need_more(open).await?;
            }
            Ok(body.freeze())
        }
        reply::Framing::UntilClose => {
            while read_more(open).await? > 0 {}
            Ok(open.input.split().freeze())
        }
    }
}

async fn need_more(open: &mut Open) -> Result<(), RoundError> {
    match read_more(open).await? {
        0 => Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
        _ => Ok(()),
    }
}

async fn read_more(open: &mut Open) -> Result<usize, RoundError> {
    if open.input.len() > REPLY_BYTES_MAX {
        return Err(too_large());
    }
    open.input.reserve(READ_BYTES);
    Ok(open.stream.read_buf(&mut open.input).await?)
}

fn too_large() -> RoundError {
    RoundError::Http(format!("reply is larger than {REPLY_BYTES_MAX} bytes"))
}
