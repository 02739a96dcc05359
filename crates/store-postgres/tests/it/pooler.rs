//! Through PgBouncer, which hands connections out per transaction.

use tidewater_pgtest::{Pooler, Server};
use tidewater_store::{
    RowStreamRequest, ScopesTest, Store, StoreErrorKind,
    conformance::fixtures::{
        Draft, Item, NOTES, all_rows, page, partition, schema, team_one, touch, whole_log, window,
    },
};
use tidewater_store_postgres::{PostgresConfig, PostgresStore};

use crate::support::write;

fn open(url: &str, prepared: bool) -> PostgresStore {
    let mut config = PostgresConfig::from_url(url).unwrap();
    config.connections_max = 6;
    config.prepared_statements = prepared;
    PostgresStore::new(config).unwrap()
}

/// Two nodes with more connections than the pooler has, at once.
#[tokio::test]
async fn two_nodes_share_a_pooler_that_has_fewer_connections_than_they() {
    let server = Server::start().unwrap_or_else(|why| panic!("{why}"));
    let pooler = Pooler::start(&server, 3).unwrap_or_else(|why| panic!("{why}"));
    let database = server.database();
    let url = pooler.url(database.name());
    let (one, two) = (open(&url, false), open(&url, false));
    one.prepare(&schema()).await.unwrap();
    two.prepare(&schema()).await.unwrap();
    let mut work = Vec::new();
    for number in 0..12_u64 {
        let store = if number % 2 == 0 { &one } else { &two };
        work.push(async move {
            let name = format!("p{number}");
            touch(store, &name).await;
            for place in 1..=10 {
                let item = Item::note(&format!("n{place}")).blobs(&["b"]);
                let draft = Draft::new(&name, place).insert(&item);
                commit_to(store, &name, draft).await;
                page(store, all_rows(&name, NOTES, team_one())).await;
            }
        });
    }
    futures_util::future::join_all(work).await;
    let log = window(&two, whole_log("p0", NOTES, team_one())).await;
    assert_eq!(log.commits.len(), 10);
    let asked = RowStreamRequest {
        partition: partition("p1"),
        table: NOTES,
        filter: team_one(),
        rows_max: 3,
        bytes_max: 1 << 20,
    };
    let mut stream = one.stream_rows(asked).await.unwrap();
    let mut rows = 0;
    while let Some(piece) = stream.next().await.unwrap() {
        rows += piece.rows().count();
    }
    assert_eq!(rows, 10);
    let any = ScopesTest::new(|_, _| true);
    let found = two.find_blob_row(&partition("p3"), "b", any).await;
    assert!(found.unwrap().is_some());
    let commits = "SELECT count(*) FROM sync_commits";
    assert_eq!(database.number(commits), 120);
}

async fn commit_to(store: &PostgresStore, name: &str, draft: Draft) {
    let wanted = tidewater_store::LoadRequest {
        partitions: vec![partition(name)],
        ..Default::default()
    };
    let (txn, _) = store.begin_write(wanted).await.unwrap();
    txn.finish(vec![draft.build()]).await.unwrap();
}

#[tokio::test]
async fn prepared_statements_through_a_pooler_are_refused_before_anything_is_written() {
    let server = Server::start().unwrap_or_else(|why| panic!("{why}"));
    for connections in [1, 4] {
        let pooler = Pooler::start(&server, connections).unwrap_or_else(|why| panic!("{why}"));
        let database = server.database();
        let store = open(&pooler.url(database.name()), true);
        let error = store.prepare(&schema()).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unavailable);
        let text = error.to_string();
        assert!(text.contains("prepared_statements to false"), "{text}");
        store.close();
        let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
        assert_eq!(database.number(tables), 0);
    }
}

#[tokio::test]
async fn without_a_pooler_prepared_statements_are_used() {
    let database = crate::support::TestDatabase::new();
    let store = database.ready().await;
    write(&store, [Draft::new("p", 1).insert(&Item::note("a"))]).await;
}
