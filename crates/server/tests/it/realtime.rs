//! The realtime socket, from the upgrade to its end (§8.1, §8.5, §8.7). What comes out of the hub
//! is the engine's business and tested there.

use std::time::Duration;

use tidewater_server::{RealtimeConfig, ServerConfig};
use tidewater_wire::{ErrorFrame, PushOutcome, Response, ResponseFrame, control::ServerControl};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    client::{ALICE, get, head, read_next, send},
    host::{Host, Setup},
    messages::{ACCEPT_INLINE, Device, outcome_in, pull, push},
    socket::{Refused, Socket, tagged},
};

const SHORT: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);
const BEARER: (&str, &str) = ("authorization", "Bearer alice");

async fn host_with(change: impl FnOnce(&mut ServerConfig)) -> Host {
    let mut config = ServerConfig::default();
    change(&mut config);
    Host::start_with(Setup {
        config,
        ..Setup::default()
    })
    .await
}

async fn refused(host: &Host, path: &str, headers: &[(&'static str, &str)]) -> Refused {
    match Socket::try_open(host.address, path, headers).await {
        Ok(_) => panic!("the upgrade was agreed to"),
        Err(refused) => refused,
    }
}

#[track_caller]
fn check(refused: &Refused, status: u16, code: &str) {
    assert_eq!((refused.status, &*refused.code), (status, code));
}

/// Waits until this many sockets are open.
async fn until_open(host: &Host, sockets: usize) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while host.server.usage().sockets != sockets {
            tokio::task::yield_now().await;
        }
    });
    assert!(waited.await.is_ok(), "{:?}", host.server.usage());
}

fn error_in(response: &bytes::Bytes) -> ErrorFrame {
    let response = Response::decode(response).unwrap();
    assert!(matches!(response.frames[0], ResponseFrame::Header(_)));
    match response.frames.into_iter().nth(1) {
        Some(ResponseFrame::Error(error)) => error,
        other => panic!("no error: {other:?}"),
    }
}

#[tokio::test]
async fn hello_says_who_is_connected() {
    let host = Host::start().await;
    let socket = Socket::open(host.address, "d%201").await;
    assert_eq!(socket.hello.client_id, "d 1");
    assert_eq!(socket.hello.actor_id, "alice");
    assert!(socket.hello.requires_sync);
    assert_eq!(socket.protocol, None);
    until_open(&host, 1).await;
    drop(socket);
    until_open(&host, 0).await;
}

#[tokio::test]
async fn what_is_no_upgrade_is_told_so() {
    let host = Host::start().await;
    let reply = get(host.address, "/realtime?clientId=d1", &[]).await;
    reply.check_failure(426, "sync.invalid_request");
    let reply = send(host.address, "POST", "/realtime?clientId=d1", &[ALICE], b"").await;
    reply.check_failure(405, "sync.invalid_request");
    let old = [
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 8",
    ];
    let path = "/realtime?clientId=d1";
    let request = head("GET", path, &[ALICE, old[0], old[1], old[2]]);
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    stream.write_all(&request).await.unwrap();
    let reply = read_next(&mut stream).await;
    reply.check_failure(426, "sync.invalid_request");
}

#[tokio::test]
async fn an_upgrade_is_refused_with_the_catalogues_errors() {
    let host = Host::start().await;
    let path = "/realtime?clientId=d1";
    check(&refused(&host, path, &[]).await, 401, "sync.auth_required");
    let wrong = refused(&host, "/realtime", &[BEARER]).await;
    check(&wrong, 400, "sync.invalid_client_id");
    let wrong = refused(
        &host,
        "/realtime?clientId=%5B%22remote-command%22%2Cx",
        &[BEARER],
    )
    .await;
    check(&wrong, 400, "sync.invalid_client_id");
    let device = Device::meet(host.address, "d1").await;
    device.post(pull("t1", -1, ACCEPT_INLINE)).await;
    let bob = refused(&host, path, &[("authorization", "Bearer bob")]).await;
    check(&bob, 400, "sync.invalid_client_id");
    let page = [BEARER, ("origin", "https://evil.example")];
    check(&refused(&host, path, &page).await, 403, "sync.forbidden");
    until_open(&host, 0).await;
}

