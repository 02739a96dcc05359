//! Requests that are refused as a whole, floors and resets (§1.6, §1.7).

use tidewater_model::ErrorCode;
use tidewater_wire::WireVersion;

use super::notes;
use crate::{
    Identity,
    testing::{Ask, Grants, PARTITION, TestServer, note, subscription},
};

#[track_caller]
fn check(error: &crate::RoundError, code: ErrorCode, details: Option<&str>) {
    assert_eq!((error.code, error.details.as_deref()), (code, details));
}

#[tokio::test]
async fn a_subscription_id_must_not_come_twice() {
    let server = TestServer::start().await;
    let error = server.refusal(Ask::pull([notes(0), notes(0)])).await;
    check(
        &error,
        ErrorCode::InvalidSubscription,
        Some(r#"{"subscription":"s"}"#),
    );
}

#[tokio::test]
async fn a_requested_wildcard_or_unknown_variable_is_refused() {
    let server = TestServer::start().await;
    for scopes in [&[("team_id", &["t1", "*"][..])], &[("org", &["o1"][..])]] {
        let error = server
            .refusal(Ask::pull([subscription("s", "notes", scopes, 0)]))
            .await;
        let details = format!(r#"{{"table":"notes","variable":"{}"}}"#, scopes[0].0);
        check(&error, ErrorCode::InvalidSubscription, Some(&details));
    }
}

#[tokio::test]
async fn a_resolver_that_grants_an_unknown_variable_fails_the_request() {
    let server = TestServer::start().await;
    server
        .resolver
        .allow(&[("team_id", &["t1"]), ("planet", &["mars"])]);
    let error = server.refusal(Ask::pull([notes(0)])).await;
    check(
        &error,
        ErrorCode::InvalidSubscription,
        Some(r#"{"variable":"planet"}"#),
    );
}

#[tokio::test]
async fn a_resolver_may_refuse_with_a_code_of_the_catalogue() {
    let server = TestServer::start().await;
    server
        .resolver
        .switch(Grants::Refuses(ErrorCode::Forbidden));
    check(
        &server.refusal(Ask::pull([notes(0)])).await,
        ErrorCode::Forbidden,
        None,
    );
}

#[tokio::test]
async fn an_unknown_table_is_refused() {
    let server = TestServer::start().await;
    let error = server
        .refusal(Ask::pull([subscription("s", "nothing", &[], 0)]))
        .await;
    check(
        &error,
        ErrorCode::UnknownTable,
        Some(r#"{"table":"nothing"}"#),
    );
}

#[tokio::test]
async fn a_pull_must_accept_rows_in_some_form() {
    let server = TestServer::start().await;
    for bits in [0b0000, 0b1100] {
        let error = server.refusal(Ask::pull([notes(0)]).accepting(bits)).await;
        check(&error, ErrorCode::InvalidRequest, None);
    }
}

#[tokio::test]
async fn a_client_id_of_another_actor_or_of_commands_is_refused() {
    let server = TestServer::start().await;
    server.round(Ask::pull([notes(0)])).await;
    let bob = Identity::new(PARTITION, "bob");
    let error = server
        .try_round(&bob, Ask::pull([notes(0)]))
        .await
        .unwrap_err();
    check(&error, ErrorCode::InvalidClientId, None);
    let elsewhere = Identity::new("p2", "bob");
    server
        .try_round(&elsewhere, Ask::pull([notes(0)]))
        .await
        .unwrap();
    let ask = Ask::pull([notes(0)]).of_client("[\"remote-command\",1]");
    check(&server.refusal(ask).await, ErrorCode::InvalidClientId, None);
}

#[tokio::test]
async fn what_cannot_be_decoded_is_refused_with_the_decoders_code() {
    let server = TestServer::start().await;
    for bytes in [
        &b""[..],
        b"SSP2",
        b"SSP2\x03\x00\x02\x00",
        b"SSP2\x09\x00\x01\x00",
    ] {
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        let answer = server.engine.round(crate::testing::identity(), bytes).await;
        assert_eq!(
            answer.err().map(|error| error.code),
            Some(ErrorCode::InvalidRequest)
        );
    }
}

#[tokio::test]
async fn a_schema_version_that_is_not_served_gets_the_floor_and_nothing_else() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "")]).await;
    for version in WireVersion::ALL {
        for schema_version in [2, 4] {
            let ask = Ask::pull([notes(0)])
                .in_version(version)
                .of_schema(schema_version);
            let answer = server.round(ask).await;
            assert_eq!(answer.header.required_schema_version, Some(3));
            assert_eq!(answer.header.latest_schema_version, Some(3));
            assert!(answer.sections.is_empty());
        }
    }
    assert_eq!(server.resolver.calls(), 0);
}

#[tokio::test]
async fn a_served_schema_version_is_told_the_latest_one_and_the_epoch() {
    let server = TestServer::start().await;
    for version in WireVersion::ALL {
        let answer = server
            .round(Ask::pull([notes(0)]).in_version(version))
            .await;
        assert_eq!(answer.header.required_schema_version, None);
        assert_eq!(answer.header.latest_schema_version, Some(3));
        let epoch = if version.has_epoch() {
            server.epoch().await
        } else {
            String::new()
        };
        assert_eq!(answer.header.log_epoch, epoch);
        assert!(!answer.header.reset_required);
    }
}

#[tokio::test]
async fn a_client_without_the_live_epoch_is_reset() {
    let server = TestServer::start().await;
    for ask in [
        Ask::pull([notes(0)]).without_epoch(),
        Ask::pull([notes(0)]).of_epoch("old"),
    ] {
        let answer = server.round(ask).await;
        assert!(answer.header.reset_required);
        assert_eq!(answer.header.log_epoch, server.epoch().await);
        assert!(answer.sections.is_empty());
    }
    assert_eq!(server.resolver.calls(), 0);
}
