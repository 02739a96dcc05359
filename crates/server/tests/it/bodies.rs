//! Request bodies that are wrong, hostile or compressed.

use std::io::Write as _;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use tidewater_server::ServerConfig;
use tidewater_wire::PushOutcome;

use crate::{
    client::{ALICE, SYNC, exchange, head, post},
    host::{Host, Setup},
    messages::{Device, outcome, pull, pull_of, push, response},
};

type Encode = fn(&[u8]) -> Vec<u8>;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

async fn small_host() -> Host {
    let config = ServerConfig {
        request_bytes_max: 64 * 1024,
        ..ServerConfig::default()
    };
    Host::start_with(Setup {
        config,
        ..Setup::default()
    })
    .await
}

#[tokio::test]
async fn every_prefix_of_a_request_is_refused_and_none_of_them_writes() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let request = device.request(vec![push("c1", &[("n1", "t1", "hello")])]);
    for end in 0..request.len() {
        let reply = post(host.address, &[], &request[..end]).await;
        reply.check_failure(400, "sync.invalid_request");
    }
    let outcome = outcome(&post(host.address, &[], &request).await);
    assert_eq!(outcome, PushOutcome::Applied(1));
}

#[tokio::test]
async fn bytes_that_are_no_request_have_their_code() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let good = device.request(pull("t1", -1, 1));
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.to_vec();
        bytes[at] = byte;
        bytes
    };
    let answer = post(host.address, &[], &good).await.body;
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("text", b"hello, I would like to sync please".to_vec()),
        ("wrong magic", changed(0, b'X')),
        ("a wire version of the future", changed(4, 9)),
        ("a response", answer.to_vec()),
        ("bytes after the end", [&good[..], b"x"].concat()),
        ("a frame longer than the message", changed(9, 0xff)),
        ("a frame of 4 GiB", changed(12, 0xff)),
        ("zeros", vec![0; 4_096]),
    ] {
        let reply = post(host.address, &[], &bytes).await;
        assert_eq!(reply.status, 400, "{what}: {reply:?}");
        reply.check_failure(400, "sync.invalid_request");
    }
}

#[tokio::test]
async fn a_version_nobody_speaks_is_told_which_ones_are() {
    let host = Host::start().await;
    let mut bytes = Device::meet(host.address, "d1")
        .await
        .request(pull("t1", -1, 1))
        .to_vec();
    bytes[4] = 9;
    let reply = post(host.address, &[], &bytes).await;
    assert_eq!(
        reply.json()["details"]["supportedWireVersions"],
        serde_json::json!([1, 2, 3])
    );
}

#[tokio::test]
async fn requests_that_decode_and_make_no_sense_have_codes_of_their_own() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let unknown_table = device.request(pull_of("nonsense", "t1", -1, 1));
    post(host.address, &[], &unknown_table)
        .await
        .check_failure(400, "sync.unknown_table");
    let star = device.request(pull("*", -1, 1));
    post(host.address, &[], &star)
        .await
        .check_failure(400, "sync.invalid_subscription");
    let too_many: Vec<_> = (0..501).map(|_| ("n1", "t1", "x")).collect();
    let too_many = device.request(vec![push("c1", &too_many)]);
    let reply = post(host.address, &[], &too_many).await;
    reply.check_failure(400, "sync.too_many_operations");
}

#[tokio::test]
async fn compressed_requests_are_read() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let body = "x".repeat(200_000);
    let encodings: [(&str, Encode); 4] = [
        ("gzip", gzip),
        ("X-GZIP", gzip),
        ("zstd", zstd),
        ("identity", <[u8]>::to_vec),
    ];
    for (number, (encoding, encode)) in encodings.into_iter().enumerate() {
        let request = device.request(vec![push(encoding, &[("n1", "t1", &body)])]);
        let header = format!("content-encoding: {encoding}");
        let reply = post(host.address, &[&header], &encode(&request)).await;
        let seq = i64::try_from(number + 1).unwrap();
        assert_eq!(outcome(&reply), PushOutcome::Applied(seq), "{encoding}");
    }
}

