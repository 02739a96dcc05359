//! Reads the primitive encodings (Conventions), and nothing else.
//!
//! Owns one rule: **a length that came from the peer never sizes an allocation.** Every declared
//! length is checked against the bytes that are there, and lists grow as their elements are
//! read, so a count of four billion in a frame of twenty bytes costs a failed read.
//!
//! Offsets count from the start of the whole input, also inside a frame or a block, and point
//! at the first byte of the field that is wrong.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::{ScopeFilter, ScopeValues, limits::SAFE_INTEGER_MAX, utf16_cmp};

use crate::{DecodeError, DecodeErrorKind, json};

/// How many elements a list may reserve before the first one is read.
const RESERVED_ELEMENTS_MAX: usize = 256;

/// A cursor over bytes.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    /// Everything from the start of the input to where this reader must stop.
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.position == self.bytes.len()
    }

    /// What was read since `start`.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.position]
    }

    /// Everything not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.position..]
    }

    /// Borrows the next `len` bytes.
    pub(crate) fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let Some((head, _)) = self.rest().split_at_checked(len) else {
            return Err(self.fault(DecodeErrorKind::Truncated(what)));
        };
        self.position += len;
        Ok(head)
    }

    /// A reader for the next `len` bytes, which this one skips.
    pub(crate) fn part(&mut self, len: usize, what: &'static str) -> Result<Self, DecodeError> {
        let position = self.position;
        self.take(len, what)?;
        Ok(Self {
            bytes: &self.bytes[..self.position],
            position,
        })
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self, what: &'static str) -> Result<i32, DecodeError> {
        self.array(what).map(i32::from_le_bytes)
    }

    pub(crate) fn i64(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        let start = self.position;
        let value = self.array(what).map(i64::from_le_bytes)?;
        if is_safe_integer(value) {
            Ok(value)
        } else {
            Err(invalid_at(start, "integer is outside of ±(2^53 − 1)"))
        }
    }

    pub(crate) fn f64(&mut self, what: &'static str) -> Result<f64, DecodeError> {
        self.array(what).map(f64::from_le_bytes)
    }

    pub(crate) fn bool(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        self.flag(what, "boolean is neither 00 nor 01")
    }

    /// Reads the presence byte of an optional field.
    pub(crate) fn is_present(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        self.flag(what, "presence is neither 00 nor 01")
    }

    /// Borrows a length-prefixed byte string.
    pub(crate) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let start = self.position;
        let len = self.count(what)?;
        self.take(len, what).map_err(|error| DecodeError {
            offset: start,
            ..error
        })
    }

    /// Borrows a length-prefixed text.
    pub(crate) fn str(&mut self, what: &'static str) -> Result<&'a str, DecodeError> {
        let start = self.position;
        let bytes = self.bytes(what)?;
        str::from_utf8(bytes).map_err(|_| invalid_at(start, NOT_UTF8))
    }

    /// Reads a count or a length. One that does not fit `usize` is longer than any input.
    pub(crate) fn count(&mut self, what: &'static str) -> Result<usize, DecodeError> {
        let count = self.u32(what)?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Reads a counted list, one element at a time. An element is never zero bytes long.
    pub(crate) fn list<T>(
        &mut self,
        what: &'static str,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.count(what)?;
        let mut items = Vec::with_capacity(self.reservation(count));
        for _ in 0..count {
            items.push(element(self)?);
        }
        Ok(items)
    }

    /// How much to reserve for `count` elements that may not be there.
    fn reservation(&self, count: usize) -> usize {
        count.min(self.rest().len()).min(RESERVED_ELEMENTS_MAX)
    }

    /// Checks that everything was read.
    pub(crate) fn finish(&self, what: &'static str) -> Result<(), DecodeError> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(self.fault(DecodeErrorKind::Trailing(what)))
        }
    }

    /// An error at the next byte.
    pub(crate) fn fault(&self, kind: DecodeErrorKind) -> DecodeError {
        DecodeError {
            offset: self.position,
            kind,
        }
    }

    fn flag(&mut self, what: &'static str, rule: &'static str) -> Result<bool, DecodeError> {
        let start = self.position;
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(invalid_at(start, rule)),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let Some(array) = self.rest().first_chunk::<N>() else {
            return Err(self.fault(DecodeErrorKind::Truncated(what)));
        };
        self.position += N;
        Ok(*array)
    }
}

