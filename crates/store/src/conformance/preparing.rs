//! Preparing: creating, opening and migrating a database (§2.4, §9).

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value as Json, json};
use tidewater_model::{Cursor, HorizonSeq};
use tidewater_schema::TableIndex;

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, NOW_MS, TASKS, actor, all_rows, client, compile, epoch, filter, lock,
        page, partition, push_key, schema, schema_document, seq, team_one, touch, whole_log,
        window,
    },
    support::{begin, finished, head, ready, refused, try_write, write},
};
use crate::{
    ActivityBatch, ClientKey, ClientRecord, Finished, LoadRequest, RowState, StorageCode, Store,
};

/// The document of another version, after a change.
fn changed(version: i32, change: impl FnOnce(&mut Json)) -> Json {
    let mut document = schema_document();
    document["schemaVersion"] = json!(version);
    change(&mut document);
    document
}

fn columns(document: &mut Json, table: TableIndex) -> &mut Vec<Json> {
    document["tables"][table.0]["columns"]
        .as_array_mut()
        .unwrap()
}

fn tables(document: &mut Json) -> &mut Vec<Json> {
    document["tables"].as_array_mut().unwrap()
}

fn append_column(document: &mut Json) {
    let column = json!({"name": "extra", "type": "integer", "nullable": true});
    columns(document, NOTES).push(column);
}

/// The payload with a sixth column that is NULL: one more bit in the null bitmap.
fn widened(item: &Item) -> Bytes {
    let mut payload = item.payload().to_vec();
    payload[0] |= 1 << 5;
    Bytes::from(payload)
}

async fn reopen(database: &dyn Database, store: Arc<dyn Store>) -> Arc<dyn Store> {
    database.close(store).await;
    database.open().await
}

async fn note_ids(store: &dyn Store) -> String {
    page(store, all_rows("p", NOTES, team_one()))
        .await
        .ids()
        .concat()
}

pub(super) async fn preparing_again_changes_nothing(database: &dyn Database) {
    let store = ready(database).await;
    write(&*store, [Draft::new("p", 1).insert(&Item::note("n"))]).await;
    for _ in 0..3 {
        store.prepare(&schema()).await.unwrap();
    }
    assert_eq!(note_ids(&*store).await, "n");
    assert_eq!(head(&*store, "p").await, 1);
}

pub(super) async fn a_database_that_is_opened_again_holds_what_was_written(
    database: &dyn Database,
) {
    let store = ready(database).await;
    let (item, gone) = (Item::note("n").column_versions(&[3, 2]), Item::note("gone"));
    let record = ClientRecord {
        actor: actor("a1"),
        cursor: Cursor::At(seq(2)),
        subscriptions: Vec::new(),
        wire_version: 2,
        updated_at_ms: NOW_MS,
        failure: None,
    };
    store
        .rotate_epoch(&partition("p"), &epoch("e2"), NOW_MS)
        .await
        .unwrap();
    let key = ClientKey {
        partition: partition("p"),
        client: client("c1"),
    };
    let batch = ActivityBatch {
        touches: Vec::new(),
        clients: vec![(key.clone(), epoch("e2"), record.clone())],
    };
    store.put_activity(batch).await.unwrap();
    let drafts = [
        Draft::new("p", 1).insert(&item).insert(&gone),
        Draft::new("p", 2),
        Draft::new("p", 3).delete(&gone),
    ];
    write(&*store, drafts).await;
    store
        .prune(&partition("p"), &epoch("e2"), HorizonSeq::at(seq(1)))
        .await
        .unwrap();
    let registered = store.find_partition(&partition("p")).await.unwrap();
    let log = window(&*store, whole_log("p", NOTES, team_one())).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let lost = Draft::new("p", 4).insert(&Item::note("lost"));
    txn.apply(vec![lost.build()]).await.unwrap();
    drop(txn);

    let store = reopen(database, store).await;
    store.prepare(&schema()).await.unwrap();
    let found = store.find_partition(&partition("p")).await.unwrap();
    assert_eq!(found, registered);
    assert_eq!(
        window(&*store, whole_log("p", NOTES, team_one())).await,
        log
    );
    assert_eq!(note_ids(&*store).await, "n");
    let wanted = LoadRequest {
        rows: vec![item.key("p"), gone.key("p")],
        push_results: vec![push_key("p", "c1", "m3"), push_key("p", "c1", "m4")],
        clients: vec![key],
        ..lock(&["p"])
    };
    let (_, loaded) = store.begin_write(wanted).await.unwrap();
    assert_eq!(loaded.rows, [Some(item.stored()), None]);
    assert_eq!(loaded.tombstones[1].as_ref().unwrap().commit_seq, seq(3));
    assert!(loaded.push_results[0].is_some());
    assert_eq!(loaded.push_results[1], None);
    assert_eq!(loaded.clients, [Some(record)]);
}

