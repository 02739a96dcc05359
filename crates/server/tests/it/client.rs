//! The plainest of HTTP clients: writes bytes, reads what comes back.

use std::net::SocketAddr;

use bytes::Bytes;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

pub(crate) const SYNC: &str = "content-type: application/vnd.syncular.sync.v2";
pub(crate) const ALICE: &str = "authorization: Bearer alice";

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(key, _)| key == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} is there twice");
        value
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// Checks the status and the code of a failure, and that its body has the one shape.
    #[track_caller]
    pub(crate) fn check_failure(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        let body = self.json();
        let members: Vec<&str> = body
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let shape = [
            "code",
            "category",
            "retryable",
            "recommendedAction",
            "message",
            "details",
        ];
        assert_eq!(members, shape[..members.len()], "{body}");
        assert!(members.len() >= 5, "{body}");
        assert_eq!(body["code"], code, "{body}");
    }
}

/// The head of a request.
pub(crate) fn head(method: &str, path: &str, headers: &[&str]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n");
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    head.into_bytes()
}

/// Sends one request on a connection of its own.
pub(crate) async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> Reply {
    let length = format!("content-length: {}", body.len());
    let headers = [headers, &[&length, "connection: close"]].concat();
    let mut request = head(method, path, &headers);
    request.extend_from_slice(body);
    exchange(address, &request).await
}

/// `GET` as alice.
pub(crate) async fn get(address: SocketAddr, path: &str, headers: &[&str]) -> Reply {
    send(address, "GET", path, &[&[ALICE], headers].concat(), b"").await
}

/// `POST /sync` as alice.
pub(crate) async fn post(address: SocketAddr, headers: &[&str], body: &[u8]) -> Reply {
    send(
        address,
        "POST",
        "/sync",
        &[&[ALICE, SYNC], headers].concat(),
        body,
    )
    .await
}

/// Writes a request and reads until the server closes.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A server that has answered may stop reading: what it said is what counts.
    let _ = stream.write_all(request).await;
    read_reply(&mut stream).await
}

/// Reads one response, to its end or to the end of the connection.
pub(crate) async fn read_reply(stream: &mut TcpStream) -> Reply {
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received).await;
    parse(&received)
}

/// Reads the response to a request on a connection that stays open.
pub(crate) async fn read_next(stream: &mut TcpStream) -> Reply {
    let mut received = Vec::new();
    loop {
        if let Some(end) = find(&received, b"\r\n\r\n") {
            let head = str::from_utf8(&received[..end])
                .unwrap()
                .to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1).expect("a length");
            let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
            while received.len() < end + 4 + length {
                assert!(
                    stream.read_buf(&mut received).await.unwrap() > 0,
                    "cut short"
                );
            }
            return parse(&received);
        }
        assert!(
            stream.read_buf(&mut received).await.unwrap() > 0,
            "no response"
        );
    }
}

fn parse(received: &[u8]) -> Reply {
    let end = find(received, b"\r\n\r\n")
        .unwrap_or_else(|| panic!("no response: {:?}", String::from_utf8_lossy(received)));
    let head = str::from_utf8(&received[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        })
        .collect();
    let body = &received[end + 4..];
    let chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
    let body = if chunked {
        dechunk(body)
    } else {
        body.to_vec()
    };
    Reply {
        status,
        headers,
        body: body.into(),
    }
}

fn dechunk(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let line = find(body, b"\r\n").expect("a complete chunked body");
        let size = usize::from_str_radix(str::from_utf8(&body[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return whole;
        }
        whole.extend_from_slice(&body[line + 2..line + 2 + size]);
        body = &body[line + 2 + size + 2..];
    }
}

pub(crate) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}
