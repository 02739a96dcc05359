//! The realtime channel as a client sees it: deltas and wake-ups in, acknowledgements and rounds
//! out (§8).

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderName, HeaderValue};
use tidewater_wire::{
    Expect, MessageScanner,
    control::{ClientControl, DELTA_TAG, Hello, ROUND_TAG, ServerControl},
};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        Error, Message, client::IntoClientRequest as _, error::UrlError, protocol::WebSocketConfig,
    },
};

use crate::{error::RoundError, target::Target};

/// An open channel.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: WebSocketStream<TcpStream>,
    timeout: Duration,
    /// What came during a round.
    early: VecDeque<Received>,
    /// What the server knew when the channel was opened.
    pub(crate) hello: Hello,
}

/// A message from the server.
#[derive(Clone, Debug)]
pub(crate) enum Received {
    /// A response to be applied.
    Delta(Bytes),
    /// A chunk of a round.
    Chunk(Bytes),
    /// Pull now.
    WakeUp,
    /// Something that asks for nothing.
    Other,
}

impl Socket {
    /// Connects and waits for `hello`. `headers` are complete lines.
    pub(crate) async fn open(
        target: &Target,
        headers: &str,
        client_id: &str,
        timeout: Duration,
        receive_buffer: Option<u32>,
    ) -> Result<Self, RoundError> {
        let opened = Self::connect(target, headers, client_id, receive_buffer);
        let opened = tokio::time::timeout(timeout, opened).await;
        let mut stream = opened.map_err(|_| RoundError::Timeout)??;
        let hello = match tokio::time::timeout(timeout, control(&mut stream)).await {
            Err(_) => return Err(RoundError::Timeout),
            Ok(control) => control?,
        };
        let ServerControl::Hello(hello) = hello else {
            return Err(RoundError::unexpected("the first message is not hello"));
        };
        Ok(Self {
            stream,
            timeout,
            early: VecDeque::new(),
            hello,
        })
    }

    async fn connect(
        target: &Target,
        headers: &str,
        client_id: &str,
        receive_buffer: Option<u32>,
    ) -> Result<WebSocketStream<TcpStream>, RoundError> {
        let client_id: String = form_urlencoded::byte_serialize(client_id.as_bytes()).collect();
        let Target {
            authority, prefix, ..
        } = target;
        let url = format!("ws://{authority}{prefix}/realtime?clientId={client_id}");
        let mut request = url.into_client_request().map_err(failed)?;
        for line in headers.lines() {
            let header = line.split_once(": ").and_then(|(name, value)| {
                let name = HeaderName::try_from(name).ok()?;
                Some((name, HeaderValue::try_from(value).ok()?))
            });
            let (name, value) =
                header.ok_or_else(|| RoundError::unexpected("a header cannot be sent"))?;
            request.headers_mut().insert(name, value);
        }
        let tcp = match target.address.is_ipv4() {
            true => TcpSocket::new_v4()?,
            false => TcpSocket::new_v6()?,
        };
        if let Some(bytes) = receive_buffer {
            tcp.set_recv_buffer_size(bytes)?;
        }
        let tcp = tcp.connect(target.address).await?;
        tcp.set_nodelay(true)?;
        let config = WebSocketConfig::default().read_buffer_size(READ_BYTES);
        let (stream, _) = client_async_with_config(request, tcp, Some(config))
            .await
            .map_err(failed)?;
        Ok(stream)
    }