pub(super) async fn appended_columns_are_null_in_rows_that_were_there(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let items: Vec<Item> = (0..1_200)
        .map(|n| {
            Item::note(&format!("n{n:04}"))
                .body("b")
                .column_versions(&[4, 2])
        })
        .collect();
    write(
        &*store,
        [items.iter().fold(Draft::new("p", 1), Draft::insert)],
    )
    .await;
    write(&*store, [Draft::new("q", 1).insert(&items[0])]).await;
    let store = reopen(database, store).await;
    store
        .prepare(&compile(&changed(2, append_column)))
        .await
        .unwrap();
    let seen = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(seen.gate.schema_version, 2);
    let expected: Vec<_> = items
        .iter()
        .map(|item| (item.id.clone(), 1, widened(item).to_vec()))
        .collect();
    assert!(
        seen.rows == expected,
        "every row of every partition has one more column"
    );
    let wanted = LoadRequest {
        rows: vec![items[0].key("q")],
        ..lock(&["q"])
    };
    let row = store.begin_write(wanted).await.unwrap().1.rows.remove(0);
    let row = row.unwrap();
    assert_eq!(row.payload, widened(&items[0]));
    assert_eq!(row.scopes, items[0].scopes());
    assert_eq!(row.column_versions, items[0].column_versions);
    let next = RowState {
        row_version: 2,
        payload: widened(&items[0]),
        ..items[0].state()
    };
    let scopes_before = Some(items[0].scopes());
    let draft = Draft::new("p", 2).upsert(NOTES, items[0].row_id(), next, scopes_before);
    write(&*store, [draft]).await;
}

pub(super) async fn appended_columns_are_null_in_the_log_that_was_there(database: &dyn Database) {
    let store = ready(database).await;
    let (item, gone) = (Item::note("n").body("b"), Item::note("gone"));
    let drafts = [
        Draft::new("p", 1)
            .insert(&item)
            .insert(&Item::task("t"))
            .insert(&gone),
        Draft::new("p", 2).update(&item, &item.next()).delete(&gone),
    ];
    write(&*store, drafts).await;
    let tasks = window(&*store, whole_log("p", TASKS, team_one())).await;
    let store = reopen(database, store).await;
    store
        .prepare(&compile(&changed(2, append_column)))
        .await
        .unwrap();
    let log = window(&*store, whole_log("p", NOTES, team_one())).await;
    let rows: Vec<_> = log
        .commits
        .iter()
        .flat_map(|commit| commit.changes.iter().map(|change| change.row.clone()))
        .collect();
    let row = |item: &Item| Some((item.version, widened(item).to_vec()));
    assert_eq!(rows, [row(&item), row(&gone), row(&item.next()), None]);
    let after = window(&*store, whole_log("p", TASKS, team_one())).await;
    assert_eq!(after.commits, tasks.commits, "a table that stays as it is");
}

