//! The log: where commits stand and what is kept of them (§2.1).

use tidewater_model::{CommitSeq, Op};

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, NOW_MS, TASKS, filter, lock, seq, team_one, touch, whole_log, window,
    },
    support::{begin, finished, head, panics, ready, serves, write},
};
use crate::WriteLanes;

pub(super) async fn commits_are_numbered_from_one_without_gaps(database: &dyn Database) {
    let store = ready(database).await;
    assert_eq!(head(&*store, "p").await, 0);
    for place in 1..=5 {
        let item = Item::note(&format!("n{place}"));
        write(&*store, [Draft::new("p", place).insert(&item)]).await;
        assert_eq!(head(&*store, "p").await, place);
    }
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(seen.seqs(), [1, 2, 3, 4, 5]);
    assert_eq!(seen.gate.head, seq(5));
}

pub(super) async fn a_commit_that_skips_a_place_panics(database: &dyn Database) {
    check_out_of_place(database, 3).await;
}

pub(super) async fn a_commit_that_repeats_a_place_panics(database: &dyn Database) {
    check_out_of_place(database, 1).await;
}

async fn check_out_of_place(database: &dyn Database, place: u64) {
    let store = ready(database).await;
    let item = Item::note("n1");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    let wrong = Draft::new("p", place).id("wrong").insert(&Item::note("n2"));
    let (mut txn, _) = begin(&*store, "p").await;
    let panicked = panics(async {
        txn.apply(vec![wrong.build()]).await.unwrap();
    })
    .await;
    assert!(panicked, "place {place} after head 1 is the caller's bug");
    drop(txn);
    serves(&*store, "p").await;
    assert_eq!(head(&*store, "p").await, 1);
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(seen.row_ids(), [["n1"]]);
}

pub(super) async fn partitions_count_their_commits_for_themselves(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    write(&*store, [Draft::new("p", 1).insert(&Item::note("n"))]).await;
    write(&*store, [Draft::new("p", 2).insert(&Item::note("m"))]).await;
    write(&*store, [Draft::new("q", 1).insert(&Item::note("n"))]).await;
    assert_eq!(head(&*store, "p").await, 2);
    assert_eq!(head(&*store, "q").await, 1);
    let seen = window(&*store, whole_log("q", NOTES, team_one())).await;
    assert_eq!(seen.row_ids(), [["n"]]);
    assert_eq!(head(&*store, "nobody").await, 0);
}

pub(super) async fn a_rejected_commit_takes_no_place(database: &dyn Database) {
    let store = ready(database).await;
    let drafts = [
        Draft::new("p", 1).insert(&Item::note("n")),
        Draft::rejected("p", "no"),
        Draft::new("p", 2).insert(&Item::note("m")),
    ];
    write(&*store, drafts).await;
    assert_eq!(head(&*store, "p").await, 2);
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(seen.seqs(), [1, 2]);
}

pub(super) async fn a_commit_without_changes_takes_a_place(database: &dyn Database) {
    let store = ready(database).await;
    write(&*store, [Draft::new("p", 1)]).await;
    write(&*store, [Draft::new("p", 2).insert(&Item::note("n"))]).await;
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(seen.gate.head, seq(2));
    assert_eq!(seen.seqs(), [2]);
    assert!(seen.exhausted);
}

pub(super) async fn an_abandoned_transaction_takes_no_place(database: &dyn Database) {
    let store = ready(database).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let draft = Draft::new("p", 1).id("lost").insert(&Item::note("lost"));
    txn.apply(vec![draft.build()]).await.unwrap();
    drop(txn);
    assert_eq!(head(&*store, "p").await, 0);
    write(&*store, [Draft::new("p", 1).insert(&Item::note("n"))]).await;
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(seen.row_ids(), [["n"]]);
}

pub(super) async fn one_transaction_may_hold_many_commits(database: &dyn Database) {
    let store = ready(database).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let first = Item::note("n");
    let drafts = [
        Draft::new("p", 1).insert(&first),
        Draft::new("p", 2).update(&first, &first.next()),
    ];
    let violation = txn.apply(drafts.map(Draft::build).to_vec()).await.unwrap();
    assert_eq!(violation, None);
    let last = Draft::new("p", 3).delete(&first.next());
    finished(txn.finish(vec![last.build()]).await.unwrap());
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(seen.seqs(), [1, 2, 3]);
}

pub(super) async fn a_store_with_one_lane_spans_partitions_in_a_transaction(
    database: &dyn Database,
) {
    let store = ready(database).await;
    if store.write_lanes() != WriteLanes::One {
        return;
    }
    touch(&*store, "q").await;
    let (txn, loaded) = store.begin_write(lock(&["p", "q"])).await.unwrap();
    assert_eq!(loaded.gates.len(), 2);
    let drafts = [
        Draft::new("q", 1).insert(&Item::note("n")),
        Draft::new("p", 1).insert(&Item::note("n")),
        Draft::new("q", 2).insert(&Item::note("m")),
    ];
    finished(txn.finish(drafts.map(Draft::build).to_vec()).await.unwrap());
    assert_eq!(head(&*store, "p").await, 1);
    assert_eq!(head(&*store, "q").await, 2);
}

pub(super) async fn a_commit_keeps_its_actor_and_its_time(database: &dyn Database) {
    let store = ready(database).await;
    let drafts = [
        Draft::new("p", 1)
            .actor("ada")
            .at(5)
            .insert(&Item::note("n")),
        Draft::new("p", 2)
            .actor("b\u{F6}b \u{1F600}")
            .at(NOW_MS)
            .insert(&Item::note("m")),
    ];
    write(&*store, drafts).await;
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    let kept: Vec<(&str, i64)> = seen
        .commits
        .iter()
        .map(|commit| (commit.actor.as_str(), commit.created_at_ms))
        .collect();
    assert_eq!(kept, [("ada", 5), ("b\u{F6}b \u{1F600}", NOW_MS)]);
}

