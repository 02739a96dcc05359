//! Responses, compressed for those who ask.

use std::io::Read as _;

use tidewater_wire::Response;

use crate::{
    client::{Reply, post},
    host::Host,
    messages::{ACCEPT_INLINE, Device, pull, response},
};

async fn host_with_notes(count: usize) -> (Host, Device) {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let body = "all work and no play ".repeat(50);
    for commit in 0..count.div_ceil(250) {
        let ids: Vec<String> = (0..250).map(|n| format!("n{commit}-{n}")).collect();
        let notes: Vec<_> = ids
            .iter()
            .map(|id| (id.as_str(), "t1", body.as_str()))
            .collect();
        device.push(&format!("c{commit}"), &notes).await;
    }
    (host, device)
}

fn decode(reply: &Reply) -> Response {
    let mut decoded = Vec::new();
    match reply.header("content-encoding") {
        Some("zstd") => decoded = zstd::decode_all(&reply.body[..]).unwrap(),
        Some("gzip") => {
            flate2::read::GzDecoder::new(&reply.body[..])
                .read_to_end(&mut decoded)
                .unwrap();
        }
        other => panic!("{other:?}"),
    }
    Response::decode(&decoded.into()).unwrap()
}

#[tokio::test]
async fn small_and_large_responses_are_the_same_compressed_or_not() {
    for notes in [1, 250, 2_000] {
        let (host, device) = host_with_notes(notes).await;
        let request = device.request(pull("t1", -1, ACCEPT_INLINE));
        let plain = post(host.address, &[], &request).await;
        assert_eq!(plain.header("content-encoding"), None);
        for (accept, encoding) in [
            ("gzip, deflate, br, zstd", "zstd"),
            ("gzip", "gzip"),
            ("zstd;q=0, *", "gzip"),
        ] {
            let accept = format!("accept-encoding: {accept}");
            let reply = post(host.address, &[&accept], &request).await;
            assert_eq!(reply.header("content-encoding"), Some(encoding));
            assert!(
                reply.body.len() < plain.body.len() / 4,
                "{} notes {accept}",
                notes
            );
            assert_eq!(decode(&reply), response(&plain), "{notes} notes, {accept}");
        }
    }
}

#[tokio::test]
async fn a_short_response_is_sent_as_it_is() {
    let host = Host::start().await;
    let device = Device::meet(host.address, "d1").await;
    let request = device.request(pull("t1", -1, ACCEPT_INLINE));
    let reply = post(host.address, &["accept-encoding: zstd, gzip"], &request).await;
    assert_eq!(reply.header("content-encoding"), None);
    assert_eq!(reply.header("transfer-encoding"), None);
    response(&reply);
}

#[tokio::test]
async fn a_refused_encoding_is_not_used() {
    let (host, device) = host_with_notes(250).await;
    let request = device.request(pull("t1", -1, ACCEPT_INLINE));
    for accept in ["identity", "gzip;q=0, zstd;q=0", "*;q=0", "br"] {
        let accept = format!("accept-encoding: {accept}");
        let reply = post(host.address, &[&accept], &request).await;
        assert_eq!(reply.header("content-encoding"), None, "{accept}");
        response(&reply);
    }
}
