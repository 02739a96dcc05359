//! Constraints: unique values per partition, and what a broken one leaves behind (§6.6).

use std::sync::Arc;

use bytestring::ByteString;
use serde_json::json;
use tidewater_schema::{Schema, TableIndex};
use tidewater_wire::row::{RowWriter, Value};

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, NOW_MS, TASKS, all_rows, client, compile, filter, lock, page,
        partition, push_key, scopes, team_one, touch, whole_log, window,
    },
    support::{begin, finished, head, ready, serves, try_write, write},
};
use crate::{
    ChangeKind, CommitWrite, Finished, IndexScan, LoadRequest, RowState, SqlValue, Store,
    Violation, WriteTxn,
};

#[track_caller]
fn violated(finished: Finished) -> (Box<dyn WriteTxn>, Violation) {
    match finished {
        Finished::Violated(txn, violation) => (txn, violation),
        Finished::Committed => panic!("no constraint was broken"),
    }
}

fn at(commit: usize, op_index: i32) -> Violation {
    Violation { commit, op_index }
}

async fn notes(store: &dyn Store) -> String {
    let all = filter(&[("owner", &["o1"])]);
    page(store, all_rows("p", NOTES, all)).await.ids().concat()
}

pub(super) async fn a_value_that_is_taken_is_a_violation(database: &dyn Database) {
    let store = ready(database).await;
    let a = Item::note("a").code("x");
    write(&*store, [Draft::new("p", 1).insert(&a)]).await;
    let draft = Draft::new("p", 2)
        .insert(&Item::note("b").code("y"))
        .insert(&Item::note("c").code("x"))
        .insert(&Item::note("d"));
    let (txn, violation) = violated(try_write(&*store, [draft]).await);
    assert_eq!(violation, at(0, 1));
    drop(txn);
    assert_eq!(notes(&*store).await, "a");
    assert_eq!(head(&*store, "p").await, 1);
}

pub(super) async fn a_violation_names_the_operation_and_not_the_place_of_the_change(
    database: &dyn Database,
) {
    let store = ready(database).await;
    let a = Item::note("a").code("x");
    write(&*store, [Draft::new("p", 1).insert(&a)]).await;
    let mut draft = CommitWrite::clone(
        &Draft::new("p", 2)
            .insert(&Item::note("b"))
            .insert(&Item::note("c").code("x"))
            .build(),
    );
    for change in &mut draft.applied.as_mut().unwrap().changes {
        change.op_index += 40;
    }
    let (mut txn, _) = begin(&*store, "p").await;
    let violation = txn.apply(vec![Arc::new(draft)]).await.unwrap();
    assert_eq!(violation, Some(at(0, 41)));
}

pub(super) async fn an_update_to_a_value_that_is_taken_is_a_violation(database: &dyn Database) {
    let store = ready(database).await;
    let a = Item::note("a").code("x");
    let b = Item::note("b").code("y");
    write(&*store, [Draft::new("p", 1).insert(&a).insert(&b)]).await;
    let draft = Draft::new("p", 2).update(&b, &b.next().code("x"));
    let (_, violation) = violated(try_write(&*store, [draft]).await);
    assert_eq!(violation, at(0, 0));
    let rows = page(&*store, all_rows("p", NOTES, team_one())).await.rows;
    assert_eq!(
        rows[0].2,
        a.payload(),
        "the row that has the value is untouched"
    );
    assert_eq!(rows[1].2, b.payload());
}

pub(super) async fn an_update_may_keep_its_own_value(database: &dyn Database) {
    let store = ready(database).await;
    let a = Item::note("a").code("x");
    let b = Item::task("b").code("x");
    write(&*store, [Draft::new("p", 1).insert(&a).insert(&b)]).await;
    let draft = Draft::new("p", 2)
        .update(&a, &a.next().body("new"))
        .update(&b, &b.next().body("new"));
    write(&*store, [draft]).await;
    assert_eq!(head(&*store, "p").await, 2);
}

pub(super) async fn values_are_unique_within_a_partition_only(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    write(
        &*store,
        [Draft::new("p", 1).insert(&Item::note("a").code("x"))],
    )
    .await;
    write(
        &*store,
        [Draft::new("q", 1).insert(&Item::note("b").code("x"))],
    )
    .await;
    let draft = Draft::new("q", 2).insert(&Item::note("c").code("x"));
    violated(try_write(&*store, [draft]).await);
    write(
        &*store,
        [Draft::new("p", 2).insert(&Item::task("a").code("x"))],
    )
    .await;
}

