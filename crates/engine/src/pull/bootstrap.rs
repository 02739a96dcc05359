//! Decides how a bootstrap goes: its pin, its pages, its resume token (§4.7, §5.7). Pure.
//!
//! A bootstrap delivers rows as they are now and promises no more than that they are at least as
//! new as its *pin*: the client replays the log after the pin and so repairs whatever changed
//! between two pages.
//!
//! **Invariant:** the pin never moves once the section has begun, over any number of responses.
//! It travels in the token, which a client cannot be trusted with: a forged one can only hurt
//! the one who forged it, and a bad one is never an error of the request.

use serde::{Deserialize, Serialize};
use tidewater_model::{CommitSeq, HorizonSeq};
use tidewater_wire::Accept;

/// Where an unfinished bootstrap goes on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ResumeToken {
    pub(super) pin: CommitSeq,
    /// The last row delivered; `None` before the first.
    pub(super) row_cursor: Option<String>,
}

/// The token as it travels. Its tables are a list of which this server uses one.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct TokenJson {
    as_of_commit_seq: u64,
    tables: Vec<String>,
    table_index: serde_json::Number,
    // Without this, serde takes a missing member for null.
    #[serde(deserialize_with = "Option::deserialize")]
    row_cursor: Option<String>,
}

impl ResumeToken {
    /// Reads a token; `None` when it is not one of this table, or of a log with this head.
    pub(super) fn parse(text: &str, table: &str, head: CommitSeq) -> Option<Self> {
        let token: TokenJson = serde_json::from_str(text).ok()?;
        let pin = CommitSeq::new(token.as_of_commit_seq)?;
        let usable = pin <= head && token.tables.first().is_some_and(|first| first == table);
        usable.then_some(Self {
            pin,
            row_cursor: token.row_cursor,
        })
    }

    pub(super) fn format(&self, table: &str) -> String {
        let token = TokenJson {
            as_of_commit_seq: self.pin.get(),
            tables: vec![table.to_owned()],
            table_index: 0.into(),
            row_cursor: self.row_cursor.clone(),
        };
        serde_json::to_string(&token).expect("numbers and strings have a JSON form")
    }
}

/// The pin of a bootstrap that may be served as an image: the newest commit that wrote to its
/// scope, so that one image serves everyone until the scope is written again (§5.3, OQ-12).
///
/// Without a change in the log nothing was written since the horizon.
pub(super) fn scope_pin(
    newest_change: Option<CommitSeq>,
    head: CommitSeq,
    horizon: HorizonSeq,
) -> CommitSeq {
    let floor = horizon.seq();
    newest_change.unwrap_or(floor).max(floor).min(head)
}

/// The pin after the first page was read; `None` when the bootstrap must be reset.
///
/// The horizon may have passed the pin since the section was decided, and the client would then
/// fetch everything only to be reset by its next pull. Nothing has been promised yet: a new
/// bootstrap takes the higher pin, a resumed one cannot. Between later pages it no longer
/// matters, because what was delivered stays right.
pub(super) fn settle_pin(
    pin: CommitSeq,
    is_resumed: bool,
    horizon: HorizonSeq,
) -> Option<CommitSeq> {
    if pin >= horizon.seq() {
        return Some(pin);
    }
    (!is_resumed).then_some(horizon.seq())
}

/// Where the pages of a section stand.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Progress {
    /// The last row delivered; `None` before the first.
    pub(super) row_cursor: Option<String>,
    /// Pages that this response may still carry.
    pages_left: usize,
}

/// What follows a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Next {
    /// Another page.
    Page,
    /// The end of the section; the rest comes with the client's next request.
    Paused,
    /// The end of the bootstrap.
    Complete,
}

impl Progress {
    /// Before the first page of a section, which always has at least one.
    pub(super) fn new(row_cursor: Option<String>, pages_max: usize) -> Self {
        Self {
            row_cursor,
            pages_left: pages_max,
        }
    }

    /// Moves past a page; `next_row_cursor` is its last row if others follow.
    pub(super) fn pass_page(&mut self, next_row_cursor: Option<String>) -> Next {
        self.pages_left = self.pages_left.saturating_sub(1);
        if next_row_cursor.is_none() {
            return Next::Complete;
        }
        self.row_cursor = next_row_cursor;
        if self.pages_left == 0 {
            Next::Paused
        } else {
            Next::Page
        }
    }
}

/// How a page reaches the client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Delivery {
    Inline,
    External,
}

