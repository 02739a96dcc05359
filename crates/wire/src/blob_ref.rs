//! References to blobs, as the text of a `blob_ref` column (§5.9.1).
//!
//! The keys have one order and none comes twice. White space is tolerated when reading, because
//! it was always possible to store, and never written.

use std::{borrow::Cow, fmt};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use tidewater_model::limits::SAFE_INTEGER_MAX;

use crate::{
    content::is_content_address,
    json::{self, put_string},
};

const BLOB_ID: &str = "blobId";
const BYTE_LENGTH: &str = "byteLength";
const MEDIA_TYPE: &str = "mediaType";
const NAME: &str = "name";

/// A reference to a blob.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BlobRef {
    /// The content address of the blob.
    pub blob_id: String,
    /// Its size, 0 … 2^53 − 1.
    pub byte_length: i64,
    /// What it is.
    pub media_type: Option<String>,
    /// What its author called it.
    pub name: Option<String>,
}

impl BlobRef {
    /// Reads the text; `None` when it breaks a rule.
    pub fn parse(text: &str) -> Option<Self> {
        let parts = Parts::read(text)?;
        Some(Self {
            blob_id: parts.blob_id.into_owned(),
            byte_length: parts.byte_length,
            media_type: parts.media_type.map(Cow::into_owned),
            name: parts.name.map(Cow::into_owned),
        })
    }

    /// Whether [`Self::parse`] would succeed.
    pub fn is_valid(text: &str) -> bool {
        Parts::read(text).is_some()
    }

    /// The canonical text.
    pub fn to_text(&self) -> String {
        let mut out = String::from("{");
        put_key(&mut out, BLOB_ID);
        put_string(&mut out, &self.blob_id);
        out.push(',');
        put_key(&mut out, BYTE_LENGTH);
        out.push_str(&self.byte_length.to_string());
        for (key, value) in [(MEDIA_TYPE, &self.media_type), (NAME, &self.name)] {
            if let Some(value) = value {
                out.push(',');
                put_key(&mut out, key);
                put_string(&mut out, value);
            }
        }
        out.push('}');
        out
    }
}

fn put_key(out: &mut String, key: &str) {
    put_string(out, key);
    out.push(':');
}

struct Parts<'a> {
    blob_id: Cow<'a, str>,
    byte_length: i64,
    media_type: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
}

impl<'a> Parts<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let parts: Self = json::read_as(text)?;
        let is_valid = is_content_address(&parts.blob_id)
            && (0..=SAFE_INTEGER_MAX).contains(&parts.byte_length);
        is_valid.then_some(parts)
    }
}

impl<'de> Deserialize<'de> for Parts<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PartsVisitor)
    }
}

struct PartsVisitor;

impl<'de> Visitor<'de> for PartsVisitor {
    type Value = Parts<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a blob reference")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Parts<'de>, A::Error> {
        let mut blob_id = None;
        let mut byte_length = None;
        let mut media_type = None;
        let mut name = None;
        let mut keys = [BLOB_ID, BYTE_LENGTH, MEDIA_TYPE, NAME].into_iter();
        while let Some(Text(key)) = members.next_key()? {
            // Going through the keys once accepts each at most once, and in this order only.
            match keys.find(|known| *known == key) {
                Some(BLOB_ID) => blob_id = Some(members.next_value::<Text<'_>>()?.0),
                Some(BYTE_LENGTH) => byte_length = Some(members.next_value::<i64>()?),
                Some(MEDIA_TYPE) => media_type = Some(members.next_value::<Text<'_>>()?.0),
                Some(NAME) => name = Some(members.next_value::<Text<'_>>()?.0),
                _ => return Err(A::Error::custom("key is unknown or out of order")),
            }
        }
        Ok(Parts {
            blob_id: blob_id.ok_or_else(|| A::Error::missing_field(BLOB_ID))?,
            byte_length: byte_length.ok_or_else(|| A::Error::missing_field(BYTE_LENGTH))?,
            media_type,
            name,
        })
    }
}

/// A JSON string, borrowed where it has no escapes.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[track_caller]
    fn check(text: &str, valid: bool) {
        let text = text.replace("ID", ID);
        assert_eq!(BlobRef::is_valid(&text), valid, "{text}");
        if let Some(reference) = BlobRef::parse(&text) {
            assert_eq!(BlobRef::parse(&reference.to_text()), Some(reference));
        }
    }

    #[test]
    fn a_reference_has_its_keys_once_and_in_order() {
        check(r#"{"blobId":"ID","byteLength":0}"#, true);
        check(
            r#"{"blobId":"ID","byteLength":1,"mediaType":"a/b","name":"n"}"#,
            true,
        );
        check(r#"{"blobId":"ID","byteLength":1,"name":""}"#, true);
        check(r#" { "blobId" : "ID" , "byteLength" : 1 } "#, true);
        check(r#"{"\u0062lobId":"ID","byteLength":1}"#, true);
        check(r#"{"byteLength":1,"blobId":"ID"}"#, false);
        check(
            r#"{"blobId":"ID","byteLength":1,"name":"n","mediaType":"a"}"#,
            false,
        );
        check(r#"{"blobId":"ID","blobId":"ID","byteLength":1}"#, false);
        check(
            r#"{"blobId":"ID","byteLength":1,"name":"n","name":"n"}"#,
            false,
        );
        check(r#"{"blobId":"ID","byteLength":1,"size":1}"#, false);
    }

    #[test]
    fn a_reference_needs_an_address_and_a_size() {
        check(r#"{"blobId":"ID"}"#, false);
        check(r#"{"byteLength":1}"#, false);
        check("{}", false);
        check("[]", false);
        check("null", false);
        check(r#"["ID",1]"#, false);
        check(r#"{"blobId":"sha256:00","byteLength":1}"#, false);
        check(r#"{"blobId":1,"byteLength":1}"#, false);
    }

    #[test]
    fn the_size_is_an_integer_literal_in_the_safe_range() {
        for (size, valid) in [
            ("9007199254740991", true),
            ("9007199254740992", false),
            ("18446744073709551615", false),
            ("-1", false),
            ("-0", false),
            ("1.0", false),
            ("1e3", false),
            ("\"1\"", false),
            ("null", false),
        ] {
            check(&format!(r#"{{"blobId":"ID","byteLength":{size}}}"#), valid);
        }
    }

    #[test]
    fn optional_values_are_strings() {
        check(r#"{"blobId":"ID","byteLength":1,"name":null}"#, false);
        check(r#"{"blobId":"ID","byteLength":1,"mediaType":1}"#, false);
    }

    #[test]
    fn the_canonical_text_has_no_white_space() {
        let text = format!(r#"{{"blobId":"{ID}","byteLength":7,"mediaType":"a/b","name":"é\n"}}"#);
        let reference = BlobRef::parse(&text).unwrap();
        assert_eq!(reference.name.as_deref(), Some("é\n"));
        assert_eq!(reference.to_text(), text);
    }
}