pub(super) async fn nulls_never_collide(database: &dyn Database) {
    let store = ready(database).await;
    let draft = Draft::new("p", 1)
        .insert(&Item::note("a"))
        .insert(&Item::note("b"))
        .insert(&Item::note("empty").code(""))
        .insert(&Item::task("a"))
        .insert(&Item::task("b"));
    write(&*store, [draft]).await;
    let draft = Draft::new("p", 2).insert(&Item::note("c").code(""));
    violated(try_write(&*store, [draft]).await);
}

/// Two floats, unique both: `weight` is never NULL, `spare` may be.
const SCALES: TableIndex = TableIndex(0);
const WEIGHT: usize = 0;
const SPARE: usize = 1;

fn scales() -> Arc<Schema> {
    compile(&json!({"irVersion": 1, "schemaVersion": 1, "tables": [{
        "name": "scales", "primaryKey": "id",
        "columns": [
            {"name": "id", "type": "string", "nullable": false},
            {"name": "team", "type": "string", "nullable": false},
            {"name": "weight", "type": "float", "nullable": false},
            {"name": "spare", "type": "float", "nullable": true},
        ],
        "scopes": [{"pattern": "team:{team}", "variable": "team", "column": "team"}],
        "indexes": [
            {"name": "scales_weight", "columns": ["weight"], "unique": true},
            {"name": "scales_spare", "columns": ["spare"], "unique": true},
        ],
    }]}))
}

/// A row of [`SCALES`].
fn scale(draft: Draft, id: &str, weight: f64, spare: f64) -> Draft {
    let mut payload = RowWriter::new(4);
    payload.value(&Value::String(id));
    payload.value(&Value::String("t1"));
    payload.value(&Value::Float(weight));
    payload.value(&Value::Float(spare));
    let row = RowState {
        row_version: 1,
        scopes: scopes(&[("team", "t1")]),
        payload: payload.finish().into(),
        column_versions: None,
        blob_ids: None,
    };
    draft.upsert(SCALES, ByteString::from(id), row, None)
}

/// NaN is a legal float, and SQL has no such value: it is NULL where NULL is allowed, and
/// one value like others where it is not. Either way the row comes back as it was.
pub(super) async fn what_is_not_a_number_is_null_or_one_value(database: &dyn Database) {
    let store = database.open().await;
    store.prepare(&scales()).await.unwrap();
    touch(&*store, "p").await;
    let other = f64::from_bits(f64::NAN.to_bits() | 1);
    assert!(other.is_nan());
    let draft = scale(Draft::new("p", 1), "a", f64::NAN, f64::NAN);
    let draft = scale(draft, "b", 1.0, other);
    write(&*store, [draft.clone()]).await;
    let rows = page(&*store, all_rows("p", SCALES, team_one())).await.rows;
    let sent = draft.build();
    let sent = sent.applied.as_ref().unwrap().changes.iter();
    let sent: Vec<_> = sent
        .map(|change| match &change.kind {
            ChangeKind::Upsert { row, .. } => row.payload.to_vec(),
            ChangeKind::Delete { .. } => unreachable!("nothing is deleted"),
        })
        .collect();
    let kept: Vec<_> = rows.into_iter().map(|row| row.2).collect();
    assert_eq!(kept, sent, "bit by bit");

    let taken = scale(Draft::new("p", 2), "c", other, 2.0);
    let (txn, violation) = violated(try_write(&*store, [taken]).await);
    assert_eq!(violation, at(0, 0));
    drop(txn);
    if !database.stages() {
        return;
    }
    let (mut txn, _) = begin(&*store, "p").await;
    for (index, value, expected) in [
        (WEIGHT, SqlValue::Real(other), "a"),
        (WEIGHT, SqlValue::Real(1.0), "b"),
        (WEIGHT, SqlValue::Null, ""),
        (SPARE, SqlValue::Real(f64::NAN), "ab"),
        (SPARE, SqlValue::Null, "ab"),
    ] {
        let scan = IndexScan {
            partition: partition("p"),
            table: SCALES,
            index,
            values: vec![value.clone()],
            after: None,
            limit: 10,
        };
        let found = txn.scan_index(scan).await.unwrap();
        let found: String = found.iter().map(|(row_id, _)| row_id.to_string()).collect();
        assert_eq!(found, expected, "{index} {value:?}");
    }
}

