//! Publications and headers as tables, downloads as wholes (§5.5).

use tidewater_model::CommitSeq;
use tidewater_objects::{PublicationContext, SegmentId, SegmentKey};

use super::*;
use crate::testing::{
    ACTOR, Ask, Grants, PARTITION, SEGMENT_LIFETIME_MS, TestServer, identity, note, subscription,
};

fn publication(partition: &str, epoch: &str, digest: &str, expires_at_ms: i64) -> Publication {
    let key = SegmentKey {
        partition: PartitionId::new(partition),
        log_epoch: LogEpoch::new(epoch),
        table: "notes".to_owned(),
        schema_version: 1,
        media_type: MediaType::Rows,
        scope_digest: digest.to_owned(),
        as_of: CommitSeq::START,
    };
    let context = PublicationContext {
        key,
        row_cursor: None,
        next_row_cursor: None,
    };
    Publication {
        context: Arc::new(context),
        created_at_ms: 0,
        expires_at_ms,
    }
}

/// The actor is of partition `p` in epoch `e`, has the digest `d`, and it is 100.
#[track_caller]
fn check(list: &[(&str, &str, &str, i64)], expected: Result<(), ErrorCode>) {
    let publications = list
        .iter()
        .map(|&(partition, epoch, digest, at_ms)| publication(partition, epoch, digest, at_ms))
        .collect();
    let record = SegmentRecord {
        id: SegmentId::new("x"),
        byte_length: 0,
        row_count: 0,
        publications,
    };
    let published = super::publications(&record, &PartitionId::new("p"), &LogEpoch::new("e"));
    let verdict = check_unexpired(&published, 100)
        .and_then(|_| check_digest(&published, "d", 100))
        .map_err(|error| error.code);
    assert_eq!(verdict, expected);
}

#[test]
fn a_publication_for_the_actors_scopes_authorizes() {
    check(&[("p", "e", "d", 101)], Ok(()));
    check(
        &[
            ("p", "e", "x", 101),
            ("p", "e", "d", 50),
            ("p", "e", "d", 200),
        ],
        Ok(()),
    );
}

#[test]
fn another_partition_or_timeline_does_not_exist() {
    check(
        &[("q", "e", "d", 101), ("p", "old", "d", 101)],
        Err(ErrorCode::NotFound),
    );
}

#[test]
fn a_publication_ends_at_the_millisecond_of_its_expiry() {
    check(&[("p", "e", "d", 100)], Err(ErrorCode::SegmentExpired));
    check(&[("p", "e", "x", 99)], Err(ErrorCode::SegmentExpired));
}

#[test]
fn other_scopes_are_forbidden_and_expired_ones_are_expired() {
    check(&[("p", "e", "x", 101)], Err(ErrorCode::Forbidden));
    check(
        &[("p", "e", "x", 101), ("p", "e", "d", 100)],
        Err(ErrorCode::SegmentExpired),
    );
    // Being published to someone else does not help.
    check(
        &[("p", "e", "x", 101), ("q", "e", "d", 101)],
        Err(ErrorCode::Forbidden),
    );
}

#[track_caller]
fn check_text(text: &str, expected: Option<&[(&str, &[&str])]>) {
    let parsed = parse_requested(text).ok();
    let expected = expected.map(|entries| {
        let entries = entries
            .iter()
            .map(|&(variable, values)| ScopeValues {
                variable: variable.to_owned(),
                values: values.iter().map(|&value| value.to_owned()).collect(),
            })
            .collect();
        ScopeFilter::new(entries).unwrap()
    });
    assert_eq!(parsed, expected, "{text}");
}

#[test]
fn requested_scopes_are_read_leniently() {
    check_text("{}", Some(&[]));
    check_text(
        r#" { "b" : ["2","1"], "a":[] } "#,
        Some(&[("a", &[]), ("b", &["2", "1"])]),
    );
    check_text(r#"{"a":["1"],"a":["2"]}"#, Some(&[("a", &["2"])]));
    for text in [
        "",
        "[]",
        "null",
        r#"{"a":"1"}"#,
        r#"{"a":[1]}"#,
        r#"{"a":null}"#,
        "{} x",
    ] {
        check_text(text, None);
    }
    check_text(&format!("{{\"a\":{}", "[".repeat(10_000)), None);
}

/// The header of the default client.
const T1: &str = r#"{"team_id":["t1"]}"#;

/// A server that has published a page of the notes of team `t1`, and the page's address.
async fn with_segment() -> (TestServer, String) {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "a")]).await;
    let notes = subscription("s", "notes", &[("team_id", &["t1"])], -1);
    let answer = server.round(Ask::pull([notes]).accepting(0b0010)).await;
    let id = answer.section().pages[0].external().segment_id.to_string();
    (server, id)
}

