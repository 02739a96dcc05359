//! What is negotiated, and that what arrives is what was sent.

use std::io::Read as _;

use futures_util::stream;
use http_body_util::BodyExt as _;

use super::*;

#[track_caller]
fn check(accept: &[&'static str], expected: Option<Coding>) {
    let mut headers = HeaderMap::new();
    for value in accept {
        headers.append(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
    }
    assert_eq!(Coding::negotiate(&headers), expected, "{accept:?}");
}

#[test]
fn zstd_is_preferred_and_a_weight_of_zero_is_a_refusal() {
    check(&[], None);
    check(&["gzip, deflate, br, zstd"], Some(Coding::Zstd));
    check(&["gzip"], Some(Coding::Gzip));
    check(&["GZIP", "Zstd"], Some(Coding::Zstd));
    check(&["zstd;q=0, gzip"], Some(Coding::Gzip));
    check(&["zstd; q=0.000, gzip;q=0"], None);
    check(&["zstd;q=0.5, gzip;q=0.8"], Some(Coding::Gzip));
    check(&["zstd;q=0.001"], Some(Coding::Zstd));
    check(&["*"], Some(Coding::Zstd));
    check(&["*;q=0"], None);
    check(&["zstd;q=0, *"], Some(Coding::Gzip));
    check(&["*;q=0, gzip;q=1.0"], Some(Coding::Gzip));
    check(&["identity, br"], None);
    check(&["zstd;q=2, gzip;q=oops"], None);
}

fn decode(coding: Coding, bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    match coding {
        Coding::Gzip => {
            flate2::read::GzDecoder::new(bytes)
                .read_to_end(&mut decoded)
                .unwrap();
        }
        Coding::Zstd => decoded = zstd::decode_all(bytes).unwrap(),
    }
    decoded
}

#[tokio::test]
async fn a_stream_arrives_as_it_was_sent() {
    let chunks: Vec<Bytes> = (0..40usize)
        .map(|n| Bytes::from(vec![b'a'; n * 5_000]))
        .collect();
    let sent: Vec<u8> = chunks.concat();
    for coding in [Coding::Gzip, Coding::Zstd] {
        let encoder = Encoder::new(coding, None).unwrap();
        let body = StreamBody::body(stream::iter(chunks.clone()), Some(encoder));
        let received = body.collect().await.unwrap().to_bytes();
        assert!(received.len() < sent.len() / 20);
        assert!(decode(coding, &received) == sent, "{coding:?}");
    }
}

/// A source that gives one chunk and then has nothing to say.
struct OneThenSilence(Option<Bytes>);

impl Stream for OneThenSilence {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0
            .take()
            .map_or(Poll::Pending, |chunk| Poll::Ready(Some(chunk)))
    }
}

#[tokio::test]
async fn what_the_source_has_given_is_not_held_back() {
    let chunk = b"an early frame".repeat(3);
    for coding in [Coding::Gzip, Coding::Zstd] {
        let encoder = Encoder::new(coding, None).unwrap();
        let source = OneThenSilence(Some(Bytes::from(chunk.clone())));
        let mut body = StreamBody::body(source, Some(encoder));
        let received = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let mut decoded = vec![0; chunk.len()];
        match coding {
            Coding::Gzip => {
                flate2::read::GzDecoder::new(&received[..])
                    .read_exact(&mut decoded)
                    .unwrap();
            }
            Coding::Zstd => {
                let mut decoder = zstd::Decoder::new(&received[..]).unwrap();
                decoder.read_exact(&mut decoded).unwrap();
            }
        }
        assert_eq!(decoded, chunk, "{coding:?}");
    }
}

#[test]
fn a_small_body_is_compressed_in_one_go() {
    let bytes = b"the same words again and again, ".repeat(100);
    for coding in [Coding::Gzip, Coding::Zstd] {
        let compressed = coding.compress(&bytes).unwrap();
        assert!(compressed.len() < bytes.len() / 5);
        assert_eq!(decode(coding, &compressed), bytes);
    }
}
