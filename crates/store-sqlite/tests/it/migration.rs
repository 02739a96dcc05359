//! Migrations: what is refused, that a refusal writes nothing, and what moves.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tidewater_model::CommitSeq;
use tidewater_schema::Schema;
use tidewater_store::{
    StorageCode, Store, StoreErrorKind,
    conformance::fixtures::{
        Draft, Item, NOTES, all_rows, compile, page, schema, schema_document, team_one, touch,
        whole_log, window,
    },
};
use tidewater_wire::row::decode_row;

use crate::support::{Files, write};

/// A database at version 1 with two notes.
async fn stored() -> Files {
    let files = Files::new();
    let store = files.open();
    store.prepare(&schema()).await.unwrap();
    touch(&store, "p").await;
    let draft = Draft::new("p", 1)
        .insert(&Item::note("a").code("x").body("one"))
        .insert(&Item::note("b").code("y"));
    write(&store, [draft]).await;
    drop(store);
    files
}

fn version_two(change: impl FnOnce(&mut Json)) -> Arc<Schema> {
    let mut document = schema_document();
    document["schemaVersion"] = json!(2);
    change(&mut document);
    compile(&document)
}

fn dump(files: &Files) -> Vec<String> {
    let mut lines = dump_catalog(files);
    lines.extend(files.texts("SELECT schema_version || layouts FROM sync_schema_meta"));
    lines.extend(files.texts("SELECT hex(_sync_payload) FROM notes ORDER BY _sync_row_id"));
    lines.extend(files.texts("SELECT hex(payload) FROM sync_changes ORDER BY idx"));
    lines
}

/// Changes a database from outside and opens it: the refusal names code and reason.
async fn check_mismatch(sql: &str, reason: &str) {
    let files = stored().await;
    files.execute(sql);
    let before = dump_catalog(&files);
    let store = files.open();
    let error = store.prepare(&schema()).await.unwrap_err();
    let refused = StoreErrorKind::Refused(StorageCode::PhysicalLayoutMismatch);
    assert_eq!(error.kind, refused, "{error}");
    let reason = format!("(reason {reason})");
    assert!(error.to_string().contains(&reason), "{error}");
    drop(store);
    assert_eq!(dump_catalog(&files), before, "a refusal writes nothing");
}

fn dump_catalog(files: &Files) -> Vec<String> {
    files.texts("SELECT coalesce(sql, name) FROM sqlite_schema ORDER BY name")
}

/// The statement that replaces the table of notes by one that differs in one place.
async fn notes_with(from: &str, to: &str) -> String {
    let files = stored().await;
    let create = files.texts("SELECT sql FROM sqlite_schema WHERE name = 'notes'");
    assert!(create[0].contains(from), "{create:?}");
    format!("DROP TABLE notes; {}", create[0].replace(from, to))
}

#[tokio::test]
async fn a_catalogue_that_differs_is_refused_with_its_reason() {
    check_mismatch("DROP TABLE notes", "missing_table").await;
    check_mismatch(
        "DROP INDEX sync_ix_notes_code; ALTER TABLE notes DROP COLUMN code",
        "missing_column",
    )
    .await;
    let meta = notes_with("_sync_scopes TEXT NOT NULL, ", "").await;
    check_mismatch(&meta, "missing_column").await;
    let typed = notes_with("\"team\" TEXT", "\"team\" BLOB").await;
    check_mismatch(&typed, "type").await;
    let loose = notes_with("\"team\" TEXT NOT NULL", "\"team\" TEXT").await;
    check_mismatch(&loose, "nullability").await;
    let strict = notes_with("\"body\" TEXT", "\"body\" TEXT NOT NULL").await;
    check_mismatch(&strict, "nullability").await;
    let payload = notes_with("_sync_payload BLOB NOT NULL", "_sync_payload BLOB").await;
    check_mismatch(&payload, "nullability").await;
    let key = notes_with(
        "PRIMARY KEY (_sync_partition, _sync_row_id)",
        "PRIMARY KEY (_sync_row_id, _sync_partition)",
    )
    .await;
    check_mismatch(&key, "primary_key").await;
}

#[tokio::test]
async fn a_missing_index_is_no_reason_to_refuse() {
    let files = stored().await;
    files.execute("DROP INDEX sync_ix_notes_code; DROP INDEX sync_row_scopes_by_row");
    let store = files.open();
    store.prepare(&schema()).await.unwrap();
    drop(store);
    let names = files.texts("SELECT name FROM sqlite_schema WHERE type = 'index'");
    assert!(names.contains(&"sync_ix_notes_code".to_owned()));
    assert!(names.contains(&"sync_row_scopes_by_row".to_owned()));
}

