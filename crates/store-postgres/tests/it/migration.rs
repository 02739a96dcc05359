//! Migrations: what is refused, that a refusal writes nothing, and what moves.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tidewater_model::CommitSeq;
use tidewater_schema::Schema;
use tidewater_store::{
    Finished, LoadRequest, StorageCode, Store, StoreErrorKind,
    conformance::fixtures::{
        Draft, Item, NOTES, all_rows, compile, page, partition, schema, schema_document, team_one,
        touch, whole_log, window,
    },
};
use tidewater_wire::row::decode_row;

use crate::support::{TestDatabase, commit, write};

/// A database at version 1 with two notes.
async fn stored() -> TestDatabase {
    let database = TestDatabase::new();
    let store = database.open();
    store.prepare(&schema()).await.unwrap();
    touch(&store, "p").await;
    let draft = Draft::new("p", 1)
        .insert(&Item::note("a").code("x").body("one"))
        .insert(&Item::note("b").code("y"));
    write(&store, [draft]).await;
    drop(store);
    database
}

fn version_two(change: impl FnOnce(&mut Json)) -> Arc<Schema> {
    let mut document = schema_document();
    document["schemaVersion"] = json!(2);
    change(&mut document);
    compile(&document)
}

fn dump(database: &TestDatabase) -> Vec<String> {
    let mut lines = dump_catalog(database);
    lines.extend(database.texts("SELECT schema_version || layouts FROM sync_schema_meta"));
    lines.extend(
        database.texts("SELECT encode(_sync_payload, 'hex') FROM notes ORDER BY _sync_row_id"),
    );
    lines.extend(database.texts("SELECT encode(payload, 'hex') FROM sync_changes ORDER BY idx"));
    lines
}

/// Changes a database from outside and opens it: the refusal names code and reason.
async fn check_mismatch(sql: &str, reason: &str) {
    let database = stored().await;
    database.run(sql);
    let before = dump_catalog(&database);
    let store = database.open();
    let error = store.prepare(&schema()).await.unwrap_err();
    let refused = StoreErrorKind::Refused(StorageCode::PhysicalLayoutMismatch);
    assert_eq!(error.kind, refused, "{error}");
    let reason = format!("(reason {reason})");
    assert!(error.to_string().contains(&reason), "{error}");
    drop(store);
    assert_eq!(dump_catalog(&database), before, "a refusal writes nothing");
}

fn dump_catalog(database: &TestDatabase) -> Vec<String> {
    database.texts(
        "SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || \
         ' ' || a.attnotnull FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' \
         AND a.attnum > 0 AND NOT a.attisdropped \
         UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
    )
}

#[tokio::test]
async fn a_catalogue_that_differs_is_refused_with_its_reason() {
    for (sql, reason) in [
        ("DROP TABLE notes", "missing_table"),
        ("ALTER TABLE notes DROP COLUMN code", "missing_column"),
        (
            "ALTER TABLE notes DROP COLUMN _sync_scopes",
            "missing_column",
        ),
        (
            "ALTER TABLE notes ALTER team TYPE bytea USING team::bytea",
            "type",
        ),
        ("ALTER TABLE notes ALTER team DROP NOT NULL", "nullability"),
        (
            "UPDATE notes SET body = ''; ALTER TABLE notes ALTER body SET NOT NULL",
            "nullability",
        ),
        (
            "ALTER TABLE notes ALTER _sync_payload DROP NOT NULL",
            "nullability",
        ),
        (
            "ALTER TABLE notes DROP CONSTRAINT notes_pkey; \
             ALTER TABLE notes ADD PRIMARY KEY (_sync_row_id, _sync_partition)",
            "primary_key",
        ),
    ] {
        check_mismatch(sql, reason).await;
    }
}

