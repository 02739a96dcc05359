//! What a pull leaves in its client's record (§4.5).

use tidewater_model::{ClientId, Cursor};
use tidewater_store::{ClientKey, ClientRecord};
use tidewater_wire::Subscription;

use super::notes;
use crate::testing::{ACTOR, Ask, TestServer, note, partition, seq, subscription};

async fn record(server: &TestServer) -> Option<ClientRecord> {
    let key = ClientKey {
        partition: partition(),
        client: ClientId::new("c1"),
    };
    server
        .engine
        .activity
        .find_client(server.store.as_ref(), &key)
        .await
        .unwrap()
}

async fn cursor(server: &TestServer) -> Cursor {
    record(server).await.unwrap().cursor
}

#[tokio::test]
async fn the_cursor_is_the_least_of_the_active_sections_and_may_fall() {
    let server = TestServer::start().await;
    server
        .commit(&[note("n1", "t1", ""), note("n2", "t1", "")])
        .await;
    server.commit(&[note("n3", "t1", "")]).await;
    server.commit(&[note("n4", "t2", "")]).await;
    server.round(Ask::pull([notes(2)])).await;
    assert_eq!(cursor(&server).await, Cursor::At(seq(3)));
    // One change is all that fits, so the second section stops at commit 1.
    let behind = Subscription {
        id: "behind".into(),
        ..notes(0)
    };
    let gone = subscription("gone", "notes", &[("team_id", &[])], 0);
    server
        .round(Ask::pull([notes(3), behind, gone]).limited(1, 0, 0))
        .await;
    assert_eq!(cursor(&server).await, Cursor::At(seq(1)));
}

#[tokio::test]
async fn without_an_active_section_the_cursor_stays() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "")]).await;
    server.round(Ask::pull([notes(99)])).await;
    assert_eq!(cursor(&server).await, Cursor::Never);
    server.round(Ask::pull([notes(1)])).await;
    server.round(Ask::pull([notes(99)])).await;
    assert_eq!(cursor(&server).await, Cursor::At(seq(1)));
    server.round(Ask::pull([])).await;
    assert_eq!(cursor(&server).await, Cursor::At(seq(1)));
}

#[tokio::test]
async fn an_unfinished_bootstrap_counts_with_its_pin() {
    let server = TestServer::start().await;
    server
        .commit(&[note("n1", "t1", ""), note("n2", "t1", "")])
        .await;
    let answer = server.round(Ask::pull([notes(-1)]).limited(0, 1, 1)).await;
    assert!(answer.section().token().is_some());
    let record = record(&server).await.unwrap();
    assert_eq!(record.cursor, Cursor::At(seq(1)));
    assert_eq!(record.subscriptions[0].complete, Some(false));
}

#[tokio::test]
async fn the_list_of_subscriptions_is_replaced_by_every_pull() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "")]).await;
    let gone = subscription("gone", "notes", &[("team_id", &[])], 0);
    let reset = subscription("reset", "notes", &[("team_id", &["t1"])], 9);
    server.round(Ask::pull([notes(-1), gone, reset])).await;
    let seen = record(&server).await.unwrap();
    assert_eq!((seen.actor.as_str(), seen.wire_version), (ACTOR, 3));
    let list: Vec<_> = seen
        .subscriptions
        .iter()
        .map(|kept| (kept.id.as_str(), kept.table.as_str(), kept.complete))
        .collect();
    let expected = [
        ("s", Some(true)),
        ("gone", Some(false)),
        ("reset", Some(false)),
    ];
    assert_eq!(list, expected.map(|(id, complete)| (id, "notes", complete)));
    assert!(
        seen.subscriptions
            .iter()
            .all(|kept| kept.schema_version == Some(3))
    );
    assert_eq!(seen.subscriptions[0].scopes, notes(-1).scopes);
    server.round(Ask::pull([])).await;
    assert!(record(&server).await.unwrap().subscriptions.is_empty());
}

#[tokio::test]
async fn a_response_that_failed_leaves_no_record() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "")]).await;
    server.engine.partitions.advance_head(&partition(), seq(5));
    server.refusal(Ask::pull([notes(0)])).await;
    assert_eq!(record(&server).await, None);
}

#[tokio::test]
async fn a_reported_failure_is_counted_until_a_round_reports_none() {
    let server = TestServer::start().await;
    let report = || Ask::pull([notes(0)]).after_failure("transport.timeout");
    // A client that is new has no previous round that could have failed.
    server.round(report()).await;
    assert_eq!(record(&server).await.unwrap().failure, None);
    for streak in [1, 2] {
        server.round(report()).await;
        let failure = record(&server).await.unwrap().failure.unwrap();
        assert_eq!(
            (failure.code.as_str(), failure.streak),
            ("transport.timeout", streak)
        );
    }
    server.round(Ask::pull([notes(0)])).await;
    assert_eq!(record(&server).await.unwrap().failure, None);
}