    /// The next message. Waits for as long as it takes.
    pub(crate) async fn next(&mut self) -> Result<Received, RoundError> {
        match self.early.pop_front() {
            Some(received) => Ok(received),
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> Result<Received, RoundError> {
        match message(&mut self.stream).await? {
            Message::Binary(bytes) => match bytes.first() {
                Some(&DELTA_TAG) => Ok(Received::Delta(bytes.slice(1..))),
                Some(&ROUND_TAG) => Ok(Received::Chunk(bytes.slice(1..))),
                _ => Ok(Received::Other),
            },
            Message::Text(text) => match read_control(&text)? {
                ServerControl::WakeUp(_) => Ok(Received::WakeUp),
                _ => Ok(Received::Other),
            },
            _ => Ok(Received::Other),
        }
    }

    /// Says that everything up to `cursor` is applied.
    pub(crate) async fn acknowledge(&mut self, cursor: i64) -> Result<(), RoundError> {
        let text = ClientControl::Ack { cursor }.to_text();
        let sent = self.stream.send(Message::text(text));
        tokio::time::timeout(self.timeout, sent)
            .await
            .map_err(|_| RoundError::Timeout)?
            .map_err(failed)
    }

    /// Sends a request and waits for the whole response.
    pub(crate) async fn round(&mut self, request: &Bytes) -> Result<Bytes, RoundError> {
        let timeout = self.timeout;
        tokio::time::timeout(timeout, self.exchange(request))
            .await
            .map_err(|_| RoundError::Timeout)?
    }

    async fn exchange(&mut self, request: &Bytes) -> Result<Bytes, RoundError> {
        for chunk in request.chunks(CHUNK_BYTES) {
            let message = [&[ROUND_TAG], chunk].concat();
            let sent = self.stream.send(Message::binary(message));
            sent.await.map_err(failed)?;
        }
        let mut scanner = MessageScanner::new(RESPONSE_BYTES_MAX, Expect::Any);
        loop {
            let chunk = match self.receive().await? {
                Received::Chunk(chunk) => chunk,
                Received::Delta(_) => {
                    return Err(RoundError::unexpected("a delta came during a round"));
                }
                other => {
                    self.early.push_back(other);
                    continue;
                }
            };
            let scanned = scanner
                .push(&chunk)
                .map_err(|error| RoundError::unexpected(error.to_string()))?;
            if let Some(scanned) = scanned {
                if scanned.surplus > 0 {
                    return Err(RoundError::unexpected("bytes came after the response"));
                }
                return Ok(scanned.message);
            }
        }
    }
}

async fn message(stream: &mut WebSocketStream<TcpStream>) -> Result<Message, RoundError> {
    match stream.next().await {
        Some(Ok(Message::Close(close))) => {
            let code = close.map_or(0, |close| u16::from(close.code));
            Err(RoundError::Unexpected(format!("socket closed with {code}")))
        }
        Some(message) => message.map_err(failed),
        None => Err(RoundError::unexpected("socket ended")),
    }
}

async fn control(stream: &mut WebSocketStream<TcpStream>) -> Result<ServerControl, RoundError> {
    match message(stream).await? {
        Message::Text(text) => read_control(&text),
        _ => Err(RoundError::unexpected("the first message is not hello")),
    }
}

fn read_control(text: &str) -> Result<ServerControl, RoundError> {
    ServerControl::parse(text).map_err(|error| RoundError::unexpected(error.to_string()))
}

/// Refused upgrades are told apart by their status, as refused requests are.
fn failed(error: Error) -> RoundError {
    match error {
        Error::Io(error) => RoundError::Connection(error),
        Error::Http(response) => {
            let status = response.status().as_u16();
            let body = response.body().as_deref().unwrap_or_default();
            let code = serde_json::from_slice::<serde_json::Value>(body)
                .ok()
                .and_then(|body| Some(body.get("code")?.as_str()?.to_owned()))
                .unwrap_or_default();
            RoundError::Status { status, code }
        }
        Error::Url(UrlError::NoHostName) => RoundError::unexpected("the URL names no host"),
        Error::ConnectionClosed | Error::AlreadyClosed => RoundError::unexpected("socket ended"),
        error => RoundError::Unexpected(format!("socket: {error}")),
    }
}

/// What published clients send at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// What is read at once: thousands of sockets share this process.
const READ_BYTES: usize = 8 * 1024;
/// Longer than any response of a sane server.
const RESPONSE_BYTES_MAX: usize = 512 * 1024 * 1024;
