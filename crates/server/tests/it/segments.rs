//! Segment downloads (§5.5).

use tidewater_wire::{ResponseFrame, content_address};

use crate::{
    client::{Reply, get, post, send},
    host::Host,
    messages::{ACCEPT_EXTERNAL, Device, pull, response},
};

const SCOPES: &str = "x-syncular-scopes: {\"team_id\":[\"t1\"]}";

/// A host with one segment, and the segment's id.
async fn host_with_segment(team: &str) -> (Host, String) {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let body = "some text ".repeat(500);
    device.push("c1", &[("n1", team, &body)]).await;
    let request = device.request(pull(team, -1, ACCEPT_EXTERNAL));
    let answer = response(&post(host.address, &[], &request).await);
    let found = answer.frames.iter().find_map(|frame| match frame {
        ResponseFrame::SegmentRef(segment) => Some(segment.segment_id.to_string()),
        _ => None,
    });
    (host, found.expect("a reference to a segment"))
}

fn check_headers(reply: &Reply, id: &str) {
    assert_eq!(reply.header("etag"), Some(format!("\"{id}\"").as_str()));
    assert_eq!(reply.header("cache-control"), Some("private, max-age=0"));
    assert_eq!(
        reply.header("vary"),
        Some("Authorization, X-Syncular-Scopes, Accept-Encoding")
    );
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
}

#[tokio::test]
async fn a_segment_comes_with_its_headers_whichever_way_its_id_is_written() {
    let (host, id) = host_with_segment("t1").await;
    for path in [
        format!("/segments/{id}"),
        format!("/segments/{}", id.replace(':', "%3A")),
    ] {
        let reply = get(host.address, &path, &[SCOPES]).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        check_headers(&reply, &id);
        assert_eq!(
            reply.header("content-type"),
            Some("application/octet-stream")
        );
        assert_eq!(content_address(&reply.body), id);
    }
}

#[tokio::test]
async fn a_segment_is_compressed_for_those_who_ask() {
    let (host, id) = host_with_segment("t1").await;
    let path = format!("/segments/{id}");
    let reply = get(host.address, &path, &[SCOPES, "accept-encoding: zstd"]).await;
    assert_eq!(reply.header("content-encoding"), Some("zstd"));
    check_headers(&reply, &id);
    let decoded = zstd::decode_all(&reply.body[..]).unwrap();
    assert_eq!(content_address(&decoded), id);
    assert!(reply.body.len() < decoded.len() / 4);
}

#[tokio::test]
async fn who_has_the_segment_already_gets_no_bytes() {
    let (host, id) = host_with_segment("t1").await;
    let path = format!("/segments/{id}");
    for known in [
        format!("\"{id}\""),
        format!("\"x\", W/\"{id}\""),
        "*".to_owned(),
    ] {
        let header = format!("if-none-match: {known}");
        let reply = get(host.address, &path, &[SCOPES, &header]).await;
        assert_eq!((reply.status, reply.body.len()), (304, 0), "{known}");
        check_headers(&reply, &id);
    }
    let reply = get(
        host.address,
        &path,
        &[SCOPES, "if-none-match: \"sha256:other\""],
    )
    .await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn having_the_segment_is_no_permission() {
    let (host, id) = host_with_segment("t1").await;
    let path = format!("/segments/{id}");
    let known = format!("if-none-match: \"{id}\"");
    let eve = "authorization: Bearer eve";
    let reply = send(host.address, "GET", &path, &[eve, SCOPES, &known], b"").await;
    reply.check_failure(403, "sync.forbidden");
    let other_team = "x-syncular-scopes: {\"team_id\":[\"t2\"]}";
    get(host.address, &path, &[other_team, &known])
        .await
        .check_failure(403, "sync.forbidden");
    // Without the header nothing is asked for, which is not everything.
    get(host.address, &path, &[&known])
        .await
        .check_failure(403, "sync.forbidden");
}

#[tokio::test]
async fn what_is_wrong_with_a_download_has_its_code() {
    let (host, id) = host_with_segment("t1").await;
    let unknown = format!("/segments/sha256:{}", "0".repeat(64));
    get(host.address, &unknown, &[SCOPES])
        .await
        .check_failure(404, "sync.not_found");
    let path = format!("/segments/{id}");
    for malformed in ["/segments/nonsense", "/segments/%ff", "/segments/sha256:.."] {
        get(host.address, malformed, &[SCOPES])
            .await
            .check_failure(404, "sync.not_found");
    }
    for (scopes, code) in [
        ("[]", "sync.invalid_request"),
        ("{", "sync.invalid_request"),
        ("{\"team_id\":\"t1\"}", "sync.invalid_request"),
        ("{\"other\":[\"t1\"]}", "sync.invalid_subscription"),
        ("{\"team_id\":[\"*\"]}", "sync.invalid_subscription"),
    ] {
        let header = format!("x-syncular-scopes: {scopes}");
        get(host.address, &path, &[&header])
            .await
            .check_failure(400, code);
    }
    host.clock.set(1_000_000 + 60_000);
    get(host.address, &path, &[SCOPES])
        .await
        .check_failure(404, "sync.segment_expired");
}

#[tokio::test]
async fn scopes_outside_ascii_may_be_utf_8_or_latin_1() {
    let (host, id) = host_with_segment("é").await;
    for value in ["é".as_bytes(), b"\xe9"] {
        let mut request = format!(
            "GET /segments/{id} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             authorization: Bearer eve\r\nx-syncular-scopes: {{\"team_id\":[\""
        )
        .into_bytes();
        request.extend_from_slice(value);
        request.extend_from_slice(b"\"]}\r\n\r\n");
        let reply = crate::client::exchange(host.address, &request).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}