/// A [`Reader`] over a frame's payload that gives out slices of the message it came in.
#[derive(Debug)]
pub(crate) struct FrameReader<'a> {
    message: &'a Bytes,
    reader: Reader<'a>,
}

impl<'a> FrameReader<'a> {
    /// `reader` must read from `message`.
    pub(crate) fn new(message: &'a Bytes, reader: Reader<'a>) -> Self {
        Self { message, reader }
    }

    /// A share of the message.
    pub(crate) fn share(&self, part: &'a [u8]) -> Bytes {
        self.message.slice_ref(part)
    }

    pub(crate) fn shared_bytes(&mut self, what: &'static str) -> Result<Bytes, DecodeError> {
        let bytes = self.bytes(what)?;
        Ok(self.share(bytes))
    }

    pub(crate) fn text(&mut self, what: &'static str) -> Result<ByteString, DecodeError> {
        let start = self.position();
        let bytes = self.bytes(what)?;
        ByteString::try_from(self.share(bytes)).map_err(|_| invalid_at(start, NOT_UTF8))
    }

    /// A text that must not be empty.
    pub(crate) fn filled_text(
        &mut self,
        what: &'static str,
        rule: &'static str,
    ) -> Result<ByteString, DecodeError> {
        let start = self.position();
        let text = self.text(what)?;
        if text.is_empty() {
            return Err(invalid_at(start, rule));
        }
        Ok(text)
    }

    pub(crate) fn json(&mut self, what: &'static str) -> Result<ByteString, DecodeError> {
        let start = self.position();
        let text = self.text(what)?;
        if json::is_valid(&text) {
            Ok(text)
        } else {
            Err(invalid_at(start, "text is not one JSON document"))
        }
    }

    /// Reads an optional field.
    pub(crate) fn optional<T>(
        &mut self,
        what: &'static str,
        value: impl FnOnce(&mut Self, &'static str) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.is_present(what)? {
            value(self, what).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Reads a counted list of shared elements, one at a time.
    pub(crate) fn shared_list<T>(
        &mut self,
        what: &'static str,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.count(what)?;
        let mut items = Vec::with_capacity(self.reservation(count));
        for _ in 0..count {
            items.push(element(self)?);
        }
        Ok(items)
    }

    /// Reads a map from scope variable to values.
    pub(crate) fn scopes(&mut self, what: &'static str) -> Result<ScopeFilter, DecodeError> {
        let mut last = None;
        let entries = self.list(what, |reader| {
            let variable = reader.key(&mut last, what)?;
            let values = reader.list(what, |reader| reader.str(what).map(str::to_owned))?;
            Ok(ScopeValues {
                variable: variable.to_owned(),
                values,
            })
        })?;
        Ok(ScopeFilter::new(entries).expect("keys that ascend are unique"))
    }

    /// Reads a map from scope variable to value.
    pub(crate) fn stored_scopes(
        &mut self,
        what: &'static str,
    ) -> Result<Vec<(ByteString, ByteString)>, DecodeError> {
        let mut last = None;
        self.shared_list(what, |payload| {
            let key = payload.reader.key(&mut last, what)?;
            let key = payload.share(key.as_bytes());
            let key = ByteString::try_from(key).expect("a key is UTF-8");
            Ok((key, payload.text(what)?))
        })
    }
}

impl<'a> Reader<'a> {
    /// Reads a map key, which must come after the last one (Conventions).
    fn key(
        &mut self,
        last: &mut Option<&'a str>,
        what: &'static str,
    ) -> Result<&'a str, DecodeError> {
        let start = self.position;
        let key = self.str(what)?;
        if last.is_some_and(|last| utf16_cmp(last, key).is_ge()) {
            return Err(invalid_at(start, "map keys do not ascend"));
        }
        *last = Some(key);
        Ok(key)
    }
}

/// A payload is read like any bytes; what this type adds is sharing.
impl<'a> Deref for FrameReader<'a> {
    type Target = Reader<'a>;

