//! Bootstraps on the rows lane (§4.7, §5.7).

use tidewater_wire::{MediaType, RowsSegment, content_address, scope_digest};

use super::{check_active, check_reset, commits, notes, pages, resumed};
use crate::{
    EngineConfig,
    testing::{Ask, SEGMENT_LIFETIME_MS, TestServer, Write, note, secret, subscription, task},
};

const INLINE: u8 = 0b0001;
const EXTERNAL: u8 = 0b0010;
const BOTH: u8 = 0b0011;
const IMAGES: u8 = 0b0111;

#[tokio::test]
async fn a_new_subscription_gets_its_rows_in_one_inline_page() {
    let server = TestServer::start().await;
    server
        .commit(&[
            note("n2", "t1", "b"),
            note("n1", "t1", "a"),
            note("n3", "t2", "c"),
        ])
        .await;
    server
        .commit(&[note("n1", "t1", "A"), task("k1", "o1", "l1")])
        .await;
    let answer = server.round(Ask::pull([notes(-1)])).await;
    let section = answer.section();
    check_active(section, true);
    assert_eq!(section.start.effective_scopes, notes(-1).scopes);
    assert_eq!(pages(&server, section), [["n1|t1|A@2", "n2|t1|b@1"]]);
    assert_eq!((section.next_cursor(), section.token()), (2, None));
    let segment = section.pages[0].inline();
    assert_eq!(
        (segment.table.as_str(), segment.schema_version),
        ("notes", 3)
    );
    assert_eq!(segment.columns, server.table("notes").columns);
}

#[tokio::test]
async fn an_empty_table_is_one_empty_page() {
    let server = TestServer::start().await;
    let answer = server.round(Ask::pull([notes(-1)])).await;
    let section = answer.section();
    check_active(section, true);
    assert_eq!(pages(&server, section), [[""; 0]]);
    assert_eq!(
        section.pages[0].inline().columns,
        server.table("notes").columns
    );
    assert_eq!((section.next_cursor(), section.token()), (0, None));
}

#[tokio::test]
async fn pages_resume_at_the_pin_while_others_write() {
    let server = TestServer::start().await;
    let ids: Vec<String> = (0..5).map(|n| format!("n{n}")).collect();
    let rows: Vec<Write<'_>> = ids.iter().map(|id| note(id, "t1", "old")).collect();
    server.commit(&rows).await;
    let ask = |subscription| Ask::pull([subscription]).limited(0, 2, 1);

    let first = server.round(ask(notes(-1))).await;
    let section = first.section();
    assert_eq!(pages(&server, section), [["n0|t1|old@1", "n1|t1|old@1"]]);
    assert_eq!(section.next_cursor(), 1);
    let token = r#"{"asOfCommitSeq":1,"tables":["notes"],"tableIndex":0,"rowCursor":"n1"}"#;
    assert_eq!(section.token(), Some(token));

    // Behind the cursor, before it, and a new row at the end.
    server
        .commit(&[
            note("n0", "t1", "new"),
            note("n3", "t1", "new"),
            note("n9", "t1", ""),
        ])
        .await;
    server.commit(&[Write::Delete("notes", "n4")]).await;
    let second = server.round(ask(resumed(section.token(), 1))).await;
    let section = second.section();
    check_active(section, true);
    assert_eq!(pages(&server, section), [["n2|t1|old@1", "n3|t1|new@2"]]);
    assert_eq!(section.next_cursor(), 1);
    let third = server.round(ask(resumed(section.token(), 1))).await;
    let section = third.section();
    assert_eq!(pages(&server, section), [["n9|t1|@1"]]);
    assert_eq!((section.next_cursor(), section.token()), (1, None));

    let answer = server.round(Ask::pull([notes(1)])).await;
    let expected = [
        "2 by seeder: n0|t1|new@2 n3|t1|new@2 n9|t1|@1",
        "3 by seeder: -n4",
    ];
    assert_eq!(commits(&server, answer.section()), expected);
}

#[tokio::test]
async fn a_response_carries_several_pages() {
    let server = TestServer::start().await;
    let ids: Vec<String> = (0..7).map(|n| format!("n{n}")).collect();
    let rows: Vec<Write<'_>> = ids.iter().map(|id| note(id, "t1", "")).collect();
    server.commit(&rows).await;
    let answer = server.round(Ask::pull([notes(-1)]).limited(0, 2, 3)).await;
    let section = answer.section();
    assert_eq!(
        pages(&server, section)
            .iter()
            .map(Vec::len)
            .collect::<Vec<_>>(),
        [2, 2, 2]
    );
    let answer = server
        .round(Ask::pull([resumed(section.token(), 1)]).limited(0, 2, 3))
        .await;
    assert_eq!(pages(&server, answer.section()), [["n6|t1|@1"]]);
    // The last page is full and nothing follows it.
    let answer = server.round(Ask::pull([notes(-1)]).limited(0, 7, 1)).await;
    assert_eq!(
        (answer.section().pages.len(), answer.section().token()),
        (1, None)
    );
}