#[tokio::test]
async fn a_page_of_the_own_host_and_a_named_one_may_connect() {
    let host = host_with(|config| {
        config.allowed_origins = vec!["https://app.example".parse().unwrap()];
    })
    .await;
    let own = format!("http://{}", host.address);
    for origin in [own.as_str(), "https://app.example"] {
        let headers = [BEARER, ("origin", origin)];
        let opened = Socket::try_open(host.address, "/realtime?clientId=d1", &headers).await;
        assert!(opened.is_ok(), "{origin}");
    }
}

#[tokio::test]
async fn a_browser_shows_its_token_as_subprotocol_or_cookie() {
    let host = host_with(|config| config.realtime.token_cookie = Some("session".to_owned())).await;
    let path = "/realtime?clientId=d1";
    let offered = [("sec-websocket-protocol", "syncular, syncular.bearer.alice")];
    let socket = Socket::try_open(host.address, path, &offered)
        .await
        .unwrap();
    assert_eq!(socket.protocol.as_deref(), Some("syncular"));
    let cookie = [("cookie", "a=b; session=bob")];
    let socket = Socket::try_open(host.address, path, &cookie).await.unwrap();
    assert_eq!(socket.hello.actor_id, "bob");
}

#[tokio::test]
async fn a_ticket_opens_one_socket() {
    let host = Host::start().await;
    let reply = send(host.address, "POST", "/realtime/ticket", &[ALICE], b"").await;
    assert_eq!(reply.status, 200);
    let body = reply.json();
    assert_eq!(body["expiresAtMs"], 1_000_000 + 30_000);
    let path = format!(
        "/realtime?clientId=d1&ticket={}",
        body["ticket"].as_str().unwrap()
    );
    let socket = Socket::try_open(host.address, &path, &[]).await.unwrap();
    assert_eq!(socket.hello.actor_id, "alice");
    check(&refused(&host, &path, &[]).await, 401, "sync.auth_required");
    // A wrong ticket is not made up for by a right token.
    check(
        &refused(&host, &path, &[BEARER]).await,
        401,
        "sync.auth_required",
    );
    let reply = send(host.address, "POST", "/realtime/ticket", &[], b"").await;
    reply.check_failure(401, "sync.auth_required");
}

#[tokio::test]
async fn a_late_ticket_opens_nothing() {
    let host = Host::start().await;
    let reply = send(host.address, "POST", "/realtime/ticket", &[ALICE], b"").await;
    let body = reply.json();
    let path = format!(
        "/realtime?clientId=d1&ticket={}",
        body["ticket"].as_str().unwrap()
    );
    host.clock.set(1_030_000);
    check(&refused(&host, &path, &[]).await, 401, "sync.auth_required");
}

#[tokio::test]
async fn a_socket_too_many_is_refused_until_one_has_gone() {
    let host = host_with(|config| config.realtime.sockets_per_client_max = 2).await;
    let path = "/realtime?clientId=d1";
    let first = Socket::open(host.address, "d1").await;
    let _second = Socket::open(host.address, "d1").await;
    let third = refused(&host, path, &[BEARER]).await;
    check(&third, 429, "sync.websocket_connection_limit");
    assert_eq!(third.retry_after.as_deref(), Some("1"));
    let _other = Socket::open(host.address, "d2").await;
    drop(first);
    until_open(&host, 2).await;
    Socket::open(host.address, "d1").await;
}

#[tokio::test]
async fn a_round_is_put_together_from_chunks_of_any_size() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let mut socket = Socket::open(host.address, "d1").await;
    for (number, size) in [1, 7, 1_000_000].into_iter().enumerate() {
        let id = format!("c{number}");
        let mut frames = vec![push(&id, &[("n1", "t1", "x")])];
        frames.extend(pull("t1", -1, ACCEPT_INLINE));
        socket.chunks(&device.request(frames), size).await;
        let seq = i64::try_from(number).unwrap() + 1;
        let response = socket.response().await;
        assert_eq!(outcome_in(&response), PushOutcome::Applied(seq));
    }
    assert_eq!(host.server.usage().rounds, 0);
    assert_eq!(host.server.usage().buffered_bytes, 0);
}