    fn deref(&self) -> &Reader<'a> {
        &self.reader
    }
}

impl<'a> DerefMut for FrameReader<'a> {
    fn deref_mut(&mut self) -> &mut Reader<'a> {
        &mut self.reader
    }
}

const NOT_UTF8: &str = "text is not UTF-8";

pub(crate) fn is_safe_integer(value: i64) -> bool {
    (-SAFE_INTEGER_MAX..=SAFE_INTEGER_MAX).contains(&value)
}

pub(crate) fn invalid_at(offset: usize, rule: &'static str) -> DecodeError {
    DecodeError {
        offset,
        kind: DecodeErrorKind::Invalid(rule),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_count_in_a_short_payload_fails_without_allocating() {
        let bytes = [0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0];
        let error = Reader::new(&bytes)
            .list("numbers", |reader| reader.u32("number"))
            .unwrap_err();
        assert_eq!(error.offset, 8);
        assert_eq!(error.kind, DecodeErrorKind::Truncated("number"));
    }

    #[test]
    fn a_huge_length_fails_at_the_start_of_its_field() {
        let bytes = [0, 0xff, 0xff, 0xff, 0xff, 1];
        let mut reader = Reader::new(&bytes);
        reader.u8("first").unwrap();
        let error = reader.bytes("second").unwrap_err();
        assert_eq!(error.offset, 1);
        assert_eq!(error.kind, DecodeErrorKind::Truncated("second"));
    }

    #[test]
    fn integers_end_at_the_safe_range() {
        for (value, safe) in [
            (SAFE_INTEGER_MAX, true),
            (-SAFE_INTEGER_MAX, true),
            (SAFE_INTEGER_MAX + 1, false),
            (-SAFE_INTEGER_MAX - 1, false),
            (i64::MIN, false),
        ] {
            let read = Reader::new(&value.to_le_bytes()).i64("value");
            assert_eq!(read.is_ok(), safe, "{value}");
        }
    }

    #[test]
    fn booleans_and_presence_have_two_bytes() {
        for (byte, expected) in [(0, Some(false)), (1, Some(true)), (2, None), (0xff, None)] {
            assert_eq!(Reader::new(&[byte]).bool("flag").ok(), expected);
            assert_eq!(Reader::new(&[byte]).is_present("field").ok(), expected);
        }
    }

    #[track_caller]
    fn check_scopes(hex: &str, expected: Option<&[&str]>) {
        let message = Bytes::from(hex::decode(hex).unwrap());
        let mut payload = FrameReader::new(&message, Reader::new(&message));
        let read = payload.scopes("scopes").ok();
        let variables = read.as_ref().map(|filter| -> Vec<&str> {
            filter
                .entries()
                .iter()
                .map(|e| e.variable.as_str())
                .collect()
        });
        assert_eq!(variables.as_deref(), expected, "{hex}");
    }

    #[test]
    fn map_keys_ascend_by_utf_16() {
        let emoji = "04000000f09f998000000000";
        let private = "03000000ee808000000000";
        let in_order = format!("02000000{emoji}{private}");
        check_scopes(&in_order, Some(&["\u{1F640}", "\u{E000}"]));
        check_scopes(&format!("02000000{private}{emoji}"), None);
        check_scopes(&format!("02000000{emoji}{emoji}"), None);
    }

    #[test]
    fn the_worked_map_is_read() {
        check_scopes(
            "0200000004000000f09f98800000000003000000ee808000000000",
            Some(&["\u{1F600}", "\u{E000}"]),
        );
    }

    #[test]
    fn text_must_be_utf_8() {
        let bytes = [2, 0, 0, 0, 0xc3, 0x28];
        assert_eq!(
            Reader::new(&bytes).str("text"),
            Err(invalid_at(0, NOT_UTF8))
        );
    }
}