#[tokio::test]
async fn rows_are_in_the_order_of_their_bytes() {
    let server = TestServer::start().await;
    let ids = ["\u{E000}", "a", "B", "\u{1F600}", "é", "10", "9"];
    let rows: Vec<Write<'_>> = ids.iter().map(|id| note(id, "t1", "")).collect();
    server.commit(&rows).await;
    let mut seen = Vec::new();
    let mut subscription = notes(-1);
    loop {
        let answer = server
            .round(Ask::pull([subscription]).limited(0, 1, 2))
            .await;
        let section = answer.section();
        seen.extend(pages(&server, section).concat());
        let Some(token) = section.token() else { break };
        subscription = resumed(Some(token), -1);
    }
    let mut expected: Vec<String> = ids.iter().map(|id| format!("{id}|t1|@1")).collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_page_cut_short_by_its_bytes_goes_on_at_its_own_cursor() {
    let config = EngineConfig {
        section_bytes_max: 1_000,
        ..EngineConfig::default()
    };
    let server = TestServer::start_with(config).await;
    let (large, small) = ("x".repeat(2_000), "x".repeat(300));
    server
        .commit(&[note("a", "t1", &small), note("b", "t1", &small)])
        .await;
    server
        .commit(&[note("c", "t1", &large), note("d", "t1", &small)])
        .await;
    let answer = server.round(Ask::pull([notes(-1)]).accepting(INLINE)).await;
    let section = answer.section();
    let ids: Vec<Vec<String>> = pages(&server, section)
        .iter()
        .map(|page| page.iter().map(|row| row[..1].to_owned()).collect())
        .collect();
    assert_eq!(ids, [vec!["a", "b"], vec!["c"], vec!["d"]]);
    assert_eq!(section.token(), None);
}

// The reference starts over with an active bootstrap here; no client would clear its rows (OQ-1).
#[tokio::test]
async fn a_token_whose_pin_is_behind_the_horizon_is_reset() {
    let server = TestServer::start().await;
    server
        .commit(&[note("n1", "t1", ""), note("n2", "t1", "")])
        .await;
    let answer = server.round(Ask::pull([notes(-1)]).limited(0, 1, 1)).await;
    let token = answer.section().token().unwrap().to_owned();
    server.commit(&[note("n3", "t1", "")]).await;
    server.prune_to(2).await;
    let answer = server.round(Ask::pull([resumed(Some(&token), 1)])).await;
    check_reset(answer.section(), 1);
    let answer = server.round(Ask::pull([notes(-1)])).await;
    assert_eq!(pages(&server, answer.section()).concat().len(), 3);
    assert_eq!(answer.section().next_cursor(), 2);
}

#[tokio::test]
async fn a_token_that_makes_no_sense_is_reset_and_never_an_error() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "")]).await;
    for token in [
        "null",
        "[]",
        r#"{"asOfCommitSeq":2,"tables":["notes"],"tableIndex":0,"rowCursor":null}"#,
        r#"{"asOfCommitSeq":1,"tables":["tasks"],"tableIndex":0,"rowCursor":null}"#,
    ] {
        for cursor in [-1, 0, 1] {
            let answer = server
                .round(Ask::pull([resumed(Some(token), cursor)]))
                .await;
            check_reset(answer.section(), cursor);
        }
    }
}

#[tokio::test]
async fn a_forged_token_reaches_no_rows_of_others() {
    let server = TestServer::start().await;
    server
        .commit(&[note("n1", "t2", "secret"), note("n2", "t1", "mine")])
        .await;
    for row_cursor in ["null", "\"\"", "\"n\\u0000\"", "\"n0' OR 1=1\""] {
        let token = format!(
            r#"{{"asOfCommitSeq":0,"tables":["notes"],"tableIndex":9,"rowCursor":{row_cursor}}}"#
        );
        let answer = server.round(Ask::pull([resumed(Some(&token), -1)])).await;
        assert_eq!(pages(&server, answer.section()), [["n2|t1|mine@1"]]);
        assert_eq!(answer.section().next_cursor(), 0);
    }
}

