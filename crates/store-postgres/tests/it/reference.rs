//! Databases of the reference open, are upgraded and serve.
//!
//! The statements here are those that the reference creates its tables with, in the shapes of two
//! releases: one before tombstones and column versions, and one with them.

use tidewater_model::{Cursor, HorizonSeq};
use tidewater_store::{
    ActivityBatch, ClientKey, ClientRecord, Finished, LoadRequest, PushKey, RowKey, Store,
    StoredResult,
    conformance::fixtures::{
        Draft, Item, NOTES, actor, all_rows, client, epoch, filter, lock, page, partition,
        push_key, schema, seq, team_one, whole_log, window,
    },
};
use tidewater_store_postgres::PostgresStore;

use crate::support::{TestDatabase, commit, write};

/// The infrastructure of release 0.15.48; `sync_clients` as before wire versions.
const OLD: &str = "
CREATE TABLE sync_partitions(
  partition TEXT PRIMARY KEY,
  max_commit_seq BIGINT NOT NULL DEFAULT 0,
  horizon_seq BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE sync_partition_registry(
  partition TEXT PRIMARY KEY, log_epoch TEXT NOT NULL,
  epoch_required BOOLEAN NOT NULL DEFAULT FALSE, last_authenticated_at_ms BIGINT NOT NULL
);
CREATE TABLE sync_row_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL,
  var TEXT NOT NULL, value TEXT NOT NULL, row_id TEXT NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, row_id)
);
CREATE TABLE sync_commits(
  partition TEXT NOT NULL, commit_seq BIGINT NOT NULL,
  client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL,
  actor_id TEXT NOT NULL, created_at_ms BIGINT NOT NULL,
  PRIMARY KEY(partition, commit_seq)
);
CREATE INDEX sync_commits_by_time ON sync_commits(partition, created_at_ms);
CREATE TABLE sync_changes(
  partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, idx INTEGER NOT NULL,
  tbl TEXT NOT NULL, row_id TEXT NOT NULL, op SMALLINT NOT NULL,
  row_version BIGINT, scopes JSONB NOT NULL, payload BYTEA,
  PRIMARY KEY(partition, commit_seq, idx)
);
CREATE INDEX sync_changes_by_table ON sync_changes(partition, commit_seq, tbl, idx);
CREATE TABLE sync_change_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL,
  var TEXT NOT NULL, value TEXT NOT NULL, commit_seq BIGINT NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, commit_seq)
);
CREATE TABLE sync_push_results(
  partition TEXT NOT NULL, client_id TEXT NOT NULL,
  client_commit_id TEXT NOT NULL, result JSONB NOT NULL,
  PRIMARY KEY(partition, client_id, client_commit_id)
);
CREATE TABLE sync_reactions(
  partition TEXT NOT NULL, idempotency_key TEXT NOT NULL,
  type TEXT NOT NULL, version INTEGER NOT NULL, payload JSONB NOT NULL,
  source_client_id TEXT NOT NULL, source_client_commit_id TEXT NOT NULL,
  source_commit_seq BIGINT NOT NULL, created_at_ms BIGINT NOT NULL,
  available_at_ms BIGINT NOT NULL, status TEXT NOT NULL,
  attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
  lease_owner TEXT, lease_expires_at_ms BIGINT, completed_at_ms BIGINT, last_failure JSONB,
  PRIMARY KEY(partition, idempotency_key),
  CHECK(status IN ('pending', 'leased', 'completed', 'dead-letter'))
);
CREATE INDEX sync_reactions_due
  ON sync_reactions(partition, status, available_at_ms, created_at_ms, idempotency_key);
CREATE TABLE sync_clients(
  partition TEXT NOT NULL, client_id TEXT NOT NULL, actor_id TEXT NOT NULL,
  cursor BIGINT NOT NULL, subscriptions JSONB NOT NULL, updated_at_ms BIGINT NOT NULL,
  PRIMARY KEY(partition, client_id)
);
CREATE TABLE sync_blob_refs(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, blob_id TEXT NOT NULL,
  PRIMARY KEY(partition, tbl, row_id, blob_id)
);
CREATE INDEX sync_blob_refs_by_blob ON sync_blob_refs(partition, blob_id);
CREATE TABLE sync_schema_meta(
  id INTEGER PRIMARY KEY CHECK(id = 1), schema_version BIGINT NOT NULL,
  layouts TEXT NOT NULL DEFAULT '{}'
);
";

