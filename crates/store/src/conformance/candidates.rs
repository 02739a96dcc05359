//! The candidate state of a transaction: rows that are staged, and the reads that see them
//! (§6.7, §6.8, §6.11).

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_schema::TableIndex;
use tidewater_wire::row::{RowWriter, Value};

use super::{
    Database, SeenPage,
    fixtures::{
        Draft, Item, MARKS, NOTES, TASKS, all_rows, filter, lock, page, partition, scopes, seq,
        team_one, touch, whole_log, window,
    },
    support::{at_every_moment, begin, cancel, finished, head, ready, refused, serves, write},
};
use crate::{
    ChangeWrite, Child, ChildQuestion, Finished, IndexScan, RowScan, RowState, SqlQuery, SqlValue,
    StorageCode, WriteTxn,
};

/// The index of [`NOTES`] over `code`.
const NOTES_CODE: usize = 0;
/// The index of [`TASKS`] over `team` and `code`.
const TASKS_TEAM_CODE: usize = 0;
/// The column of [`TASKS`] that references [`NOTES`].
const TASKS_PARENT: usize = 4;

/// The changes of a draft, to stage them.
fn changes(draft: Draft) -> Vec<ChangeWrite> {
    draft.build().applied.clone().unwrap().changes
}

async fn stage(txn: &mut dyn WriteTxn, draft: Draft) -> Option<i32> {
    let on = draft.key().partition;
    txn.stage(&on, changes(draft)).await.unwrap()
}

async fn seen(txn: &mut dyn WriteTxn, scan: RowScan) -> SeenPage {
    SeenPage::from(&txn.scan_rows(scan).await.unwrap())
}

/// The notes of the owner `o1`, as the transaction has them.
async fn notes(txn: &mut dyn WriteTxn) -> String {
    let all = filter(&[("owner", &["o1"])]);
    seen(txn, all_rows("p", NOTES, all)).await.ids().concat()
}

fn text(value: &str) -> SqlValue {
    SqlValue::Text(value.to_owned())
}

async fn lookup(txn: &mut dyn WriteTxn, scan: IndexScan) -> String {
    let found = txn.scan_index(scan).await.unwrap();
    found.iter().map(|(row_id, _)| row_id.to_string()).collect()
}

fn by_code(code: SqlValue) -> IndexScan {
    IndexScan {
        partition: partition("p"),
        table: NOTES,
        index: NOTES_CODE,
        values: vec![code],
        after: None,
        limit: 100,
    }
}

fn children_of(parents: &[&str], limit: usize) -> ChildQuestion {
    ChildQuestion {
        partition: partition("p"),
        table: TASKS,
        column: TASKS_PARENT,
        parents: parents
            .iter()
            .map(|&parent| ByteString::from(parent))
            .collect(),
        limit,
    }
}

async fn children(txn: &mut dyn WriteTxn, questions: Vec<ChildQuestion>) -> Vec<String> {
    let answers = txn.load_children(questions).await.unwrap();
    let line = |found: &Vec<Child>| {
        let pairs = found
            .iter()
            .map(|child| format!("{}:{} ", child.parent, child.row_id));
        pairs.collect::<String>().trim_end().to_owned()
    };
    answers.iter().map(line).collect()
}

pub(super) async fn staged_rows_are_seen_by_their_transaction_alone(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let (a, b) = (Item::note("a"), Item::note("b").body("old"));
    write(&*store, [Draft::new("p", 1).insert(&a).insert(&b)]).await;
    let before = page(&*store, all_rows("p", NOTES, team_one())).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let next = b.next().body("new");
    let draft = Draft::new("p", 2)
        .remove(&a)
        .update(&b, &next)
        .insert(&Item::note("c"));
    assert_eq!(stage(&mut *txn, draft).await, None);
    let staged = seen(&mut *txn, all_rows("p", NOTES, team_one())).await;
    assert_eq!(staged.ids(), ["b", "c"]);
    assert_eq!(staged.rows[0], ("b".to_owned(), 2, next.payload().to_vec()));
    assert_eq!(
        page(&*store, all_rows("p", NOTES, team_one())).await,
        before
    );
}

