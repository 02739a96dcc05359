//! What operators read, and how old outcomes are forgotten.

use bytestring::ByteString;
use tidewater_model::{HorizonSeq, LogEpoch};

use super::{
    Database, SeenPage,
    fixtures::{
        Draft, Item, NOTES, NOW_MS, TASKS, client, epoch, lock, partition, push_key, schema, seq,
        touch,
    },
    support::{at_every_moment, begin, cancel, ready, serves, write},
};
use crate::{
    LoadRequest, PushKey, PushResultRecord, ReactionRecord, ReactionStatus, ReactionWrite, Store,
    StoredResult, TableScan,
};

/// All rows of a table in one page.
fn whole_table(name: &str) -> TableScan {
    TableScan {
        partition: partition(name),
        table: NOTES,
        after: None,
        rows_max: 1_000,
        bytes_max: usize::MAX,
    }
}

async fn page(store: &dyn Store, scan: TableScan) -> SeenPage {
    SeenPage::from(&store.scan_table(scan).await.unwrap())
}

/// Bytewise order, which is neither that of numbers nor that of UTF-16.
const IDS: [&str; 6] = ["10", "9", "a", "a ", "\u{E000}", "\u{1F600}"];

/// Notes of many teams, and what must not be mixed up with them.
async fn write_notes(store: &dyn Store) {
    let notes = IDS.iter().enumerate().rev();
    let draft = notes.fold(Draft::new("p", 1), |draft, (n, id)| {
        draft.insert(&Item::note(id).team(&format!("t{n}")))
    });
    write(store, [draft.insert(&Item::task("task"))]).await;
    touch(store, "q").await;
    write(store, [Draft::new("q", 1).insert(&Item::note("elsewhere"))]).await;
}

pub(super) async fn a_table_is_read_whole_whatever_its_scopes(database: &dyn Database) {
    let store = ready(database).await;
    write_notes(&*store).await;
    let item = Item::note("a").team("t2");
    let next = item.next().team("t9").body("new");
    write(&*store, [Draft::new("p", 2).update(&item, &next)]).await;
    write(
        &*store,
        [Draft::new("p", 3).delete(&Item::note("9").team("t1"))],
    )
    .await;
    let seen = page(&*store, whole_table("p")).await;
    assert_eq!(seen.ids(), ["10", "a", "a ", "\u{E000}", "\u{1F600}"]);
    assert_eq!(seen.rows[1], ("a".to_owned(), 2, next.payload().to_vec()));
    assert!(!seen.has_more);
    assert_eq!(seen.gate.head, seq(3));
    assert_eq!(seen.gate.log_epoch, Some(epoch("e1")));
    let tasks = TableScan {
        table: TASKS,
        ..whole_table("p")
    };
    assert_eq!(page(&*store, tasks).await.ids(), ["task"]);
    // The log is no part of it.
    store
        .prune(&partition("p"), &epoch("e1"), HorizonSeq::at(seq(3)))
        .await
        .unwrap();
    assert_eq!(page(&*store, whole_table("p")).await.ids().len(), 5);
}

pub(super) async fn pages_of_a_table_are_all_its_rows(database: &dyn Database) {
    let store = ready(database).await;
    write_notes(&*store).await;
    for rows_max in 1..=IDS.len() + 1 {
        let mut ids: Vec<String> = Vec::new();
        loop {
            let scan = TableScan {
                after: ids.last().cloned(),
                rows_max,
                ..whole_table("p")
            };
            let seen = page(&*store, scan).await;
            ids.extend(seen.ids().into_iter().map(str::to_owned));
            assert_eq!(seen.has_more, ids.len() < IDS.len(), "{rows_max} a page");
            if !seen.has_more {
                break;
            }
            assert_eq!(seen.rows.len(), rows_max);
        }
        assert_eq!(ids, IDS, "{rows_max} rows a page");
    }
}

