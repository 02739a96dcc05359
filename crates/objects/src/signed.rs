//! URLs signed by this server (§5.4, §5.9.5).
//!
//! A token is a claim and an HMAC-SHA256 over the claim's exact bytes. Nothing is looked up to
//! verify one, and nothing in it says which partition it is for: the audience is a keyed hash.
//!
//! Keys rotate: the first of a [`SigningKeys`] signs, all verify. **Invariant:** whether a
//! signature is right is decided in constant time, over every key, before a claim is parsed.
//!
//! All functions are pure; time is an argument.

use std::{fmt, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};
use tidewater_model::PartitionId;

use crate::SignedUrl;

/// Longest a signed URL may live, in seconds: 15 minutes.
pub const SIGNED_URL_SECONDS_MAX: u64 = 900;

/// How far the clocks of servers may be apart, in seconds (§5.4).
const SKEW_SECONDS: i64 = 60;

/// A token of ours is far shorter; a longer one is not worth decoding.
const TOKEN_BYTES_MAX: usize = 4_096;

/// A key shorter than this can be guessed.
pub const SIGNING_KEY_BYTES_MIN: usize = 32;

const VERSION: u32 = 1;

/// Keys of signed URLs. The first signs, all verify.
///
/// To rotate: put the new key first, wait for [`SIGNED_URL_SECONDS_MAX`] and the skew to pass, and
/// take the old one away.
#[derive(Clone)]
pub struct SigningKeys {
    keys: Vec<Vec<u8>>,
}

/// Why there are no keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SigningKeysError {
    /// None was given.
    #[error("signed URLs need a key")]
    None,
    /// One is too short.
    #[error("a key of signed URLs needs at least {SIGNING_KEY_BYTES_MIN} bytes")]
    TooShort,
}

/// Without the keys.
impl fmt::Debug for SigningKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SigningKeys")
            .field("count", &self.keys.len())
            .finish_non_exhaustive()
    }
}

/// What a token is for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Claim {
    /// One segment, for those who may see one set of scopes.
    Segment {
        /// Its content address.
        segment_id: String,
        /// Digest of the scopes it was published for.
        scope_digest: String,
        /// The partition, hidden: see [`SigningKeys::audience`].
        audience: String,
    },
    /// One blob.
    Blob {
        /// Its content address.
        blob_id: String,
        /// The partition, hidden.
        audience: String,
    },
}

/// Why a token is refused. None of it travels to a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TokenError {
    /// It is not a token.
    #[error("the token is malformed")]
    Malformed,
    /// No key of ours signed it.
    #[error("the token's signature is wrong")]
    Signature,
    /// It is of a version that this server does not know.
    #[error("the token's version is unknown")]
    Version,
    /// It has ended.
    #[error("the token has expired")]
    Expired,
}

impl SigningKeys {
    /// Keys to sign with, the newest first.
    pub fn new(keys: Vec<Vec<u8>>) -> Result<Self, SigningKeysError> {
        if keys.is_empty() {
            return Err(SigningKeysError::None);
        }
        if keys.iter().any(|key| key.len() < SIGNING_KEY_BYTES_MIN) {
            return Err(SigningKeysError::TooShort);
        }
        Ok(Self { keys })
    }

    /// Signs a claim. The lifetime is cut at [`SIGNED_URL_SECONDS_MAX`], and is at least one
    /// second. The token and its end, Unix milliseconds.
    pub fn sign(&self, claim: &Claim, lifetime: Duration, now_ms: i64) -> (String, i64) {
        let seconds = clamp_lifetime(lifetime);
        let expires_at_ms = expiry_ms(now_ms, seconds);
        let payload = payload(claim, expires_at_ms / 1_000);
        (token(&self.keys[0], payload.as_bytes()), expires_at_ms)
    }

    /// Signs a URL: `{base_url}/{id}?st={token}`. The base has no trailing slash.
    pub fn sign_url(
        &self,
        base_url: &str,
        claim: &Claim,
        lifetime: Duration,
        now_ms: i64,
    ) -> SignedUrl {
        let (token, expires_at_ms) = self.sign(claim, lifetime, now_ms);
        let id = match claim {
            Claim::Segment { segment_id, .. } => segment_id,
            Claim::Blob { blob_id, .. } => blob_id,
        };
        SignedUrl {
            url: format!("{base_url}/{id}?st={token}"),
            expires_at_ms,
        }
    }