pub(super) async fn staging_again_adds_to_what_is_staged(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let a = Item::note("a");
    let (mut txn, _) = begin(&*store, "p").await;
    stage(&mut *txn, Draft::new("p", 1).insert(&a)).await;
    let moved = a.next().team("t2");
    stage(&mut *txn, Draft::new("p", 1).update(&a, &moved)).await;
    stage(&mut *txn, Draft::new("p", 1).insert(&Item::note("b"))).await;
    assert_eq!(notes(&mut *txn).await, "ab");
    let here = seen(&mut *txn, all_rows("p", NOTES, team_one())).await;
    assert_eq!(here.ids(), ["b"]);
}

pub(super) async fn unstaging_takes_everything_staged_back(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let a = Item::note("a").code("x");
    write(&*store, [Draft::new("p", 1).insert(&a)]).await;
    let (mut txn, _) = begin(&*store, "p").await;
    txn.unstage().await.unwrap();
    for _ in 0..3 {
        stage(&mut *txn, Draft::new("p", 2).remove(&a)).await;
        stage(
            &mut *txn,
            Draft::new("p", 2).insert(&Item::note("b").code("x")),
        )
        .await;
        assert_eq!(notes(&mut *txn).await, "b");
        txn.unstage().await.unwrap();
        assert_eq!(notes(&mut *txn).await, "a");
        assert_eq!(lookup(&mut *txn, by_code(text("x"))).await, "a");
    }
    txn.unstage().await.unwrap();
    finished(txn.finish(Vec::new()).await.unwrap());
}

pub(super) async fn unstaging_keeps_what_was_applied(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let a = Item::note("a");
    let (mut txn, _) = begin(&*store, "p").await;
    txn.apply(vec![Draft::new("p", 1).insert(&a).build()])
        .await
        .unwrap();
    stage(
        &mut *txn,
        Draft::new("p", 2).remove(&a).insert(&Item::note("b")),
    )
    .await;
    assert_eq!(
        notes(&mut *txn).await,
        "b",
        "staged on top of what is applied"
    );
    txn.unstage().await.unwrap();
    assert_eq!(notes(&mut *txn).await, "a");
    let staged = seen(&mut *txn, all_rows("p", NOTES, team_one())).await;
    assert_eq!(
        staged.gate.head,
        seq(1),
        "the gate is the transaction's own"
    );
    finished(txn.finish(Vec::new()).await.unwrap());
    assert_eq!(head(&*store, "p").await, 1);
}

pub(super) async fn applying_and_finishing_take_back_what_is_staged(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let a = Item::note("a").code("x").body("applied");
    let staged = Item::note("a").code("y").team("t2").blobs(&["b1"]);
    let lost = Item::note("lost").code("x");
    let (mut txn, _) = begin(&*store, "p").await;
    stage(&mut *txn, Draft::new("p", 1).insert(&staged).insert(&lost)).await;
    let applied = Draft::new("p", 1).insert(&a);
    assert_eq!(txn.apply(vec![applied.build()]).await.unwrap(), None);
    assert_eq!(notes(&mut *txn).await, "a");
    stage(&mut *txn, Draft::new("p", 2).remove(&a)).await;
    let second = Draft::new("p", 2).update(&a, &a.next());
    finished(txn.finish(vec![second.build()]).await.unwrap());
    let rows = page(&*store, all_rows("p", NOTES, filter(&[("owner", &["o1"])]))).await;
    assert_eq!(
        rows.rows,
        [("a".to_owned(), 2, a.next().payload().to_vec())]
    );
    let log = window(
        &*store,
        whole_log("p", NOTES, filter(&[("team", &["t1", "t2"])])),
    )
    .await;
    assert_eq!(log.row_ids(), [["a"], ["a"]]);
}

