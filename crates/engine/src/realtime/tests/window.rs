//! Connections of clients at different versions of the window (§9): each gets rows in the columns
//! it knows, the same that a pull gives it.

use tidewater_wire::{Change, Response};

use super::*;
use crate::testing::{older, windowed};

async fn world() -> World {
    World {
        server: TestServer::serving(windowed(), EngineConfig::default()).await,
        pushes: AtomicU64::new(0),
    }
}

fn tasks(version: i32, cursor: i64) -> Ask {
    let scopes: [(&str, &[&str]); 2] = [("org", &["o1"]), ("list", &["l1"])];
    Ask::pull([subscription("s", "tasks", &scopes, cursor)]).of_schema(version)
}

/// A connected device at a version, which has everything.
async fn ready(world: &World, device: &str, version: i32) -> Session {
    world.round(device, tasks(version, -1)).await;
    let mut session = world.connect(device).await;
    let heard = world.heard(&mut session).await;
    assert_eq!(heard.len(), 1, "{heard:?}");
    session
}

/// Pushes a task with the columns of a version.
async fn write(world: &World, version: i32, id: &str) {
    let cell = |text: &str| {
        let mut out = Vec::new();
        Value::String(text).encode(&mut out);
        Some(Some(out))
    };
    let mut cells = vec![cell(id), cell("o1"), cell("l1"), cell("title")];
    if version == 3 {
        let mut rank = Vec::new();
        Value::Integer(7).encode(&mut rank);
        cells.push(Some(Some(rank)));
    }
    let cells: Vec<_> = cells
        .iter()
        .map(|cell| cell.as_ref().map(|cell| cell.as_deref()))
        .collect();
    let operation = Operation {
        table: "tasks".into(),
        row_id: id.into(),
        action: OperationAction::Upsert(encode_sparse_row(&cells).into()),
        base_version: None,
    };
    let ask = Ask::new().push(&format!("w-{id}"), vec![operation]);
    let answer = world.round("writer/w", ask.of_schema(version)).await;
    let outcome = answer.results[0].outcome;
    assert!(matches!(outcome, tidewater_wire::PushOutcome::Applied(_)));
}

/// The changes of the deltas that a connection got, and nothing but deltas.
async fn deltas(world: &World, session: &mut Session) -> Vec<Change> {
    world.server.engine.hub.settled().await;
    let heard = std::iter::from_fn(|| session.try_next());
    heard
        .flat_map(|outgoing| match outgoing {
            Outgoing::Delta(frame) => Response::decode(&frame).unwrap().frames,
            other => panic!("no delta: {}", text(&other)),
        })
        .filter_map(|frame| match frame {
            ResponseFrame::Commit(commit) => Some(commit.changes),
            _ => None,
        })
        .flatten()
        .collect()
}

/// What a pull of the whole log gives a device at a version.
async fn pulled(world: &World, version: i32) -> Vec<Change> {
    let answer = world.round("other/x", tasks(version, 0)).await;
    let commits = answer.sections[0].commits.iter();
    commits.flat_map(|commit| commit.changes.clone()).collect()
}

fn columns(change: &Change, version: i32) -> usize {
    let schema = if version == 2 { older() } else { windowed() };
    let table = schema.table(schema.find("tasks").unwrap());
    let row = &change.row.as_ref().unwrap().row;
    tidewater_wire::row::decode_row(&table.columns, row).map_or(0, |fields| fields.len())
}

#[tokio::test]
async fn deltas_have_the_columns_of_their_client() {
    let world = world().await;
    let mut old = ready(&world, "ann/old", 2).await;
    let mut new = ready(&world, "bob/new", 3).await;
    write(&world, 3, "t1").await;
    write(&world, 2, "t2").await;
    for (session, version, count) in [(&mut old, 2, 4), (&mut new, 3, 5)] {
        let changes = deltas(&world, session).await;
        assert_eq!(changes, pulled(&world, version).await);
        let counts: Vec<_> = changes
            .iter()
            .map(|change| columns(change, version))
            .collect();
        assert_eq!(counts, [count; 2], "version {version}");
    }
}

#[tokio::test]
async fn a_client_that_upgrades_over_its_connection_gets_its_new_columns() {
    let world = world().await;
    let mut session = ready(&world, "ann/c1", 2).await;
    write(&world, 3, "t1").await;
    assert_eq!(columns(&deltas(&world, &mut session).await[0], 2), 4);
    world
        .socket_round(&mut session, "ann/c1", tasks(3, -1))
        .await;
    ack(&mut session, 1);
    write(&world, 3, "t2").await;
    let changes = deltas(&world, &mut session).await;
    assert_eq!(changes.len(), 1);
    assert_eq!(columns(&changes[0], 3), 5);
}