#[tokio::test]
async fn what_a_client_sends_with_its_handshake_is_not_lost() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let request = device.request(vec![push("c1", &[("n1", "t1", "x")])]);
    let mut bytes = head(
        "GET",
        "/realtime?clientId=d1",
        &[
            ALICE,
            "connection: upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        ],
    );
    // A frame with a mask of zeros.
    bytes.extend([0x82, 0x80 | 126]);
    bytes.extend(u16::try_from(request.len() + 1).unwrap().to_be_bytes());
    bytes.extend([0, 0, 0, 0, 1]);
    bytes.extend_from_slice(&request);
    let mut commits = host.server.engine().follow_commits();
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    assert_eq!(commits.recv().await.unwrap().commit_seq().get(), 1);
}

#[tokio::test]
async fn a_round_that_is_refused_leaves_the_connection_open() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let other = Device::meet(host.address, "d2").await;
    let mut socket = Socket::open(host.address, "d1").await;
    let unknown = device.request(pull_of_unknown_table());
    let error = error_in(&socket.round(&unknown).await);
    assert_eq!(error.code, "sync.unknown_table");
    let foreign = other.request(pull("t1", -1, ACCEPT_INLINE));
    let error = error_in(&socket.round(&foreign).await);
    assert_eq!(error.code, "sync.invalid_client_id");
    let fine = device.request(vec![push("c1", &[("n1", "t1", "x")])]);
    assert_eq!(
        outcome_in(&socket.round(&fine).await),
        PushOutcome::Applied(1)
    );
}

fn pull_of_unknown_table() -> Vec<tidewater_wire::RequestFrame> {
    let mut frames = pull("t1", -1, ACCEPT_INLINE);
    for frame in &mut frames {
        if let tidewater_wire::RequestFrame::Subscription(subscription) = frame {
            subscription.table = "nothing".into();
        }
    }
    frames
}

#[tokio::test]
async fn a_round_too_many_is_told_to_come_back() {
    let host = host_with(|config| config.rounds_max = 1).await;
    let device = Device::meet(host.address, "d1").await;
    let mut first = Socket::open(host.address, "d1").await;
    let mut second = Socket::open(host.address, "d2").await;
    let other = Device::meet(host.address, "d2").await;
    host.store.hold();
    let request = device.request(vec![push("c1", &[("n1", "t1", "x")])]);
    first.chunks(&request, 100).await;
    host.store.write_waits().await;
    let request = other.request(vec![push("c1", &[("n2", "t1", "x")])]);
    let error = error_in(&second.round(&request).await);
    assert_eq!(error.code, "sync.rate_limited");
    assert!(error.details.unwrap().contains("retryAfterMs"));
    host.store.release();
    assert_eq!(outcome_in(&first.response().await), PushOutcome::Applied(1));
    assert_eq!(
        outcome_in(&second.round(&request).await),
        PushOutcome::Applied(2)
    );
}

async fn check_violation(host: &Host, message: Message) {
    let mut socket = Socket::open(host.address, "d1").await;
    socket.send(message.clone()).await;
    assert_eq!(socket.closed().await, 1008, "{message:?}");
}