pub(super) async fn what_is_staged_and_not_applied_is_never_written(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let a = Item::note("a");
    write(&*store, [Draft::new("p", 1).insert(&a)]).await;
    for finishes in [true, false] {
        let (mut txn, _) = begin(&*store, "p").await;
        stage(
            &mut *txn,
            Draft::new("p", 2).remove(&a).insert(&Item::note("b")),
        )
        .await;
        if finishes {
            finished(txn.finish(Vec::new()).await.unwrap());
        } else {
            drop(txn);
        }
        let rows = page(&*store, all_rows("p", NOTES, team_one())).await;
        assert_eq!(rows.ids(), ["a"]);
        let log = window(&*store, whole_log("p", NOTES, team_one())).await;
        assert_eq!(log.seqs(), [1]);
        assert_eq!(head(&*store, "p").await, 1);
    }
}

pub(super) async fn staging_names_the_operation_that_breaks_a_constraint(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    write(
        &*store,
        [Draft::new("p", 1).insert(&Item::note("a").code("x"))],
    )
    .await;
    let (mut txn, _) = begin(&*store, "p").await;
    let kept = Draft::new("p", 2).insert(&Item::note("b"));
    assert_eq!(stage(&mut *txn, kept).await, None);
    let broken = Draft::new("p", 2)
        .insert(&Item::note("c"))
        .insert(&Item::note("d").code("x"))
        .insert(&Item::note("e"));
    assert_eq!(stage(&mut *txn, broken).await, Some(1));
    assert_eq!(
        notes(&mut *txn).await,
        "ab",
        "nothing of that call, all of the one before"
    );
    let next = Draft::new("p", 2).insert(&Item::note("f"));
    assert_eq!(stage(&mut *txn, next).await, None);
    assert_eq!(notes(&mut *txn).await, "abf");
    txn.unstage().await.unwrap();
    let broken = Draft::new("p", 2).insert(&Item::note("d").code("x"));
    assert_eq!(
        stage(&mut *txn, broken).await,
        Some(0),
        "as the first of a commit, too"
    );
    txn.unstage().await.unwrap();
    assert_eq!(notes(&mut *txn).await, "a");
    let rejected = Draft::rejected("p", "no").build();
    finished(txn.finish(vec![rejected]).await.unwrap());
}

pub(super) async fn a_violation_after_staging_leaves_the_transaction_open(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    write(
        &*store,
        [Draft::new("p", 1).insert(&Item::note("a").code("x"))],
    )
    .await;
    let (mut txn, _) = begin(&*store, "p").await;
    stage(&mut *txn, Draft::new("p", 2).insert(&Item::note("b"))).await;
    let broken = Draft::new("p", 2).insert(&Item::note("c").code("x"));
    let Finished::Violated(mut txn, _) = txn.finish(vec![broken.build()]).await.unwrap() else {
        panic!("the value is taken");
    };
    assert_eq!(notes(&mut *txn).await, "a");
    stage(&mut *txn, Draft::new("p", 2).insert(&Item::note("d"))).await;
    assert_eq!(notes(&mut *txn).await, "ad");
    let last = Draft::new("p", 2).insert(&Item::note("e"));
    finished(txn.finish(vec![last.build()]).await.unwrap());
    let rows = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(rows.ids(), ["a", "e"]);
}

pub(super) async fn a_stage_that_is_canceled_abandons_its_transaction(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    at_every_moment(async |moment| {
        let (mut txn, _) = begin(&*store, "p").await;
        let rows = (0..20).map(|n| Item::note(&format!("n{n}")));
        let draft = rows.fold(Draft::new("p", 1), |draft, item| draft.insert(&item));
        let on = partition("p");
        let ended = cancel(moment, txn.stage(&on, changes(draft)))
            .await
            .is_some();
        drop(txn);
        serves(&*store, "p").await;
        ended
    })
    .await;
    let rows = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert!(rows.rows.is_empty());
}

