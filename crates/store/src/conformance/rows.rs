//! Current rows: what a write leaves behind, in the rows and in their indexes.

use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::limits::SAFE_INTEGER_MAX;
use tidewater_wire::row::{RowWriter, Value};

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, SAMPLES, all_rows, filter, lock, page, partition, scopes, team_one,
        touch, whole_log, window,
    },
    support::{ready, write},
};
use crate::{LoadRequest, RowKey, RowState, Store, StoredRow};

/// Loads rows in a transaction of its own.
async fn load(store: &dyn Store, keys: &[RowKey]) -> Vec<Option<StoredRow>> {
    let mut names: Vec<&str> = keys.iter().map(|key| key.partition.as_str()).collect();
    names.dedup();
    let wanted = LoadRequest {
        rows: keys.to_vec(),
        ..lock(&names)
    };
    store.begin_write(wanted).await.unwrap().1.rows
}

async fn scanned(store: &dyn Store, entries: &[(&str, &[&str])]) -> String {
    let seen = page(store, all_rows("p", NOTES, filter(entries))).await;
    seen.ids().concat()
}

pub(super) async fn a_row_reads_back_as_written(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n").code("c").body("text \u{1F600}\n");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    assert_eq!(load(&*store, &[item.key("p")]).await, [Some(item.stored())]);
}

pub(super) async fn a_row_that_is_not_there_is_none(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let item = Item::note("n");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    let absent = [Item::note("N").key("p"), Item::task("n").key("p")];
    assert_eq!(load(&*store, &absent).await, [None, None]);
    assert_eq!(load(&*store, &[item.key("q")]).await, [None]);
}

pub(super) async fn an_update_replaces_the_whole_row(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n").code("c").body("b").column_versions(&[3, 2]);
    let next = Item {
        version: 7,
        ..Item::note("n").body("other")
    };
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    write(&*store, [Draft::new("p", 2).update(&item, &next)]).await;
    assert_eq!(load(&*store, &[item.key("p")]).await, [Some(next.stored())]);
}

pub(super) async fn no_column_versions_differ_from_empty_ones(database: &dyn Database) {
    let store = ready(database).await;
    let items = [
        Item::note("a"),
        Item::note("b").column_versions(&[]),
        Item::note("c").column_versions(&[2, 5, 3, 0xAC, 2]),
    ];
    write(
        &*store,
        [items.iter().fold(Draft::new("p", 1), Draft::insert)],
    )
    .await;
    let keys: Vec<RowKey> = items.iter().map(|item| item.key("p")).collect();
    let versions: Vec<Option<Bytes>> = load(&*store, &keys)
        .await
        .into_iter()
        .map(|row| row.unwrap().column_versions)
        .collect();
    let expected = [None, Some(&[][..]), Some(&[2, 5, 3, 0xAC, 2])];
    assert_eq!(
        versions,
        expected.map(|bytes| bytes.map(Bytes::from_static))
    );
}

pub(super) async fn a_deleted_row_is_gone_from_every_read(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n");
    let drafts = [
        Draft::new("p", 1).insert(&item).insert(&Item::note("m")),
        Draft::new("p", 2).delete(&item),
    ];
    write(&*store, drafts).await;
    assert_eq!(load(&*store, &[item.key("p")]).await, [None]);
    assert_eq!(scanned(&*store, &[("team", &["t1"])]).await, "m");
    assert_eq!(scanned(&*store, &[("owner", &["o1"])]).await, "m");
}

pub(super) async fn a_row_inserted_again_starts_anew(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n").column_versions(&[3, 9]);
    let again = Item::note("n").team("t2").body("again");
    let drafts = [
        Draft::new("p", 1).insert(&item),
        Draft::new("p", 2).delete(&item),
        Draft::new("p", 3).insert(&again).clear(&again),
    ];
    write(&*store, drafts).await;
    assert_eq!(
        load(&*store, &[item.key("p")]).await,
        [Some(again.stored())]
    );
    assert_eq!(scanned(&*store, &[("team", &["t1"])]).await, "");
    assert_eq!(scanned(&*store, &[("team", &["t2"])]).await, "n");
}

pub(super) async fn an_update_that_keeps_its_scopes_stays_in_every_scan(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    let next = item.next().body("b");
    write(&*store, [Draft::new("p", 2).update(&item, &next)]).await;
    for entries in [[("team", &["t1"][..])], [("owner", &["o1"][..])]] {
        assert_eq!(scanned(&*store, &entries).await, "n");
    }
}

