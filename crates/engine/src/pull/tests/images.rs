//! The image lane in whole rounds (§5.3, §4.7): which bootstraps get an image, that one build
//! serves all who ask, and how long it is good for.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tidewater_model::ErrorCode;
use tidewater_objects::SigningKeys;
use tidewater_wire::{MediaType, SegmentRef, content_address, scope_digest};

use super::{check_active, check_revoked, image_rows, notes, pages, resumed};
use crate::{
    EngineConfig, Transfers, UrlSource,
    testing::{
        Answer, Ask, Grants, SEGMENT_LIFETIME_MS, START_MS, SeenPage, TestServer, Write, identity,
        note, secret, subscription, task,
    },
};

const BOTH: u8 = 0b0011;
const IMAGES: u8 = 0b0111;
const EXTERNAL_IMAGES: u8 = 0b0110;
const SIGNED: u8 = 0b1111;

/// Five notes of team `t1`, when a page holds two.
async fn with_notes() -> TestServer {
    fill(TestServer::start().await).await
}

async fn fill(server: TestServer) -> TestServer {
    let ids: Vec<String> = (0..5).map(|number| format!("n{number}")).collect();
    let mut rows: Vec<Write<'_>> = ids.iter().map(|id| note(id, "t1", "old")).collect();
    rows.push(note("x", "t2", "other"));
    server.commit(&rows).await;
    server
}

fn ask(accept: u8) -> Ask {
    Ask::pull([notes(-1)]).limited(0, 2, 4).accepting(accept)
}

#[track_caller]
fn image(answer: &Answer) -> &SegmentRef {
    let section = answer.section();
    check_active(section, true);
    assert_eq!(section.pages.len(), 1, "an image is never paged");
    assert_eq!(section.token(), None);
    let reference = section.pages[0].external();
    assert_eq!(reference.media_type, MediaType::Sqlite);
    assert_eq!(
        (&reference.row_cursor, &reference.next_row_cursor),
        (&None, &None)
    );
    assert_eq!(reference.as_of_commit_seq, section.next_cursor());
    reference
}

/// The rows of an image whose content address, metadata and descriptor agree.
async fn rows(server: &TestServer, reference: &SegmentRef) -> Vec<String> {
    let bytes = server.segment_bytes(&reference.segment_id).await;
    assert_eq!(content_address(&bytes), &*reference.segment_id);
    assert_eq!(reference.byte_length, i64::try_from(bytes.len()).unwrap());
    let (metadata, rows) = image_rows(&bytes);
    let schema_version = server.engine.schema().version();
    let expected = format!(
        "1|{}|{schema_version}|{}|{}|{}",
        reference.table, reference.as_of_commit_seq, reference.scope_digest, reference.row_count
    );
    assert_eq!(metadata, expected);
    assert_eq!(i64::try_from(rows.len()).unwrap(), reference.row_count);
    rows
}

/// Lets every other task run until something is so.
async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn rows_of_more_than_a_page_are_one_image_at_the_pin_of_their_scope() {
    let server = with_notes().await;
    server.commit(&[note("y", "t2", "later")]).await;
    let answer = server.round(ask(IMAGES)).await;
    let reference = image(&answer);
    assert_eq!(reference.as_of_commit_seq, 1);
    assert_eq!(reference.url, None);
    let digest = scope_digest(&answer.section().start.effective_scopes);
    assert_eq!(*reference.scope_digest, *digest);
    let expected = (0..5).map(|number| format!("n{number}|t1|old@1"));
    assert_eq!(rows(&server, reference).await, expected.collect::<Vec<_>>());
    // Whoever may see the rows may fetch it; an image is downloaded like any segment.
    let scopes = r#"{"team_id":["t1"]}"#;
    let ann = identity();
    let granted = server.engine.segment(&ann, &reference.segment_id, scopes);
    assert_eq!(granted.await.unwrap().media_type, MediaType::Sqlite);
}

