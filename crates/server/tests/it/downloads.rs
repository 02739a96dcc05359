//! What is downloaded: in part, compressed once for all, and by signed URLs (§5.4, §5.5, §5.8).

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tidewater_engine::{Transfers, UrlSource};
use tidewater_objects::SigningKeys;
use tidewater_server::{ServerConfig, TransferConfig};
use tidewater_wire::{ResponseFrame, SegmentRef, content_address};

use crate::{
    client::{get, head, post, read_next, send},
    host::{Host, Setup},
    messages::{Device, pull, response},
};

const SCOPES: &str = "x-syncular-scopes: {\"team_id\":[\"t1\"]}";
/// References, with URLs where there are any.
const ACCEPT_URLS: u8 = 0b1010;
const KEY: &[u8; 32] = b"a key of exactly thirty-two byte";

/// A reference to the first page of `notes` notes of 500 bytes.
async fn publish(host: &Host, notes: usize) -> SegmentRef {
    let device = Device::meet(host.address, "d1").await;
    let body = "some text ".repeat(50);
    let ids: Vec<String> = (0..notes).map(|n| format!("n{n:04}")).collect();
    for (commit, ids) in ids.chunks(200).enumerate() {
        let notes: Vec<_> = ids.iter().map(|id| (id.as_str(), "t1", &*body)).collect();
        device.push(&format!("c{commit}"), &notes).await;
    }
    refer(host, &device).await
}

async fn refer(host: &Host, device: &Device) -> SegmentRef {
    let request = device.request(pull("t1", -1, ACCEPT_URLS));
    let answer = response(&post(host.address, &[], &request).await);
    let found = answer.frames.into_iter().find_map(|frame| match frame {
        ResponseFrame::SegmentRef(segment) => Some(segment),
        _ => None,
    });
    found.expect("a reference to a segment")
}

fn path(reference: &SegmentRef) -> String {
    format!("/segments/{}", reference.segment_id)
}

#[tokio::test]
async fn a_download_that_broke_off_goes_on_where_it_was() {
    let host = Host::start().await;
    let reference = publish(&host, 200).await;
    let path = path(&reference);
    let whole = get(host.address, &path, &[SCOPES]).await;
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    let length = whole.body.len();
    let tag = format!("if-range: {}", whole.header("etag").unwrap());
    let rest = get(
        host.address,
        &path,
        // A part is never compressed: it has to fit to the other parts.
        &[SCOPES, "range: bytes=1000-", &tag, "accept-encoding: gzip"],
    )
    .await;
    assert_eq!(rest.status, 206, "{rest:?}");
    let range = format!("bytes 1000-{}/{length}", length - 1);
    assert_eq!(rest.header("content-range"), Some(range.as_str()));
    assert_eq!(rest.header("content-encoding"), None);
    assert_eq!(
        rest.header("content-length"),
        Some(&*(length - 1000).to_string())
    );
    let joined = [&whole.body[..1000], &rest.body].concat();
    assert_eq!(content_address(&joined), *reference.segment_id);
    let last = get(host.address, &path, &[SCOPES, "range: bytes=-1"]).await;
    assert_eq!(
        (last.status, &last.body[..]),
        (206, &whole.body[length - 1..])
    );
    // What the client has is of something else: it gets everything.
    let other = "if-range: \"sha256:other\"";
    let reply = get(host.address, &path, &[SCOPES, "range: bytes=5-", other]).await;
    assert_eq!((reply.status, reply.body.len()), (200, length));
}

#[tokio::test]
async fn bytes_that_are_not_there_have_their_status_and_the_size() {
    let host = Host::start().await;
    let reference = publish(&host, 1).await;
    let range = format!("range: bytes={}-", reference.byte_length);
    let reply = get(host.address, &path(&reference), &[SCOPES, &range]).await;
    reply.check_failure(416, "sync.invalid_request");
    let size = format!("bytes */{}", reference.byte_length);
    assert_eq!(reply.header("content-range"), Some(size.as_str()));
    // A range is no permission either.
    let eve = ["authorization: Bearer eve", SCOPES, "range: bytes=0-1"];
    let reply = send(host.address, "GET", &path(&reference), &eve, b"").await;
    reply.check_failure(403, "sync.forbidden");
}