async fn with_inline_max(inline_segment_bytes_max: usize) -> TestServer {
    let server = TestServer::start_with(EngineConfig {
        inline_segment_bytes_max,
        ..EngineConfig::default()
    })
    .await;
    server
        .commit(&[
            note("n1", "t1", "a"),
            note("n2", "t1", "b"),
            note("n3", "t1", "c"),
        ])
        .await;
    server
}

#[tokio::test]
async fn a_page_above_the_inline_bound_is_published_and_referenced() {
    let server = with_inline_max(10).await;
    let answer = server.round(Ask::pull([notes(-1)])).await;
    let section = answer.section();
    let reference = section.pages[0].external();
    assert_eq!(reference.media_type, MediaType::Rows);
    assert_eq!((&*reference.table, reference.row_count), ("notes", 3));
    assert_eq!(reference.as_of_commit_seq, 1);
    assert_eq!(
        (&reference.row_cursor, &reference.next_row_cursor),
        (&None, &None)
    );
    assert_eq!(reference.url, None);
    assert_eq!(
        reference.scope_digest,
        scope_digest(&section.start.effective_scopes)
    );

    let bytes = server.segment_bytes(&reference.segment_id).await;
    assert_eq!(content_address(&bytes), &*reference.segment_id);
    assert_eq!(i64::try_from(bytes.len()), Ok(reference.byte_length));
    assert_eq!(RowsSegment::decode(&bytes).unwrap().blocks[0].len(), 3);
    let record = server.segment_record(&reference.segment_id).await;
    let key = &record.publications[0].context.key;
    assert_eq!(key.scope_digest, &*reference.scope_digest);
    assert_eq!(
        (key.partition.as_str(), key.table.as_str()),
        ("p1", "notes")
    );
}

#[tokio::test]
async fn referenced_pages_carry_their_cursors() {
    let server = with_inline_max(10).await;
    let answer = server.round(Ask::pull([notes(-1)]).limited(0, 2, 4)).await;
    let cursors: Vec<_> = answer
        .section()
        .pages
        .iter()
        .map(|page| page.external())
        .map(|page| (page.row_cursor.as_deref(), page.next_row_cursor.as_deref()))
        .collect();
    assert_eq!(cursors, [(None, Some("n2")), (Some("n2"), None)]);
    // A page that goes on in the next response knows that it does.
    let answer = server.round(Ask::pull([notes(-1)]).limited(0, 2, 1)).await;
    assert_eq!(
        answer.section().pages[0]
            .external()
            .next_row_cursor
            .as_deref(),
        Some("n2")
    );
}

#[tokio::test]
async fn a_client_that_takes_only_one_delivery_gets_that_one() {
    let server = with_inline_max(10).await;
    let answer = server.round(Ask::pull([notes(-1)]).accepting(INLINE)).await;
    assert_eq!(pages(&server, answer.section()).concat().len(), 3);
    let server = with_inline_max(1_000_000).await;
    let answer = server
        .round(Ask::pull([notes(-1)]).accepting(EXTERNAL))
        .await;
    assert_eq!(answer.section().pages[0].external().row_count, 3);
}

#[tokio::test]
async fn a_large_page_is_encoded_off_the_runtime_into_the_same_bytes() {
    let server = TestServer::start().await;
    let body = "x".repeat(100);
    let ids: Vec<String> = (0..4_000).map(|n| format!("n{n:05}")).collect();
    let rows: Vec<Write<'_>> = ids.iter().map(|id| note(id, "t1", &body)).collect();
    server.commit(&rows).await;
    let ask = |accept| {
        Ask::pull([notes(-1)])
            .limited(0, 50_000, 1)
            .accepting(accept)
    };
    let inline = server.round(ask(INLINE)).await;
    let inline = inline.section().pages[0].inline();
    assert_eq!(inline.blocks.iter().map(Vec::len).sum::<usize>(), 4_000);
    let external = server.round(ask(BOTH)).await;
    let reference = external.section().pages[0].external();
    let bytes = server.segment_bytes(&reference.segment_id).await;
    assert!(inline.encode() == bytes);
}