pub(super) async fn a_page_of_a_table_ends_like_any_page(database: &dyn Database) {
    let store = ready(database).await;
    let body = "x".repeat(100);
    let draft = ["a", "b", "c"]
        .iter()
        .fold(Draft::new("p", 1), |draft, id| {
            draft.insert(&Item::note(id).body(&body))
        });
    write(&*store, [draft]).await;
    let size = Item::note("a").body(&body).payload().len();
    let limited = async |after: Option<&str>, rows_max: usize, bytes_max: usize| {
        let scan = TableScan {
            after: after.map(str::to_owned),
            rows_max,
            bytes_max,
            ..whole_table("p")
        };
        let seen = page(&*store, scan).await;
        (seen.ids().concat(), seen.has_more)
    };
    assert_eq!(limited(None, 0, 0).await, ("a".to_owned(), true));
    assert_eq!(limited(None, 9, 2 * size - 1).await, ("a".to_owned(), true));
    assert_eq!(limited(None, 9, 2 * size).await, ("ab".to_owned(), true));
    assert_eq!(limited(None, 9, 3 * size).await, ("abc".to_owned(), false));
    assert_eq!(limited(None, 3, 3 * size).await, ("abc".to_owned(), false));
    assert_eq!(limited(Some("b"), 1, 1).await, ("c".to_owned(), false));
    assert_eq!(limited(Some("bb"), 1, 1).await, ("c".to_owned(), false));
    assert_eq!(limited(Some("c"), 1, 1).await, (String::new(), false));
}

pub(super) async fn a_table_of_an_unknown_partition_is_empty(database: &dyn Database) {
    let store = ready(database).await;
    let seen = page(&*store, whole_table("nobody")).await;
    assert!(seen.rows.is_empty());
    assert!(!seen.has_more);
    assert_eq!(seen.gate.log_epoch, None);
    assert_eq!(seen.gate.schema_version, schema().version());
}

fn reaction(key: &str) -> ReactionWrite {
    ReactionWrite {
        idempotency_key: key.to_owned(),
        kind: "mail \u{1F4E7}".to_owned(),
        version: 3,
        payload: r#"{"to":"a\"b"}"#.to_owned(),
        max_attempts: 8,
    }
}

async fn list(
    store: &dyn Store,
    status: Option<ReactionStatus>,
    after: Option<&str>,
    limit: usize,
) -> Vec<String> {
    store
        .list_reactions(&partition("p"), status, after, limit)
        .await
        .unwrap()
        .into_iter()
        .map(|found| found.write.idempotency_key)
        .collect()
}

pub(super) async fn a_reaction_is_pending_from_its_commit_on(database: &dyn Database) {
    let store = ready(database).await;
    let draft = Draft::new("p", 1)
        .client("c\u{E9}")
        .id("commit 1")
        .at(123)
        .react(reaction("mail:1"));
    write(&*store, [draft]).await;
    let found = store
        .list_reactions(&partition("p"), None, None, 10)
        .await
        .unwrap();
    let expected = ReactionRecord {
        write: reaction("mail:1"),
        client: client("c\u{E9}"),
        client_commit_id: ByteString::from_static("commit 1"),
        commit_seq: seq(1),
        created_at_ms: 123,
        available_at_ms: 123,
        status: ReactionStatus::Pending,
        attempts: 0,
    };
    assert_eq!(found, [expected]);
}

pub(super) async fn the_first_reaction_recorded_under_a_key_stays(database: &dyn Database) {
    let store = ready(database).await;
    let second = ReactionWrite {
        payload: "2".to_owned(),
        ..reaction("k")
    };
    write(&*store, [Draft::new("p", 1).react(reaction("k"))]).await;
    write(&*store, [Draft::new("p", 2).react(second)]).await;
    let found = store
        .list_reactions(&partition("p"), None, None, 10)
        .await
        .unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].write, reaction("k"));
    assert_eq!(found[0].commit_seq, seq(1));
}

pub(super) async fn an_abandoned_commit_leaves_no_reaction(database: &dyn Database) {
    let store = ready(database).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let draft = Draft::new("p", 1).react(reaction("k"));
    txn.apply(vec![draft.build()]).await.unwrap();
    drop(txn);
    assert!(list(&*store, None, None, 10).await.is_empty());
}