pub(super) async fn unique_values_are_compared_byte_by_byte(database: &dyn Database) {
    let store = ready(database).await;
    let codes = ["x", "X", "x ", " x", "\u{E9}", "e\u{301}", "1", "01", "1.0"];
    let draft = codes
        .iter()
        .enumerate()
        .fold(Draft::new("p", 1), |draft, (n, code)| {
            draft.insert(&Item::note(&format!("n{n}")).code(code))
        });
    write(&*store, [draft]).await;
}

pub(super) async fn a_unique_index_over_columns_compares_all_of_them(database: &dyn Database) {
    let store = ready(database).await;
    let draft = Draft::new("p", 1)
        .insert(&Item::task("a").code("x"))
        .insert(&Item::task("b").code("y"))
        .insert(&Item::task("c").team("t2").code("x"))
        .insert(&Item::task("d").team("t1x").code(""))
        .insert(&Item::task("e").team("t").code("1x"));
    write(&*store, [draft]).await;
    let draft = Draft::new("p", 2).insert(&Item::task("f").team("t2").code("x"));
    let (_, violation) = violated(try_write(&*store, [draft]).await);
    assert_eq!(violation, at(0, 0));
}

pub(super) async fn a_value_freed_earlier_in_the_commit_is_free(database: &dyn Database) {
    let store = ready(database).await;
    let a = Item::note("a").code("x");
    let b = Item::note("b").code("y");
    write(&*store, [Draft::new("p", 1).insert(&a).insert(&b)]).await;
    let draft = Draft::new("p", 2)
        .delete(&a)
        .insert(&Item::note("c").code("x"))
        .update(&b, &b.next().code("z"))
        .insert(&Item::note("d").code("y"));
    write(&*store, [draft]).await;
    assert_eq!(notes(&*store).await, "bcd");
}

pub(super) async fn a_value_freed_later_in_the_commit_is_taken(database: &dyn Database) {
    let store = ready(database).await;
    let a = Item::note("a").code("x");
    write(&*store, [Draft::new("p", 1).insert(&a)]).await;
    let draft = Draft::new("p", 2)
        .insert(&Item::note("c").code("x"))
        .delete(&a);
    let (_, violation) = violated(try_write(&*store, [draft]).await);
    assert_eq!(violation, at(0, 0), "changes are made in order");
}

pub(super) async fn a_deleted_row_frees_its_value(database: &dyn Database) {
    let store = ready(database).await;
    let a = Item::note("a").code("x");
    let drafts = [
        Draft::new("p", 1).insert(&a),
        Draft::new("p", 2).delete(&a),
        Draft::new("p", 3).insert(&Item::note("b").code("x")),
        Draft::new("p", 4).insert(&a.clone().code("y")).clear(&a),
    ];
    write(&*store, drafts).await;
    assert_eq!(notes(&*store).await, "ab");
}

pub(super) async fn commits_before_a_violation_stay_and_those_after_leave_no_trace(
    database: &dyn Database,
) {
    let store = ready(database).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let drafts = [
        Draft::new("p", 1).insert(&Item::note("a").code("x")),
        Draft::new("p", 2).insert(&Item::note("b")),
        Draft::new("p", 3).insert(&Item::note("c").code("x")),
        Draft::new("p", 4).insert(&Item::note("d")),
    ];
    let violation = txn.apply(drafts.map(Draft::build).to_vec()).await.unwrap();
    assert_eq!(violation, Some(at(2, 0)), "both came in one batch");
    assert_eq!(txn.load(lock(&["p"])).await.unwrap().gates[0].head.get(), 2);
    finished(txn.finish(Vec::new()).await.unwrap());
    assert_eq!(notes(&*store).await, "ab");
    let log = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(log.seqs(), [1, 2]);
    for (id, recorded) in [("m1", true), ("m2", true), ("m3", false), ("m4", false)] {
        let found = store.find_push_result(&push_key("p", "c1", id)).await;
        assert_eq!(found.unwrap().is_some(), recorded, "{id}");
    }
}

