//! Frames are built by the other side's library, so that two readings of RFC 6455 must agree.

use tungstenite::protocol::frame::Frame;

use super::*;

const BYTES_MAX: usize = 1024;

/// The smallest request of wire version 1.
fn request() -> Vec<u8> {
    let mut bytes = b"SSP2\x01\x00\x01\x00".to_vec();
    bytes.extend([1, 10, 0, 0, 0, 2, 0, 0, 0, b'c', b'1', 2, 0, 0, 0]);
    bytes.extend([0; 5]);
    bytes
}

fn frame(opcode: OpCode, is_final: bool, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        is_final,
        opcode,
        mask: Some([0x37, 0xfa, 0x21, 0x3d]),
        ..FrameHeader::default()
    };
    let frame = Frame::from_payload(header, payload.to_vec().into());
    let mut out = Vec::new();
    frame.format(&mut out).unwrap();
    out
}

fn binary(payload: &[u8]) -> Vec<u8> {
    frame(OpCode::Data(Data::Binary), true, payload)
}

fn text(payload: &str) -> Vec<u8> {
    frame(OpCode::Data(Data::Text), true, payload.as_bytes())
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    binary(&[&[ROUND_TAG], bytes].concat())
}

fn inbound() -> Inbound {
    Inbound::new(BYTES_MAX, Quota::new(4 * BYTES_MAX))
}

fn read(inbound: &mut Inbound, bytes: &[u8]) -> Result<Vec<Incoming>, CloseCode> {
    let mut incoming = Vec::new();
    match inbound.push(&mut bytes.to_vec(), &mut incoming) {
        Ok(()) => Ok(incoming),
        Err(violation) => Err(violation.code),
    }
}

#[track_caller]
fn check_violation(bytes: &[u8], code: CloseCode) {
    assert_eq!(read(&mut inbound(), bytes), Err(code));
}

#[test]
fn however_bytes_are_cut_the_same_things_arrive() {
    let request = request();
    let mut bytes = text("one");
    bytes.extend(frame(OpCode::Data(Data::Binary), false, &[]));
    bytes.extend(frame(OpCode::Data(Data::Continue), false, &[ROUND_TAG]));
    bytes.extend(frame(OpCode::Control(Control::Ping), true, b"p"));
    bytes.extend(frame(OpCode::Data(Data::Continue), true, &request[..9]));
    bytes.extend(chunk(&[]));
    bytes.extend(binary(&[]));
    bytes.extend(chunk(&request[9..]));
    bytes.extend(frame(OpCode::Control(Control::Close), true, &[3, 232]));
    let expected = [
        Incoming::Text("one".to_owned()),
        Incoming::Ping(Bytes::from_static(b"p")),
        Incoming::Request(request.into()),
        Incoming::Close,
    ];
    for step in 1..bytes.len() {
        let mut inbound = inbound();
        let mut incoming = Vec::new();
        for piece in bytes.chunks(step) {
            inbound.push(&mut piece.to_vec(), &mut incoming).unwrap();
        }
        assert_eq!(incoming, expected, "{step}");
        assert!(!inbound.is_waiting());
    }
}

#[test]
fn a_second_request_waits_for_the_end_of_the_first_round() {
    let mut inbound = inbound();
    let request = chunk(&request());
    assert_eq!(read(&mut inbound, &request).unwrap().len(), 1);
    assert_eq!(
        read(&mut inbound, &text("ack")).unwrap(),
        [Incoming::Text("ack".to_owned())]
    );
    inbound.round_ended();
    assert_eq!(read(&mut inbound, &request).unwrap().len(), 1);
    assert_eq!(read(&mut inbound, &request), Err(CloseCode::Policy));
}

#[test]
fn what_the_channel_does_not_allow_is_a_violation() {
    let request = request();
    check_violation(&binary(&[0]), CloseCode::Policy);
    check_violation(&binary(&[2, 1]), CloseCode::Policy);
    check_violation(&chunk(b"not SSP2"), CloseCode::Policy);
    check_violation(&chunk(&[&request[..], &[0]].concat()), CloseCode::Policy);
    let mut response = request;
    response[6] = 2;
    check_violation(&chunk(&response), CloseCode::Policy);
    // A frame that claims more than the cap is refused at its head.
    let mut large = response[..8].to_vec();
    large[6] = 1;
    large.extend([0x30, 0, 0, 0, 1]);
    check_violation(&chunk(&large), CloseCode::Policy);
}