pub(super) async fn a_transaction_scans_by_the_rules_of_every_scan(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let committed = Draft::new("p", 1)
        .insert(&Item::note("a"))
        .insert(&Item::note("d"))
        .insert(&Item::note("z").team("t2"));
    write(&*store, [committed]).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let staged = Draft::new("p", 2)
        .insert(&Item::note("\u{1F600}"))
        .insert(&Item::note("b"))
        .insert(&Item::note("\u{FF21}"));
    stage(&mut *txn, staged).await;
    let scan = RowScan {
        rows_max: 2,
        ..all_rows("p", NOTES, team_one())
    };
    let first = seen(&mut *txn, scan.clone()).await;
    assert_eq!((first.ids(), first.has_more), (vec!["a", "b"], true));
    let scan = RowScan {
        after: Some("b".to_owned()),
        rows_max: 3,
        ..scan
    };
    let second = seen(&mut *txn, scan).await;
    let last = vec!["d", "\u{FF21}", "\u{1F600}"];
    assert_eq!((second.ids(), second.has_more), (last, false));
    let empty = seen(&mut *txn, all_rows("p", NOTES, filter(&[]))).await;
    assert!(empty.rows.is_empty(), "an empty filter selects nothing");
}

pub(super) async fn an_index_finds_exactly_the_values_asked_for(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    touch(&*store, "q").await;
    let a = Item::note("a").code("x");
    let committed = Draft::new("p", 1)
        .insert(&a)
        .insert(&Item::note("b").code("X"))
        .insert(&Item::note("c"))
        .insert(&Item::note("d").team("t2"))
        .insert(&Item::task("e").code("x"))
        .insert(&Item::task("f").team("t2").code("x"))
        .insert(&Item::task("g"))
        .insert(&Item::task("h"));
    write(&*store, [committed]).await;
    write(
        &*store,
        [Draft::new("q", 1).insert(&Item::note("i").code("x"))],
    )
    .await;
    let (mut txn, _) = begin(&*store, "p").await;
    let found = txn.scan_index(by_code(text("x"))).await.unwrap();
    assert_eq!(found, [(a.row_id(), a.stored())]);
    assert_eq!(lookup(&mut *txn, by_code(text("X"))).await, "b");
    assert_eq!(lookup(&mut *txn, by_code(text("y"))).await, "");
    assert_eq!(
        lookup(&mut *txn, by_code(SqlValue::Null)).await,
        "cd",
        "NULL matches NULL"
    );
    let tasks = |team: &str, code: SqlValue| IndexScan {
        table: TASKS,
        index: TASKS_TEAM_CODE,
        values: vec![text(team), code],
        ..by_code(SqlValue::Null)
    };
    assert_eq!(lookup(&mut *txn, tasks("t1", text("x"))).await, "e");
    assert_eq!(lookup(&mut *txn, tasks("t2", text("x"))).await, "f");
    assert_eq!(lookup(&mut *txn, tasks("t1", SqlValue::Null)).await, "gh");
    assert_eq!(lookup(&mut *txn, tasks("t3", SqlValue::Null)).await, "");
}

pub(super) async fn an_index_is_read_in_order_and_in_pages(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let ids = ["A", "a", "aa", "b", "\u{E9}", "\u{FF21}", "\u{1F600}"];
    let rows = ids.iter().rev().map(|id| Item::task(id).body("parent"));
    write(
        &*store,
        [rows.fold(Draft::new("p", 1), |draft, row| draft.insert(&row))],
    )
    .await;
    let (mut txn, _) = begin(&*store, "p").await;
    let mut read = Vec::new();
    loop {
        let scan = IndexScan {
            partition: partition("p"),
            table: TASKS,
            index: 1,
            values: vec![text("parent")],
            after: read.last().cloned(),
            limit: 3,
        };
        let found = txn.scan_index(scan).await.unwrap();
        assert!(found.len() <= 3);
        if found.is_empty() {
            break;
        }
        read.extend(found.into_iter().map(|(row_id, _)| row_id.to_string()));
    }
    assert_eq!(read, ids);
}