pub(super) async fn a_commit_that_breaks_a_constraint_leaves_no_trace(database: &dyn Database) {
    let store = ready(database).await;
    let a = Item::note("a").code("x").blobs(&["b1"]);
    let gone = Item::note("gone");
    let setup = [
        Draft::new("p", 1).insert(&a).insert(&gone),
        Draft::new("p", 2).delete(&gone),
    ];
    write(&*store, setup).await;
    let before = window(&*store, whole_log("p", NOTES, team_one())).await;
    let moved = a.next().team("t2").code("y").blobs(&["b2"]);
    let draft = Draft::new("p", 3)
        .client("new")
        .bind(NOW_MS)
        .update(&a, &moved)
        .insert(&gone)
        .clear(&gone)
        .insert(&Item::task("t").code("k"))
        .delete(&moved)
        .insert(&Item::task("u").code("k"));
    let key = draft.key();
    let (mut txn, violation) = violated(try_write(&*store, [draft]).await);
    assert_eq!(violation, at(0, 4));
    let wanted = LoadRequest {
        rows: vec![a.key("p"), gone.key("p"), Item::task("t").key("p")],
        push_results: vec![key.clone()],
        ..lock(&["p"])
    };
    let loaded = txn.load(wanted).await.unwrap();
    assert_eq!(loaded.rows, [Some(a.stored()), None, None]);
    assert_eq!(loaded.tombstones[0], None);
    assert_eq!(loaded.tombstones[1].as_ref().unwrap().commit_seq.get(), 2);
    assert_eq!(loaded.push_results, [None]);
    assert_eq!(loaded.gates[0].head.get(), 2);
    finished(txn.finish(Vec::new()).await.unwrap());
    assert_eq!(
        window(&*store, whole_log("p", NOTES, team_one())).await,
        before
    );
    assert_eq!(notes(&*store).await, "a");
    let two = page(&*store, all_rows("p", NOTES, filter(&[("team", &["t2"])]))).await;
    assert!(two.rows.is_empty(), "the scope index is as it was");
    let tasks = page(&*store, all_rows("p", TASKS, team_one())).await;
    assert!(tasks.rows.is_empty());
    let newest = store
        .newest_change(&partition("p"), NOTES, "team", &["t2".to_owned()])
        .await;
    assert_eq!(newest.unwrap(), None);
    assert_eq!(store.find_push_result(&key).await.unwrap(), None);
    let bound = store.find_client(&partition("p"), &client("new")).await;
    assert_eq!(bound.unwrap(), None);
    if let Some(rows) = database.rows_with_blob(&store, &partition("p"), "b1").await {
        assert_eq!(rows, [a.key("p")]);
    }
    if let Some(rows) = database.rows_with_blob(&store, &partition("p"), "b2").await {
        assert!(rows.is_empty());
    }
}

pub(super) async fn a_transaction_goes_on_after_a_violation(database: &dyn Database) {
    let store = ready(database).await;
    let a = Item::note("a").code("x");
    let drafts = [
        Draft::new("p", 1).insert(&a),
        Draft::new("p", 2)
            .id("bad")
            .insert(&Item::note("b").code("x")),
        Draft::new("p", 3).insert(&Item::note("c")),
    ];
    let (txn, violation) = violated(try_write(&*store, drafts).await);
    assert_eq!(violation, at(1, 0));
    // As the engine does: record the rejection and give the rest their places anew.
    let drafts = [
        Draft::rejected("p", "bad"),
        Draft::new("p", 2).insert(&Item::note("c").code("x")),
    ];
    let (mut txn, violation) =
        violated(txn.finish(drafts.map(Draft::build).to_vec()).await.unwrap());
    assert_eq!(violation, at(1, 0), "a second one in the same transaction");
    let draft = Draft::new("p", 2).insert(&Item::note("d"));
    assert_eq!(txn.apply(vec![draft.build()]).await.unwrap(), None);
    finished(txn.finish(Vec::new()).await.unwrap());
    assert_eq!(notes(&*store).await, "ad");
    let rejected = store.find_push_result(&push_key("p", "c1", "bad")).await;
    assert!(rejected.unwrap().is_some());
}

pub(super) async fn a_transaction_dropped_after_a_violation_leaves_no_trace(
    database: &dyn Database,
) {
    let store = ready(database).await;
    for _ in 0..10 {
        let drafts = [
            Draft::new("p", 1).insert(&Item::note("a").code("x")),
            Draft::new("p", 2).insert(&Item::note("b").code("x")),
        ];
        let (txn, _) = violated(try_write(&*store, drafts).await);
        drop(txn);
        serves(&*store, "p").await;
        assert_eq!(head(&*store, "p").await, 0);
    }
    assert_eq!(notes(&*store).await, "");
}