pub(super) async fn reactions_are_listed_by_bytewise_key_in_pages(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let draft = IDS
        .iter()
        .rev()
        .fold(Draft::new("p", 1), |draft, id| draft.react(reaction(id)));
    write(&*store, [draft]).await;
    write(&*store, [Draft::new("q", 1).react(reaction("other"))]).await;
    for status in [None, Some(ReactionStatus::Pending)] {
        for limit in 1..=IDS.len() + 1 {
            let mut keys: Vec<String> = Vec::new();
            loop {
                let after = keys.last().cloned();
                let found = list(&*store, status, after.as_deref(), limit).await;
                assert!(found.len() <= limit);
                if found.is_empty() {
                    break;
                }
                keys.extend(found);
            }
            assert_eq!(keys, IDS, "{limit} a page, status {status:?}");
        }
    }
    assert!(list(&*store, None, None, 0).await.is_empty());
    let nobody = store
        .list_reactions(&partition("nobody"), None, None, 10)
        .await;
    assert!(nobody.unwrap().is_empty());
}

pub(super) async fn reactions_are_listed_by_their_status(database: &dyn Database) {
    let store = ready(database).await;
    write(&*store, [Draft::new("p", 1).react(reaction("k"))]).await;
    for status in ReactionStatus::ALL {
        let found = list(&*store, Some(status), None, 10).await;
        let is_listed = status == ReactionStatus::Pending;
        assert_eq!(found.len(), usize::from(is_listed), "{status:?}");
    }
}

pub(super) async fn pruning_the_log_keeps_reactions(database: &dyn Database) {
    let store = ready(database).await;
    write(&*store, [Draft::new("p", 1).react(reaction("k"))]).await;
    write(&*store, [Draft::new("p", 2)]).await;
    store
        .prune(&partition("p"), &epoch("e1"), HorizonSeq::at(seq(2)))
        .await
        .unwrap();
    assert_eq!(list(&*store, None, None, 10).await, ["k"]);
}

/// Records outcomes of clients `c1` and `c2`, each with ids `m0`, `m1`, … recorded at times
/// 0, 10, …
async fn write_outcomes(store: &dyn Store, name: &str, count: i64) {
    for client in ["c2", "c1"] {
        for n in 0..count {
            let draft = Draft::rejected(name, &format!("m{n}")).client(client);
            let result = PushResultRecord {
                recorded_at_ms: Some(n * 10),
                ..draft.result()
            };
            write(store, [draft.outcome(result)]).await;
        }
    }
}

async fn is_recorded(store: &dyn Store, key: &PushKey) -> bool {
    store.find_push_result(key).await.unwrap().is_some()
}

/// Prunes in pages and gives back how many outcomes were deleted.
async fn prune(store: &dyn Store, name: &str, before_ms: i64, limit: usize) -> u64 {
    let mut after = None;
    let mut deleted = 0;
    loop {
        let (last, count) = store
            .prune_push_results(&partition(name), after.as_ref(), before_ms, limit)
            .await
            .unwrap();
        deleted += count;
        assert!(count <= u64::try_from(limit).unwrap());
        assert!(last.is_none() || last > after, "pages go on");
        after = last;
        if after.is_none() {
            return deleted;
        }
    }
}

pub(super) async fn outcomes_recorded_before_a_time_are_deleted(database: &dyn Database) {
    let store = ready(database).await;
    write_outcomes(&*store, "p", 4).await;
    assert_eq!(prune(&*store, "p", 0, 100).await, 0);
    assert_eq!(prune(&*store, "p", 20, 100).await, 4);
    for client in ["c1", "c2"] {
        for (n, kept) in [(0, false), (1, false), (2, true), (3, true)] {
            let key = push_key("p", client, &format!("m{n}"));
            assert_eq!(is_recorded(&*store, &key).await, kept, "{client} {n}");
        }
    }
    assert_eq!(prune(&*store, "p", 20, 100).await, 0);
    assert_eq!(prune(&*store, "nobody", 20, 100).await, 0);
}