#[tokio::test]
async fn a_page_of_rows_is_sent_as_rows_whoever_takes_images() {
    let server = with_notes().await;
    let answer = server.round(ask(IMAGES).limited(0, 5, 4)).await;
    assert_eq!(pages(&server, answer.section()).concat().len(), 5);
    // Of each value there are more than a page holds, and of both together there are not.
    server
        .commit(&[
            task("a", "o1", "l1"),
            task("b", "o1", "l2"),
            task("c", "o2", "l1"),
        ])
        .await;
    let scopes: &[(&str, &[&str])] = &[("org", &["o1"]), ("list", &["l1"])];
    let tasks = Ask::pull([subscription("s", "tasks", scopes, -1)]);
    let answer = server.round(tasks.limited(0, 1, 4).accepting(IMAGES)).await;
    assert_eq!(answer.section().pages[0].inline().blocks[0].len(), 1);
    assert_eq!(server.store.streams(), 0);
}

#[tokio::test]
async fn who_does_not_take_images_or_may_not_have_one_gets_rows() {
    let server = with_notes().await;
    assert_eq!(server.round(ask(BOTH)).await.section().pages.len(), 3);
    server
        .commit(&[
            secret("a", "t1", b"1"),
            secret("b", "t1", b"1"),
            secret("c", "t1", b"1"),
        ])
        .await;
    let encrypted = subscription("s", "secrets", &[("team_id", &["t1"])], -1);
    let answer = server
        .round(Ask::pull([encrypted]).limited(0, 2, 4).accepting(IMAGES))
        .await;
    assert_eq!(answer.section().pages.len(), 2);
    assert_eq!(server.store.streams(), 0);
    let server = fill(TestServer::without_images().await).await;
    assert_eq!(server.round(ask(IMAGES)).await.section().pages.len(), 3);
    assert_eq!(server.store.streams(), 0);
}

#[tokio::test]
async fn a_bootstrap_never_changes_its_lane_in_the_middle() {
    let server = with_notes().await;
    let first = server.round(ask(BOTH).limited(0, 2, 1)).await;
    let token = first.section().token();
    let rest = Ask::pull([resumed(token, 1)]).limited(0, 2, 4);
    let answer = server.round(rest.accepting(IMAGES)).await;
    assert_eq!(pages(&server, answer.section()).concat().len(), 3);
    let forged = r#"{"asOfCommitSeq":1,"tables":["notes"],"tableIndex":0,"rowCursor":null}"#;
    let rest = Ask::pull([resumed(Some(forged), 1)]).limited(0, 2, 4);
    let answer = server.round(rest.accepting(IMAGES)).await;
    assert_eq!(pages(&server, answer.section()).concat().len(), 5);
    assert_eq!(server.store.streams(), 0);
}

#[tokio::test]
async fn sixteen_who_ask_at_once_are_served_by_one_build() {
    let server = with_notes().await;
    let gate = server.store.hold_streams();
    let clients: Vec<String> = (0..16).map(|number| format!("c{number}")).collect();
    let rounds = join_all(
        clients
            .iter()
            .map(|id| server.round(ask(IMAGES).of_client(id))),
    );
    let release = async {
        until(|| server.engine.build_stats().image_joins == 15).await;
        gate.add_permits(1);
    };
    let (answers, ()) = tokio::join!(rounds, release);
    let first = &image(&answers[0]).segment_id;
    assert!(
        answers
            .iter()
            .all(|answer| image(answer).segment_id == *first)
    );
    assert_eq!(server.store.streams(), 1);
    let stats = server.engine.build_stats();
    assert_eq!((stats.image_builds, stats.image_reuses), (1, 0));
}

#[tokio::test]
async fn an_image_is_served_until_its_own_scope_is_written() {
    let server = with_notes().await;
    let first = image(&server.round(ask(IMAGES)).await).segment_id.clone();
    for number in 0..20 {
        server
            .commit(&[note(&format!("y{number}"), "t2", "")])
            .await;
        let answer = server.round(ask(EXTERNAL_IMAGES)).await;
        assert_eq!(image(&answer).segment_id, first);
        assert_eq!(answer.section().next_cursor(), 1);
    }
    assert_eq!(server.store.streams(), 1);
    assert_eq!(server.engine.build_stats().image_reuses, 20);

    server.commit(&[note("n5", "t1", "new")]).await;
    let answer = server.round(ask(IMAGES)).await;
    let reference = image(&answer);
    assert_ne!(reference.segment_id, first);
    assert_eq!(reference.as_of_commit_seq, 22);
    assert_eq!(
        rows(&server, reference).await.last().unwrap(),
        "n5|t1|new@1"
    );

    server.clock.advance_ms(SEGMENT_LIFETIME_MS);
    image(&server.round(ask(IMAGES)).await);
    assert_eq!(server.store.streams(), 3, "an expired image is built again");
}