pub(super) async fn a_change_keeps_its_row_its_version_and_its_scopes(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n").code("c").body("first");
    let next = item.next().body("second");
    let drafts = [
        Draft::new("p", 1).insert(&item),
        Draft::new("p", 2).update(&item, &next),
        Draft::new("p", 3).delete(&next),
    ];
    write(&*store, drafts).await;
    let read = store
        .read_window(whole_log("p", NOTES, team_one()))
        .await
        .unwrap();
    assert_eq!(read.change_count(), 3);
    assert_eq!(read.last_commit_seq(), Some(seq(3)));
    let changes: Vec<_> = read.commits().flat_map(|commit| commit.changes()).collect();
    let ops: Vec<Op> = changes.iter().map(|change| change.op()).collect();
    assert_eq!(ops, [Op::Upsert, Op::Upsert, Op::Delete]);
    assert_eq!(changes[0].row, Some((1, &item.payload()[..])));
    assert_eq!(changes[1].row, Some((2, &next.payload()[..])));
    assert!(changes.iter().all(|change| change.row_id == "n"));
    assert!(changes.iter().all(|change| *change.scopes == item.scopes()));
}

pub(super) async fn changes_keep_their_order_within_a_commit(database: &dyn Database) {
    let store = ready(database).await;
    let ids: Vec<String> = (0..40).map(|n| format!("{}", (n * 17) % 40)).collect();
    let mut draft = Draft::new("p", 1);
    for id in &ids {
        draft = draft.insert(&Item::note(id)).insert(&Item::task(id));
    }
    write(&*store, [draft]).await;
    for table in [NOTES, TASKS] {
        let seen = window(&*store, whole_log("p", table, team_one())).await;
        assert_eq!(seen.row_ids(), [ids.iter().collect::<Vec<_>>()]);
    }
}

pub(super) async fn one_commit_may_change_a_row_more_than_once(database: &dyn Database) {
    let store = ready(database).await;
    let first = Item::note("n").body("1");
    let second = first.next().body("2");
    let draft = Draft::new("p", 1)
        .insert(&first)
        .update(&first, &second)
        .remove(&second)
        .insert(&Item::note("n").body("again"));
    write(&*store, [draft]).await;
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    let versions: Vec<Option<i64>> = seen.commits[0]
        .changes
        .iter()
        .map(|change| change.row.as_ref().map(|(version, _)| *version))
        .collect();
    assert_eq!(versions, [Some(1), Some(2), None, Some(1)]);
}

pub(super) async fn newest_change_names_the_last_commit_with_a_scope(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let two = Item::note("b").team("t2");
    let drafts = [
        Draft::new("p", 1).insert(&Item::note("a")),
        Draft::new("p", 2).insert(&two),
        Draft::new("p", 3).insert(&Item::task("a").team("t3")),
        Draft::new("p", 4).delete(&two),
        Draft::new("p", 5).insert(&Item::note("c").owner("o5")),
    ];
    write(&*store, drafts).await;
    let newest = async |name: &str, table, variable: &str, values: &[&str]| {
        let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
        store
            .newest_change(&super::fixtures::partition(name), table, variable, &values)
            .await
            .unwrap()
            .map(CommitSeq::get)
    };
    assert_eq!(newest("p", NOTES, "team", &["t1"]).await, Some(5));
    assert_eq!(
        newest("p", NOTES, "team", &["t2"]).await,
        Some(4),
        "a delete counts"
    );
    assert_eq!(newest("p", NOTES, "team", &["t2", "t1"]).await, Some(5));
    assert_eq!(
        newest("p", NOTES, "owner", &["o5", "o5", "o9"]).await,
        Some(5)
    );
    assert_eq!(
        newest("p", NOTES, "team", &["t3"]).await,
        None,
        "of another table"
    );
    assert_eq!(newest("p", TASKS, "team", &["t3"]).await, Some(3));
    assert_eq!(
        newest("p", NOTES, "owner", &["t1"]).await,
        None,
        "of another variable"
    );
    assert_eq!(newest("p", NOTES, "nothing", &["t1"]).await, None);
    assert_eq!(newest("p", NOTES, "team", &[]).await, None);
    assert_eq!(
        newest("q", NOTES, "team", &["t1"]).await,
        None,
        "of another partition"
    );
    assert_eq!(newest("nobody", NOTES, "team", &["t1"]).await, None);
}

pub(super) async fn a_row_that_moves_leaves_one_scope_and_enters_another(database: &dyn Database) {
    let store = ready(database).await;
    let here = Item::note("n");
    let there = Item::note("n").team("t2");
    write(&*store, [Draft::new("p", 1).insert(&here)]).await;
    write(&*store, [Draft::new("p", 2).remove(&here).insert(&there)]).await;
    let old = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(old.seqs(), [1, 2]);
    assert_eq!(old.commits[1].changes.len(), 1);
    assert_eq!(old.commits[1].changes[0].row, None);
    let new = window(&*store, whole_log("p", NOTES, filter(&[("team", &["t2"])]))).await;
    assert_eq!(new.seqs(), [2]);
    assert_eq!(new.commits[0].changes.len(), 1);
    assert!(new.commits[0].changes[0].row.is_some());
    let both = filter(&[("team", &["t1", "t2"])]);
    let both = window(&*store, whole_log("p", NOTES, both)).await;
    assert_eq!(both.row_ids(), [vec!["n"], vec!["n", "n"]]);
}