#[tokio::test]
async fn a_published_page_is_found_again_until_its_rows_or_its_time_change() {
    let server = with_inline_max(10).await;
    let ask = || Ask::pull([notes(-1)]).accepting(IMAGES);
    let id = |answer: &crate::testing::Answer| {
        answer.section().pages[0].external().segment_id.to_string()
    };
    let first = id(&server.round(ask()).await);
    let reads = server.store.reads();
    // Others' writes do not move the scope pin, so the page stays good.
    server.commit(&[note("x", "t2", "")]).await;
    let second = server.round(ask()).await;
    assert_eq!(id(&second), first);
    assert_eq!(second.section().next_cursor(), 1);
    assert_eq!(
        server.store.reads(),
        reads + 1,
        "only the newest change was looked up"
    );

    server.commit(&[note("n4", "t1", "d")]).await;
    let third = server.round(ask()).await;
    assert_ne!(id(&third), first);
    assert_eq!(third.section().next_cursor(), 3);

    let reads = server.store.reads();
    server.clock.advance_ms(SEGMENT_LIFETIME_MS);
    server.round(ask()).await;
    let again = server.store.reads() - reads;
    assert_eq!(again, 3, "newest change, size of the scope, rows");
}

#[tokio::test]
async fn a_page_cut_for_one_client_is_not_forced_on_another() {
    let server = with_inline_max(10).await;
    let ask = |rows| Ask::pull([notes(-1)]).limited(0, rows, 1);
    let counts = |answer: crate::testing::Answer| answer.section().pages[0].external().row_count;
    assert_eq!(counts(server.round(ask(2)).await), 2);
    assert_eq!(counts(server.round(ask(3)).await), 3);
    assert_eq!(counts(server.round(ask(2)).await), 2);
    assert_eq!(counts(server.round(ask(1)).await), 1);
}

#[tokio::test]
async fn a_found_page_that_is_small_goes_inline_to_those_who_take_it() {
    let server = with_inline_max(1_000_000).await;
    server
        .round(Ask::pull([notes(-1)]).accepting(EXTERNAL))
        .await;
    let reads = server.store.reads();
    let answer = server.round(Ask::pull([notes(-1)]).accepting(BOTH)).await;
    assert_eq!(pages(&server, answer.section()).concat().len(), 3);
    assert_eq!(server.store.reads(), reads);
}

#[tokio::test]
async fn a_bootstrap_that_takes_images_is_pinned_to_its_scope() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "")]).await;
    server.commit(&[note("n2", "t2", "")]).await;
    server
        .commit(&[task("k1", "o1", "l1"), secret("x1", "t1", b"1")])
        .await;
    let pin = async |subscription, accept| {
        server
            .round(Ask::pull([subscription]).accepting(accept))
            .await
            .section()
            .next_cursor()
    };
    let of = |table, teams: &[&str]| subscription("s", table, &[("team_id", teams)], -1);
    assert_eq!(pin(of("notes", &["t1"]), IMAGES).await, 1);
    assert_eq!(pin(of("notes", &["t1", "t2"]), IMAGES).await, 2);
    assert_eq!(pin(of("notes", &["t9"]), IMAGES).await, 0);
    assert_eq!(pin(of("notes", &["t1"]), BOTH).await, 3);
    // An encrypted table is never an image, so its bootstrap is pinned to the head.
    server.commit(&[note("n3", "t3", "")]).await;
    assert_eq!(pin(of("secrets", &["t1"]), IMAGES).await, 4);
    // Of two variables the first in UTF-16 order counts: `list`, not `org` (OQ-12).
    let scopes: &[(&str, &[&str])] = &[("org", &["o9"]), ("list", &["l1"])];
    assert_eq!(pin(subscription("s", "tasks", scopes, -1), IMAGES).await, 3);
    let scopes: &[(&str, &[&str])] = &[("org", &["o1"]), ("list", &["l9"])];
    assert_eq!(pin(subscription("s", "tasks", scopes, -1), IMAGES).await, 0);
    server.prune_to(2).await;
    assert_eq!(pin(of("notes", &["t1"]), IMAGES).await, 2);
}

#[tokio::test]
async fn a_resumed_bootstrap_keeps_its_pin_whatever_it_accepts_now() {
    let server = TestServer::without_images().await;
    server
        .commit(&[note("n1", "t1", ""), note("n2", "t1", "")])
        .await;
    server.commit(&[note("x", "t2", "")]).await;
    let answer = server
        .round(Ask::pull([notes(-1)]).limited(0, 1, 1).accepting(IMAGES))
        .await;
    assert_eq!(answer.section().next_cursor(), 1);
    server.commit(&[note("n3", "t1", "")]).await;
    let token = answer.section().token();
    for accept in [BOTH, IMAGES] {
        let answer = server
            .round(Ask::pull([resumed(token, 1)]).accepting(accept))
            .await;
        assert_eq!(pages(&server, answer.section()), [["n2|t1|@1", "n3|t1|@1"]]);
        assert_eq!(answer.section().next_cursor(), 1);
    }
}