/// What release 0.22 has more.
const NEWER: &str = "
CREATE INDEX sync_row_scopes_by_row ON sync_row_scopes(partition, tbl, row_id);
CREATE TABLE sync_tombstones(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, commit_seq BIGINT NOT NULL,
  PRIMARY KEY(partition, tbl, row_id)
);
ALTER TABLE sync_clients ADD COLUMN wire_version INTEGER NOT NULL DEFAULT 1;
";

#[derive(Clone, Copy, PartialEq)]
enum Release {
    Old,
    Newer,
}

/// A database with three notes, two in the log, the third older than the horizon.
fn reference(release: Release) -> TestDatabase {
    let database = TestDatabase::new();
    database.run(OLD);
    if release == Release::Newer {
        database.run(NEWER);
    }
    for table in ["notes", "tasks"] {
        let columns = "id TEXT NOT NULL, team TEXT NOT NULL, owner TEXT NOT NULL, code TEXT, \
                       body TEXT";
        database.run(&app_table(release, table, columns));
    }
    let samples = "id BIGINT NOT NULL, team TEXT NOT NULL, \"count\" BIGINT, \
                   ratio DOUBLE PRECISION, done BOOLEAN, meta JSONB, raw BYTEA, photo TEXT, \
                   doc BYTEA";
    database.run(&app_table(release, "samples", samples));
    let marks = "id TEXT NOT NULL, team TEXT NOT NULL, sample BIGINT";
    database.run(&app_table(release, "marks", marks));
    database.run(
        "CREATE UNIQUE INDEX sync_ix_notes_code ON notes(code);
         CREATE UNIQUE INDEX sync_ix_tasks_team_code ON tasks(team, code);
         CREATE INDEX tasks_body ON tasks(body);
         CREATE INDEX operators_own ON notes(body);
         INSERT INTO sync_partition_registry VALUES ('p', 'e1', false, 5), ('q', 'e2', true, 6);
         INSERT INTO sync_partitions VALUES ('p', 3, 1);
         INSERT INTO sync_push_results VALUES ('p', 'c1', 'm3',
           '{\"status\":\"applied\",\"commitSeq\":3,\"recordedAtMs\":7,\"cacheIdentity\":\"u\",\
             \"results\":[{\"opIndex\":0,\"status\":\"applied\"}]}');
         INSERT INTO sync_clients (partition, client_id, actor_id, cursor, subscriptions,
           updated_at_ms) VALUES ('p', 'c1', 'a1', 2,
           '[{\"id\":\"s\",\"table\":\"notes\",\"scopes\":{\"team\":[\"t1\"]}}]', 9);",
    );
    let layouts = schema().layouts().to_json();
    database.run(&format!(
        "INSERT INTO sync_schema_meta VALUES (1, 1, '{layouts}')"
    ));
    for (place, item) in [(1, note("a")), (2, note("b").code("x")), (3, note("c"))] {
        insert(&database, place, &item);
    }
    // Pruning took the first commit and was stopped before it took what finds it.
    database.run(
        "DELETE FROM sync_commits WHERE commit_seq = 1;
         DELETE FROM sync_changes WHERE commit_seq = 1;",
    );
    database
}

fn note(id: &str) -> Item {
    Item::note(id)
}

fn app_table(release: Release, name: &str, columns: &str) -> String {
    let versions = match release {
        Release::Old => "",
        Release::Newer => "_sync_column_versions BYTEA, ",
    };
    format!(
        "CREATE TABLE \"{name}\"(_sync_partition TEXT NOT NULL, _sync_row_id TEXT NOT NULL, \
         {columns}, _sync_server_version BIGINT NOT NULL, _sync_scopes JSONB NOT NULL, \
         _sync_payload BYTEA NOT NULL, {versions}PRIMARY KEY(_sync_partition, _sync_row_id))"
    )
}

fn insert(database: &TestDatabase, place: i64, item: &Item) {
    let scopes = r#"{"owner":"o1","team":"t1"}"#;
    let payload: String = item
        .payload()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let text = |text: &Option<String>| match text {
        Some(text) => format!("'{text}'"),
        None => "NULL".to_owned(),
    };
    let Item {
        id, team, owner, ..
    } = item;
    database.run(&format!(
        "INSERT INTO notes (_sync_partition, _sync_row_id, id, team, owner, code, body, \
         _sync_server_version, _sync_scopes, _sync_payload) \
         VALUES ('p', '{id}', '{id}', '{team}', '{owner}', {}, {}, 1, '{scopes}', '\\x{payload}'); \
         INSERT INTO sync_commits VALUES ('p', {place}, 'c1', 'm{place}', 'a1', 1000 + {place}); \
         INSERT INTO sync_changes VALUES \
         ('p', {place}, 0, 'notes', '{id}', 1, 1, '{scopes}', '\\x{payload}');",
        text(&item.code),
        text(&item.body),
    ));
    for (variable, value) in [("owner", "o1"), ("team", "t1")] {
        database.run(&format!(
            "INSERT INTO sync_row_scopes VALUES ('p', 'notes', '{variable}', '{value}', '{id}'); \
             INSERT INTO sync_change_scopes VALUES \
             ('p', 'notes', '{variable}', '{value}', {place})"
        ));
    }
}