    /// What a token is for, if one of the keys signed it and it has not ended.
    ///
    /// The caller still has to compare every part of the claim with what is asked for.
    pub fn verify(&self, token: &str, now_ms: i64) -> Result<Claim, TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Malformed);
        }
        let (payload, signature) = token.split_once('.').ok_or(TokenError::Malformed)?;
        let payload = decode(payload)?;
        let signature = decode(signature)?;
        let mut is_signed = Choice::from(0);
        for key in &self.keys {
            is_signed |= mac(key, &payload).ct_eq(&*signature);
        }
        if !bool::from(is_signed) {
            return Err(TokenError::Signature);
        }
        let parsed: Payload =
            serde_json::from_slice(&payload).map_err(|_| TokenError::Malformed)?;
        if parsed.v != VERSION {
            return Err(TokenError::Version);
        }
        let now = now_ms.div_euclid(1_000);
        if parsed.exp < now.saturating_sub(SKEW_SECONDS) {
            return Err(TokenError::Expired);
        }
        match (parsed.seg, parsed.sd, parsed.blob) {
            (Some(segment_id), Some(scope_digest), None) => Ok(Claim::Segment {
                segment_id,
                scope_digest,
                audience: parsed.aud,
            }),
            (None, None, Some(blob_id)) => Ok(Claim::Blob {
                blob_id,
                audience: parsed.aud,
            }),
            _ => Err(TokenError::Malformed),
        }
    }

    /// When a token ends, Unix milliseconds, whoever signed it: for who has verified it.
    pub fn expiry_ms(token: &str) -> Option<i64> {
        let (payload, _) = token.split_once('.')?;
        let payload: Payload = serde_json::from_slice(&decode(payload).ok()?).ok()?;
        payload.exp.checked_mul(1_000)
    }

    /// What stands for a partition in a token: always the same for the same key, and telling
    /// nothing about it to who has no key. From the key that signs.
    pub fn audience(&self, partition: &PartitionId) -> String {
        audience(&self.keys[0], partition)
    }

    /// Whether an audience stands for a partition, under any of the keys.
    pub fn is_audience(&self, text: &str, partition: &PartitionId) -> bool {
        let mut is_audience = Choice::from(0);
        for key in &self.keys {
            is_audience |= audience(key, partition).as_bytes().ct_eq(text.as_bytes());
        }
        is_audience.into()
    }
}

/// Seconds that a URL lives which should live so long.
pub(crate) fn clamp_lifetime(lifetime: Duration) -> u64 {
    lifetime.as_secs().clamp(1, SIGNED_URL_SECONDS_MAX)
}

/// When a URL ends that is signed now: the whole second in which it is signed, and its lifetime.
pub(crate) fn expiry_ms(now_ms: i64, lifetime_seconds: u64) -> i64 {
    let lifetime = i64::try_from(lifetime_seconds).unwrap_or(i64::MAX);
    now_ms
        .div_euclid(1_000)
        .saturating_add(lifetime)
        .saturating_mul(1_000)
}

#[derive(Deserialize)]
struct Payload {
    v: u32,
    seg: Option<String>,
    sd: Option<String>,
    blob: Option<String>,
    aud: String,
    exp: i64,
}

/// The claim as JSON, keys in the order that the protocol gives.
fn payload(claim: &Claim, expires_at_seconds: i64) -> String {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    match claim {
        Claim::Segment {
            segment_id,
            scope_digest,
            audience,
        } => format!(
            r#"{{"v":1,"seg":{},"sd":{},"aud":{},"exp":{expires_at_seconds}}}"#,
            text(segment_id),
            text(scope_digest),
            text(audience),
        ),
        Claim::Blob { blob_id, audience } => format!(
            r#"{{"v":1,"blob":{},"aud":{},"exp":{expires_at_seconds}}}"#,
            text(blob_id),
            text(audience),
        ),
    }
}

fn token(key: &[u8], payload: &[u8]) -> String {
    let claim = BASE64_URL_SAFE_NO_PAD.encode(payload);
    let signature = BASE64_URL_SAFE_NO_PAD.encode(mac(key, payload));
    format!("{claim}.{signature}")
}

fn decode(text: &str) -> Result<Vec<u8>, TokenError> {
    BASE64_URL_SAFE_NO_PAD
        .decode(text)
        .map_err(|_| TokenError::Malformed)
}

/// The name keeps audiences apart from whatever else the key may sign.
fn audience(key: &[u8], partition: &PartitionId) -> String {
    let message = format!("tidewater audience 1\n{}", partition.as_str());
    BASE64_URL_SAFE_NO_PAD.encode(mac(key, message.as_bytes()))
}

fn mac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests;
