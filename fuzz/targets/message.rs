//! Any bytes as a message: no panic, and what is accepted is written back byte for byte, also
//! when it arrives in pieces.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tidewater_wire::{Expect, Message, MessageScanner, render};

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    let Ok(message) = Message::decode(&bytes) else {
        return;
    };
    let encoded = message.encode().expect("a decoded message has an encoding");
    assert_eq!(encoded, bytes, "one message has one encoding");
    render::message(&message);

    let (head, tail) = data.split_at(data.len() / 2);
    let mut scanner = MessageScanner::new(data.len(), Expect::Any);
    assert_eq!(scanner.push(head), Ok(None));
    let scanned = scanner
        .push(tail)
        .expect("a decodable message is no larger than itself")
        .expect("a decodable message has an end");
    assert_eq!(scanned.message, bytes);
    assert_eq!(scanned.surplus, 0);

    if let Message::Request(request) = message {
        request.into_parts();
    }
});