pub(super) async fn an_index_follows_staged_rows(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let (a, b, c) = (
        Item::note("a").code("x"),
        Item::note("b").code("y"),
        Item::note("c"),
    );
    write(
        &*store,
        [Draft::new("p", 1).insert(&a).insert(&b).insert(&c)],
    )
    .await;
    let (mut txn, _) = begin(&*store, "p").await;
    let draft = Draft::new("p", 2)
        .remove(&a)
        .update(&b, &b.next().code("x"))
        .update(&c, &c.next().code("z"))
        .insert(&Item::note("d").code("y"));
    stage(&mut *txn, draft).await;
    assert_eq!(lookup(&mut *txn, by_code(text("x"))).await, "b");
    assert_eq!(lookup(&mut *txn, by_code(text("y"))).await, "d");
    assert_eq!(lookup(&mut *txn, by_code(text("z"))).await, "c");
    assert_eq!(lookup(&mut *txn, by_code(SqlValue::Null)).await, "");
}

pub(super) async fn children_come_by_parent_and_then_by_row_id(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    touch(&*store, "q").await;
    let child = |id: &str, parent: &str| Item::task(id).body(parent);
    let committed = Draft::new("p", 1)
        .insert(&child("3", "n1"))
        .insert(&child("1", "n2"))
        .insert(&child("10", "n1"))
        .insert(&child("2", "n1"))
        .insert(&child("4", "N1"))
        .insert(&Item::task("5"));
    write(&*store, [committed]).await;
    write(&*store, [Draft::new("q", 1).insert(&child("9", "n1"))]).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let questions = vec![
        children_of(&["n2", "nobody", "n1"], 100),
        children_of(&["N1"], 100),
        children_of(&[], 100),
        children_of(&["n1", "n2"], 2),
        children_of(&["n2", "n1"], 3),
    ];
    assert_eq!(
        children(&mut *txn, questions).await,
        [
            "n2:1 n1:10 n1:2 n1:3",
            "N1:4",
            "",
            "n1:10 n1:2",
            "n2:1 n1:10 n1:2"
        ]
    );
    assert!(children(&mut *txn, Vec::new()).await.is_empty());
}

pub(super) async fn children_follow_staged_rows(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let (a, b) = (Item::task("a").body("n1"), Item::task("b").body("n1"));
    write(&*store, [Draft::new("p", 1).insert(&a).insert(&b)]).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let draft = Draft::new("p", 2)
        .remove(&a)
        .update(&b, &b.next().body("n2"))
        .insert(&Item::task("c").body("n1"));
    stage(&mut *txn, draft).await;
    let found = children(&mut *txn, vec![children_of(&["n1", "n2"], 9)]).await;
    assert_eq!(found, ["n1:c n2:b"]);
    txn.unstage().await.unwrap();
    let found = children(&mut *txn, vec![children_of(&["n1", "n2"], 9)]).await;
    assert_eq!(found, ["n1:a n1:b"]);
}

/// A row of [`MARKS`].
fn mark(draft: Draft, id: &str, sample: Option<i64>) -> Draft {
    let mut row = RowWriter::new(3);
    row.value(&Value::String(id));
    row.value(&Value::String("t1"));
    match sample {
        Some(sample) => row.value(&Value::Integer(sample)),
        None => row.null(),
    }
    let state = RowState {
        row_version: 1,
        scopes: scopes(&[("team", "t1")]),
        payload: Bytes::from(row.finish()),
        column_versions: None,
        blob_ids: None,
    };
    draft.upsert(MARKS, ByteString::from(id), state, None)
}