#[tokio::test]
async fn violations_close_the_socket() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let request = device.request(pull("t1", -1, ACCEPT_INLINE));
    check_violation(&host, tagged(0, &request)).await;
    check_violation(&host, tagged(1, b"not a round")).await;
    check_violation(&host, tagged(1, &[&request[..], b"x"].concat())).await;
    check_violation(&host, Message::text(r#"{"event":"presence","data":{}}"#)).await;
    until_open(&host, 0).await;
}

#[tokio::test]
async fn what_nobody_understands_is_passed_over() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let mut socket = Socket::open(host.address, "d1").await;
    for text in [
        "",
        "no JSON",
        "[]",
        r#"{"type":"ack","cursor":1.5}"#,
        r#"{"event":"new"}"#,
    ] {
        socket.send(Message::text(text)).await;
    }
    socket.send(Message::binary(Vec::new())).await;
    socket.send(tagged(1, &[])).await;
    let request = device.request(vec![push("c1", &[("n1", "t1", "x")])]);
    assert_eq!(
        outcome_in(&socket.round(&request).await),
        PushOutcome::Applied(1)
    );
}

#[tokio::test]
async fn a_chunk_during_a_round_is_a_violation_and_undoes_nothing() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let mut socket = Socket::open(host.address, "d1").await;
    host.store.hold();
    let request = device.request(vec![push("c1", &[("n1", "t1", "x")])]);
    socket.chunks(&request, usize::MAX).await;
    host.store.write_waits().await;
    let mut commits = host.server.engine().follow_commits();
    socket.chunks(&request, usize::MAX).await;
    assert_eq!(socket.closed().await, 1008);
    host.store.release();
    assert_eq!(commits.recv().await.unwrap().commit_seq().get(), 1);
}

#[tokio::test]
async fn a_request_above_the_cap_closes_the_socket_before_it_is_all_there() {
    let host = host_with(|config| config.request_bytes_max = 1_000).await;
    let device = Device::meet(host.address, "d1").await;
    let mut socket = Socket::open(host.address, "d1").await;
    let body = "x".repeat(2_000);
    let request = device.request(vec![push("c1", &[("n1", "t1", &body)])]);
    socket.chunks(&request[..100], 100).await;
    assert_eq!(socket.closed().await, 1008);
    drop(socket);
    until_open(&host, 0).await;
    assert_eq!(host.server.usage().buffered_bytes, 0);
}

#[tokio::test]
async fn a_ping_is_answered_and_a_goodbye_returned() {
    let host = Host::start().await;
    let mut socket = Socket::open(host.address, "d1").await;
    socket.send(Message::Ping("are you there".into())).await;
    assert_eq!(socket.next().await, Message::Pong("are you there".into()));
    socket.stream.close(None).await.unwrap();
    assert_eq!(socket.closed().await, 1000);
    until_open(&host, 0).await;
}

