//! The console's page, overview and feed.

use serde_json::Value;
use tidewater_server::{ConsoleAccess, Secret};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    client::{find, get, head, post, send},
    host::{Host, Setup},
    messages::{ACCEPT_INLINE, Device, pull},
    socket::Socket,
};

async fn host(access: ConsoleAccess) -> Host {
    Host::start_with(Setup {
        console: Some(access),
        ..Setup::default()
    })
    .await
}

/// A feed that is being read.
struct Feed {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Feed {
    async fn open(host: &Host) -> Self {
        let mut stream = TcpStream::connect(host.address).await.unwrap();
        stream
            .write_all(&head("GET", "/console/events", &[]))
            .await
            .unwrap();
        let mut feed = Self {
            stream,
            received: Vec::new(),
        };
        feed.until(b"\r\n\r\n").await;
        feed
    }

    /// Reads until something is there and forgets what was before it.
    async fn until(&mut self, wanted: &[u8]) {
        loop {
            if let Some(at) = find(&self.received, wanted) {
                self.received.drain(..at + wanted.len());
                return;
            }
            assert!(
                self.stream.read_buf(&mut self.received).await.unwrap() > 0,
                "the feed ended"
            );
        }
    }

    async fn next_commit(&mut self) -> Value {
        self.until(b"event: commit\ndata: ").await;
        loop {
            if let Some(end) = find(&self.received, b"\n\n") {
                return serde_json::from_slice(&self.received[..end]).unwrap();
            }
            assert!(
                self.stream.read_buf(&mut self.received).await.unwrap() > 0,
                "the feed ended"
            );
        }
    }
}

#[tokio::test]
async fn without_a_console_there_is_nothing_there() {
    let host = Host::start().await;
    for path in ["/console", "/console/", "/console/state", "/console/events"] {
        get(host.address, path, &[])
            .await
            .check_failure(404, "sync.not_found");
    }
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let host = host(ConsoleAccess::Loopback).await;
    for path in ["/console", "/console/"] {
        let page = get(host.address, path, &[]).await;
        assert_eq!(
            page.header("content-type"),
            Some("text/html; charset=utf-8")
        );
        assert!(
            page.header("content-security-policy")
                .unwrap()
                .contains("default-src 'none'")
        );
        let page = String::from_utf8(page.body.to_vec()).unwrap();
        assert!(!page.contains("https://") && !page.contains("innerHTML"));
    }
}

#[tokio::test]
async fn the_overview_shows_partitions_with_their_devices() {
    let host = host(ConsoleAccess::Loopback).await;
    let device = Device::meet(host.address, "d1").await;
    device.push("c1", &[("n1", "t1", "x")]).await;
    post(
        host.address,
        &[],
        &device.request(pull("t1", -1, ACCEPT_INLINE)),
    )
    .await;
    host.server.engine().flush_activity().await.unwrap();
    let _socket = Socket::open(host.address, "d1").await;
    let state = get(host.address, "/console/state", &[]).await.json();
    assert_eq!(
        (
            &state["pushes"]["transactions"],
            &state["pushes"]["commits"]
        ),
        (&1.into(), &1.into())
    );
    assert_eq!(state["usage"]["sockets"], 1);
    assert_eq!(state["realtime"]["sessions"], 1);
    assert_eq!(state["realtime"]["suppressedSessions"], 0);
    let partition = &state["partitions"][0];
    assert_eq!(
        (&partition["partition"], &partition["head"]),
        (&"p".into(), &1.into())
    );
    let client = &partition["clients"][0];
    assert_eq!(
        (&client["clientId"], &client["actor"]),
        (&"d1".into(), &"alice".into())
    );
    assert_eq!((&client["cursor"], &client["lag"]), (&1.into(), &0.into()));
    assert_eq!(client["subscriptions"][0]["scopes"]["team_id"][0], "t1");
}

#[tokio::test]
async fn commits_arrive_as_they_land_and_late_watchers_see_the_last_ones() {
    let host = host(ConsoleAccess::Loopback).await;
    let device = Device::meet(host.address, "d1").await;
    let mut early = Feed::open(&host).await;
    device
        .push("c1", &[("n1", "t1", "hello"), ("n2", "t1", "again")])
        .await;
    let commit = early.next_commit().await;
    assert_eq!(
        (&commit["commitSeq"], &commit["actor"]),
        (&1.into(), &"alice".into())
    );
    assert_eq!(
        (&commit["client"], &commit["changeCount"]),
        (&"d1".into(), &2.into())
    );
    let change = &commit["changes"][0];
    assert_eq!(
        (&change["table"], &change["rowId"]),
        (&"notes".into(), &"n1".into())
    );
    assert_eq!(
        (&change["op"], &change["inserted"]),
        (&"upsert".into(), &true.into())
    );
    assert_eq!(change["row"]["body"], "hello");
    assert_eq!(
        change["row"]["photo"],
        serde_json::json!({"kind": "bytes", "size": 9})
    );

    device
        .push("c2", &[("n1", "t1", &"long".repeat(1_000))])
        .await;
    let mut late = Feed::open(&host).await;
    assert_eq!(late.next_commit().await["commitSeq"], 1);
    let second = late.next_commit().await;
    assert_eq!(second["changes"][0]["inserted"], false);
    assert!(
        second["changes"][0]["row"]["body"]
            .as_str()
            .unwrap()
            .ends_with('…')
    );
    assert_eq!(early.next_commit().await["commitSeq"], 2);
}

#[tokio::test]
async fn the_number_of_watchers_is_bounded() {
    let host = host(ConsoleAccess::Loopback).await;
    let mut feeds = Vec::new();
    for _ in 0..32 {
        feeds.push(Feed::open(&host).await);
    }
    get(host.address, "/console/events", &[])
        .await
        .check_failure(429, "sync.rate_limited");
}

#[tokio::test]
async fn data_is_for_whoever_has_the_token() {
    let host = host(ConsoleAccess::Token(Secret::new("s3cret"))).await;
    for path in ["/console/state", "/console/events"] {
        for authorization in [
            "x: y",
            "authorization: Bearer alice",
            "authorization: Bearer ",
        ] {
            let reply = send(host.address, "GET", path, &[authorization], b"").await;
            reply.check_failure(401, "sync.auth_required");
        }
    }
    let admin = ["authorization: Bearer s3cret"];
    assert_eq!(
        send(host.address, "GET", "/console/state", &admin, b"")
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_page_of_another_site_cannot_borrow_this_machines_name() {
    let host = host(ConsoleAccess::Loopback).await;
    let request = b"GET /console/state HTTP/1.1\r\nhost: evil.example:8787\r\n\
                    connection: close\r\n\r\n";
    let reply = crate::client::exchange(host.address, request).await;
    reply.check_failure(401, "sync.auth_required");
}

#[tokio::test]
async fn an_open_feed_does_not_hold_the_server_up() {
    let mut host = host(ConsoleAccess::Loopback).await;
    let mut feed = Feed::open(&host).await;
    host.begin_stop();
    let _ = feed.stream.read_to_end(&mut feed.received).await;
    drop(feed);
    host.stopped().await;
}
