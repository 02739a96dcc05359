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

    fn start(&mut self, method: &str, path: &str, headers: &str) {
        let Target {
            authority, prefix, ..
        } = &self.target;
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
        let mut open = match self.open.take() {
            Some(open) if open.used_at.elapsed() < IDLE_MAX => open,
            _ => self.connect().await?,
        };
        let exchange = async {
            open.stream.write_all(&self.output).await?;
            read_reply(&mut open).await
        };
        let (reply, keep_alive) = tokio::time::timeout(self.timeout, exchange)
            .await
            .map_err(|_| RoundError::Timeout)??;
        if keep_alive {
            open.used_at = Instant::now();
            self.open = Some(open);
        }
        Ok(reply)
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

/// Reads one reply, and tells whether the connection can be used again.
async fn read_reply(open: &mut Open) -> Result<(Reply, bool), RoundError> {
    let head = loop {
        if let Some(head) = reply::parse_head(&mut open.input)? {
            break head;
        }
        if read_more(open).await? == 0 {
            return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into());
        }
    };
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