pub(super) async fn a_new_version_adds_and_retires_tables(database: &dyn Database) {
    let store = ready(database).await;
    let gone = Item::task("gone");
    let drafts = [
        Draft::new("p", 1).insert(&Item::note("n")).insert(&gone),
        Draft::new("p", 2)
            .insert(&Item::task("t").code("x"))
            .delete(&gone),
    ];
    write(&*store, drafts).await;
    let store = reopen(database, store).await;
    // `tasks` goes, a table with other columns comes, and the others change places.
    let document = changed(2, |document| {
        let tables = tables(document);
        let mut added = tables.remove(TASKS.0);
        added["name"] = json!("added");
        added["indexes"] = json!([]);
        added["references"] = json!([]);
        tables.insert(0, added);
    });
    let (added, notes) = (TableIndex(0), TableIndex(1));
    store.prepare(&compile(&document)).await.unwrap();
    let seen = page(&*store, all_rows("p", notes, team_one())).await;
    assert_eq!(seen.ids(), ["n"], "a table is known by its name");
    let item = Item::new(added, "a");
    write(&*store, [Draft::new("p", 3).insert(&item)]).await;
    let seen = page(&*store, all_rows("p", added, team_one())).await;
    assert_eq!(seen.ids(), ["a"]);
    // A table with the old name has nothing of the old one.
    let store = reopen(database, store).await;
    store.prepare(&compile(&changed(3, |_| {}))).await.unwrap();
    let rows = page(&*store, all_rows("p", TASKS, team_one())).await;
    assert!(rows.rows.is_empty());
    assert_eq!(rows.gate.head, seq(3), "the numbers go on");
    let log = window(&*store, whole_log("p", TASKS, team_one())).await;
    assert!(log.commits.is_empty());
    let newest = store
        .newest_change(&partition("p"), TASKS, "team", &["t1".to_owned()])
        .await;
    assert_eq!(newest.unwrap(), None);
    let wanted = LoadRequest {
        rows: vec![gone.key("p")],
        ..lock(&["p"])
    };
    let loaded = store.begin_write(wanted).await.unwrap().1;
    assert_eq!(loaded.tombstones, [None]);
    let item = Item::task("t").code("x");
    write(&*store, [Draft::new("p", 4).insert(&item)]).await;
    let log = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(log.seqs(), [1], "other tables keep their history");
}

pub(super) async fn a_new_version_replaces_the_indexes(database: &dyn Database) {
    let store = ready(database).await;
    write(
        &*store,
        [Draft::new("p", 1).insert(&Item::note("a").code("x"))],
    )
    .await;
    let store = reopen(database, store).await;
    let document = changed(2, |document| {
        document["tables"][NOTES.0]["indexes"] = json!([]);
        document["tables"][TASKS.0]["indexes"] =
            json!([{"name": "tasks_body", "columns": ["body"], "unique": true}]);
    });
    store.prepare(&compile(&document)).await.unwrap();
    let draft = Draft::new("p", 2)
        .insert(&Item::note("b").code("x"))
        .insert(&Item::task("a").code("x").body("1"))
        .insert(&Item::task("b").code("x").body("2"));
    write(&*store, [draft]).await;
    let draft = Draft::new("p", 3).insert(&Item::task("c").body("1"));
    let finished = try_write(&*store, [draft]).await;
    assert!(matches!(finished, Finished::Violated(..)));
}

pub(super) async fn a_unique_index_over_values_that_repeat_is_refused(database: &dyn Database) {
    let store = ready(database).await;
    let draft = Draft::new("p", 1)
        .insert(&Item::note("a").body("same"))
        .insert(&Item::note("b").body("same"));
    write(&*store, [draft]).await;
    let store = reopen(database, store).await;
    let document = changed(2, |document| {
        append_column(document);
        document["tables"][NOTES.0]["indexes"] =
            json!([{"name": "notes_body", "columns": ["body"], "unique": true}]);
    });
    refused(store.prepare(&compile(&document)).await);
    check_unchanged(database, store).await;
}

/// Nothing of a refused migration is there: the first version opens and finds its rows.
async fn check_unchanged(database: &dyn Database, store: Arc<dyn Store>) {
    let store = reopen(database, store).await;
    store.prepare(&schema()).await.unwrap();
    let before = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(before.ids(), ["a", "b"]);
    assert_eq!(before.rows[0].2, Item::note("a").body("same").payload());
    assert_eq!(before.gate.schema_version, 1);
    let next = before.gate.head.next().get();
    let draft = Draft::new("p", next).insert(&Item::task("t"));
    write(&*store, [draft]).await;
}