pub(super) async fn scans_follow_a_row_whose_scopes_move(database: &dyn Database) {
    let store = ready(database).await;
    let here = Item::note("n");
    let there = here.next().team("t2");
    write(&*store, [Draft::new("p", 1).insert(&here)]).await;
    // In place, and by a delete and an insert in one commit.
    write(&*store, [Draft::new("p", 2).update(&here, &there)]).await;
    assert_eq!(scanned(&*store, &[("team", &["t1"])]).await, "");
    assert_eq!(scanned(&*store, &[("team", &["t2"])]).await, "n");
    assert_eq!(scanned(&*store, &[("owner", &["o1"])]).await, "n");
    let last = Item::note("n").team("t3").owner("o3");
    write(&*store, [Draft::new("p", 3).remove(&there).insert(&last)]).await;
    assert_eq!(scanned(&*store, &[("team", &["t1", "t2"])]).await, "");
    assert_eq!(scanned(&*store, &[("owner", &["o1"])]).await, "");
    assert_eq!(scanned(&*store, &[("team", &["t3"])]).await, "n");
    assert_eq!(scanned(&*store, &[("owner", &["o3"])]).await, "n");
    assert_eq!(load(&*store, &[last.key("p")]).await, [Some(last.stored())]);
    write(&*store, [Draft::new("p", 4).delete(&last)]).await;
    for entries in [
        [("team", &["t1", "t2", "t3"][..])],
        [("owner", &["o1", "o3"][..])],
    ] {
        assert_eq!(scanned(&*store, &entries).await, "");
    }
}

pub(super) async fn a_row_inserted_and_deleted_in_one_commit_leaves_nothing(
    database: &dyn Database,
) {
    let store = ready(database).await;
    let item = Item::note("n").code("c").blobs(&["b1"]);
    write(&*store, [Draft::new("p", 1).insert(&item).remove(&item)]).await;
    assert_eq!(load(&*store, &[item.key("p")]).await, [None]);
    assert_eq!(scanned(&*store, &[("team", &["t1"])]).await, "");
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(seen.row_ids(), [["n", "n"]]);
    write(
        &*store,
        [Draft::new("p", 2).insert(&Item::note("m").code("c"))],
    )
    .await;
}

pub(super) async fn rows_are_found_in_the_order_of_their_keys(database: &dyn Database) {
    let store = ready(database).await;
    let (n, m) = (Item::note("n").body("1"), Item::note("m").body("2"));
    write(&*store, [Draft::new("p", 1).insert(&n).insert(&m)]).await;
    let keys = vec![
        n.key("p"),
        n.key("q"),
        m.key("p"),
        Item::note("x").key("p"),
        n.key("p"),
    ];
    let found = store.find_rows(keys).await.unwrap();
    let expected = [
        Some(n.stored()),
        None,
        Some(m.stored()),
        None,
        Some(n.stored()),
    ];
    assert_eq!(found, expected);
}

pub(super) async fn one_primary_key_lives_in_two_partitions_and_two_tables(
    database: &dyn Database,
) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let here = Item::note("n").body("p");
    let task = Item::task("n").body("task");
    let there = Item::note("n").body("q").team("t2");
    write(&*store, [Draft::new("p", 1).insert(&here).insert(&task)]).await;
    write(&*store, [Draft::new("q", 1).insert(&there)]).await;
    let rows = load(&*store, &[here.key("p"), task.key("p")]).await;
    assert_eq!(rows, [Some(here.stored()), Some(task.stored())]);
    assert_eq!(
        load(&*store, &[there.key("q")]).await,
        [Some(there.stored())]
    );
    write(&*store, [Draft::new("p", 2).delete(&here)]).await;
    assert_eq!(load(&*store, &[task.key("p")]).await, [Some(task.stored())]);
    assert_eq!(
        load(&*store, &[there.key("q")]).await,
        [Some(there.stored())]
    );
    let seen = page(&*store, all_rows("q", NOTES, filter(&[("team", &["t2"])]))).await;
    assert_eq!(seen.ids(), ["n"]);
}

/// Keys and payloads of [`SAMPLES`], by bytewise key: values at the edges of their types.
fn samples() -> Vec<(i64, Vec<u8>)> {
    let photo = format!(
        r#"{{"blobId":"sha256:{}","byteLength":3}}"#,
        "0f".repeat(32)
    );
    let full = |number: i64, ratio: f64, done: bool, meta: &str, raw: &[u8]| {
        let mut row = RowWriter::new(9);
        row.value(&Value::Integer(number));
        row.value(&Value::String("t1"));
        row.value(&Value::Integer(-number));
        row.value(&Value::Float(ratio));
        row.value(&Value::Boolean(done));
        row.value(&Value::Json(meta));
        row.value(&Value::Bytes(raw));
        row.value(&Value::BlobRef(&photo));
        row.value(&Value::Crdt(raw));
        row.finish()
    };
    let mut nulls = RowWriter::new(9);
    nulls.value(&Value::Integer(-1));
    nulls.value(&Value::String("t1"));
    for _ in 2..9 {
        nulls.null();
    }
    let all_bytes: Vec<u8> = (0..=255).collect();
    let spaced = "{\"b\": 1,  \"a\":[1.50]}";
    let escaped = "\"\u{1F600}\\u0041\"";
    let largest = SAFE_INTEGER_MAX;
    vec![
        (-1, nulls.finish()),
        (0, full(0, 0.0, false, "null", &[])),
        (1, full(1, -0.0, true, spaced, &[0])),
        (2, full(2, f64::NAN, true, escaped, &all_bytes)),
        (
            largest,
            full(largest, f64::INFINITY, false, "1e2", &[0xFF; 4_096]),
        ),
    ]
}

