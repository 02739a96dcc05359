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
use tidewater_store_sqlite::SqliteStore;

use crate::support::{Files, commit, write};

/// The infrastructure of release 0.15.48; `sync_clients` as before wire versions.
const OLD: &str = "
CREATE TABLE sync_partitions(
  partition TEXT PRIMARY KEY,
  max_commit_seq INTEGER NOT NULL DEFAULT 0,
  horizon_seq INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE sync_partition_registry(
  partition TEXT PRIMARY KEY, log_epoch TEXT NOT NULL,
  epoch_required INTEGER NOT NULL DEFAULT 0, last_authenticated_at_ms INTEGER NOT NULL
);
CREATE TABLE sync_row_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL,
  var TEXT NOT NULL, value TEXT NOT NULL, row_id TEXT NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, row_id)
);
CREATE TABLE sync_commits(
  partition TEXT NOT NULL, commit_seq INTEGER NOT NULL,
  client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL,
  actor_id TEXT NOT NULL, created_at_ms INTEGER NOT NULL,
  PRIMARY KEY(partition, commit_seq)
);
CREATE INDEX sync_commits_by_time ON sync_commits(partition, created_at_ms);
CREATE TABLE sync_changes(
  partition TEXT NOT NULL, commit_seq INTEGER NOT NULL, idx INTEGER NOT NULL,
  tbl TEXT NOT NULL, row_id TEXT NOT NULL, op INTEGER NOT NULL,
  row_version INTEGER, scopes TEXT NOT NULL, payload BLOB,
  PRIMARY KEY(partition, commit_seq, idx)
);
CREATE INDEX sync_changes_by_table ON sync_changes(partition, commit_seq, tbl, idx);
CREATE TABLE sync_change_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL,
  var TEXT NOT NULL, value TEXT NOT NULL, commit_seq INTEGER NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, commit_seq)
);
CREATE TABLE sync_push_results(
  partition TEXT NOT NULL, client_id TEXT NOT NULL,
  client_commit_id TEXT NOT NULL, result TEXT NOT NULL,
  PRIMARY KEY(partition, client_id, client_commit_id)
);
CREATE TABLE sync_clients(
  partition TEXT NOT NULL, client_id TEXT NOT NULL, actor_id TEXT NOT NULL,
  cursor INTEGER NOT NULL, subscriptions TEXT NOT NULL, updated_at_ms INTEGER NOT NULL,
  PRIMARY KEY(partition, client_id)
);
CREATE TABLE sync_blob_refs(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, blob_id TEXT NOT NULL,
  PRIMARY KEY(partition, tbl, row_id, blob_id)
);
CREATE INDEX sync_blob_refs_by_blob ON sync_blob_refs(partition, blob_id);
CREATE TABLE sync_schema_meta(
  id INTEGER PRIMARY KEY CHECK(id = 1), schema_version INTEGER NOT NULL,
  layouts TEXT NOT NULL DEFAULT '{}'
);
";