#[tokio::test]
async fn a_head_request_tells_the_size_and_opens_nothing() {
    let host = Host::start().await;
    let reference = publish(&host, 100).await;
    let mut stream = tokio::net::TcpStream::connect(host.address).await.unwrap();
    let alice = "authorization: Bearer alice";
    let request = head(
        "HEAD",
        &path(&reference),
        &[alice, SCOPES, "connection: close", "range: bytes=0-1"],
    );
    tokio::io::AsyncWriteExt::write_all(&mut stream, &request)
        .await
        .unwrap();
    let reply = crate::client::read_reply(&mut stream).await;
    let length = reference.byte_length.to_string();
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    assert_eq!(reply.header("content-length"), Some(length.as_str()));
    assert_eq!(host.server.usage().downloads, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_is_compressed_once_for_everybody_and_every_coding() {
    let host = Host::start().await;
    let reference = publish(&host, 1_000).await;
    let path = path(&reference);
    for (coding, made) in [("zstd", 1), ("gzip", 2)] {
        let accept = format!("accept-encoding: {coding}");
        let headers = [SCOPES, &accept];
        let asked = (0..40).map(|_| get(host.address, &path, &headers));
        for reply in join_all(asked).await {
            assert_eq!(reply.header("content-encoding"), Some(coding));
            // Its end is the end of the connection or of the last chunk; there is no other part.
            assert_eq!(reply.header("accept-ranges"), None);
            assert_eq!(decode(coding, &reply.body), *reference.segment_id);
        }
        assert_eq!(host.server.transfer_counts().copies_made, made);
    }
    // Under its address are the bytes as they are.
    let plain = get(host.address, &path, &[SCOPES]).await;
    assert_eq!(content_address(&plain.body), *reference.segment_id);
    assert_eq!(host.server.transfer_counts().segment_downloads, 81);
}

/// The address of what was encoded.
fn decode(coding: &str, body: &[u8]) -> String {
    let mut decoded = Vec::new();
    let read = match coding {
        "zstd" => zstd::stream::copy_decode(body, &mut decoded),
        _ => std::io::copy(&mut flate2::read::GzDecoder::new(body), &mut decoded).map(drop),
    };
    read.unwrap();
    content_address(&decoded)
}

#[tokio::test]
async fn without_room_for_copies_segments_are_sent_as_they_are() {
    let config = ServerConfig {
        transfers: TransferConfig {
            copies_memory_bytes_max: 0,
            copies_disk_bytes_max: 0,
            ..TransferConfig::default()
        },
        ..ServerConfig::default()
    };
    let host = Host::start_with(Setup {
        config,
        ..Setup::default()
    })
    .await;
    let reference = publish(&host, 50).await;
    let headers = [SCOPES, "accept-encoding: zstd, gzip"];
    let reply = get(host.address, &path(&reference), &headers).await;
    assert_eq!(
        (reply.status, reply.header("content-encoding")),
        (200, None)
    );
    assert_eq!(content_address(&reply.body), *reference.segment_id);
}

#[tokio::test]
async fn downloads_are_bounded_and_those_too_many_are_told_when_to_come_back() {
    let config = ServerConfig {
        transfers: TransferConfig {
            downloads_max: 0,
            ..TransferConfig::default()
        },
        ..ServerConfig::default()
    };
    let host = Host::start_with(Setup {
        config,
        ..Setup::default()
    })
    .await;
    let reference = publish(&host, 5).await;
    let reply = get(host.address, &path(&reference), &[SCOPES]).await;
    reply.check_failure(429, "sync.rate_limited");
    assert_eq!(reply.header("retry-after"), Some("1"));
    let known = format!("if-none-match: \"{}\"", reference.segment_id);
    let reply = get(host.address, &path(&reference), &[SCOPES, &known]).await;
    assert_eq!(reply.status, 304);
}

/// A host whose clients get URLs that it serves.
async fn host_that_signs(keys: &[&[u8]], lifetime: Duration) -> Host {
    let keys = keys.iter().map(|key| key.to_vec()).collect();
    let segment_urls = UrlSource::Signed {
        keys: Arc::new(SigningKeys::new(keys).unwrap()),
        base_url: "http://cdn.example/signed/segments".to_owned(),
        lifetime,
    };
    Host::start_with(Setup {
        transfers: Transfers {
            segment_urls,
            ..Transfers::default()
        },
        ..Setup::default()
    })
    .await
}

/// The path and query of a reference's URL.
fn signed_path(reference: &SegmentRef) -> String {
    let (url, _) = reference.url.as_ref().expect("a URL");
    url.strip_prefix("http://cdn.example").unwrap().to_owned()
}

#[tokio::test]
async fn a_signed_url_is_all_it_takes_and_anybody_may_keep_what_it_gives() {
    let host = host_that_signs(&[KEY], Duration::from_secs(300)).await;
    let reference = publish(&host, 100).await;
    assert_eq!(reference.url.as_ref().unwrap().1, 1_000_000 + 300_000);
    let path = signed_path(&reference);
    let plain = ["accept-encoding: gzip, zstd"];
    let reply = send(host.address, "GET", &path, &plain, b"").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(content_address(&reply.body), *reference.segment_id);
    let kept = "public, max-age=300, immutable";
    assert_eq!(reply.header("cache-control"), Some(kept));
    for (name, value) in [
        ("content-type", Some("application/octet-stream")),
        ("x-content-type-options", Some("nosniff")),
        ("content-encoding", None),
        ("vary", None),
    ] {
        assert_eq!(reply.header(name), value, "{name}");
    }
    let part = send(host.address, "GET", &path, &["range: bytes=0-3"], b"").await;
    assert_eq!((part.status, &part.body[..]), (206, &b"SSG2"[..]));
    let known = format!("if-none-match: \"{}\"", reference.segment_id);
    let reply = send(host.address, "GET", &path, &[&known], b"").await;
    assert_eq!(reply.status, 304);
    let counts = host.server.transfer_counts();
    assert_eq!((counts.signed_downloads, counts.not_modified), (2, 1));
    assert_eq!(counts.segment_downloads, 0);
}

#[tokio::test]
async fn a_url_that_has_ended_or_was_changed_is_refused() {
    let host = host_that_signs(&[KEY], Duration::from_secs(300)).await;
    let reference = publish(&host, 10).await;
    let path = signed_path(&reference);
    let refused = async |path: &str| {
        let reply = send(host.address, "GET", path, &[], b"").await;
        reply.check_failure(403, "sync.forbidden");
    };
    let (base, token) = path.split_once("?st=").unwrap();
    refused(base).await;
    refused(&format!("{base}?st=")).await;
    refused(&format!("{base}?st={token}A")).await;
    refused(&format!("{base}?st={}", &token[1..])).await;
    let other = format!("/signed/segments/sha256:{}?st={token}", "0".repeat(64));
    refused(&other).await;
    // The token is not looked at where credentials are asked for.
    let direct = format!("/segments/{}?st={token}", reference.segment_id);
    let reply = send(host.address, "GET", &direct, &[], b"").await;
    reply.check_failure(401, "sync.auth_required");
    // Clocks may differ by a minute.
    host.clock.set(1_000_000 + 360_000);
    let reply = send(host.address, "GET", &path, &[], b"").await;
    reply.check_failure(404, "sync.segment_expired");
    host.clock.set(1_000_000 + 361_000);
    refused(&path).await;
}

#[tokio::test]
async fn a_key_can_be_replaced_without_losing_a_download() {
    const NEW: &[u8; 32] = b"another key of thirty-two bytes!";
    let lifetime = Duration::from_secs(300);
    let before = host_that_signs(&[KEY], lifetime).await;
    let old = publish(&before, 10).await;
    // The same rows on a server that has been given a new key, and one that has lost the old one.
    let between = host_that_signs(&[NEW, KEY], lifetime).await;
    let new = publish(&between, 10).await;
    let after = host_that_signs(&[NEW], lifetime).await;
    publish(&after, 10).await;
    assert_eq!(old.segment_id, new.segment_id);
    for (host, reference, status) in [
        (&before, &old, 200),
        (&between, &old, 200),
        (&between, &new, 200),
        (&after, &new, 200),
        (&after, &old, 403),
        (&before, &new, 403),
    ] {
        let reply = send(host.address, "GET", &signed_path(reference), &[], b"").await;
        assert_eq!(reply.status, status, "{reply:?}");
    }
}

#[tokio::test]
async fn a_host_that_signs_nothing_serves_no_signed_url() {
    let signing = host_that_signs(&[KEY], Duration::from_secs(300)).await;
    let path = signed_path(&publish(&signing, 10).await);
    let host = Host::start().await;
    assert_eq!(publish(&host, 10).await.url, None);
    let reply = send(host.address, "GET", &path, &[], b"").await;
    reply.check_failure(403, "sync.forbidden");
}

#[tokio::test]
async fn a_connection_goes_on_after_a_download() {
    let host = Host::start().await;
    let reference = publish(&host, 200).await;
    let mut stream = tokio::net::TcpStream::connect(host.address).await.unwrap();
    for _ in 0..3 {
        let alice = "authorization: Bearer alice";
        let request = head("GET", &path(&reference), &[alice, SCOPES]);
        tokio::io::AsyncWriteExt::write_all(&mut stream, &request)
            .await
            .unwrap();
        let reply = read_next(&mut stream).await;
        assert_eq!(content_address(&reply.body), *reference.segment_id);
    }
}