pub(super) async fn children_of_an_integer_key_are_found_by_its_text(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let marks = [
        ("a", Some(-7)),
        ("b", Some(7)),
        ("c", None),
        ("d", Some(-7)),
    ];
    let committed = marks
        .into_iter()
        .fold(Draft::new("p", 1), |draft, (id, sample)| {
            mark(draft, id, sample)
        });
    write(&*store, [committed]).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let question = ChildQuestion {
        table: MARKS,
        column: 2,
        ..children_of(&["7", "-7", "x", "0"], 100)
    };
    assert_eq!(children(&mut *txn, vec![question]).await, ["7:b -7:a -7:d"]);
    let scan = IndexScan {
        table: MARKS,
        values: vec![SqlValue::Integer(-7)],
        ..by_code(SqlValue::Null)
    };
    assert_eq!(lookup(&mut *txn, scan).await, "ad");
}

fn query(sql: &str, params: Vec<SqlValue>) -> SqlQuery {
    SqlQuery {
        sql: sql.to_owned(),
        params,
        partition: partition("p"),
        rows_max: 100,
    }
}

pub(super) async fn a_store_without_sql_refuses_a_query(database: &dyn Database) {
    if !database.stages() || database.has_sql() {
        return;
    }
    let store = ready(database).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let code = refused(txn.query(query("SELECT 1", Vec::new())).await);
    assert_eq!(code, StorageCode::QueryUnsupported);
    let draft = Draft::new("p", 1).insert(&Item::note("n"));
    finished(txn.finish(vec![draft.build()]).await.unwrap());
}

pub(super) async fn a_query_sees_what_is_staged(database: &dyn Database) {
    if !database.has_sql() {
        return;
    }
    let store = ready(database).await;
    touch(&*store, "q").await;
    let (a, b) = (Item::note("a").body("1"), Item::note("b"));
    write(&*store, [Draft::new("p", 1).insert(&a).insert(&b)]).await;
    write(
        &*store,
        [Draft::new("q", 1).insert(&a.clone().body("other"))],
    )
    .await;
    let (mut txn, _) = begin(&*store, "p").await;
    let draft = Draft::new("p", 2)
        .update(&a, &a.next().body("2"))
        .insert(&Item::note("c").team("t2"));
    stage(&mut *txn, draft).await;
    let sql = "SELECT id, body FROM notes WHERE _sync_partition = ?1 AND team = ?2 ORDER BY id";
    let rows = txn.query(query(sql, vec![text("t1")])).await.unwrap();
    assert_eq!(rows, [[text("a"), text("2")], [text("b"), SqlValue::Null]]);
    let limited = SqlQuery {
        rows_max: 1,
        ..query(sql, vec![text("t1")])
    };
    assert_eq!(txn.query(limited).await.unwrap().len(), 1);
    finished(txn.finish(Vec::new()).await.unwrap());
}

pub(super) async fn a_query_has_values_of_every_kind(database: &dyn Database) {
    if !database.has_sql() {
        return;
    }
    let store = ready(database).await;
    let values = vec![
        SqlValue::Null,
        SqlValue::Integer(-9_007_199_254_740_991),
        SqlValue::Real(0.5),
        text("\u{1F600}"),
        SqlValue::Blob(Bytes::from_static(&[0, 255])),
    ];
    let (mut txn, _) = begin(&*store, "p").await;
    let rows = txn
        .query(query("SELECT ?2, ?3, ?4, ?5, ?6, ?1", values.clone()))
        .await
        .unwrap();
    let mut expected = values;
    expected.push(text("p"));
    assert_eq!(rows, [expected]);
}

pub(super) async fn a_candidate_table_is_known_by_its_place(database: &dyn Database) {
    if !database.stages() {
        return;
    }
    let store = ready(database).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let draft = mark(Draft::new("p", 1).insert(&Item::note("n")), "m", Some(1));
    stage(&mut *txn, draft).await;
    for (table, ids) in [(NOTES, "n"), (TASKS, ""), (TableIndex(2), ""), (MARKS, "m")] {
        let rows = seen(&mut *txn, all_rows("p", table, team_one())).await;
        assert_eq!(rows.ids().concat(), ids);
    }
    let nothing = txn.load(lock(&["p"])).await.unwrap();
    assert_eq!(nothing.gates[0].head, seq(0), "staging writes no log");
}