#[tokio::test]
async fn a_missing_index_is_no_reason_to_refuse() {
    let database = stored().await;
    database.run("DROP INDEX sync_ix_notes_code; DROP INDEX sync_row_scopes_by_row");
    let store = database.open();
    store.prepare(&schema()).await.unwrap();
    drop(store);
    let names = database.texts("SELECT indexname FROM pg_indexes WHERE schemaname = 'public'");
    assert!(names.contains(&"sync_ix_notes_code".to_owned()));
    assert!(names.contains(&"sync_row_scopes_by_row".to_owned()));
}

#[tokio::test]
async fn a_refused_migration_leaves_the_database_as_it_was() {
    let database = stored().await;
    let store = database.open();
    store.prepare(&schema()).await.unwrap();
    let second = Draft::new("p", 2).insert(&Item::note("c").body("one"));
    write(&store, [second]).await;
    drop(store);
    let before = dump(&database);
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
    let store = database.open();
    let error = store.prepare(&schema).await.unwrap_err();
    let refused = StoreErrorKind::Refused(StorageCode::SchemaIncompatible);
    assert_eq!(error.kind, refused);
    assert!(error.to_string().contains("change the rows"), "{error}");
    drop(store);
    assert_eq!(dump(&database), before);
    database.open().prepare(&self::schema()).await.unwrap();
}

#[tokio::test]
async fn an_appended_column_is_in_rows_log_and_typed_columns() {
    let database = stored().await;
    // The reference leaves what is older than the layouts; it is left alone.
    database.run(
        "INSERT INTO sync_changes VALUES ('p', 1, 9, 'notes', 'z', 1, 1, '{\"team\":\"t9\"}', '\\x00')",
    );
    let schema = version_two(|document| {
        let columns = document["tables"][0]["columns"].as_array_mut().unwrap();
        columns.push(json!({"name": "extra", "type": "float", "nullable": true}));
    });
    let store = database.open();
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
    let typed =
        database.texts("SELECT id || coalesce(body, '-') || (extra IS NULL)::int FROM notes");
    assert_eq!(typed, ["aone1", "b-1"]);
    assert_eq!(
        database.texts("SELECT encode(payload, 'hex') FROM sync_changes WHERE row_id = 'z'"),
        ["00"]
    );
}

#[tokio::test]
async fn many_rows_are_rewritten_batch_by_batch() {
    let database = stored().await;
    let store = database.open();
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
        assert_eq!(database.number(&lengths), 1, "all alike");
    }
    let store = database.open();
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

/// Version 2: another column in `notes`.
fn wider() -> Arc<Schema> {
    version_two(|document| {
        let column = json!({"name": "extra", "type": "integer", "nullable": true});
        let columns = document["tables"][0]["columns"].as_array_mut();
        columns.unwrap().push(column);
    })
}

/// Rows and changes that take several pieces, in two partitions.
const MANY: i64 = 12_000;

async fn stored_many() -> TestDatabase {
    let database = stored().await;
    database.run(&format!(
        "INSERT INTO notes (_sync_partition, _sync_row_id, id, team, owner, \
         _sync_server_version, _sync_scopes, _sync_payload) \
         SELECT CASE WHEN n % 3 = 0 THEN 'q' ELSE 'p' END, 'm' || n, 'm' || n, t.team, t.owner, 1, \
         '{{}}', t._sync_payload FROM generate_series(1, {MANY}) n, \
         (SELECT * FROM notes WHERE _sync_row_id = 'b') t"
    ));
    database.run(&format!(
        "INSERT INTO sync_changes (partition, tbl, row_id, commit_seq, idx, op, row_version, \
         scopes, payload) SELECT CASE WHEN n % 3 = 0 THEN 'q' ELSE 'p' END, 'notes', 'm' || n, \
         n + 1, 0, t.op, 1, '{{}}', t.payload FROM generate_series(1, {MANY}) n, \
         (SELECT * FROM sync_changes WHERE row_id = 'b') t"
    ));
    database
}