#[tokio::test]
async fn who_goes_away_leaves_the_build_to_the_others() {
    let server = with_notes().await;
    let gate = server.store.hold_streams();
    let begun = tokio::select! { biased;
        _ = server.round(ask(IMAGES)) => false,
        () = until(|| server.store.streams() > 0) => true,
    };
    assert!(begun, "the build is held");
    gate.add_permits(1);
    until(|| server.engine.build_stats().image_builds == 1).await;
    image(&server.round(ask(IMAGES)).await);
    let stats = server.engine.build_stats();
    assert_eq!((stats.image_builds, stats.image_reuses), (1, 1));
}

#[tokio::test]
async fn a_failed_build_is_told_to_all_who_waited_and_tried_again_by_the_next() {
    let server = with_notes().await;
    let gate = server.store.hold_streams();
    server.store.fail_streams(1);
    let ann = identity();
    let rounds = join_all((0..3).map(|_| server.try_round(&ann, ask(IMAGES))));
    let release = async {
        until(|| server.engine.build_stats().image_joins == 2).await;
        gate.add_permits(100);
    };
    let (answers, ()) = tokio::join!(rounds, release);
    for answer in answers {
        assert_eq!(answer.unwrap_err().code, ErrorCode::InternalError);
    }
    image(&server.round(ask(IMAGES)).await);
    let stats = server.engine.build_stats();
    assert_eq!((stats.image_failures, stats.image_builds), (1, 1));
}

#[tokio::test]
async fn an_image_of_before_a_write_is_not_given_to_who_asks_after_it() {
    let server = with_notes().await;
    let gate = server.store.hold_streams();
    let early = server.round(ask(IMAGES).of_client("early"));
    let late = async {
        // The snapshot of the build is taken.
        until(|| server.store.streams() > 0).await;
        server.commit(&[note("n5", "t1", "new")]).await;
        let late = server.round(ask(IMAGES).of_client("late"));
        let release = async {
            until(|| server.engine.build_stats().image_joins == 1).await;
            gate.add_permits(100);
        };
        tokio::join!(late, release).0
    };
    let (early, late) = tokio::join!(early, late);
    assert_eq!(image(&early).as_of_commit_seq, 1);
    let reference = image(&late);
    assert_eq!(reference.as_of_commit_seq, 2);
    assert_eq!(rows(&server, reference).await.len(), 6);
    assert_eq!(server.engine.build_stats().image_builds, 2);
}

#[tokio::test]
async fn nobody_joins_a_build_without_being_authorized_for_it() {
    let server = with_notes().await;
    let gate = server.store.hold_streams();
    let early = server.round(ask(IMAGES));
    let denied = async {
        until(|| server.store.streams() > 0).await;
        server.resolver.switch(Grants::Fails);
        let answer = server.round(ask(IMAGES).of_client("c2")).await;
        check_revoked(answer.section(), -1);
        gate.add_permits(1);
    };
    let (early, ()) = tokio::join!(early, denied);
    image(&early);
    assert_eq!(server.engine.build_stats().image_joins, 0);
}

#[tokio::test]
async fn builds_beyond_the_bound_are_sent_as_rows() {
    let config = EngineConfig {
        image_builds_max: 1,
        image_builds_waiting_max: 1,
        ..EngineConfig::default()
    };
    let server = fill(TestServer::start_with(config).await).await;
    server
        .commit(&[note("y", "t2", ""), note("z", "t2", "")])
        .await;
    let gate = server.store.hold_streams();
    let first = server.round(ask(IMAGES));
    let second = async {
        until(|| server.store.streams() > 0).await;
        let other = subscription("s", "notes", &[("team_id", &["t2"])], -1);
        let other = Ask::pull([other]).limited(0, 2, 4).accepting(IMAGES);
        let answer = server.round(other).await;
        gate.add_permits(1);
        answer
    };
    let (first, second) = tokio::join!(first, second);
    image(&first);
    assert_eq!(pages(&server, second.section()).concat().len(), 3);
}

