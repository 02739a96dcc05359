//! What slow, silent and too many clients cannot do.

use std::time::Duration;

use tidewater_server::{ConnectionConfig, ServerConfig, Usage};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use crate::{
    client::{ALICE, SYNC, head, post, read_reply},
    host::{Host, Setup},
    messages::{ACCEPT_INLINE, Device, outcome, pull, push},
};

const SHORT: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);

async fn host_with(change: impl FnOnce(&mut ServerConfig)) -> Host {
    let mut config = ServerConfig::default();
    change(&mut config);
    Host::start_with(Setup {
        config,
        ..Setup::default()
    })
    .await
}

/// Waits until this holds for what is in use.
async fn until(host: &Host, holds: impl Fn(Usage) -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds(host.server.usage()) {
            tokio::task::yield_now().await;
        }
    });
    assert!(
        waited.await.is_ok(),
        "still in use: {:?}",
        host.server.usage()
    );
}

/// Waits until the server has nothing in use any more.
async fn idle(host: &Host) {
    until(host, |usage| {
        usage.connections + usage.rounds + usage.buffered_bytes == 0
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_finish_its_head_is_closed() {
    let host = host_with(|config| config.connections.header_timeout = SHORT).await;
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    stream
        .write_all(b"POST /sync HTTP/1.1\r\nhost:")
        .await
        .unwrap();
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received).await;
    assert!(received.is_empty() || received.starts_with(b"HTTP/1.1 408"));
    idle(&host).await;
}

#[tokio::test]
async fn a_client_that_says_nothing_is_closed() {
    let host = host_with(|config| config.connections.header_timeout = SHORT).await;
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received).await;
    idle(&host).await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    let host = host_with(|config| config.body_timeout = SHORT).await;
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    let request = head("POST", "/sync", &[ALICE, SYNC, "content-length: 100"]);
    stream.write_all(&request).await.unwrap();
    stream.write_all(b"SSP2").await.unwrap();
    read_reply(&mut stream)
        .await
        .check_failure(408, "sync.internal_error");
    drop(stream);
    idle(&host).await;
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cut_off_and_everything_it_held_is_free() {
    let host = host_with(|config| config.connections.write_timeout = SHORT).await;
    let device = Device::meet(host.address, "d1").await;
    let body = "x".repeat(60_000);
    for commit in 0..10 {
        let ids: Vec<String> = (0..50).map(|n| format!("n{commit}-{n}")).collect();
        let notes: Vec<_> = ids
            .iter()
            .map(|id| (id.as_str(), "t1", body.as_str()))
            .collect();
        device.push(&format!("c{commit}"), &notes).await;
    }
    let request = device.request(pull("t1", -1, ACCEPT_INLINE));
    let length = format!("content-length: {}", request.len());
    let mut streams = Vec::new();
    for _ in 0..20 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let mut stream = socket.connect(host.address).await.unwrap();
        stream
            .write_all(&head("POST", "/sync", &[ALICE, SYNC, &length]))
            .await
            .unwrap();
        stream.write_all(&request).await.unwrap();
        streams.push(stream);
    }
    idle(&host).await;
    // They were cut off in the middle: none of them got the whole response.
    for mut stream in streams {
        let mut received = Vec::new();
        let ended = stream.read_to_end(&mut received).await;
        assert!(ended.is_err() || received.len() < 30_000_000);
    }
}

#[tokio::test]
async fn a_connection_too_many_is_told_so_and_the_others_go_on() {
    let host = host_with(|config| config.connections.connections_max = 1).await;
    let mut first = TcpStream::connect(host.address).await.unwrap();
    first.write_all(&head("GET", "/health", &[])).await.unwrap();
    assert_eq!(crate::client::read_next(&mut first).await.status, 200);
    let refused = crate::client::get(host.address, "/health", &[]).await;
    refused.check_failure(429, "sync.rate_limited");
    assert_eq!(refused.header("retry-after"), Some("1"));
    first.write_all(&head("GET", "/health", &[])).await.unwrap();
    assert_eq!(crate::client::read_next(&mut first).await.status, 200);
}

#[tokio::test]
async fn a_round_too_many_is_refused_with_a_hint() {
    let host = host_with(|config| config.rounds_max = 1).await;
    let device = Device::meet(host.address, "d1").await;
    host.store.hold();
    let request = device.request(vec![push("c1", &[("n1", "t1", "x")])]);
    let address = host.address;
    let pushing = tokio::spawn({
        let request = request.clone();
        async move { post(address, &[], &request).await }
    });
    host.store.write_waits().await;
    let refused = post(host.address, &[], &request).await;
    refused.check_failure(429, "sync.rate_limited");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["details"]["retryAfterMs"], 1_000);
    host.store.release();
    outcome(&pushing.await.unwrap());
}

#[tokio::test]
async fn bodies_share_one_budget() {
    let host = host_with(|config| {
        config.request_bytes_max = 1_000;
        config.buffered_bytes_max = 1_500;
    })
    .await;
    let mut first = TcpStream::connect(host.address).await.unwrap();
    let request = head("POST", "/sync", &[ALICE, SYNC, "content-length: 1000"]);
    first.write_all(&request).await.unwrap();
    first.write_all(&[0; 900]).await.unwrap();
    until(&host, |usage| usage.buffered_bytes == 900).await;
    let refused = post(host.address, &[], &[0; 800]).await;
    refused.check_failure(429, "sync.rate_limited");
    post(host.address, &[], &[0; 500])
        .await
        .check_failure(400, "sync.invalid_request");
    drop(first);
    idle(&host).await;
}

#[test]
fn every_limit_has_a_default_that_bounds_it() {
    let config = ServerConfig::default();
    let ConnectionConfig {
        connections_max, ..
    } = config.connections;
    assert!(config.request_bytes_max <= config.buffered_bytes_max);
    assert!(config.rounds_max <= connections_max);
}
