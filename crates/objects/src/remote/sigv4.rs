//! AWS signature version 4 in a query, with the length of the body signed.
//!
//! The `object_store` crate signs URLs and refuses to sign a length, which is what keeps the
//! holder of an upload URL from filling the bucket. Everything else about the URL (host, path and
//! their spelling) is taken from one that the crate made.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Who signs.
pub(super) struct Signature<'a> {
    pub(super) key_id: &'a str,
    pub(super) secret: &'a str,
    /// Of temporary credentials.
    pub(super) session_token: Option<&'a str>,
    pub(super) region: &'a str,
    /// `YYYYMMDDTHHMMSSZ`, of the provider's clock as far as we know it.
    pub(super) timestamp: &'a str,
    pub(super) lifetime_seconds: u64,
}

/// What may be done.
pub(super) struct Allowed<'a> {
    pub(super) method: &'a str,
    /// With the port where it is not the scheme's.
    pub(super) host: &'a str,
    /// Encoded as it is sent.
    pub(super) path: &'a str,
    pub(super) content_length: Option<u64>,
}

/// The query that allows it.
pub(super) fn query(signature: &Signature<'_>, allowed: &Allowed<'_>) -> String {
    let date = signature.timestamp.get(..8).unwrap_or_default();
    let scope = format!("{date}/{}/s3/aws4_request", signature.region);
    let (headers, names) = match allowed.content_length {
        Some(length) => (
            format!("content-length:{length}\nhost:{}\n", allowed.host),
            "content-length;host",
        ),
        None => (format!("host:{}\n", allowed.host), "host"),
    };
    let mut query = format!(
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={}&X-Amz-Date={}&X-Amz-Expires={}",
        encode(&format!("{}/{scope}", signature.key_id)),
        signature.timestamp,
        signature.lifetime_seconds,
    );
    if let Some(token) = signature.session_token {
        query.push_str("&X-Amz-Security-Token=");
        query.push_str(&encode(token));
    }
    query.push_str("&X-Amz-SignedHeaders=");
    query.push_str(&encode(names));
    let request = format!(
        "{}\n{}\n{query}\n{headers}\n{names}\nUNSIGNED-PAYLOAD",
        allowed.method, allowed.path,
    );
    let text = format!(
        "AWS4-HMAC-SHA256\n{}\n{scope}\n{}",
        signature.timestamp,
        hex::encode(Sha256::digest(request)),
    );
    let mut key = mac(
        format!("AWS4{}", signature.secret).as_bytes(),
        date.as_bytes(),
    );
    for part in [signature.region, "s3", "aws4_request"] {
        key = mac(&key, part.as_bytes());
    }
    query.push_str("&X-Amz-Signature=");
    query.push_str(&hex::encode(mac(&key, text.as_bytes())));
    query
}

/// Everything but letters, digits and `-._~` as `%XX`.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn mac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: Signature<'_> = Signature {
        key_id: "AKIAIOSFODNN7EXAMPLE",
        secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        session_token: None,
        region: "us-east-1",
        timestamp: "20130524T000000Z",
        lifetime_seconds: 86_400,
    };

    const GET: Allowed<'_> = Allowed {
        method: "GET",
        host: "examplebucket.s3.amazonaws.com",
        path: "/test.txt",
        content_length: None,
    };

    /// The example of the documentation of AWS.
    #[test]
    fn a_signature_is_the_published_one() {
        assert_eq!(
            query(&SIGNATURE, &GET),
            "X-Amz-Algorithm=AWS4-HMAC-SHA256\
             &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
             &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
             &X-Amz-Signature=\
             aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        );
    }

    #[test]
    fn every_part_is_signed() {
        let signature_of = |query: String| query.rsplit('=').next().unwrap().to_owned();
        let put = Allowed {
            method: "PUT",
            content_length: Some(5),
            ..GET
        };
        let mut seen = vec![signature_of(query(&SIGNATURE, &GET))];
        for allowed in [
            Allowed { ..put },
            Allowed {
                content_length: Some(6),
                ..put
            },
            Allowed {
                path: "/other.txt",
                ..put
            },
            Allowed {
                host: "other",
                ..put
            },
        ] {
            seen.push(signature_of(query(&SIGNATURE, &allowed)));
        }
        let with_token = Signature {
            session_token: Some("a+b/c="),
            ..SIGNATURE
        };
        let text = query(&with_token, &put);
        assert!(text.contains("&X-Amz-Security-Token=a%2Bb%2Fc%3D&"));
        seen.push(signature_of(text));
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }
}