pub(super) async fn an_outcome_without_a_time_is_kept(database: &dyn Database) {
    let store = ready(database).await;
    let draft = Draft::rejected("p", "old");
    let result = PushResultRecord {
        recorded_at_ms: None,
        ..draft.result()
    };
    let key = draft.key();
    write(&*store, [draft.outcome(result)]).await;
    assert_eq!(prune(&*store, "p", i64::MAX, 10).await, 0);
    assert!(is_recorded(&*store, &key).await);
}

pub(super) async fn a_damaged_outcome_is_not_pruned(database: &dyn Database) {
    let store = ready(database).await;
    write_outcomes(&*store, "p", 2).await;
    let key = push_key("p", "c1", "m0");
    if !database.damage_push_result(&store, &key).await {
        return;
    }
    assert_eq!(prune(&*store, "p", i64::MAX, 10).await, 3);
    let found = store.find_push_result(&key).await.unwrap();
    assert_eq!(found, Some(StoredResult::Unreadable));
}

pub(super) async fn outcomes_are_pruned_in_pages(database: &dyn Database) {
    let store = ready(database).await;
    for limit in [1, 2, 3, 5, 6, 7] {
        write_outcomes(&*store, "p", 3).await;
        assert_eq!(prune(&*store, "p", 20, limit).await, 4, "{limit} a page");
        assert_eq!(prune(&*store, "p", 30, limit).await, 2, "{limit} a page");
    }
    write_outcomes(&*store, "p", 3).await;
    let after = push_key("p", "c1", "m1");
    let (_, deleted) = store
        .prune_push_results(&partition("p"), Some(&after), 20, 100)
        .await
        .unwrap();
    assert_eq!(deleted, 2, "those of the second client");
    assert!(is_recorded(&*store, &push_key("p", "c1", "m0")).await);
}

pub(super) async fn outcomes_of_another_partition_are_kept(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    write_outcomes(&*store, "p", 2).await;
    write_outcomes(&*store, "q", 2).await;
    assert_eq!(prune(&*store, "p", i64::MAX, 1).await, 4);
    assert!(is_recorded(&*store, &push_key("q", "c2", "m1")).await);
    assert_eq!(prune(&*store, "q", i64::MAX, 100).await, 4);
}

pub(super) async fn a_pruned_outcome_may_be_recorded_again(database: &dyn Database) {
    let store = ready(database).await;
    write_outcomes(&*store, "p", 1).await;
    let key = push_key("p", "c1", "m0");
    prune(&*store, "p", 1, 100).await;
    assert!(!is_recorded(&*store, &key).await);
    write(&*store, [Draft::rejected("p", "m0")]).await;
    assert!(is_recorded(&*store, &key).await);
    let record = store.find_partition(&partition("p")).await.unwrap();
    let epoch: LogEpoch = record.unwrap().log_epoch;
    assert_eq!(epoch.as_str(), "e1");
    assert_eq!(prune(&*store, "p", NOW_MS, 100).await, 0);
}

pub(super) async fn pruning_outcomes_is_done_or_not_done(database: &dyn Database) {
    let store = ready(database).await;
    let mut attempt = 0;
    at_every_moment(async |moment| {
        // Of its own: what was dropped may still be done later.
        attempt += 1;
        let name = format!("pruned{attempt}");
        touch(&*store, &name).await;
        write_outcomes(&*store, &name, 2).await;
        let on = partition(&name);
        let pruning = store.prune_push_results(&on, None, i64::MAX, 100);
        let ended = cancel(moment, pruning).await.is_some();
        serves(&*store, &name).await;
        let written = ["c1", "c2"].into_iter().flat_map(|client| {
            let name = &name;
            ["m0", "m1"].map(move |id| push_key(name, client, id))
        });
        let wanted = LoadRequest {
            push_results: written.collect(),
            ..lock(&[&name])
        };
        let (txn, loaded) = store.begin_write(wanted).await.unwrap();
        drop(txn);
        let kept = loaded.push_results.iter().flatten().count();
        assert!(kept == 0 || (kept == 4 && !ended), "{kept} are kept");
        ended
    })
    .await;
}
