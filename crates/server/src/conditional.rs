//! Which part of a representation a request asks for: `If-None-Match`, `Range`, `If-Range`.
//!
//! Everything here is named by the hash of its bytes, so an entity tag says all there is to say
//! and dates are not needed. One part at a time: several are answered with the whole, as HTTP
//! allows, and so is whatever cannot be understood.
//!
//! **Invariant:** none of these headers is a permission. Handlers look at them after they have
//! authorized the request.

use std::ops::Range;

use http::{HeaderMap, Method, header};

/// What of a representation is to be sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Wanted {
    /// Nothing: the client has it.
    Nothing,
    /// All of it.
    Whole,
    /// These bytes, at least one.
    Part(Range<u64>),
    /// Bytes that it does not have.
    Unsatisfiable,
}

impl Wanted {
    /// Reads the headers of a request for `length` bytes under this entity tag, quotes included.
    pub(crate) fn of(method: &Method, headers: &HeaderMap, tag: &str, length: u64) -> Self {
        if is_known(headers, tag) {
            return Self::Nothing;
        }
        // Only GET has ranges, and a range of something else is worth nothing.
        if *method != Method::GET || !condition_holds(headers, tag) {
            return Self::Whole;
        }
        let mut values = headers.get_all(header::RANGE).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Self::Whole;
        };
        value
            .to_str()
            .map_or(Self::Whole, |text| part(text, length))
    }
}

/// Whether `If-None-Match` names the tag: in a list, weakly, or by `*`.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        // No tag of ours contains a comma.
        .flat_map(|list| list.split(',').map(str::trim))
        .any(|candidate| {
            candidate == "*" || candidate.strip_prefix("W/").unwrap_or(candidate) == tag
        })
}

/// Whether `If-Range` lets the range count. A weak tag and a date never do.
fn condition_holds(headers: &HeaderMap, tag: &str) -> bool {
    headers
        .get_all(header::IF_RANGE)
        .iter()
        .all(|value| value.as_bytes().trim_ascii() == tag.as_bytes())
}

/// `bytes=first-last`, `bytes=first-` or `bytes=-length`.
fn part(text: &str, length: u64) -> Wanted {
    let parsed = text.split_once('=').and_then(|(unit, spec)| {
        let is_bytes = unit.trim().eq_ignore_ascii_case("bytes");
        let (first, last) = spec.trim().split_once('-').filter(|_| is_bytes)?;
        Some((position(first)?, position(last)?))
    });
    let (start, end) = match parsed {
        Some((Some(first), last)) => match last {
            Some(last) if last < first => return Wanted::Whole,
            Some(last) => (first, last.saturating_add(1).min(length)),
            None => (first, length),
        },
        Some((None, Some(last))) => (length.saturating_sub(last), length),
        Some((None, None)) | None => return Wanted::Whole,
    };
    if start < end {
        Wanted::Part(start..end)
    } else {
        Wanted::Unsatisfiable
    }
}

/// A number, nothing, or `None` for what is neither. A number too large for us is the largest.
fn position(text: &str) -> Option<Option<u64>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(None);
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| Some(text.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const TAG: &str = "\"sha256:ab\"";

    fn headers(lines: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[track_caller]
    fn check_known(if_none_match: &[&'static str], known: bool) {
        let lines: Vec<_> = if_none_match
            .iter()
            .map(|value| (header::IF_NONE_MATCH, *value))
            .collect();
        let wanted = Wanted::of(&Method::GET, &headers(&lines), TAG, 10);
        assert_eq!(wanted == Wanted::Nothing, known, "{if_none_match:?}");
    }

    #[test]
    fn a_tag_is_found_in_a_list_and_compared_weakly() {
        check_known(&[], false);
        check_known(&["\"sha256:ab\""], true);
        check_known(&["W/\"sha256:ab\""], true);
        check_known(&["\"x\", W/\"sha256:ab\" ,\"y\""], true);
        check_known(&["\"x\"", "\"sha256:ab\""], true);
        check_known(&["*"], true);
        check_known(&["sha256:ab"], false);
        check_known(&["\"sha256:abc\""], false);
        check_known(&["w/\"sha256:ab\""], false);
    }

    #[track_caller]
    fn check_range(range: &'static str, length: u64, expected: Wanted) {
        let headers = headers(&[(header::RANGE, range)]);
        let wanted = Wanted::of(&Method::GET, &headers, TAG, length);
        assert_eq!(wanted, expected, "{range} of {length}");
    }

    #[test]
    fn one_range_of_bytes_is_understood() {
        check_range("bytes=0-4", 10, Wanted::Part(0..5));
        check_range("bytes=9-9", 10, Wanted::Part(9..10));
        check_range("bytes=3-", 10, Wanted::Part(3..10));
        check_range("bytes=-3", 10, Wanted::Part(7..10));
        check_range("bytes=0-", 10, Wanted::Part(0..10));
        check_range("Bytes = 2 - 3 ", 10, Wanted::Part(2..4));
    }

    #[test]
    fn a_range_ends_where_the_bytes_end() {
        check_range("bytes=8-99", 10, Wanted::Part(8..10));
        check_range("bytes=-99", 10, Wanted::Part(0..10));
        check_range(
            "bytes=8-99999999999999999999999999",
            10,
            Wanted::Part(8..10),
        );
        check_range("bytes=0-18446744073709551615", 10, Wanted::Part(0..10));
    }

    #[test]
    fn a_range_that_begins_after_the_bytes_cannot_be_had() {
        check_range("bytes=10-", 10, Wanted::Unsatisfiable);
        check_range("bytes=10-20", 10, Wanted::Unsatisfiable);
        check_range("bytes=-0", 10, Wanted::Unsatisfiable);
        check_range("bytes=0-", 0, Wanted::Unsatisfiable);
        check_range("bytes=-5", 0, Wanted::Unsatisfiable);
        check_range(
            "bytes=99999999999999999999999999-",
            10,
            Wanted::Unsatisfiable,
        );
    }

    #[test]
    fn what_is_not_one_range_is_answered_with_everything() {
        for range in [
            "bytes=0-1,3-4",
            "bytes=4-2",
            "bytes=-",
            "bytes=",
            "bytes",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=--1",
            "bytes=1-2-3",
            "items=0-1",
            "",
        ] {
            check_range(range, 10, Wanted::Whole);
        }
        let twice = headers(&[(header::RANGE, "bytes=0-1"), (header::RANGE, "bytes=0-1")]);
        assert_eq!(Wanted::of(&Method::GET, &twice, TAG, 10), Wanted::Whole);
    }

    #[test]
    fn a_range_counts_only_while_the_condition_holds() {
        for (condition, counts) in [
            ("\"sha256:ab\"", true),
            ("\"sha256:cd\"", false),
            ("W/\"sha256:ab\"", false),
            ("Tue, 01 Dec 2026 00:00:00 GMT", false),
        ] {
            let headers = headers(&[(header::RANGE, "bytes=0-1"), (header::IF_RANGE, condition)]);
            let part = Wanted::of(&Method::GET, &headers, TAG, 10) == Wanted::Part(0..2);
            assert_eq!(part, counts, "{condition}");
        }
    }

    #[test]
    fn only_get_has_ranges() {
        let headers = headers(&[(header::RANGE, "bytes=0-1")]);
        assert_eq!(Wanted::of(&Method::HEAD, &headers, TAG, 10), Wanted::Whole);
    }
}