#[test]
fn what_websocket_does_not_allow_is_an_error() {
    let unmasked = [0x81, 1, b'x'];
    check_violation(&unmasked, CloseCode::Protocol);
    check_violation(&[0xc1, 0x80, 0, 0, 0, 0], CloseCode::Protocol);
    check_violation(&[0x83, 0x80, 0, 0, 0, 0], CloseCode::Protocol);
    let continuation = frame(OpCode::Data(Data::Continue), true, b"x");
    check_violation(&continuation, CloseCode::Protocol);
    let begun = frame(OpCode::Data(Data::Text), false, b"x");
    check_violation(&[begun, text("y")].concat(), CloseCode::Protocol);
    let ping = frame(OpCode::Control(Control::Ping), false, b"");
    check_violation(&ping, CloseCode::Protocol);
    let ping = frame(OpCode::Control(Control::Ping), true, &[0; 126]);
    check_violation(&ping, CloseCode::Protocol);
    let text = frame(OpCode::Data(Data::Text), true, &[0xff]);
    check_violation(&text, CloseCode::Invalid);
}

#[test]
fn text_without_an_end_is_bounded() {
    let mut inbound = Inbound::new(BYTES_MAX, Quota::new(usize::MAX));
    let head = frame(OpCode::Data(Data::Text), false, &[b'x'; 1000]);
    read(&mut inbound, &head).unwrap();
    let more = frame(OpCode::Data(Data::Continue), false, &[b'x'; 1000]);
    let ended = (0..TEXT_BYTES_MAX / 1000).find_map(|_| read(&mut inbound, &more).err());
    assert_eq!(ended, Some(CloseCode::Size));
}

#[test]
fn what_is_gathered_is_charged_and_given_back() {
    let budget = Quota::new(64);
    let mut first = Inbound::new(BYTES_MAX, Arc::clone(&budget));
    let mut second = Inbound::new(BYTES_MAX, Arc::clone(&budget));
    let request = request();
    read(&mut first, &chunk(&request[..20])).unwrap();
    assert_eq!(budget.used(), 20);
    read(&mut second, &text(&"x".repeat(40))).unwrap();
    assert_eq!(budget.used(), 20);
    let begun = frame(OpCode::Data(Data::Text), false, &[b'x'; 45]);
    assert_eq!(read(&mut second, &begun), Err(CloseCode::Again));
    drop(second);
    read(&mut first, &chunk(&request[20..])).unwrap();
    assert_eq!(budget.used(), request.len());
    drop(first.take_share());
    assert_eq!(budget.used(), 0);
}

#[test]
fn nothing_is_read_after_the_goodbye() {
    let mut inbound = inbound();
    let mut bytes = frame(OpCode::Control(Control::Close), true, b"");
    bytes.extend(text("more"));
    assert_eq!(read(&mut inbound, &bytes).unwrap(), [Incoming::Close]);
}

#[test]
fn hostile_bytes_never_panic_and_mean_the_same_however_they_are_cut() {
    for seed in 0..3_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = text("one");
        bytes.extend(frame(OpCode::Control(Control::Ping), true, b"p"));
        bytes.extend(chunk(&request()));
        bytes.extend(frame(OpCode::Data(Data::Binary), false, &[ROUND_TAG]));
        bytes.extend(frame(OpCode::Data(Data::Continue), true, &request()));
        for _ in 0..random.usize(1..8) {
            let at = random.usize(0..bytes.len());
            match random.u8(0..3) {
                0 => bytes[at] ^= 1 << random.u8(0..8),
                1 => bytes[at] = random.u8(..),
                _ => bytes.insert(at, random.u8(..)),
            }
        }
        let mut whole = (inbound(), Vec::new());
        let ended = whole.0.push(&mut bytes.clone(), &mut whole.1);
        let mut cut = (inbound(), Vec::new());
        let mut rest = &bytes[..];
        let mut cut_ended = Ok(());
        while !rest.is_empty() && cut_ended.is_ok() {
            let (piece, next) = rest.split_at(random.usize(1..=rest.len()));
            cut_ended = cut.0.push(&mut piece.to_vec(), &mut cut.1);
            rest = next;
        }
        assert_eq!((ended, whole.1), (cut_ended, cut.1), "{seed}");
    }
}
