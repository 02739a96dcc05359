//! Texts as payloads of notifications, which have less than 8,000 bytes.
//!
//! A payload is `#NUMBER TEXT`, or a piece of a longer text: `+NUMBER INDEX/COUNT NODE PIECE`. The
//! number makes each one different, because the server sends equal payloads of one transaction
//! once. Pieces of a text are sent in one transaction, so they arrive one after the other, all or
//! none, and no table has to hold them.

use tidewater_store::signals::{NodeId, SIGNAL_BYTES_MAX};

/// Longest payload. The server's bound is 7,999.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 7_900;

/// Room for what stands before a piece, but for the node's name.
const HEAD_BYTES: usize = 64;

/// The payloads of a text.
pub(super) fn cut(text: &str, node: &NodeId, number: u64) -> Vec<String> {
    let whole = format!("#{number} {text}");
    if whole.len() <= PAYLOAD_BYTES_MAX {
        return vec![whole];
    }
    let room = PAYLOAD_BYTES_MAX
        .saturating_sub(HEAD_BYTES + node.as_str().len())
        .max(HEAD_BYTES);
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(room));
        pieces.push(piece);
        rest = after;
    }
    let count = pieces.len();
    let payload =
        |(index, piece): (usize, &&str)| format!("+{number} {index}/{count} {node} {piece}");
    pieces.iter().enumerate().map(payload).collect()
}

/// Puts texts together from payloads.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    /// Number and node of the text whose pieces arrive.
    of: (u64, String),
    next: usize,
    text: String,
}

impl Assembler {
    /// Takes a payload; the text that it completes. What is none of ours is a text of its own.
    pub(super) fn take(&mut self, payload: &str) -> Option<String> {
        if let Some(rest) = payload.strip_prefix('#') {
            return rest.split_once(' ').map(|(_, text)| text.to_owned());
        }
        let Some(rest) = payload.strip_prefix('+') else {
            return Some(payload.to_owned());
        };
        let (number, rest) = rest.split_once(' ')?;
        let (place, rest) = rest.split_once(' ')?;
        let (node, piece) = rest.split_once(' ')?;
        let (index, count) = place.split_once('/')?;
        let (index, count): (usize, usize) = (index.parse().ok()?, count.parse().ok()?);
        let of = (number.parse().ok()?, node.to_owned());
        if index == 0 {
            *self = Self {
                of,
                ..Self::default()
            };
        } else if self.of != of || self.next != index {
            *self = Self::default();
            return None;
        }
        if self.text.len() + piece.len() > SIGNAL_BYTES_MAX {
            *self = Self::default();
            return None;
        }
        self.text.push_str(piece);
        self.next = index + 1;
        (self.next == count).then(|| std::mem::take(self).text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeId {
        NodeId::new("n1")
    }

    #[track_caller]
    fn check(text: &str, count: usize) {
        let payloads = cut(text, &node(), 7);
        assert_eq!(payloads.len(), count);
        let mut assembler = Assembler::default();
        let texts: Vec<String> = payloads
            .iter()
            .inspect(|payload| assert!(payload.len() <= PAYLOAD_BYTES_MAX))
            .filter_map(|payload| assembler.take(payload))
            .collect();
        assert_eq!(texts, [text]);
    }

    #[test]
    fn texts_come_back_whatever_their_length() {
        check("", 1);
        check("short and with spaces", 1);
        check(&"x".repeat(7_000), 1);
        check(&"x".repeat(8_000), 2);
        check(&"\u{1F600} ".repeat(10_000), 7);
        check(&"y".repeat(SIGNAL_BYTES_MAX), 17);
    }

    #[test]
    fn equal_texts_are_different_payloads() {
        assert_ne!(cut("same", &node(), 1), cut("same", &node(), 2));
    }

    #[test]
    fn what_does_not_fit_together_is_no_text() {
        let mut assembler = Assembler::default();
        let first = cut(&"x".repeat(20_000), &node(), 1);
        let second = cut(&"y".repeat(20_000), &node(), 2);
        for payload in [&first[1], &first[0], &second[1], &second[2], &first[2]] {
            assert_eq!(assembler.take(payload), None);
        }
        for payload in [
            "+",
            "+1",
            "+1 0/2",
            "+x 0/2 n p",
            "+1 9/2 n p",
            "+1 0/0 n p",
            "#",
        ] {
            assert_eq!(assembler.take(payload), None, "{payload}");
        }
        for payload in &second[..2] {
            assert_eq!(assembler.take(payload), None);
        }
        assert!(assembler.take(&second[2]).is_some());
    }

    #[test]
    fn pieces_without_an_end_are_bounded() {
        let mut assembler = Assembler::default();
        let piece = "z".repeat(7_000);
        for index in 0..1_000 {
            let payload = format!("+1 {index}/2000 n {piece}");
            assert_eq!(assembler.take(&payload), None);
            assert!(assembler.text.len() <= SIGNAL_BYTES_MAX);
        }
    }
}
