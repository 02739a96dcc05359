//! Heads and chunked bodies of responses, whole and in pieces.

use super::reply::{Framing, parse_head, take_chunk};
use bytes::BytesMut;

fn head(text: &str) -> super::reply::Head {
    let mut input = BytesMut::from(text);
    let head = parse_head(&mut input).unwrap().unwrap();
    assert_eq!(&input[..], b"rest");
    head
}

#[track_caller]
fn check_head(text: &str, framing: Framing, keep_alive: bool) {
    let head = head(text);
    assert_eq!(head.framing, framing, "{text:?}");
    assert_eq!(head.keep_alive, keep_alive, "{text:?}");
}

#[test]
fn the_head_says_where_the_body_ends() {
    check_head(
        "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nrest",
        Framing::Length(12),
        true,
    );
    check_head(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nrest",
        Framing::Chunked,
        true,
    );
    check_head(
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nrest",
        Framing::Length(1),
        false,
    );
    check_head("HTTP/1.1 200 OK\r\n\r\nrest", Framing::UntilClose, false);
    check_head("HTTP/1.1 304 X\r\n\r\nrest", Framing::Length(0), true);
    check_head(
        "HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\nrest",
        Framing::Length(0),
        false,
    );
}

#[test]
fn a_head_in_pieces_waits_for_its_end() {
    let text = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    for split in 0..text.len() {
        let mut input = BytesMut::from(&text[..split]);
        assert_eq!(parse_head(&mut input).unwrap(), None, "{split}");
        input.extend_from_slice(&text.as_bytes()[split..]);
        assert!(parse_head(&mut input).unwrap().is_some(), "{split}");
    }
}

#[test]
fn chunks_are_joined_however_they_arrive() {
    let text = "5\r\nhello\r\n1;x=y\r\n \r\n5\r\nworld\r\n0\r\n\r\nrest";
    for split in 0..text.len() {
        let mut input = BytesMut::from(&text[..split]);
        let mut body = BytesMut::new();
        let done = take_chunk(&mut input, &mut body).unwrap();
        input.extend_from_slice(&text.as_bytes()[split..]);
        assert!(
            done || take_chunk(&mut input, &mut body).unwrap(),
            "{split}"
        );
        assert_eq!(&body[..], b"hello world", "{split}");
        assert_eq!(&input[..], b"rest", "{split}");
    }
}

#[test]
fn a_chunk_that_lies_is_refused() {
    for text in ["x\r\n", "1\r\nabc", "ffffffffffffffff\r\nabc"] {
        let mut input = BytesMut::from(text);
        assert!(
            take_chunk(&mut input, &mut BytesMut::new()).is_err(),
            "{text:?}"
        );
    }
}

#[test]
fn a_body_is_decoded_by_what_its_head_says() {
    let text = "a body that is long enough to be worth compressing, body, body, body";
    let zstd = zstd::encode_all(text.as_bytes(), 3).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, text.as_bytes()).unwrap();
    for (name, body) in [
        ("identity", text.as_bytes().to_vec()),
        ("zstd", zstd),
        ("gzip", gzip.finish().unwrap()),
    ] {
        let head = head(&format!(
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-encoding: {name}\r\n\r\nrest"
        ));
        let reply = head.with_body(body.into());
        assert_eq!(reply.decoded().unwrap(), text, "{name}");
    }
    let head = head("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-encoding: br\r\n\r\nrest");
    assert!(head.with_body("".into()).decoded().is_err());
}
