//! How a server ends, and what a client that leaves does not undo.

use std::time::Duration;

use tidewater_server::ServerConfig;
use tidewater_wire::PushOutcome;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    client::{ALICE, SYNC, head, post, read_next},
    host::{Host, Setup},
    messages::{Device, outcome, push},
};

#[tokio::test]
async fn a_client_that_leaves_while_its_push_is_written_does_not_undo_it() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    host.store.hold();
    let request = device.request(vec![push("c1", &[("n1", "t1", "x")])]);
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    let length = format!("content-length: {}", request.len());
    stream
        .write_all(&head("POST", "/sync", &[ALICE, SYNC, &length]))
        .await
        .unwrap();
    stream.write_all(&request).await.unwrap();
    host.store.write_waits().await;
    let mut commits = host.server.engine().follow_commits();
    drop(stream);
    // The server has noticed before the write goes on.
    while host.server.usage().connections > 0 {
        tokio::task::yield_now().await;
    }
    host.store.release();
    assert_eq!(commits.recv().await.unwrap().commit_seq().get(), 1);
    let again = outcome(&post(host.address, &[], &request).await);
    assert_eq!(again, PushOutcome::Cached(1));
}

#[tokio::test]
async fn a_push_that_was_under_way_is_answered_before_the_server_ends() {
    let mut host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    host.store.hold();
    let request = device.request(vec![push("c1", &[("n1", "t1", "x")])]);
    let address = host.address;
    let pushing = tokio::spawn(async move { post(address, &[], &request).await });
    host.store.write_waits().await;
    host.begin_stop();
    // Nobody new is let in.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    host.store.release();
    assert_eq!(outcome(&pushing.await.unwrap()), PushOutcome::Applied(1));
    host.stopped().await;
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_the_server_up() {
    let mut host = Host::start().await;
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    stream
        .write_all(&head("GET", "/health", &[]))
        .await
        .unwrap();
    assert_eq!(read_next(&mut stream).await.status, 200);
    host.begin_stop();
    assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 0);
    drop(stream);
    host.stopped().await;
}

#[tokio::test]
async fn a_request_that_does_not_end_is_cut_off_in_the_end() {
    let mut config = ServerConfig::default();
    config.connections.drain_timeout = Duration::from_millis(50);
    let mut host = Host::start_with(Setup {
        config,
        ..Setup::default()
    })
    .await;
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    let request = head("POST", "/sync", &[ALICE, SYNC, "content-length: 100"]);
    stream.write_all(&request).await.unwrap();
    while host.server.usage().rounds == 0 {
        tokio::task::yield_now().await;
    }
    host.begin_stop();
    host.stopped().await;
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received).await;
    assert!(received.is_empty());
}