async fn check_download(
    server: &TestServer,
    identity: &Identity,
    id: &str,
    header: &str,
    expected: Result<(), ErrorCode>,
) {
    let outcome = server.engine.segment(identity, id, header).await;
    assert_eq!(outcome.map(|_| ()).map_err(|error| error.code), expected);
}

#[tokio::test]
async fn whoever_may_see_the_rows_may_have_the_segment() {
    let (server, id) = with_segment().await;
    let bob = Identity::new(PARTITION, "bob");
    for header in [T1, r#" {"team_id":["t1","t1"]}"#] {
        let grant = server.engine.segment(&bob, &id, header).await.unwrap();
        assert_eq!(
            (grant.segment_id.as_str(), grant.media_type),
            (id.as_str(), MediaType::Rows)
        );
        let bytes = grant.open(None).await.unwrap().unwrap();
        let bytes = bytes.collect(usize::MAX).await.unwrap();
        assert_eq!(grant.byte_length, u64::try_from(bytes.len()).unwrap());
        assert_eq!(tidewater_wire::content_address(&bytes), id);
    }
    // What counts is what the actor gets of it, not what it asked for.
    server.resolver.allow(&[("team_id", &["t1"])]);
    let header = r#"{"team_id":["t1","t2"]}"#;
    check_download(&server, &bob, &id, header, Ok(())).await;
}

#[tokio::test]
async fn other_effective_scopes_are_forbidden() {
    let (server, id) = with_segment().await;
    let ann = identity();
    let forbidden = Err(ErrorCode::Forbidden);
    for header in [r#"{"team_id":["t2"]}"#, r#"{"team_id":["t1","t2"]}"#, "{}"] {
        check_download(&server, &ann, &id, header, forbidden).await;
    }
    for grants in [Grants::Fails, Grants::IsOut] {
        server.resolver.switch(grants);
        check_download(&server, &ann, &id, T1, forbidden).await;
    }
    server.resolver.allow(&[("team_id", &["t2"])]);
    check_download(&server, &ann, &id, T1, forbidden).await;
    server
        .resolver
        .switch(Grants::Refuses(ErrorCode::RateLimited));
    check_download(&server, &ann, &id, T1, Err(ErrorCode::RateLimited)).await;
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_does_not_answer_is_an_error_of_the_server() {
    let (server, id) = with_segment().await;
    server.resolver.switch(Grants::NeverAnswers);
    check_download(&server, &identity(), &id, T1, Err(ErrorCode::InternalError)).await;
}

#[tokio::test]
async fn a_segment_is_unknown_outside_of_its_partition_and_epoch() {
    let (server, id) = with_segment().await;
    let not_found = Err(ErrorCode::NotFound);
    let elsewhere = Identity::new("p2", ACTOR);
    check_download(&server, &elsewhere, &id, T1, not_found).await;
    let unknown = tidewater_wire::content_address(b"never published");
    for id in [
        &*unknown,
        "",
        "sha256:",
        &id[7..],
        &id.to_uppercase(),
        "../../etc/passwd",
    ] {
        check_download(&server, &identity(), id, T1, not_found).await;
    }
    server
        .engine
        .rotate_epoch(&crate::testing::partition())
        .await
        .unwrap();
    check_download(&server, &identity(), &id, T1, not_found).await;
    // A stranger learns nothing about the resolver from it.
    assert_eq!(server.resolver.calls(), 1);
}

#[tokio::test]
async fn an_expired_segment_says_so_before_anything_else_is_checked() {
    let (server, id) = with_segment().await;
    server.clock.advance_ms(SEGMENT_LIFETIME_MS - 1);
    check_download(&server, &identity(), &id, T1, Ok(())).await;
    server.clock.advance_ms(1);
    check_download(
        &server,
        &identity(),
        &id,
        "not json",
        Err(ErrorCode::SegmentExpired),
    )
    .await;
}

#[tokio::test]
async fn a_header_that_makes_no_sense_is_refused_before_the_resolver_is_asked() {
    let (server, id) = with_segment().await;
    let calls = server.resolver.calls();
    let ann = identity();
    for header in ["", "[]", r#"{"team_id":"t1"}"#] {
        check_download(&server, &ann, &id, header, Err(ErrorCode::InvalidRequest)).await;
    }
    for header in [r#"{"org":["o1"]}"#, r#"{"team_id":["*"]}"#] {
        check_download(
            &server,
            &ann,
            &id,
            header,
            Err(ErrorCode::InvalidSubscription),
        )
        .await;
    }
    assert_eq!(server.resolver.calls(), calls);
}
