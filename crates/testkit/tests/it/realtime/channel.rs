//! The channel without a client behind it, for tests that say each word themselves.

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tidewater_testkit::message::Answer;
use tidewater_wire::{
    Expect, MessageScanner,
    control::{ClientControl, DELTA_TAG, Hello, ROUND_TAG, ServerControl},
};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest as _, http::HeaderValue},
};

/// An open channel.
pub(crate) struct Channel {
    stream: WebSocketStream<TcpStream>,
    pub(crate) hello: Hello,
}

/// What the server said, pings aside.
#[derive(Debug)]
pub(crate) enum Said {
    Control(ServerControl),
    Delta(Answer),
    Chunk(Bytes),
    /// The code of its goodbye, if it said one.
    Goodbye(Option<u16>),
}

impl Channel {
    /// Opens the channel of a client below a mount.
    pub(crate) async fn open(mount: &str, actor: &str, client_id: &str) -> Self {
        let rest = mount.strip_prefix("http://").unwrap();
        let address = &rest[..rest.find('/').unwrap()];
        let url = format!("ws://{rest}/realtime?clientId={client_id}");
        let mut request = url.into_client_request().unwrap();
        let token = HeaderValue::try_from(format!("Bearer {actor}")).unwrap();
        request.headers_mut().insert("authorization", token);
        let tcp = TcpStream::connect(address).await.unwrap();
        let (mut stream, _) = client_async(request, tcp).await.unwrap();
        match said(&mut stream).await {
            Said::Control(ServerControl::Hello(hello)) => Self { stream, hello },
            other => panic!("not hello: {other:?}"),
        }
    }

    pub(crate) async fn next(&mut self) -> Said {
        said(&mut self.stream).await
    }

    /// The next delta; whatever else comes first is a failure.
    pub(crate) async fn delta(&mut self) -> Answer {
        match self.next().await {
            Said::Delta(delta) => delta,
            other => panic!("not a delta: {other:?}"),
        }
    }

    /// The next control message; whatever else comes first is a failure.
    pub(crate) async fn control(&mut self) -> ServerControl {
        match self.next().await {
            Said::Control(control) => control,
            other => panic!("not a control message: {other:?}"),
        }
    }

    /// Reads to the goodbye.
    pub(crate) async fn closed(&mut self) -> Option<u16> {
        loop {
            if let Said::Goodbye(code) = self.next().await {
                return code;
            }
        }
    }

    pub(crate) async fn say(&mut self, control: ClientControl) {
        let text = Message::text(control.to_text());
        self.stream.send(text).await.unwrap();
    }

    pub(crate) async fn ack(&mut self, cursor: i64) {
        self.say(ClientControl::Ack { cursor }).await;
    }

    pub(crate) async fn present(&mut self, key: &str, doc: Option<&str>) {
        self.say(ClientControl::Presence {
            scope_key: key.into(),
            doc: doc.map(Into::into),
        })
        .await;
    }

    /// Sends a request and waits for its response; what else is said meanwhile is passed over.
    pub(crate) async fn round(&mut self, request: &[u8]) -> Answer {
        let message = [&[ROUND_TAG], request].concat();
        self.stream.send(Message::binary(message)).await.unwrap();
        let mut scanner = MessageScanner::new(usize::MAX, Expect::Any);
        loop {
            match self.next().await {
                Said::Chunk(chunk) => {
                    if let Some(scanned) = scanner.push(&chunk).unwrap() {
                        assert_eq!(scanned.surplus, 0);
                        return Answer::read(&scanned.message).unwrap();
                    }
                }
                Said::Control(_) => {}
                other => panic!("this came during a round: {other:?}"),
            }
        }
    }
}

async fn said(stream: &mut WebSocketStream<TcpStream>) -> Said {
    loop {
        match stream.next().await {
            Some(Ok(Message::Text(text))) => {
                return Said::Control(ServerControl::parse(&text).unwrap());
            }
            Some(Ok(Message::Binary(bytes))) => {
                let rest = bytes.slice(1..);
                return match bytes[0] {
                    DELTA_TAG => Said::Delta(Answer::read(&rest).unwrap()),
                    ROUND_TAG => Said::Chunk(rest),
                    tag => panic!("an unknown tag: {tag}"),
                };
            }
            Some(Ok(Message::Close(frame))) => {
                return Said::Goodbye(frame.map(|frame| frame.code.into()));
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return Said::Goodbye(None),
        }
    }
}
