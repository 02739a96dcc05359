//! Tokens against vectors that Python's `hmac` computed, and what is refused.

use super::*;

const SEGMENT: &str = "eyJ2IjoxLCJzZWciOiJzaGEyNTY6MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMCIsInNkIjoiMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMSIsImF1ZCI6InAtYXVkIiwiZXhwIjoxNzgyOTk0NTAwfQ.tigCEP0HCAoD1FUw-l2q_NXm1m17S4F6z36vp9aWhWo";
const BLOB: &str = "eyJ2IjoxLCJibG9iIjoic2hhMjU2OmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWIiLCJhdWQiOiJhXCLDqSIsImV4cCI6MTcwMDAwMDkwMH0.2Y_zvej1pEG6wH0s7fiWcCBH5i0NC9eOk7ZW8aUm82c";

fn key() -> Vec<u8> {
    (0..32).collect()
}

fn other_key() -> Vec<u8> {
    vec![b'k'; 40]
}

fn keys() -> SigningKeys {
    SigningKeys::new(vec![key()]).unwrap()
}

fn segment() -> Claim {
    Claim::Segment {
        segment_id: format!("sha256:{}", "0".repeat(64)),
        scope_digest: "1".repeat(64),
        audience: "p-aud".to_owned(),
    }
}

fn blob() -> Claim {
    Claim::Blob {
        blob_id: format!("sha256:{}", "ab".repeat(32)),
        audience: "a\"é".to_owned(),
    }
}

#[test]
fn tokens_are_the_published_vectors() {
    assert_eq!(
        token(b"secret", payload(&segment(), 1_782_994_500).as_bytes()),
        SEGMENT
    );
    let (token, expires_at_ms) = keys().sign(&blob(), Duration::from_secs(900), 1_700_000_000_999);
    assert_eq!((&*token, expires_at_ms), (BLOB, 1_700_000_900_000));
    assert_eq!(
        keys().audience(&PartitionId::new("acme")),
        "BzmVF33q9JZKBW5t3N1juZNkwTq97P2r3ZTEOl_dxao"
    );
}

#[test]
fn a_url_names_the_object_and_carries_the_token() {
    let signed = keys().sign_url(
        "https://sync.example/segments",
        &segment(),
        Duration::from_secs(60),
        10_500,
    );
    assert_eq!(signed.expires_at_ms, 70_000);
    let (url, token) = signed.url.split_once("?st=").unwrap();
    assert_eq!(
        url,
        format!("https://sync.example/segments/sha256:{}", "0".repeat(64))
    );
    assert_eq!(keys().verify(token, 10_500), Ok(segment()));
    assert!(!format!("{signed:?}").contains("st="));
}

#[track_caller]
fn check_lifetime(asked_ms: u64, now_ms: i64, expected_end_ms: i64) {
    let (_, end_ms) = keys().sign(&blob(), Duration::from_millis(asked_ms), now_ms);
    assert_eq!(end_ms, expected_end_ms);
}

#[test]
fn a_lifetime_is_whole_seconds_and_at_most_a_quarter_of_an_hour() {
    check_lifetime(900_000, 0, 900_000);
    check_lifetime(86_400_000, 0, 900_000);
    check_lifetime(2_999, 1_999, 3_000);
    check_lifetime(0, 0, 1_000);
}

#[test]
fn a_token_lives_until_a_minute_after_its_end() {
    let at = |seconds: i64| keys().verify(BLOB, seconds * 1_000 + 999);
    assert_eq!(at(1_700_000_000), Ok(blob()));
    assert_eq!(at(1_700_000_960), Ok(blob()));
    assert_eq!(at(1_700_000_961), Err(TokenError::Expired));
}

#[test]
fn a_token_of_any_key_is_taken_and_the_first_signs() {
    let both = SigningKeys::new(vec![other_key(), key()]).unwrap();
    assert_eq!(both.verify(BLOB, 0), Ok(blob()));
    let (token, _) = both.sign(&segment(), Duration::from_secs(60), 0);
    assert_eq!(keys().verify(&token, 0), Err(TokenError::Signature));
    let new = SigningKeys::new(vec![other_key()]).unwrap();
    assert_eq!(new.verify(&token, 0), Ok(segment()));
    assert_eq!(new.verify(BLOB, 0), Err(TokenError::Signature));

    let partition = PartitionId::new("acme");
    let old = keys().audience(&partition);
    assert!(both.is_audience(&old, &partition));
    assert!(!both.is_audience(&old, &PartitionId::new("other")));
    assert!(!new.is_audience(&old, &partition));
    assert_ne!(both.audience(&partition), old);
}

#[track_caller]
fn check_refused(payload: &str, expected: TokenError) {
    let token = token(&key(), payload.as_bytes());
    assert_eq!(keys().verify(&token, 0), Err(expected), "{payload}");
}

#[test]
fn what_is_signed_and_no_claim_is_refused() {
    check_refused("", TokenError::Malformed);
    check_refused("[]", TokenError::Malformed);
    check_refused(r#"{"v":1,"aud":"a","exp":9}"#, TokenError::Malformed);
    check_refused(
        r#"{"v":1,"seg":"s","aud":"a","exp":9}"#,
        TokenError::Malformed,
    );
    check_refused(
        r#"{"v":1,"seg":"s","sd":"d","blob":"b","aud":"a","exp":9}"#,
        TokenError::Malformed,
    );
    check_refused(
        r#"{"v":2,"blob":"b","aud":"a","exp":9}"#,
        TokenError::Version,
    );
    check_refused(
        r#"{"v":1,"blob":"b","aud":"a","exp":-61}"#,
        TokenError::Expired,
    );
}

#[test]
fn every_other_text_is_refused() {
    let keys = keys();
    for text in [
        "",
        ".",
        "a",
        "a.b",
        "é.é",
        &"a".repeat(5_000),
        &format!("{BLOB}."),
    ] {
        assert!(keys.verify(text, 0).is_err(), "{text}");
    }
    // One bit of any character changed.
    for position in 0..BLOB.len() {
        let mut bytes = BLOB.as_bytes().to_vec();
        bytes[position] ^= 1;
        let text = String::from_utf8(bytes).unwrap();
        assert!(keys.verify(&text, 0).is_err(), "{text}");
    }
    // The same signature in another spelling.
    assert_eq!(
        keys.verify(&format!("{BLOB}="), 0),
        Err(TokenError::Malformed)
    );
}

#[test]
fn weak_keys_are_refused() {
    let error = |keys| SigningKeys::new(keys).unwrap_err();
    assert_eq!(error(vec![]), SigningKeysError::None);
    assert_eq!(error(vec![key(), vec![1; 31]]), SigningKeysError::TooShort);
    assert!(!format!("{:?}", keys()).contains('['));
}

proptest::proptest! {
    #[test]
    fn what_is_signed_is_verified(
        segment_id in ".*", scope_digest in ".*", audience in ".*", now in 0_i64..1 << 40,
    ) {
        let claim = Claim::Segment { segment_id, scope_digest, audience };
        let (token, _) = keys().sign(&claim, Duration::from_secs(60), now);
        if token.len() <= TOKEN_BYTES_MAX {
            proptest::prop_assert_eq!(keys().verify(&token, now), Ok(claim));
        }
    }

    #[test]
    fn no_text_makes_the_verifier_panic(text in ".*") {
        proptest::prop_assert!(keys().verify(&text, 0).is_err());
    }
}