async fn open(database: &TestDatabase) -> PostgresStore {
    let store = database.open();
    store.prepare(&schema()).await.unwrap();
    store
}

async fn both(mut check: impl AsyncFnMut(&TestDatabase)) {
    for release in [Release::Old, Release::Newer] {
        check(&reference(release)).await;
    }
}

#[tokio::test]
async fn what_the_reference_wrote_is_read() {
    both(async |database| {
        let store = open(database).await;
        let rows = page(&store, all_rows("p", NOTES, team_one())).await;
        assert_eq!(rows.ids(), ["a", "b", "c"]);
        assert_eq!(rows.gate.head, seq(3));
        let log = window(&store, whole_log("p", NOTES, team_one())).await;
        assert_eq!(log.row_ids(), [["b"], ["c"]]);
        assert_eq!(log.commits[0].actor, "a1");
        let record = store
            .find_partition(&partition("q"))
            .await
            .unwrap()
            .unwrap();
        assert!(record.epoch_required);
        let key = push_key("p", "c1", "m3");
        let result = store.find_push_result(&key).await.unwrap().unwrap();
        assert!(matches!(result, StoredResult::Readable(_)));
        let record = store.find_client(&partition("p"), &client("c1")).await;
        let record = record.unwrap().unwrap();
        assert_eq!(record.wire_version, 1, "as before there were any");
        assert_eq!(record.cursor, Cursor::At(seq(2)));
        assert_eq!(record.subscriptions[0].scopes, team_one());
        assert_eq!(record.failure, None);
    })
    .await;
}

#[tokio::test]
async fn what_the_reference_wrote_is_written_on() {
    both(async |database| {
        let store = open(database).await;
        let (b, c) = (note("b").code("x"), note("c"));
        let draft = Draft::new("p", 4)
            .update(&b, &b.next().column_versions(b"\x04\x02").body("new"))
            .delete(&c)
            .insert(&note("d").team("t2"));
        write(&store, [draft]).await;
        let wanted = LoadRequest {
            partitions: vec![partition("p")],
            rows: vec![note("a").key("p"), b.key("p"), c.key("p")],
            push_results: vec![push_key("p", "c1", "m4")],
            ..LoadRequest::default()
        };
        let (txn, loaded) = store.begin_write(wanted).await.unwrap();
        drop(txn);
        let versions: Vec<_> = loaded
            .rows
            .iter()
            .map(|row| row.as_ref().map(|row| row.column_versions.clone()))
            .collect();
        let new = Some(bytes::Bytes::from_static(b"\x04\x02"));
        assert_eq!(versions, [Some(None), Some(new), None]);
        let tombstone = loaded.tombstones[2].as_ref().unwrap();
        assert_eq!(tombstone.scopes.as_ref(), Some(&c.scopes()));
        assert!(loaded.push_results[0].is_some());
        let horizon = HorizonSeq::at(seq(3));
        let pruned = store.prune(&partition("p"), &epoch("e1"), horizon).await;
        assert_eq!(pruned.unwrap().removed_commits, 2);
        let rows = page(&store, all_rows("p", NOTES, filter(&[("owner", &["o1"])]))).await;
        assert_eq!(rows.ids(), ["a", "b", "d"]);
        drop(store);
        assert_eq!(
            database.number("SELECT min(commit_seq) FROM sync_change_scopes"),
            4
        );
    })
    .await;
}

#[tokio::test]
async fn tombstones_without_scopes_are_read_as_such() {
    let database = reference(Release::Newer);
    database.run(
        "INSERT INTO sync_tombstones (partition, tbl, row_id, commit_seq) VALUES
           ('p', 'notes', 'old', 1), ('p', 'notes', 'gone', 2)",
    );
    let store = open(&database).await;
    let key = |id: &str| RowKey {
        ..note(id).key("p")
    };
    let wanted = LoadRequest {
        partitions: vec![partition("p")],
        rows: vec![key("old"), key("gone")],
        ..LoadRequest::default()
    };
    let (_txn, loaded) = store.begin_write(wanted).await.unwrap();
    assert_eq!(loaded.tombstones[0], None, "at the horizon");
    let gone = loaded.tombstones[1].as_ref().unwrap();
    assert_eq!((gone.commit_seq, &gone.scopes), (seq(2), &None));
}

