//! What happens before a request reaches the engine (§1.1, §1.3).

use tidewater_server::ServerConfig;

use crate::{
    client::{ALICE, SYNC, exchange, get, head, post, send},
    host::{Host, Setup},
    messages::{Device, pull, push, response},
};

#[tokio::test]
async fn a_wrong_content_type_is_refused_before_anybody_is_authenticated() {
    let host = Host::start().await;
    for content_type in ["content-type: application/json", "x-nothing: at all"] {
        let reply = send(host.address, "POST", "/sync", &[content_type], b"").await;
        reply.check_failure(415, "sync.invalid_request");
    }
}

#[tokio::test]
async fn the_content_type_is_compared_without_case_and_parameters() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let request = device.request(pull("t1", -1, 1));
    let content_type = "content-type: Application/VND.syncular.SYNC.v2 ; charset=binary";
    let reply = send(
        host.address,
        "POST",
        "/sync",
        &[ALICE, content_type],
        &request,
    )
    .await;
    response(&reply);
}

#[tokio::test]
async fn who_is_nobody_is_told_to_authenticate() {
    let host = Host::start().await;
    for headers in [&[SYNC][..], &[SYNC, "authorization: Bearer mallory"]] {
        let reply = send(host.address, "POST", "/sync", headers, b"garbage").await;
        reply.check_failure(401, "sync.auth_required");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    let path = format!("/segments/sha256:{}", "0".repeat(64));
    let reply = send(host.address, "GET", &path, &["if-none-match: *"], b"").await;
    reply.check_failure(401, "sync.auth_required");
}

#[tokio::test]
async fn an_identity_is_good_until_the_moment_it_expires() {
    let host = Host::start().await;
    let headers = [SYNC, "authorization: expires"];
    host.clock.set(1_999_999);
    let reply = send(host.address, "POST", "/sync", &headers, b"").await;
    reply.check_failure(400, "sync.invalid_request");
    host.clock.set(2_000_000);
    let reply = send(host.address, "POST", "/sync", &headers, b"").await;
    reply.check_failure(401, "sync.auth_required");
}

#[tokio::test]
async fn trouble_with_authentication_is_an_internal_error_without_its_text() {
    let config = ServerConfig {
        auth_timeout: std::time::Duration::from_millis(20),
        ..ServerConfig::default()
    };
    let host = Host::start_with(Setup {
        config,
        ..Setup::default()
    })
    .await;
    for trouble in ["panic", "fail", "hang"] {
        let authorization = format!("authorization: {trouble}");
        let reply = send(host.address, "POST", "/sync", &[SYNC, &authorization], b"").await;
        reply.check_failure(500, "sync.internal_error");
        assert_eq!(reply.json()["message"], "internal server error");
    }
    // The process took no harm.
    Device::meet(host.address, "d1").await;
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods_get_the_shape_of_every_failure() {
    let host = Host::start().await;
    for path in [
        "/",
        "/sync/",
        "/syncs",
        "/segments",
        "/segments/a/b",
        "/console/",
        "/%ff",
    ] {
        get(host.address, path, &[])
            .await
            .check_failure(404, "sync.not_found");
    }
    for (method, path, allow) in [
        ("GET", "/sync", "POST"),
        ("DELETE", "/sync", "POST"),
        ("POST", "/segments/x", "GET, HEAD"),
        ("PUT", "/health", "GET, HEAD"),
    ] {
        let reply = send(host.address, method, path, &[ALICE], b"").await;
        reply.check_failure(405, "sync.invalid_request");
        assert_eq!(reply.header("allow"), Some(allow), "{method} {path}");
    }
}

#[tokio::test]
async fn the_process_lives_whether_or_not_the_database_does() {
    let host = Host::start().await;
    assert_eq!(
        get(host.address, "/ready", &[]).await.json()["status"],
        "ready"
    );
    host.store.go_out();
    get(host.address, "/ready", &[])
        .await
        .check_failure(503, "sync.schema_not_ready");
    let health = send(host.address, "GET", "/health", &[], b"").await;
    assert_eq!(
        (health.status, health.json()["status"].as_str()),
        (200, Some("ok"))
    );
}

#[tokio::test]
async fn a_push_and_a_pull_go_through() {
    let host = Host::start().await;
    let alice = Device::meet(host.address, "d1").await;
    let frames = [
        vec![push("c1", &[("n1", "t1", "hello")])],
        pull("t1", -1, 1),
    ]
    .concat();
    let reply = post(host.address, &[], &alice.request(frames)).await;
    assert_eq!(reply.header("content-encoding"), None);
    assert_eq!(
        reply.header("content-length"),
        Some(reply.body.len().to_string().as_str())
    );
    assert!(response(&reply).frames.len() >= 4);
}

#[tokio::test]
async fn requests_follow_one_another_on_one_connection() {
    let host = Host::start().await;
    let mut stream = tokio::net::TcpStream::connect(host.address).await.unwrap();
    for _ in 0..3 {
        let request = head("GET", "/health", &[]);
        tokio::io::AsyncWriteExt::write_all(&mut stream, &request)
            .await
            .unwrap();
        assert_eq!(crate::client::read_next(&mut stream).await.status, 200);
    }
}

#[tokio::test]
async fn what_is_not_http_is_turned_away() {
    let host = Host::start().await;
    let reply = exchange(host.address, b"\x16\x03\x01 hello, is this TLS?\r\n\r\n").await;
    assert_eq!(reply.status, 400);
}