async fn check_refused(database: &dyn Database, document: Json, expected: StorageCode) {
    let store = ready(database).await;
    let draft = Draft::new("p", 1)
        .insert(&Item::note("a").body("same"))
        .insert(&Item::note("b"));
    write(&*store, [draft]).await;
    let store = reopen(database, store).await;
    let result = store.prepare(&compile(&document)).await;
    let detail = result
        .as_ref()
        .err()
        .and_then(|error| error.detail.clone())
        .unwrap_or_default();
    assert_eq!(refused(result), expected, "{detail}");
    assert!(detail.len() > 20, "a refusal says what to do");
    check_unchanged(database, store).await;
}

pub(super) async fn a_removed_column_is_refused(database: &dyn Database) {
    let document = changed(2, |document| {
        columns(document, NOTES).pop();
    });
    check_refused(database, document, StorageCode::SchemaIncompatible).await;
}

pub(super) async fn a_renamed_column_is_refused(database: &dyn Database) {
    let document = changed(2, |document| {
        columns(document, NOTES)[4]["name"] = json!("text");
    });
    check_refused(database, document, StorageCode::SchemaIncompatible).await;
}

pub(super) async fn a_column_of_another_type_is_refused(database: &dyn Database) {
    let document = changed(2, |document| {
        columns(document, NOTES)[4]["type"] = json!("json");
    });
    check_refused(database, document, StorageCode::SchemaIncompatible).await;
}

pub(super) async fn a_column_of_other_nullability_is_refused(database: &dyn Database) {
    let document = changed(2, |document| {
        columns(document, NOTES)[4]["nullable"] = json!(false);
    });
    check_refused(database, document, StorageCode::SchemaIncompatible).await;
}

pub(super) async fn columns_in_another_order_are_refused(database: &dyn Database) {
    let document = changed(2, |document| columns(document, NOTES).swap(3, 4));
    check_refused(database, document, StorageCode::SchemaIncompatible).await;
}

pub(super) async fn an_appended_column_that_is_not_nullable_is_refused(database: &dyn Database) {
    let document = changed(2, |document| {
        append_column(document);
        columns(document, NOTES)[5]["nullable"] = json!(false);
        // Something that could be done, and must not be.
        tables(document).remove(TASKS.0);
    });
    check_refused(database, document, StorageCode::SchemaIncompatible).await;
}

pub(super) async fn other_columns_at_the_same_version_are_refused(database: &dyn Database) {
    let document = changed(1, append_column);
    check_refused(database, document, StorageCode::StoredLayoutMismatch).await;
}

pub(super) async fn another_table_at_the_same_version_is_refused(database: &dyn Database) {
    let document = changed(1, |document| {
        tables(document)[TASKS.0]["name"] = json!("jobs");
    });
    check_refused(database, document, StorageCode::StoredLayoutMismatch).await;
}

pub(super) async fn an_older_schema_is_refused(database: &dyn Database) {
    let store = ready(database).await;
    let store = reopen(database, store).await;
    let newer = compile(&changed(2, append_column));
    store.prepare(&newer).await.unwrap();
    let item = Item::note("n");
    let row = RowState {
        payload: widened(&item),
        ..item.state()
    };
    let draft = Draft::new("p", 1).upsert(NOTES, item.row_id(), row, None);
    write(&*store, [draft]).await;
    let store = reopen(database, store).await;
    assert_eq!(
        refused(store.prepare(&schema()).await),
        StorageCode::SchemaNewer
    );
    let store = reopen(database, store).await;
    store.prepare(&newer).await.unwrap();
    let seen = page(&*store, all_rows("p", NOTES, filter(&[("team", &["t1"])]))).await;
    assert_eq!(seen.rows[0].2, widened(&item));
    let (txn, gate) = begin(&*store, "p").await;
    assert_eq!(gate.schema_version, 2);
    finished(txn.finish(Vec::new()).await.unwrap());
}