#[tokio::test]
async fn what_an_interrupted_prune_left_is_gone() {
    both(async |database| {
        let left = "SELECT count(*) FROM sync_change_scopes WHERE commit_seq = 1";
        assert_eq!(database.number(left), 2);
        drop(open(database).await);
        assert_eq!(database.number(left), 0);
    })
    .await;
}

#[tokio::test]
async fn unique_values_become_a_tenants_own() {
    both(async |database| {
        let store = open(database).await;
        let taken = Draft::new("p", 4).insert(&note("d").code("x"));
        let Finished::Violated(txn, _) = commit(&store, [taken]).await.unwrap() else {
            panic!("the value is taken");
        };
        // Its turn goes to the next.
        drop(txn);
        let (txn, _) = store.begin_write(lock(&["q"])).await.unwrap();
        let free = Draft::new("q", 1).insert(&note("d").code("x")).build();
        let finished = txn.finish(vec![free]).await.unwrap();
        assert!(matches!(finished, Finished::Committed));
        drop(store);
        let indexes = database.texts(
            "SELECT indexname FROM pg_indexes WHERE tablename IN ('notes', 'tasks') \
             AND indexname NOT LIKE '%_pkey' ORDER BY indexname",
        );
        let expected = [
            "operators_own",
            "sync_ix_notes_code",
            "sync_ix_tasks_body",
            "sync_ix_tasks_team_code",
        ];
        assert_eq!(indexes, expected, "the operator's stays, bare names go");
    })
    .await;
}

#[tokio::test]
async fn an_upgraded_database_is_not_written_again() {
    both(async |database| {
        drop(open(database).await);
        let store = database.open();
        assert!(store.plan_migration(&schema()).await.unwrap().is_empty());
        let written = "SELECT relname || xmin FROM pg_class \
                       WHERE relnamespace = 'public'::regnamespace \
                       UNION ALL SELECT 'meta' || xmin FROM sync_schema_meta ORDER BY 1";
        let before = database.texts(written);
        store.prepare(&schema()).await.unwrap();
        assert_eq!(database.texts(written), before);
    })
    .await;
}

#[tokio::test]
async fn a_client_of_the_reference_keeps_its_actor() {
    both(async |database| {
        let store = open(database).await;
        let record = |name: &str, at_ms: i64| ClientRecord {
            actor: actor(name),
            cursor: Cursor::At(seq(3)),
            subscriptions: Vec::new(),
            wire_version: 3,
            updated_at_ms: at_ms,
            failure: None,
        };
        let key = ClientKey {
            partition: partition("p"),
            client: client("c1"),
        };
        for (actor, expected) in [("a2", 9), ("a1", 20)] {
            let batch = ActivityBatch {
                clients: vec![(key.clone(), epoch("e1"), record(actor, 20))],
                ..ActivityBatch::default()
            };
            store.put_activity(batch).await.unwrap();
            let stored = store.find_client(&key.partition, &key.client).await;
            assert_eq!(stored.unwrap().unwrap().updated_at_ms, expected);
        }
    })
    .await;
}

#[tokio::test]
async fn an_outcome_that_is_no_outcome_is_unreadable() {
    let database = reference(Release::Old);
    database.run("UPDATE sync_push_results SET result = '[]'");
    let store = open(&database).await;
    let key: PushKey = push_key("p", "c1", "m3");
    let result = store.find_push_result(&key).await.unwrap();
    assert_eq!(result, Some(StoredResult::Unreadable));
}

/// The default collation of the test server puts `a` before `B`; the protocol does not.
#[tokio::test]
async fn rows_of_the_reference_come_in_bytewise_order() {
    both(async |database| {
        let store = open(database).await;
        let ids = ["B", "_x", "\u{e9}", "aa", "Z"];
        let draft = ids
            .iter()
            .fold(Draft::new("p", 4), |draft, id| draft.insert(&note(id)));
        write(&store, [draft]).await;
        let rows = page(&store, all_rows("p", NOTES, team_one())).await;
        assert_eq!(rows.ids(), ["B", "Z", "_x", "a", "aa", "b", "c", "\u{e9}"]);
    })
    .await;
}
