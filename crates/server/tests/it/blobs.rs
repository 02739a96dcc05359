//! Blobs over HTTP: uploads, grants, downloads (§5.9.3, §5.9.5).

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tidewater_engine::{EngineConfig, Transfers};
use tidewater_objects::MemoryBlobs;
use tidewater_server::{ServerConfig, TransferConfig};
use tidewater_wire::{PushOutcome, content_address};
use tokio::io::AsyncWriteExt as _;

use crate::{
    client::{ALICE, Reply, exchange, get, head, post, read_reply, send},
    host::{Host, Setup},
    messages::{Device, outcome, push_file},
};

const EVE: &str = "authorization: Bearer eve";
const CAP: u64 = 1_000_000;

async fn host() -> Host {
    host_with(ServerConfig::default()).await
}

async fn host_with(config: ServerConfig) -> Host {
    Host::start_with(Setup {
        config,
        transfers: Transfers {
            blobs: Some(Arc::new(MemoryBlobs::new(64 << 20))),
            ..Transfers::default()
        },
        engine: EngineConfig {
            blob_bytes_max: CAP,
            ..EngineConfig::default()
        },
        ..Setup::default()
    })
    .await
}

fn path(content: &[u8]) -> String {
    format!("/blobs/{}", content_address(content))
}

async fn put(host: &Host, headers: &[&str], path: &str, body: &[u8]) -> Reply {
    send(
        host.address,
        "PUT",
        path,
        &[&[ALICE], headers].concat(),
        body,
    )
    .await
}

/// Stores content and a row of team `t1` that refers to it.
async fn store(host: &Host, content: &[u8]) {
    let reply = put(host, &["content-type: text/html"], &path(content), content).await;
    assert_eq!((reply.status, reply.body.len()), (200, 0), "{reply:?}");
    assert_eq!(
        refer(host, "f1", Some(content)).await,
        PushOutcome::Applied(1)
    );
}

async fn refer(host: &Host, id: &str, content: Option<&[u8]>) -> PushOutcome {
    let device = Device::meet(host.address, "d1").await;
    let commit = format!("c-{id}-{}", content.map_or(0, <[u8]>::len));
    let request = device.request(vec![push_file(&commit, id, "t1", content)]);
    outcome(&post(host.address, &[], &request).await)
}

#[tokio::test]
async fn a_blob_comes_back_as_bytes_of_no_type() {
    let host = host().await;
    let content = b"<script>alert(1)</script>";
    store(&host, content).await;
    let escaped = path(content).replace(':', "%3A");
    for path in [path(content), escaped] {
        let reply = get(host.address, &path, &["accept-encoding: gzip, zstd"]).await;
        assert_eq!((reply.status, &reply.body[..]), (200, &content[..]));
        let tag = format!("\"{}\"", content_address(content));
        for (name, value) in [
            ("content-type", Some("application/octet-stream")),
            ("content-disposition", Some("attachment")),
            ("x-content-type-options", Some("nosniff")),
            ("cache-control", Some("private, max-age=0")),
            ("vary", Some("Authorization, Accept-Encoding")),
            ("etag", Some(tag.as_str())),
            ("content-length", Some("25")),
            ("content-encoding", None),
        ] {
            assert_eq!(reply.header(name), value, "{name}");
        }
    }
    let known = format!("if-none-match: \"{}\"", content_address(content));
    let reply = get(host.address, &path(content), &[&known]).await;
    assert_eq!((reply.status, reply.body.len()), (304, 0));
    let part = get(host.address, &path(content), &["range: bytes=1-6"]).await;
    assert_eq!((part.status, &part.body[..]), (206, &b"script"[..]));
    let request = head("HEAD", &path(content), &[ALICE, "connection: close"]);
    let reply = exchange(host.address, &request).await;
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    assert_eq!(reply.header("content-length"), Some("25"));
    let counts = host.server.transfer_counts();
    assert_eq!((counts.blob_uploads, counts.blob_downloads), (1, 4));
}

#[tokio::test]
async fn a_blob_may_be_sent_compressed_and_is_measured_as_it_is() {
    let host = host().await;
    let content = "all work and no play ".repeat(1_000);
    let content = content.as_bytes();
    let gzip = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut encoder, content).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = zstd::encode_all(content, 3).unwrap();
    for (coding, body) in [("gzip", &gzip), ("zstd", &zstd)] {
        let coding = format!("content-encoding: {coding}");
        let reply = put(&host, &[&coding], &path(content), body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let cut = &body[..body.len() - 9];
        put(&host, &[&coding], &path(content), cut)
            .await
            .check_failure(400, "sync.invalid_request");
    }
    let bomb = zstd::encode_all(&vec![0u8; 4_000_000][..], 3).unwrap();
    put(&host, &["content-encoding: zstd"], &path(content), &bomb)
        .await
        .check_failure(413, "blob.too_large");
    put(&host, &["content-encoding: br"], &path(content), content)
        .await
        .check_failure(415, "sync.invalid_request");
}

#[tokio::test]
async fn content_that_is_not_what_its_id_says_is_refused() {
    let host = host().await;
    let wrong = path(b"something else");
    put(&host, &[], &wrong, b"content")
        .await
        .check_failure(400, "blob.hash_mismatch");
    for id in ["nonsense", "sha256:AB", "sha256:"] {
        put(&host, &[], &format!("/blobs/{id}"), b"content")
            .await
            .check_failure(400, "blob.hash_mismatch");
    }
    // Nothing of it can be referenced.
    let refused = refer(&host, "f1", Some(b"something else")).await;
    assert_eq!(refused, PushOutcome::Rejected);
}