#[tokio::test]
async fn a_refused_migration_leaves_the_database_as_it_was() {
    let files = stored().await;
    let store = files.open();
    store.prepare(&schema()).await.unwrap();
    let second = Draft::new("p", 2).insert(&Item::note("c").body("one"));
    write(&store, [second]).await;
    drop(store);
    let before = dump(&files);
    let schema = version_two(|document| {
        // Everything before the last step works.
        document["tables"][0]["columns"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "extra", "type": "integer", "nullable": true}));
        document["tables"][0]["indexes"] =
            json!([{"name": "notes_body", "columns": ["body"], "unique": true}]);
        document["tables"].as_array_mut().unwrap().pop();
    });
    let store = files.open();
    let error = store.prepare(&schema).await.unwrap_err();
    let refused = StoreErrorKind::Refused(StorageCode::SchemaIncompatible);
    assert_eq!(error.kind, refused);
    assert!(error.to_string().contains("change the rows"), "{error}");
    drop(store);
    assert_eq!(dump(&files), before);
    files.open().prepare(&self::schema()).await.unwrap();
}

#[tokio::test]
async fn an_appended_column_is_in_rows_log_and_typed_columns() {
    let files = stored().await;
    // The reference leaves what is older than the layouts; it is left alone.
    files.execute(
        "INSERT INTO sync_changes VALUES ('p', 1, 9, 'notes', 'z', 1, 1, '{\"team\":\"t9\"}', x'00')",
    );
    let schema = version_two(|document| {
        let columns = document["tables"][0]["columns"].as_array_mut().unwrap();
        columns.push(json!({"name": "extra", "type": "float", "nullable": true}));
    });
    let store = files.open();
    let plan = store.plan_migration(&schema).await.unwrap().join("\n");
    assert!(plan.contains("append 1 column(s)"), "{plan}");
    assert!(plan.contains("mark schema version 2"), "{plan}");
    store.prepare(&schema).await.unwrap();
    let columns = &schema.table(NOTES).columns;
    let rows = page(&store, all_rows("p", NOTES, team_one())).await.rows;
    let log = window(&store, whole_log("p", NOTES, team_one())).await;
    let logged = log.commits[0].changes.iter();
    let logged = logged.map(|change| &change.row.as_ref().unwrap().1);
    for payload in rows.iter().map(|(.., payload)| payload).chain(logged) {
        let fields = decode_row(columns, payload).unwrap();
        assert_eq!(fields.len(), 6);
        assert!(fields[5].is_none());
    }
    drop(store);
    let typed = files.texts("SELECT id || coalesce(body, '-') || (extra IS NULL) FROM notes");
    assert_eq!(typed, ["aone1", "b-1"]);
    assert_eq!(
        files.texts("SELECT hex(payload) FROM sync_changes WHERE row_id = 'z'"),
        ["00"]
    );
}

#[tokio::test]
async fn many_rows_are_rewritten_batch_by_batch() {
    let files = stored().await;
    let store = files.open();
    store.prepare(&schema()).await.unwrap();
    let rows = (0..1_234).map(|number| Item::task(&format!("t{number}")));
    let draft = rows.fold(Draft::new("p", 2), |draft, item| draft.insert(&item));
    write(&store, [draft]).await;
    let schema = version_two(|document| {
        let columns = document["tables"][1]["columns"].as_array_mut().unwrap();
        columns.push(json!({"name": "extra", "type": "string", "nullable": true}));
    });
    store.prepare(&schema).await.unwrap();
    drop(store);
    for table in ["tasks", "sync_changes WHERE tbl = 'tasks'"] {
        let column = if table == "tasks" {
            "_sync_payload"
        } else {
            "payload"
        };
        let lengths = format!("SELECT count(DISTINCT length({column}) - length(");
        let lengths = if table == "tasks" {
            format!("{lengths}id)) FROM {table}")
        } else {
            format!("{lengths}row_id)) FROM {table}")
        };
        assert_eq!(files.number(&lengths), 1, "all alike");
    }
    let store = files.open();
    store.prepare(&schema).await.unwrap();
    let mut scan = all_rows("p", tidewater_schema::TableIndex(1), team_one());
    scan.rows_max = 2_000;
    let rows = page(&store, scan).await.rows;
    assert_eq!(rows.len(), 1_234);
    let columns = &schema.tables()[1].columns;
    for (_, _, payload) in rows {
        assert!(decode_row(columns, &payload).unwrap()[5].is_none());
    }
}

/// Version 1 keeps payloads only.
fn bare_document() -> Json {
    let mut document = schema_document();
    document["tables"][0]["materialize"] = json!(false);
    document
}