impl Delivery {
    /// A client that accepts neither was refused before.
    pub(super) fn of(accept: Accept, byte_len: usize, inline_bytes_max: usize) -> Self {
        let fits = byte_len <= inline_bytes_max || !accept.external_rows();
        if accept.inline_rows() && fits {
            Self::Inline
        } else {
            Self::External
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(raw: u64) -> CommitSeq {
        CommitSeq::new(raw).unwrap()
    }

    fn horizon(raw: u64) -> HorizonSeq {
        HorizonSeq::at(seq(raw))
    }

    #[track_caller]
    fn check_token(text: &str, expected: Option<(u64, Option<&str>)>) {
        let token = ResumeToken::parse(text, "notes", seq(20));
        let expected = expected.map(|(pin, row_cursor)| ResumeToken {
            pin: seq(pin),
            row_cursor: row_cursor.map(str::to_owned),
        });
        assert_eq!(token, expected, "{text}");
    }

    #[test]
    fn a_token_comes_back_as_it_was_sent() {
        let token = ResumeToken {
            pin: seq(7),
            row_cursor: Some("a\"b\u{1}é".to_owned()),
        };
        let text = token.format("notes");
        assert_eq!(
            text,
            r#"{"asOfCommitSeq":7,"tables":["notes"],"tableIndex":0,"rowCursor":"a\"b\u0001é"}"#
        );
        assert_eq!(ResumeToken::parse(&text, "notes", seq(20)), Some(token));
    }

    #[test]
    fn a_token_needs_its_four_members_and_no_order() {
        check_token(
            r#" {"rowCursor":null,"tableIndex":0.5,"tables":["notes","x"],"asOfCommitSeq":0} "#,
            Some((0, None)),
        );
        check_token(
            r#"{"asOfCommitSeq":20,"tables":["notes"],"tableIndex":-1,"rowCursor":"","more":{}}"#,
            Some((20, Some(""))),
        );
        check_token(
            r#"{"asOfCommitSeq":5,"tables":["notes"],"tableIndex":0}"#,
            None,
        );
        check_token(
            r#"{"asOfCommitSeq":5,"tables":["notes"],"rowCursor":null}"#,
            None,
        );
        check_token(
            r#"{"asOfCommitSeq":5,"tableIndex":0,"rowCursor":null}"#,
            None,
        );
        check_token(
            r#"{"tables":["notes"],"tableIndex":0,"rowCursor":null}"#,
            None,
        );
    }

    #[test]
    fn a_token_with_anything_else_in_a_member_is_not_usable() {
        let with = |member: &str, value: &str| {
            let mut members = vec![
                ("asOfCommitSeq", "5"),
                ("tables", r#"["notes"]"#),
                ("tableIndex", "0"),
                ("rowCursor", "null"),
            ];
            members.retain(|(name, _)| *name != member);
            let rest: String = members
                .iter()
                .map(|(name, value)| format!(r#","{name}":{value}"#))
                .collect();
            format!(r#"{{"{member}":{value}{rest}}}"#)
        };
        for value in [
            "21",
            "-1",
            "5.5",
            "\"5\"",
            "null",
            "9007199254740992",
            "1e400",
        ] {
            check_token(&with("asOfCommitSeq", value), None);
        }
        for value in [
            "[]",
            r#"["tasks"]"#,
            r#""notes""#,
            "[1]",
            "null",
            r#"["tasks","notes"]"#,
        ] {
            check_token(&with("tables", value), None);
        }
        for value in ["\"0\"", "null", "[]"] {
            check_token(&with("tableIndex", value), None);
        }
        for value in ["0", "false", "[]"] {
            check_token(&with("rowCursor", value), None);
        }
        for text in ["", "null", "5", "\"x\"", "[]", "{}", "{", "[[[[[[[["] {
            check_token(text, None);
        }
    }

    #[track_caller]
    fn check_scope_pin(newest_change: Option<u64>, expected: u64) {
        assert_eq!(
            scope_pin(newest_change.map(seq), seq(20), horizon(10)),
            seq(expected)
        );
    }

    #[test]
    fn the_scope_pin_is_the_newest_change_between_horizon_and_head() {
        check_scope_pin(Some(15), 15);
        check_scope_pin(Some(20), 20);
        // A commit that became durable after the head was read.
        check_scope_pin(Some(21), 20);
        // What was pruned leaves no trace.
        check_scope_pin(None, 10);
        check_scope_pin(Some(9), 10);
        assert_eq!(
            scope_pin(None, CommitSeq::START, HorizonSeq::START),
            CommitSeq::START
        );
    }

    #[track_caller]
    fn check_settled(pin: u64, is_resumed: bool, expected: Option<u64>) {
        assert_eq!(
            settle_pin(seq(pin), is_resumed, horizon(10)),
            expected.map(seq)
        );
    }

    #[test]
    fn a_pin_that_the_horizon_has_passed_is_raised_or_reset() {
        check_settled(10, false, Some(10));
        check_settled(10, true, Some(10));
        check_settled(9, false, Some(10));
        check_settled(9, true, None);
    }

    #[test]
    fn pages_go_on_until_the_rows_or_the_pages_end() {
        let mut progress = Progress::new(None, 2);
        assert_eq!(progress.pass_page(Some("b".to_owned())), Next::Page);
        assert_eq!(progress.row_cursor.as_deref(), Some("b"));
        assert_eq!(progress.clone().pass_page(None), Next::Complete);
        assert_eq!(progress.pass_page(Some("d".to_owned())), Next::Paused);
        assert_eq!(progress.row_cursor.as_deref(), Some("d"));
    }

    #[test]
    fn a_table_that_ends_with_the_last_page_is_complete() {
        assert_eq!(Progress::new(None, 1).pass_page(None), Next::Complete);
    }

    #[track_caller]
    fn check_delivery(bits: u8, byte_len: usize, expected: Delivery) {
        let accept = Accept::from_bits(bits).unwrap();
        assert_eq!(Delivery::of(accept, byte_len, 100), expected);
    }

    #[test]
    fn a_client_that_takes_both_gets_small_pages_inline() {
        check_delivery(0b0011, 100, Delivery::Inline);
        check_delivery(0b0011, 101, Delivery::External);
    }

    #[test]
    fn a_client_that_takes_one_gets_that_one_whatever_the_size() {
        check_delivery(0b0001, 101, Delivery::Inline);
        check_delivery(0b0010, 1, Delivery::External);
    }
}