/// What release 0.22 has more.
const NEWER: &str = "
CREATE INDEX sync_row_scopes_by_row ON sync_row_scopes(partition, tbl, row_id);
CREATE TABLE sync_tombstones(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, commit_seq INTEGER NOT NULL,
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
fn reference(release: Release) -> Files {
    let files = Files::new();
    files.execute(OLD);
    if release == Release::Newer {
        files.execute(NEWER);
    }
    for table in ["notes", "tasks"] {
        let columns = "id TEXT NOT NULL, team TEXT NOT NULL, owner TEXT NOT NULL, code TEXT, \
                       body TEXT";
        files.execute(&app_table(release, table, columns));
    }
    let samples = "id INTEGER NOT NULL, team TEXT NOT NULL, \"count\" INTEGER, ratio REAL, \
                   done INTEGER, meta TEXT, raw BLOB, photo TEXT, doc BLOB";
    files.execute(&app_table(release, "samples", samples));
    let marks = "id TEXT NOT NULL, team TEXT NOT NULL, sample INTEGER";
    files.execute(&app_table(release, "marks", marks));
    files.execute(
        "CREATE UNIQUE INDEX sync_ix_notes_code ON notes(code);
         CREATE UNIQUE INDEX sync_ix_tasks_team_code ON tasks(team, code);
         CREATE INDEX tasks_body ON tasks(body);
         CREATE INDEX operators_own ON notes(body);
         INSERT INTO sync_partition_registry VALUES ('p', 'e1', 0, 5), ('q', 'e2', 1, 6);
         INSERT INTO sync_partitions VALUES ('p', 3, 1);
         INSERT INTO sync_push_results VALUES ('p', 'c1', 'm3',
           '{\"status\":\"applied\",\"commitSeq\":3,\"recordedAtMs\":7,\"cacheIdentity\":\"u\",\
             \"results\":[{\"opIndex\":0,\"status\":\"applied\"}]}');
         INSERT INTO sync_clients (partition, client_id, actor_id, cursor, subscriptions,
           updated_at_ms) VALUES ('p', 'c1', 'a1', 2,
           '[{\"id\":\"s\",\"table\":\"notes\",\"scopes\":{\"team\":[\"t1\"]}}]', 9);",
    );
    let outside = files.outside();
    outside
        .execute(
            "INSERT INTO sync_schema_meta VALUES (1, 1, ?1)",
            [schema().layouts().to_json()],
        )
        .unwrap();
    for (place, item) in [(1, note("a")), (2, note("b").code("x")), (3, note("c"))] {
        insert(&outside, place, &item);
    }
    // Pruning took the first commit and was stopped before it took what finds it.
    files.execute(
        "DELETE FROM sync_commits WHERE commit_seq = 1;
         DELETE FROM sync_changes WHERE commit_seq = 1;",
    );
    files
}

fn note(id: &str) -> Item {
    Item::note(id)
}

fn app_table(release: Release, name: &str, columns: &str) -> String {
    let versions = match release {
        Release::Old => "",
        Release::Newer => "_sync_column_versions BLOB, ",
    };
    format!(
        "CREATE TABLE \"{name}\"(_sync_partition TEXT NOT NULL, _sync_row_id TEXT NOT NULL, \
         {columns}, _sync_server_version INTEGER NOT NULL, _sync_scopes TEXT NOT NULL, \
         _sync_payload BLOB NOT NULL, {versions}PRIMARY KEY(_sync_partition, _sync_row_id))"
    )
}

fn insert(outside: &rusqlite::Connection, place: i64, item: &Item) {
    let scopes = r#"{"owner":"o1","team":"t1"}"#;
    let payload = item.payload();
    outside
        .execute(
            "INSERT INTO notes (_sync_partition, _sync_row_id, id, team, owner, code, body, \
             _sync_server_version, _sync_scopes, _sync_payload) \
             VALUES ('p', ?1, ?1, ?2, ?3, ?4, ?5, 1, ?6, ?7)",
            (
                &item.id,
                &item.team,
                &item.owner,
                &item.code,
                &item.body,
                scopes,
                &payload[..],
            ),
        )
        .unwrap();
    for (variable, value) in [("owner", "o1"), ("team", "t1")] {
        outside
            .execute(
                "INSERT INTO sync_row_scopes VALUES ('p', 'notes', ?1, ?2, ?3)",
                (variable, value, &item.id),
            )
            .unwrap();
        outside
            .execute(
                "INSERT INTO sync_change_scopes VALUES ('p', 'notes', ?1, ?2, ?3)",
                (variable, value, place),
            )
            .unwrap();
    }
    outside
        .execute(
            "INSERT INTO sync_commits VALUES ('p', ?1, 'c1', 'm' || ?1, 'a1', 1000 + ?1)",
            [place],
        )
        .unwrap();
    outside
        .execute(
            "INSERT INTO sync_changes VALUES ('p', ?1, 0, 'notes', ?2, 1, 1, ?3, ?4)",
            (place, &item.id, scopes, &payload[..]),
        )
        .unwrap();
}

async fn open(files: &Files) -> SqliteStore {
    let store = files.open();
    store.prepare(&schema()).await.unwrap();
    store
}

async fn both(mut check: impl AsyncFnMut(&Files)) {
    for release in [Release::Old, Release::Newer] {
        check(&reference(release)).await;
    }
}

#[tokio::test]
async fn what_the_reference_wrote_is_read() {
    both(async |files| {
        let store = open(files).await;
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
    both(async |files| {
        let store = open(files).await;
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
            files.number("SELECT min(commit_seq) FROM sync_change_scopes"),
            4
        );
    })
    .await;
}

#[tokio::test]
async fn tombstones_without_scopes_are_read_as_such() {
    let files = reference(Release::Newer);
    files.execute(
        "INSERT INTO sync_tombstones (partition, tbl, row_id, commit_seq) VALUES
           ('p', 'notes', 'old', 1), ('p', 'notes', 'gone', 2)",
    );
    let store = open(&files).await;
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
    both(async |files| {
        let left = "SELECT count(*) FROM sync_change_scopes WHERE commit_seq = 1";
        assert_eq!(files.number(left), 2);
        drop(open(files).await);
        assert_eq!(files.number(left), 0);
    })
    .await;
}

#[tokio::test]
async fn unique_values_become_a_tenants_own() {
    both(async |files| {
        let store = open(files).await;
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
        let indexes = files.texts(
            "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL \
             AND tbl_name IN ('notes', 'tasks') ORDER BY name",
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
    both(async |files| {
        drop(open(files).await);
        let outside = files.outside();
        let version = |outside: &rusqlite::Connection| -> i64 {
            outside
                .query_row("PRAGMA data_version", [], |row| row.get(0))
                .unwrap()
        };
        let before = version(&outside);
        let store = files.open();
        assert!(store.plan_migration(&schema()).await.unwrap().is_empty());
        store.prepare(&schema()).await.unwrap();
        assert_eq!(version(&outside), before);
    })
    .await;
}

#[tokio::test]
async fn a_client_of_the_reference_keeps_its_actor() {
    both(async |files| {
        let store = open(files).await;
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
    let files = reference(Release::Old);
    files.execute("UPDATE sync_push_results SET result = x'00'");
    let store = open(&files).await;
    let key: PushKey = push_key("p", "c1", "m3");
    let result = store.find_push_result(&key).await.unwrap();
    assert_eq!(result, Some(StoredResult::Unreadable));
}