#[tokio::test]
async fn an_encoding_that_is_unknown_or_a_lie_is_refused() {
    let host = Host::start().await;
    let request = Device::meet(host.address, "d1")
        .await
        .request(pull("t1", -1, 1));
    for encoding in ["br", "deflate", "gzip, zstd"] {
        let header = format!("content-encoding: {encoding}");
        let reply = post(host.address, &[&header], &request).await;
        reply.check_failure(415, "sync.invalid_request");
    }
    for encoding in ["gzip", "zstd"] {
        let header = format!("content-encoding: {encoding}");
        let plain = post(host.address, &[&header], &request).await;
        plain.check_failure(400, "sync.invalid_request");
        let empty = post(host.address, &[&header], b"").await;
        empty.check_failure(400, "sync.invalid_request");
    }
    for (header, encoded) in [
        ("content-encoding: gzip", gzip(&request)),
        ("content-encoding: zstd", zstd(&request)),
    ] {
        let reply = post(host.address, &[header], &encoded[..encoded.len() - 1]).await;
        reply.check_failure(400, "sync.invalid_request");
    }
}

#[tokio::test]
async fn a_body_may_be_as_large_as_the_cap_and_no_larger() {
    let host = small_host().await;
    let at_the_cap = vec![0; 64 * 1024];
    post(host.address, &[], &at_the_cap)
        .await
        .check_failure(400, "sync.invalid_request");
    let above = vec![0; 64 * 1024 + 1];
    post(host.address, &[], &above)
        .await
        .check_failure(413, "sync.invalid_request");
    for (header, encoded) in [
        ("content-encoding: gzip", gzip(&above)),
        ("content-encoding: zstd", zstd(&above)),
        // A thousandfold: the bytes of the cap are all that is ever made of it.
        ("content-encoding: gzip", gzip(&vec![0; 8_000_000])),
        ("content-encoding: zstd", zstd(&vec![0; 8_000_000])),
    ] {
        assert!(encoded.len() < 64 * 1024);
        post(host.address, &[header], &encoded)
            .await
            .check_failure(413, "sync.invalid_request");
    }
    assert_eq!(host.server.usage().buffered_bytes, 0);
}

#[tokio::test]
async fn a_declared_length_above_the_cap_is_refused_before_the_body_comes() {
    let host = small_host().await;
    for length in ["65537", "99999999999", "1844674407370955161"] {
        let length = format!("content-length: {length}");
        let request = head("POST", "/sync", &[ALICE, SYNC, &length]);
        let reply = exchange(host.address, &request).await;
        reply.check_failure(413, "sync.invalid_request");
        assert_eq!(reply.json()["details"]["bytesMax"], 65_536);
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_is_counted_as_it_comes() {
    let host = small_host().await;
    let mut request = head(
        "POST",
        "/sync",
        &[ALICE, SYNC, "transfer-encoding: chunked"],
    );
    for _ in 0..17 {
        request.extend_from_slice(b"1000\r\n");
        request.extend_from_slice(&[0; 4_096]);
        request.extend_from_slice(b"\r\n");
    }
    // The end is never sent: the answer does not wait for it.
    exchange(host.address, &request)
        .await
        .check_failure(413, "sync.invalid_request");
}

#[tokio::test]
async fn a_client_that_sends_far_too_much_still_hears_why() {
    let host = small_host().await;
    let body = Bytes::from(vec![0; 4_000_000]);
    post(host.address, &[], &body)
        .await
        .check_failure(413, "sync.invalid_request");
}

#[tokio::test]
async fn a_request_in_many_pieces_is_one_request() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let body = device.request(pull("t1", -1, 1));
    let mut request = head(
        "POST",
        "/sync",
        &[
            ALICE,
            SYNC,
            "transfer-encoding: chunked",
            "connection: close",
        ],
    );
    for byte in &body {
        request.extend_from_slice(b"1\r\n");
        request.push(*byte);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    response(&exchange(host.address, &request).await);
}
