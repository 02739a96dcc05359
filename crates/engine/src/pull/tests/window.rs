//! Clients at an older version of the window get rows in the columns they know (§9).

use tidewater_model::ErrorCode;
use tidewater_schema::Schema;
use tidewater_wire::{SubStatus, Subscription, row::decode_row};

use crate::{
    EngineConfig,
    testing::{Ask, SeenPage, TestServer, note, older, subscription, task, windowed},
};

async fn start() -> TestServer {
    TestServer::serving(windowed(), EngineConfig::default()).await
}

fn tasks(cursor: i64) -> Subscription {
    subscription("s", "tasks", &[("org", &["o1"]), ("list", &["l1"])], cursor)
}

fn columns(payload: &[u8], schema: &Schema) -> usize {
    let table = schema.table(schema.find("tasks").unwrap());
    decode_row(&table.columns, payload).map_or(0, |fields| fields.len())
}

#[tokio::test]
async fn the_log_and_pages_are_shown_in_the_columns_of_the_requester() {
    let server = start().await;
    server.commit(&[task("a", "o1", "l1")]).await;
    let older = older();
    for (version, count) in [(2, 4), (3, 5), (2, 4)] {
        let schema = if version == 2 {
            &older
        } else {
            &**server.engine.schema()
        };
        let answer = server
            .round(Ask::pull([tasks(-1)]).of_schema(version))
            .await;
        let SeenPage::Inline(segment) = &answer.sections[0].pages[0] else {
            panic!("a small page goes inline")
        };
        assert_eq!(segment.schema_version, version);
        assert_eq!(segment.columns.len(), count);
        let row = &segment.blocks[0][0].row;
        assert_eq!(columns(row, schema), count);

        let answer = server.round(Ask::pull([tasks(0)]).of_schema(version)).await;
        let change = &answer.sections[0].commits[0].changes[0];
        assert_eq!(columns(&change.row.as_ref().unwrap().row, schema), count);
        assert_eq!(answer.header.latest_schema_version, Some(3));
        assert_eq!(answer.header.required_schema_version, None);
    }
}

#[tokio::test]
async fn pages_of_two_versions_are_two_segments() {
    let server = start().await;
    for n in 0..3 {
        server.commit(&[task(&format!("t{n}"), "o1", "l1")]).await;
    }
    let mut ids = Vec::new();
    for version in [2, 3, 2, 3] {
        let ask = Ask::pull([tasks(-1)]).of_schema(version).accepting(0b0010);
        let answer = server.round(ask).await;
        let SeenPage::External(reference) = &answer.sections[0].pages[0] else {
            panic!("rows by reference only")
        };
        ids.push(reference.segment_id.to_string());
    }
    assert_eq!((&ids[0], &ids[1]), (&ids[2], &ids[3]), "each is reused");
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn versions_outside_of_the_window_get_its_ends_as_floor() {
    let server = start().await;
    server.commit(&[note("n1", "t1", "one")]).await;
    for version in [1, 4, i32::MAX] {
        let answer = server.round(Ask::pull([tasks(0)]).of_schema(version)).await;
        assert_eq!(answer.header.required_schema_version, Some(2));
        assert_eq!(answer.header.latest_schema_version, Some(3));
        assert!(answer.sections.is_empty());
    }
}

#[tokio::test]
async fn a_table_that_came_later_is_unknown_to_an_older_client() {
    let server = start().await;
    let photos = || subscription("s", "photos", &[("team_id", &["t1"])], -1);
    let error = server.refusal(Ask::pull([photos()]).of_schema(2)).await;
    assert_eq!(error.code, ErrorCode::UnknownTable);
    let answer = server.round(Ask::pull([photos()]).of_schema(3)).await;
    assert_eq!(answer.sections[0].start.status, SubStatus::Active);
}