pub(super) async fn a_payload_of_any_type_is_kept_byte_for_byte(database: &dyn Database) {
    let store = ready(database).await;
    let mut draft = Draft::new("p", 1);
    let mut expected = Vec::new();
    for (id, payload) in samples() {
        let row = RowState {
            row_version: 1,
            scopes: scopes(&[("team", "t1")]),
            payload: Bytes::from(payload),
            column_versions: None,
            blob_ids: None,
        };
        let id = id.to_string();
        expected.push((id.clone(), 1, row.payload.to_vec()));
        draft = draft.upsert(SAMPLES, ByteString::from(id), row, None);
    }
    write(&*store, [draft]).await;
    let log = window(&*store, whole_log("p", SAMPLES, team_one())).await;
    let logged: Vec<_> = log.commits[0]
        .changes
        .iter()
        .map(|change| {
            let (version, payload) = change.row.clone().unwrap();
            (change.row_id.clone(), version, payload)
        })
        .collect();
    assert_eq!(logged, expected);
    let seen = page(&*store, all_rows("p", SAMPLES, team_one())).await;
    assert_eq!(seen.rows, expected, "bytewise order puts -1 first");
}

pub(super) async fn a_large_row_is_kept(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n").body(&"0123456789abcdef".repeat(256 * 1024));
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    let seen = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert!(
        seen.rows[0].2 == item.payload(),
        "4 MiB read back as written"
    );
}

pub(super) async fn a_commit_of_five_hundred_rows_is_kept(database: &dyn Database) {
    let store = ready(database).await;
    let items: Vec<Item> = (0..500)
        .map(|n| Item::note(&format!("n{n:03}")).code(&format!("c{n}")))
        .collect();
    write(
        &*store,
        [items.iter().fold(Draft::new("p", 1), Draft::insert)],
    )
    .await;
    let keys: Vec<RowKey> = items.iter().map(|item| item.key("p")).collect();
    let rows = load(&*store, &keys).await;
    assert!(
        rows.iter()
            .zip(&items)
            .all(|(row, item)| *row == Some(item.stored()))
    );
    let seen = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(seen.rows.len(), 500);
}

/// The rows that reference a blob, or nothing where the store cannot tell.
async fn with_blob(
    database: &dyn Database,
    store: &Arc<dyn Store>,
    name: &str,
    blob_id: &str,
) -> Option<Vec<String>> {
    let keys = database
        .rows_with_blob(store, &partition(name), blob_id)
        .await?;
    Some(keys.iter().map(|key| key.row_id.to_string()).collect())
}

pub(super) async fn a_write_replaces_or_keeps_the_blobs_of_its_row(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let item = Item::note("n").blobs(&["b1", "b2"]);
    let other = Item::note("m").blobs(&["b1"]);
    write(&*store, [Draft::new("p", 1).insert(&item).insert(&other)]).await;
    write(&*store, [Draft::new("q", 1).insert(&item)]).await;
    let rows = async |blob_id: &str| with_blob(database, &store, "p", blob_id).await;
    let Some(first) = rows("b1").await else {
        return;
    };
    assert_eq!(first, ["m", "n"]);
    let kept = Item {
        blob_ids: None,
        ..item.next()
    };
    write(&*store, [Draft::new("p", 2).update(&item, &kept)]).await;
    assert_eq!(
        rows("b1").await.unwrap(),
        ["m", "n"],
        "not mentioned is kept"
    );
    assert_eq!(rows("b2").await.unwrap(), ["n"]);
    let replaced = kept.next().blobs(&["b3"]);
    write(&*store, [Draft::new("p", 3).update(&kept, &replaced)]).await;
    assert_eq!(rows("b1").await.unwrap(), ["m"]);
    assert!(rows("b2").await.unwrap().is_empty());
    assert_eq!(rows("b3").await.unwrap(), ["n"]);
    let none = replaced.next().blobs(&[]);
    write(&*store, [Draft::new("p", 4).update(&replaced, &none)]).await;
    assert!(rows("b3").await.unwrap().is_empty());
    write(&*store, [Draft::new("p", 5).delete(&other)]).await;
    assert!(
        rows("b1").await.unwrap().is_empty(),
        "a deleted row references nothing"
    );
    let elsewhere = with_blob(database, &store, "q", "b1").await.unwrap();
    assert_eq!(elsewhere, ["n"]);
    let again = Item::note("m");
    write(&*store, [Draft::new("p", 6).insert(&again)]).await;
    assert!(
        rows("b1").await.unwrap().is_empty(),
        "nor does its successor"
    );
}
