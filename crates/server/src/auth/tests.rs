//! Who is believed, and who is not.

use http::{HeaderName, HeaderValue, header};
use serde_json::{Map, json};

use super::*;
use crate::Secret;

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for &(name, value) in pairs {
        map.append(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    map
}

async fn ask(
    authenticator: &dyn Authenticator,
    headers: &HeaderMap,
    peer: Option<&str>,
) -> Option<Identity> {
    let uri = Uri::from_static("/sync");
    let peer = peer.map(|text| text.parse().unwrap());
    let head = RequestHead {
        method: &Method::POST,
        uri: &uri,
        headers,
        peer,
    };
    authenticator.authenticate(head).await.unwrap()
}

fn token(token: &str, actor: &str) -> StaticToken {
    StaticToken {
        token: Secret::new(token),
        partition: "p".to_owned(),
        actor: actor.to_owned(),
        claims: Map::from_iter([("teams".to_owned(), json!(["t1"]))]),
    }
}

fn proxy() -> TrustedHeader {
    TrustedHeader {
        actor_header: HeaderName::from_static("x-user"),
        partition_header: Some(HeaderName::from_static("x-tenant")),
        partition: None,
        claims_header: Some(HeaderName::from_static("x-claims")),
        proxies: vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
    }
}

#[tokio::test]
async fn a_token_names_its_actor_and_brings_its_claims() {
    let tokens = BearerTokens::new([token("s3", "alice"), token("s4", "bob")]).unwrap();
    let identity = ask(&tokens, &headers(&[("authorization", "bearer s4")]), None)
        .await
        .unwrap();
    assert_eq!(identity.actor.as_str(), "bob");
    assert_eq!(identity.partition.as_str(), "p");
    assert_eq!(identity.claims["teams"], json!(["t1"]));
}

#[tokio::test]
async fn anything_but_a_known_token_is_nobody() {
    let tokens = BearerTokens::new([token("s3", "alice")]).unwrap();
    for authorization in [
        "Bearer s",
        "Bearer s33",
        "Bearer",
        "Bearer ",
        "Basic s3",
        "s3",
    ] {
        let headers = headers(&[("authorization", authorization)]);
        assert!(
            ask(&tokens, &headers, None).await.is_none(),
            "{authorization}"
        );
    }
    assert!(ask(&tokens, &HeaderMap::new(), None).await.is_none());
    let twice = headers(&[
        ("authorization", "Bearer s3"),
        ("authorization", "Bearer s3"),
    ]);
    assert!(ask(&tokens, &twice, None).await.is_none());
}

#[test]
fn tokens_that_cannot_tell_actors_apart_are_refused() {
    let duplicate = BearerTokens::new([token("s3", "alice"), token("s3", "bob")]);
    assert_eq!(
        duplicate.unwrap_err(),
        TokenError::Duplicate("alice".to_owned(), "bob".to_owned())
    );
    let empty = BearerTokens::new([token(" ", "alice")]);
    assert_eq!(empty.unwrap_err(), TokenError::Empty("alice".to_owned()));
}

#[tokio::test]
async fn headers_are_believed_only_from_the_proxy() {
    let map = headers(&[("x-user", "alice"), ("x-tenant", "t1")]);
    for (peer, believed) in [
        (Some("10.1.2.3:9"), true),
        (Some("[::ffff:10.1.2.3]:9"), true),
        (Some("[::1]:9"), true),
        (Some("11.1.2.3:9"), false),
        (Some("[::2]:9"), false),
        (None, false),
    ] {
        assert_eq!(
            ask(&proxy(), &map, peer).await.is_some(),
            believed,
            "{peer:?}"
        );
    }
}

#[tokio::test]
async fn a_proxy_that_leaves_something_open_names_nobody() {
    let peer = Some("10.1.2.3:9");
    for map in [
        headers(&[("x-user", "alice")]),
        headers(&[("x-tenant", "t1")]),
        headers(&[("x-user", ""), ("x-tenant", "t1")]),
        headers(&[("x-user", "alice"), ("x-user", "bob"), ("x-tenant", "t1")]),
    ] {
        assert!(ask(&proxy(), &map, peer).await.is_none(), "{map:?}");
    }
}

#[tokio::test]
async fn claims_of_a_proxy_are_a_json_object_or_a_failure() {
    let peer = Some("10.1.2.3:9".parse().unwrap());
    let uri = Uri::from_static("/sync");
    for (claims, accepted) in [(r#"{"teams":["t1"]}"#, true), ("[]", false), ("{", false)] {
        let map = headers(&[
            ("x-user", "alice"),
            ("x-tenant", "t1"),
            ("x-claims", claims),
        ]);
        let head = RequestHead {
            method: &Method::GET,
            uri: &uri,
            headers: &map,
            peer,
        };
        assert_eq!(
            proxy().authenticate(head).await.is_ok(),
            accepted,
            "{claims}"
        );
    }
}

#[tokio::test]
async fn the_first_of_a_chain_that_knows_the_caller_answers() {
    let tokens = BearerTokens::new([token("s3", "alice")]).unwrap();
    let chain = AuthenticatorChain::new(vec![Arc::new(proxy()), Arc::new(tokens)]);
    let map = headers(&[("authorization", "Bearer s3")]);
    assert_eq!(
        ask(&chain, &map, None).await.unwrap().actor.as_str(),
        "alice"
    );
    let mut both = map.clone();
    both.insert("x-user", HeaderValue::from_static("carol"));
    both.insert("x-tenant", HeaderValue::from_static("t1"));
    let identity = ask(&chain, &both, Some("10.0.0.1:1")).await.unwrap();
    assert_eq!(identity.actor.as_str(), "carol");
    assert!(ask(&chain, &headers(&[]), None).await.is_none());
    assert!(map.contains_key(header::AUTHORIZATION));
}