#[tokio::test]
async fn a_blob_above_the_cap_is_refused_before_it_is_sent_or_while_it_is() {
    let host = host().await;
    let id = path(b"whatever");
    // Not a byte of it: the length is enough.
    let length = format!("content-length: {}", CAP + 1);
    let request = head("PUT", &id, &[ALICE, &length, "connection: close"]);
    exchange(host.address, &request)
        .await
        .check_failure(413, "blob.too_large");
    let chunked = ["transfer-encoding: chunked", "connection: close", ALICE];
    let mut request = head("PUT", &id, &chunked);
    let chunk = vec![7u8; 200_000];
    for _ in 0..6 {
        request.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        request.extend_from_slice(&chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    exchange(host.address, &request)
        .await
        .check_failure(413, "blob.too_large");
}

#[tokio::test]
async fn an_upload_that_breaks_off_or_stalls_leaves_nothing() {
    let host = host_with(ServerConfig {
        body_timeout: Duration::from_millis(50),
        ..ServerConfig::default()
    })
    .await;
    let content = b"0123456789";
    let mut stream = tokio::net::TcpStream::connect(host.address).await.unwrap();
    let length = "content-length: 10";
    let request = head("PUT", &path(content), &[ALICE, length, "connection: close"]);
    stream.write_all(&request).await.unwrap();
    stream.write_all(&content[..4]).await.unwrap();
    read_reply(&mut stream)
        .await
        .check_failure(408, "sync.internal_error");
    let mut stream = tokio::net::TcpStream::connect(host.address).await.unwrap();
    stream.write_all(&request).await.unwrap();
    stream.write_all(&content[..4]).await.unwrap();
    stream.shutdown().await.unwrap();
    read_reply(&mut stream).await;
    assert_eq!(host.server.usage().uploads, 0);
    let outcome = refer(&host, "f1", Some(content)).await;
    assert_eq!(outcome, PushOutcome::Rejected);
}

#[tokio::test]
async fn whether_a_blob_is_there_is_not_told_to_those_who_may_not_read_it() {
    let host = host().await;
    store(&host, b"secret").await;
    for content in [&b"secret"[..], b"never heard of"] {
        let known = format!("if-none-match: \"{}\"", content_address(content));
        let reply = send(host.address, "GET", &path(content), &[EVE, &known], b"").await;
        reply.check_failure(403, "blob.forbidden");
    }
    get(host.address, "/blobs/nonsense", &[])
        .await
        .check_failure(404, "blob.not_found");
    let anonymous = send(host.address, "GET", &path(b"secret"), &[], b"").await;
    anonymous.check_failure(401, "sync.auth_required");
    // What no row refers to any more is nobody's.
    assert_eq!(refer(&host, "f1", None).await, PushOutcome::Applied(2));
    get(host.address, &path(b"secret"), &[])
        .await
        .check_failure(403, "blob.forbidden");
}

#[tokio::test]
async fn a_grant_without_a_bucket_sends_the_upload_through_the_server() {
    let host = host().await;
    let grant = async |body: &str| {
        let path = format!("{}/upload-grant", path(b"content"));
        send(host.address, "POST", &path, &[ALICE], body.as_bytes()).await
    };
    let reply = grant(r#"{"byteLength":7,"mediaType":null}"#).await;
    assert_eq!((reply.status, reply.json()), (200, json!({})));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    grant(r#"{"byteLength":-1}"#)
        .await
        .check_failure(400, "sync.invalid_request");
    grant("").await.check_failure(400, "sync.invalid_request");
    grant(&format!(r#"{{"byteLength":{}}}"#, CAP + 1))
        .await
        .check_failure(413, "blob.too_large");
    let reply = send(
        host.address,
        "POST",
        "/blobs/nonsense/upload-grant",
        &[ALICE],
        br#"{"byteLength":7}"#,
    )
    .await;
    reply.check_failure(400, "blob.hash_mismatch");
}

#[tokio::test]
async fn a_host_without_blobs_has_none() {
    let host = Host::start().await;
    let content = b"content";
    put(&host, &[], &path(content), content)
        .await
        .check_failure(404, "blob.not_found");
    get(host.address, &path(content), &[])
        .await
        .check_failure(404, "blob.not_found");
    assert_eq!(
        refer(&host, "f1", Some(content)).await,
        PushOutcome::Rejected
    );
    let reply = send(host.address, "DELETE", &path(content), &[ALICE], b"").await;
    reply.check_failure(405, "sync.invalid_request");
    assert_eq!(reply.header("allow"), Some("GET, HEAD, PUT"));
}

#[tokio::test]
async fn uploads_are_bounded_and_those_too_many_are_told_when_to_come_back() {
    let host = host_with(ServerConfig {
        transfers: TransferConfig {
            uploads_max: 0,
            ..TransferConfig::default()
        },
        ..ServerConfig::default()
    })
    .await;
    let reply = put(&host, &[], &path(b"content"), b"content").await;
    reply.check_failure(429, "sync.rate_limited");
    assert_eq!(reply.header("retry-after"), Some("1"));
}