#[tokio::test]
async fn what_does_not_fit_into_the_segment_store_is_sent_without_it() {
    let tiny = TestServer::start_as(EngineConfig::default(), 1_000, Transfers::default());
    let server = fill(tiny.await).await;
    for _ in 0..2 {
        let answer = server.round(ask(IMAGES)).await;
        assert_eq!(pages(&server, answer.section()).concat().len(), 5);
    }
    assert_eq!(server.store.streams(), 1, "that is remembered");
    let nothing_inline = EngineConfig {
        inline_segment_bytes_max: 0,
        ..EngineConfig::default()
    };
    let tiny = TestServer::start_as(nothing_inline, 10, Transfers::default());
    let server = fill(tiny.await).await;
    let answer = server.round(ask(BOTH)).await;
    assert_eq!(pages(&server, answer.section()).concat().len(), 5);
}

#[tokio::test]
async fn pages_that_are_being_made_are_joined() {
    let config = EngineConfig {
        inline_segment_bytes_max: 0,
        ..EngineConfig::default()
    };
    let server = fill(TestServer::start_with(config).await).await;
    let clients: Vec<String> = (0..4).map(|number| format!("c{number}")).collect();
    let rounds = clients
        .iter()
        .map(|id| server.round(ask(BOTH).of_client(id)));
    let answers = join_all(rounds).await;
    let ids = |answer: &Answer| {
        let id = |page: &SeenPage| page.external().segment_id.clone();
        answer.section().pages.iter().map(id).collect::<Vec<_>>()
    };
    assert!(answers.iter().all(|answer| ids(answer) == ids(&answers[0])));
    let stats = server.engine.build_stats();
    assert_eq!(stats.page_builds, 3);
    assert_eq!(stats.page_joins + stats.page_reuses, 9);
}

#[tokio::test]
async fn who_takes_signed_urls_gets_one_that_opens_this_segment_only() {
    let keys = Arc::new(SigningKeys::new(vec![vec![7; 32]]).unwrap());
    let transfers = Transfers {
        segment_urls: UrlSource::Signed {
            keys,
            base_url: "https://host/signed".to_owned(),
            lifetime: Duration::from_secs(3_600),
        },
        ..Transfers::default()
    };
    let server = TestServer::start_as(EngineConfig::default(), 64 << 20, transfers).await;
    let server = fill(server).await;
    assert_eq!(image(&server.round(ask(IMAGES)).await).url, None);
    let answer = server.round(ask(SIGNED)).await;
    let reference = image(&answer);
    let (url, expires_at_ms) = reference.url.clone().unwrap();
    assert_eq!(expires_at_ms, START_MS + 900_000, "15 minutes at most");
    let start = format!("https://host/signed/{}?st=", reference.segment_id);
    let token = url.strip_prefix(start.as_str()).unwrap();
    let open = async |id: &str, token: &str| {
        let granted = server.engine.signed_segment(id, token).await;
        granted.map(|_| ()).map_err(|error| error.code)
    };
    let id = &*reference.segment_id;
    assert_eq!(open(id, token).await, Ok(()));
    let page = Ask::pull([notes(-1)]).limited(0, 50, 4).accepting(0b1010);
    let page = server.round(page).await;
    let page = page.section().pages[0].external();
    assert!(page.url.is_some());
    assert_eq!(
        open(&page.segment_id, token).await,
        Err(ErrorCode::Forbidden)
    );
    assert_eq!(open(id, "x.y").await, Err(ErrorCode::Forbidden));
    assert_eq!(open(id, &token[1..]).await, Err(ErrorCode::Forbidden));
    server.clock.advance_ms(SEGMENT_LIFETIME_MS);
    assert_eq!(open(id, token).await, Err(ErrorCode::SegmentExpired));
    server.clock.advance_ms(961_000);
    assert_eq!(open(id, token).await, Err(ErrorCode::Forbidden));
}