/// How many rows and changes have every column of the schema.
fn wide_payloads(database: &TestDatabase, schema: &Schema) -> usize {
    let payloads = database.texts(
        "SELECT encode(_sync_payload, 'hex') FROM notes \
         UNION ALL SELECT encode(payload, 'hex') FROM sync_changes WHERE tbl = 'notes'",
    );
    let columns = &schema.tables()[0].columns;
    let is_wide = |text: &&String| {
        let payload = hex::decode(text).unwrap();
        decode_row(columns, &payload).is_ok_and(|fields| fields.len() == columns.len())
    };
    payloads.iter().filter(is_wide).count()
}

/// How many there are, with the two notes that were there before.
fn all_payloads() -> usize {
    usize::try_from(2 * (MANY + 2)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewrite_that_fails_after_any_piece_goes_on_where_it_was() {
    let (database, newer) = (stored_many().await, wider());
    // Nobody gets further than a table says.
    database.run(
        "CREATE TABLE bounds (most int8); INSERT INTO bounds VALUES (0); \
         CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF NEW.done > (SELECT most FROM bounds) THEN RAISE EXCEPTION 'stopped'; END IF; \
         RETURN NEW; END $$; \
         CREATE TRIGGER stop BEFORE UPDATE ON sync_row_rewrites \
         FOR EACH ROW EXECUTE FUNCTION stop()",
    );
    let mut stops = Vec::new();
    while database.open().prepare(&newer).await.is_err() {
        let done = database.number("SELECT done FROM sync_row_rewrites");
        stops.push(done);
        // One piece more, and no older server in between.
        database.run(&format!("UPDATE bounds SET most = {done} + 5000"));
        let error = database.open().prepare(&schema()).await.unwrap_err();
        let refused = StoreErrorKind::Refused(StorageCode::SchemaNewer);
        assert_eq!(error.kind, refused);
        let plan = database.open().plan_migration(&newer).await.unwrap();
        let step =
            format!("go on rewriting table `notes`, of which {done} rows and changes are done");
        assert_eq!(plan, [step]);
    }
    assert_eq!(stops, [0, 5_000, 10_000, 12_002, 17_002]);
    assert_eq!(wide_payloads(&database, &newer), all_payloads());
    assert!(
        database
            .open()
            .plan_migration(&newer)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_at_once_share_a_rewrite() {
    let (database, newer) = (stored_many().await, wider());
    let stores = [database.open(), database.open(), database.open()];
    let [one, two, three] = &stores;
    let (one, two, three) = tokio::join!(
        one.prepare(&newer),
        two.prepare(&newer),
        three.prepare(&newer)
    );
    for prepared in [one, two, three] {
        prepared.unwrap();
    }
    assert_eq!(wide_payloads(&database, &newer), all_payloads());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_read_is_found_before_anything_is_written() {
    let database = stored().await;
    database.run("UPDATE notes SET _sync_payload = '\\xff' WHERE _sync_row_id = 'b'");
    let before = dump(&database);
    let error = database.open().prepare(&wider()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
    assert_eq!(dump(&database), before);
}

/// Version 1 keeps payloads only.
fn bare_document() -> Json {
    let mut document = schema_document();
    document["tables"][0]["materialize"] = json!(false);
    document
}

#[tokio::test]
async fn typed_columns_are_filled_when_they_are_turned_on() {
    let database = TestDatabase::new();
    let store = database.open();
    store.prepare(&compile(&bare_document())).await.unwrap();
    touch(&store, "p").await;
    let draft = Draft::new("p", 1).insert(&Item::note("a").code("x").body("one"));
    write(&store, [draft]).await;
    let column = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'notes'::regclass \
                  AND attname = 'body'";
    assert_eq!(database.number(column), 0);
    let on = version_two(|_| {});
    store.prepare(&on).await.unwrap();
    let draft = Draft::new("p", 2).insert(&Item::note("b").code("y").body("two"));
    write(&store, [draft]).await;
    drop(store);
    let typed = database.texts("SELECT id || body || code FROM notes ORDER BY id");
    assert_eq!(typed, ["aonex", "btwoy"]);
    database.open().prepare(&on).await.unwrap();
}

#[tokio::test]
async fn typed_columns_stay_true_when_they_are_turned_off() {
    let database = stored().await;
    let store = database.open();
    let mut document = bare_document();
    document["schemaVersion"] = json!(2);
    store.prepare(&compile(&document)).await.unwrap();
    let (a, c) = (Item::note("a"), Item::note("c").code("y").body("three"));
    let next = a.next().body("changed");
    let draft = Draft::new("p", 2).update(&a, &next).insert(&c);
    write(&store, [draft]).await;
    drop(store);
    let typed = database.texts("SELECT id || coalesce(body, '-') FROM notes ORDER BY id");
    assert_eq!(typed, ["achanged", "b-", "cthree"]);
    let indexes = database.texts(
        "SELECT indexname FROM pg_indexes WHERE tablename = 'notes' AND indexname <> 'notes_pkey'",
    );
    assert!(indexes.is_empty(), "{indexes:?}");
}

#[tokio::test]
async fn a_retired_table_goes_with_all_that_finds_its_rows() {
    let database = stored().await;
    let store = database.open();
    store.prepare(&schema()).await.unwrap();
    let draft = Draft::new("p", 2)
        .insert(&Item::task("t").blobs(&["b1"]))
        .insert(&Item::task("u"));
    write(&store, [draft]).await;
    let gone = Draft::new("p", 3).delete(&Item::task("u"));
    write(&store, [gone]).await;
    // Also with a rewrite of it that was interrupted.
    database.run(
        "INSERT INTO sync_row_rewrites (tbl, stored_columns, columns, in_log, partition, row_id, \
         commit_seq, idx, done) VALUES ('tasks', 4, 5, false, '', '', -1, -1, 0)",
    );
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
        "sync_row_rewrites",
    ] {
        let left = format!("SELECT count(*) FROM {holder} WHERE tbl = 'tasks'");
        assert_eq!(database.number(&left), 0, "{holder}");
    }
    let index = "SELECT tablename FROM pg_indexes WHERE indexname = 'sync_ix_tasks_body'";
    assert_eq!(database.texts(index), ["notes"]);
}

#[tokio::test]
async fn a_table_that_is_not_ours_is_not_taken_over() {
    let database = TestDatabase::new();
    database.run("CREATE TABLE notes (id TEXT PRIMARY KEY, body TEXT)");
    let error = database.open().prepare(&schema()).await.unwrap_err();
    let refused = StoreErrorKind::Refused(StorageCode::PhysicalLayoutMismatch);
    assert_eq!(error.kind, refused);
    let names = database.texts("SELECT tablename FROM pg_tables WHERE schemaname = 'public'");
    assert_eq!(names, ["notes"]);
}

#[tokio::test]
async fn a_value_that_is_no_number_fits_a_column_that_must_have_one() {
    use tidewater_wire::row::{RowWriter, Value};

    let mut document = schema_document();
    document["tables"][2]["columns"][3]["nullable"] = json!(false);
    let database = TestDatabase::new();
    let store = database.open();
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
    let ratios = database.texts("SELECT CAST(ratio AS TEXT) FROM samples ORDER BY id");
    assert_eq!(ratios, ["NaN", "Infinity", "-0"]);
}

#[tokio::test]
async fn nodes_that_start_at_once_migrate_once() {
    let database = TestDatabase::new();
    let stores = [database.open(), database.open(), database.open()];
    let schema = schema();
    let [one, two, three] = &stores;
    let (one, two, three) = tokio::join!(
        one.prepare(&schema),
        two.prepare(&schema),
        three.prepare(&schema)
    );
    for prepared in [one, two, three] {
        prepared.unwrap();
    }
    assert_eq!(database.number("SELECT count(*) FROM sync_schema_meta"), 1);
    let version = version_two(|document| {
        let columns = document["tables"][0]["columns"].as_array_mut().unwrap();
        columns.push(json!({"name": "extra", "type": "json", "nullable": true}));
    });
    let [one, two, _] = &stores;
    let (one, two) = tokio::join!(one.prepare(&version), two.prepare(&version));
    one.unwrap();
    two.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_is_canceled_left_no_trace() {
    let database = stored().await;
    let before = dump(&database);
    let store = database.open();
    let version = version_two(|document| {
        let columns = document["tables"][0]["columns"].as_array_mut().unwrap();
        columns.push(json!({"name": "extra", "type": "string", "nullable": true}));
    });
    // Somebody reads the table: its change waits, and then nobody waits for the change.
    let outside = database.ready().await;
    let (held, _) = outside
        .begin_write(tidewater_store::conformance::fixtures::lock(&["p"]))
        .await
        .unwrap();
    let mut held = held;
    held.scan_rows(all_rows("p", NOTES, team_one()))
        .await
        .unwrap();
    let migration = store.prepare(&version);
    let canceled = tokio::time::timeout(std::time::Duration::from_millis(300), migration).await;
    assert!(canceled.is_err(), "the table is in use");
    drop(held);
    drop(store);
    assert_eq!(dump(&database), before);
    database.open().prepare(&schema()).await.unwrap();
}

#[tokio::test]
async fn json_that_cannot_be_held_is_null_where_that_is_allowed() {
    use tidewater_wire::row::{RowWriter, Value};

    let database = TestDatabase::new();
    let store = database.ready().await;
    let texts = [r#"{"a":"\u0000"}"#, r#"{"b":[1.50,"\\u0000"]}"#];
    for (place, text) in (1..).zip(texts) {
        let mut row = RowWriter::new(9);
        row.value(&Value::Integer(i64::try_from(place).unwrap()));
        row.value(&Value::String("t1"));
        (0..3).for_each(|_| row.null());
        row.value(&Value::Json(text));
        (0..3).for_each(|_| row.null());
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
    let held = database.texts("SELECT coalesce(meta->'b'->>0, '-') FROM samples ORDER BY id");
    assert_eq!(held, ["-", "1.50"]);
}

#[tokio::test]
async fn an_upgrade_waits_for_a_writer_of_the_older_schema_and_fences_the_next() {
    let database = stored().await;
    let older = database.ready().await;
    let wanted = LoadRequest {
        partitions: vec![partition("p")],
        ..LoadRequest::default()
    };
    let (txn, _) = older.begin_write(wanted).await.unwrap();
    let newer = wider();
    let upgraded = Arc::new(database.open());
    let upgrade = {
        let (store, newer) = (Arc::clone(&upgraded), Arc::clone(&newer));
        tokio::spawn(async move { store.prepare(&newer).await })
    };
    let waiting = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
        WHERE NOT l.granted AND d.datname = current_database()";
    while database.number(waiting) == 0 {
        assert!(!upgrade.is_finished(), "it must wait");
        tokio::task::yield_now().await;
    }
    let draft = Draft::new("p", 2).insert(&Item::note("late"));
    let finished = txn.finish(vec![draft.build()]).await.unwrap();
    assert!(matches!(finished, Finished::Committed));
    upgrade.await.unwrap().unwrap();

    let rows = page(&*upgraded, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.ids(), ["a", "b", "late"]);
    for (id, _, payload) in &rows.rows {
        let fields = decode_row(&newer.tables()[0].columns, payload);
        assert_eq!(fields.unwrap().len(), 6, "{id}");
    }
    let draft = Draft::new("p", 3).insert(&Item::note("never"));
    let error = commit(&older, [draft]).await.err().unwrap();
    let refused = StoreErrorKind::Refused(StorageCode::WriterFenceRejected);
    assert_eq!(error.kind, refused, "{error}");
    assert_eq!(rows.gate.writer_fence, Some(2));
}
