//! A WebSocket client that says what it got.

use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tidewater_wire::{
    Expect, MessageScanner,
    control::{Hello, ROUND_TAG, ServerControl},
};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message, client::IntoClientRequest as _, http},
};

/// An open socket.
pub(crate) struct Socket {
    pub(crate) stream: WebSocketStream<TcpStream>,
    pub(crate) hello: Hello,
    pub(crate) protocol: Option<String>,
}

/// A refused upgrade.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) retry_after: Option<String>,
}

impl Socket {
    /// Opens a socket as alice.
    pub(crate) async fn open(address: SocketAddr, client: &str) -> Self {
        let path = format!("/realtime?clientId={client}");
        let opened = Self::try_open(address, &path, &[("authorization", "Bearer alice")]).await;
        opened.unwrap()
    }

    pub(crate) async fn try_open(
        address: SocketAddr,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Self, Refused> {
        Self::open_with(address, path, headers, None).await
    }

    /// Opens a socket with a small window, so that little is taken by who does not read.
    pub(crate) async fn open_with(
        address: SocketAddr,
        path: &str,
        headers: &[(&'static str, &str)],
        receive_buffer: Option<u32>,
    ) -> Result<Self, Refused> {
        let tcp = TcpSocket::new_v4().unwrap();
        if let Some(bytes) = receive_buffer {
            tcp.set_recv_buffer_size(bytes).unwrap();
        }
        let tcp = tcp.connect(address).await.unwrap();
        let mut request = format!("ws://{address}{path}")
            .into_client_request()
            .unwrap();
        for (name, value) in headers {
            let value = http::HeaderValue::from_str(value).unwrap();
            request.headers_mut().append(*name, value);
        }
        match client_async(request, tcp).await {
            Ok((mut stream, response)) => {
                let protocol = response.headers().get("sec-websocket-protocol");
                let protocol = protocol.map(|value| value.to_str().unwrap().to_owned());
                let hello = match text(&mut stream).await {
                    ServerControl::Hello(hello) => hello,
                    other => panic!("not hello: {other:?}"),
                };
                Ok(Self {
                    stream,
                    hello,
                    protocol,
                })
            }
            Err(Error::Http(response)) => {
                let header = response.headers().get("retry-after");
                let body = response.body().as_deref().unwrap_or_default();
                let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
                Err(Refused {
                    status: response.status().as_u16(),
                    code: body["code"].as_str().unwrap_or_default().to_owned(),
                    retry_after: header.map(|value| value.to_str().unwrap().to_owned()),
                })
            }
            Err(error) => panic!("no answer to the upgrade: {error}"),
        }
    }

    pub(crate) async fn send(&mut self, message: Message) {
        self.stream.send(message).await.unwrap();
    }

    /// Sends chunks of a round.
    pub(crate) async fn chunks(&mut self, bytes: &[u8], size: usize) {
        for chunk in bytes.chunks(size) {
            self.send(tagged(ROUND_TAG, chunk)).await;
        }
    }

    /// The response of the round in flight; everything else is passed over.
    pub(crate) async fn response(&mut self) -> Bytes {
        let mut scanner = MessageScanner::new(usize::MAX, Expect::Any);
        loop {
            if let Message::Binary(bytes) = self.next().await {
                assert_eq!(bytes.first(), Some(&ROUND_TAG));
                if let Some(scanned) = scanner.push(&bytes[1..]).unwrap() {
                    assert_eq!(scanned.surplus, 0);
                    return scanned.message;
                }
            }
        }
    }

    pub(crate) async fn round(&mut self, request: &[u8]) -> Bytes {
        self.chunks(request, 64 * 1024).await;
        self.response().await
    }

    pub(crate) async fn next(&mut self) -> Message {
        self.stream.next().await.unwrap().unwrap()
    }

    pub(crate) async fn control(&mut self) -> ServerControl {
        text(&mut self.stream).await
    }

    /// The code with which the server says goodbye, whatever comes before.
    pub(crate) async fn closed(&mut self) -> u16 {
        loop {
            match self.stream.next().await {
                Some(Ok(Message::Close(Some(frame)))) => return frame.code.into(),
                Some(Ok(_)) => {}
                ended => panic!("no goodbye: {ended:?}"),
            }
        }
    }
}

async fn text(stream: &mut WebSocketStream<TcpStream>) -> ServerControl {
    loop {
        match stream.next().await.unwrap().unwrap() {
            Message::Text(text) => return ServerControl::parse(&text).unwrap(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("not a control message: {other:?}"),
        }
    }
}

/// A binary message of the channel.
pub(crate) fn tagged(tag: u8, payload: &[u8]) -> Message {
    Message::binary([&[tag], payload].concat())
}