#[tokio::test]
async fn a_heartbeat_comes_when_nothing_else_does() {
    let host = host_with(|config| config.realtime.heartbeat = SHORT).await;
    let mut socket = Socket::open(host.address, "d1").await;
    for _ in 0..3 {
        let beat = socket.control().await;
        assert_eq!(
            beat,
            ServerControl::Heartbeat {
                timestamp: 1_000_000
            }
        );
    }
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_given_up() {
    let host = host_with(|config| {
        config.realtime.heartbeat = SHORT;
        config.realtime.idle_timeout = 2 * SHORT;
    })
    .await;
    // Pings are answered only by who reads.
    let socket = Socket::open(host.address, "d1").await;
    until_open(&host, 0).await;
    assert_eq!(host.server.usage().sockets_dead, 1);
    drop(socket);
}

#[tokio::test]
async fn a_peer_that_does_not_read_its_response_is_cut_off_and_holds_little() {
    let host = host_with(|config| config.realtime.write_timeout = SHORT).await;
    let device = Device::meet(host.address, "d1").await;
    let body = "x".repeat(1_000_000);
    for number in 0..16 {
        let id = format!("n{number}");
        let frames = vec![push(&format!("c{number}"), &[(&id, "t1", &body)])];
        device.post(frames).await;
    }
    let mut socket = Socket::open_with(
        host.address,
        "/realtime?clientId=d1",
        &[BEARER],
        Some(4_096),
    )
    .await
    .unwrap();
    socket
        .chunks(&device.request(pull("t1", -1, ACCEPT_INLINE)), usize::MAX)
        .await;
    until_open(&host, 0).await;
    assert_eq!(host.server.usage().sockets_stuck, 1);
    assert_eq!(host.server.usage().rounds, 0);
}

#[tokio::test]
async fn a_message_that_does_not_end_closes_the_socket() {
    let host = host_with(|config| config.body_timeout = SHORT).await;
    let device = Device::meet(host.address, "d1").await;
    let mut socket = Socket::open(host.address, "d1").await;
    let request = device.request(pull("t1", -1, ACCEPT_INLINE));
    socket.chunks(&request[..20], 20).await;
    assert_eq!(socket.closed().await, 1008);
}

#[tokio::test]
async fn expired_credentials_end_the_socket_with_a_code_of_their_own() {
    let host = host_with(|config| config.realtime.heartbeat = SHORT).await;
    let path = "/realtime?clientId=d1";
    let headers = [("authorization", "expires")];
    let mut socket = Socket::try_open(host.address, path, &headers)
        .await
        .unwrap();
    assert!(matches!(
        socket.control().await,
        ServerControl::Heartbeat { .. }
    ));
    host.clock.set(2_000_000);
    assert_eq!(socket.closed().await, 3000);
    let late = refused(&host, path, &headers).await;
    check(&late, 401, "sync.auth_required");
}

#[tokio::test]
async fn an_old_socket_is_closed_after_its_round() {
    let host = host_with(|config| config.realtime.age_max = SHORT).await;
    let mut socket = Socket::open(host.address, "d1").await;
    assert_eq!(socket.closed().await, 1001);
}

#[tokio::test]
async fn a_server_that_stops_answers_the_round_and_sends_everybody_away() {
    let mut host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let mut busy = Socket::open(host.address, "d1").await;
    let mut idle = Socket::open(host.address, "d2").await;
    host.store.hold();
    let request = device.request(vec![push("c1", &[("n1", "t1", "x")])]);
    busy.chunks(&request, usize::MAX).await;
    host.store.write_waits().await;
    host.begin_stop();
    assert_eq!(idle.closed().await, 1001);
    host.store.release();
    assert_eq!(outcome_in(&busy.response().await), PushOutcome::Applied(1));
    assert_eq!(busy.closed().await, 1001);
    drop((busy, idle));
    host.stopped().await;
}

#[tokio::test]
async fn a_socket_that_does_not_end_is_cut_off_with_the_server() {
    let mut host = host_with(|config| {
        config.connections.drain_timeout = SHORT;
        config.realtime = RealtimeConfig {
            drain_spread: Duration::ZERO,
            ..RealtimeConfig::default()
        };
    })
    .await;
    // It reads nothing, so it does not say goodbye.
    let socket = Socket::open(host.address, "d1").await;
    host.begin_stop();
    host.stopped().await;
    let mut tcp = socket.stream.into_inner();
    let mut rest = Vec::new();
    let _ = tcp.read_to_end(&mut rest).await;
    assert_eq!(rest[0], 0x88);
}

#[tokio::test]
async fn scopes_are_refreshed_for_whoever_has_the_admin_token() {
    let path = "/admin/refresh-scopes";
    let body = br#"{"partition":"p","actorId":"alice"}"#;
    let host = Host::start().await;
    let reply = send(
        host.address,
        "POST",
        path,
        &["authorization: Bearer root"],
        body,
    )
    .await;
    reply.check_failure(404, "sync.not_found");
    let host = Host::start_with(Setup {
        admin_token: Some("root"),
        ..Setup::default()
    })
    .await;
    let send = async |token: &str, body: &[u8]| {
        let authorization = format!("authorization: Bearer {token}");
        send(host.address, "POST", path, &[&authorization], body).await
    };
    let reply = send("alice", body).await;
    reply.check_failure(401, "sync.auth_required");
    let reply = send("root", br#"{"actorId":"alice"}"#).await;
    reply.check_failure(400, "sync.invalid_request");
    assert_eq!(send("root", body).await.status, 200);
    assert_eq!(send("root", br#"{"partition":"p"}"#).await.status, 200);
}