#[tokio::test]
async fn typed_columns_are_filled_when_they_are_turned_on() {
    let files = Files::new();
    let store = files.open();
    store.prepare(&compile(&bare_document())).await.unwrap();
    touch(&store, "p").await;
    let draft = Draft::new("p", 1).insert(&Item::note("a").code("x").body("one"));
    write(&store, [draft]).await;
    assert!(files.outside().prepare("SELECT body FROM notes").is_err());
    let on = version_two(|_| {});
    store.prepare(&on).await.unwrap();
    let draft = Draft::new("p", 2).insert(&Item::note("b").code("y").body("two"));
    write(&store, [draft]).await;
    drop(store);
    let typed = files.texts("SELECT id || body || code FROM notes ORDER BY id");
    assert_eq!(typed, ["aonex", "btwoy"]);
    files.open().prepare(&on).await.unwrap();
}

#[tokio::test]
async fn typed_columns_stay_true_when_they_are_turned_off() {
    let files = stored().await;
    let store = files.open();
    let mut document = bare_document();
    document["schemaVersion"] = json!(2);
    store.prepare(&compile(&document)).await.unwrap();
    let (a, c) = (Item::note("a"), Item::note("c").code("y").body("three"));
    let next = a.next().body("changed");
    let draft = Draft::new("p", 2).update(&a, &next).insert(&c);
    write(&store, [draft]).await;
    drop(store);
    let typed = files.texts("SELECT id || coalesce(body, '-') FROM notes ORDER BY id");
    assert_eq!(typed, ["achanged", "b-", "cthree"]);
    let indexes = files.texts(
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'notes' \
         AND sql IS NOT NULL",
    );
    assert!(indexes.is_empty(), "{indexes:?}");
}

#[tokio::test]
async fn a_retired_table_goes_with_all_that_finds_its_rows() {
    let files = stored().await;
    let store = files.open();
    store.prepare(&schema()).await.unwrap();
    let draft = Draft::new("p", 2)
        .insert(&Item::task("t").blobs(&["b1"]))
        .insert(&Item::task("u"));
    write(&store, [draft]).await;
    let gone = Draft::new("p", 3).delete(&Item::task("u"));
    write(&store, [gone]).await;
    let schema = version_two(|document| {
        let tables = document["tables"].as_array_mut().unwrap();
        tables.remove(1);
        // The index moves to another table.
        tables[0]["indexes"] =
            json!([{"name": "tasks_body", "columns": ["body"], "unique": false}]);
    });
    store.prepare(&schema).await.unwrap();
    let rows = page(&store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.ids(), ["a", "b"]);
    assert_eq!(rows.gate.head, CommitSeq::new(3).unwrap(), "places stay");
    drop(store);
    for holder in [
        "sync_row_scopes",
        "sync_change_scopes",
        "sync_changes",
        "sync_tombstones",
        "sync_blob_refs",
    ] {
        let left = format!("SELECT count(*) FROM {holder} WHERE tbl = 'tasks'");
        assert_eq!(files.number(&left), 0, "{holder}");
    }
    let index = "SELECT tbl_name FROM sqlite_schema WHERE name = 'sync_ix_tasks_body'";
    assert_eq!(files.texts(index), ["notes"]);
}

#[tokio::test]
async fn a_table_that_is_not_ours_is_not_taken_over() {
    let files = Files::new();
    files.execute("CREATE TABLE notes (id TEXT PRIMARY KEY, body TEXT)");
    let error = files.open().prepare(&schema()).await.unwrap_err();
    let refused = StoreErrorKind::Refused(StorageCode::PhysicalLayoutMismatch);
    assert_eq!(error.kind, refused);
    let names = files.texts("SELECT name FROM sqlite_schema WHERE type = 'table'");
    assert_eq!(names, ["notes"]);
}

#[tokio::test]
async fn a_value_that_is_no_number_fits_a_column_that_must_have_one() {
    use tidewater_wire::row::{RowWriter, Value};

    let mut document = schema_document();
    document["tables"][2]["columns"][3]["nullable"] = json!(false);
    let files = Files::new();
    let store = files.open();
    store.prepare(&compile(&document)).await.unwrap();
    touch(&store, "p").await;
    for (place, ratio) in [(1, f64::NAN), (2, f64::INFINITY), (3, -0.0)] {
        let mut row = RowWriter::new(9);
        row.value(&Value::Integer(i64::try_from(place).unwrap()));
        row.value(&Value::String("t1"));
        row.null();
        row.value(&Value::Float(ratio));
        (0..5).for_each(|_| row.null());
        let state = tidewater_store::RowState {
            payload: row.finish().into(),
            scopes: tidewater_store::conformance::fixtures::scopes(&[("team", "t1")]),
            ..Item::note("any").state()
        };
        let samples = tidewater_schema::TableIndex(2);
        let id = place.to_string();
        let draft = Draft::new("p", place).upsert(samples, id.into(), state, None);
        write(&store, [draft]).await;
    }
    drop(store);
    let ratios = files.texts("SELECT CAST(ratio AS TEXT) FROM samples ORDER BY id");
    assert_eq!(ratios, ["NaN", "Inf", "0.0"]);
}
