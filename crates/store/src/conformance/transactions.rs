//! Write transactions: what they see, who sees them, and how they end.

use std::sync::Arc;

use tidewater_model::{CommitSeq, PartitionId};

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, NOW_MS, all_rows, client, filter, lock, page, partition, push_key, seq,
        team_one, touch, whole_log, window,
    },
    support::{at_every_moment, begin, cancel, finished, head, poll_once, ready, serves, write},
};
use crate::{ClientKey, Finished, LoadRequest, Loaded, Store, WriteLanes};

pub(super) async fn answers_come_in_the_order_of_the_questions(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let (a, b, gone) = (Item::note("a"), Item::task("b"), Item::note("gone"));
    let drafts = [
        Draft::new("p", 1).insert(&a).insert(&b).insert(&gone),
        Draft::new("p", 2).client("c2").bind(NOW_MS).delete(&gone),
    ];
    write(&*store, drafts).await;
    let absent = Item::note("absent");
    let client_key = |name: &str| ClientKey {
        partition: partition("p"),
        client: client(name),
    };
    let wanted = LoadRequest {
        partitions: vec![partition("p"), partition("p")],
        rows: [&b, &absent, &gone, &a, &b]
            .map(|item| item.key("p"))
            .to_vec(),
        push_results: vec![
            push_key("p", "c2", "m2"),
            push_key("p", "c9", "m9"),
            push_key("p", "c1", "m1"),
            push_key("q", "c1", "m1"),
        ],
        clients: vec![client_key("c3"), client_key("c2"), client_key("c2")],
    };
    let (mut txn, loaded) = store.begin_write(wanted.clone()).await.unwrap();
    let check = |loaded: &Loaded| {
        assert_eq!(loaded.gates.len(), 2);
        assert!(loaded.gates.iter().all(|gate| gate.head == seq(2)));
        let (a, b) = (Some(a.stored()), Some(b.stored()));
        assert_eq!(loaded.rows, [b.clone(), None, None, a, b]);
        let tombstones: Vec<bool> = loaded.tombstones.iter().map(Option::is_some).collect();
        assert_eq!(tombstones, [false, false, true, false, false]);
        let results: Vec<bool> = loaded.push_results.iter().map(Option::is_some).collect();
        assert_eq!(results, [true, false, true, false]);
        let clients: Vec<bool> = loaded.clients.iter().map(Option::is_some).collect();
        assert_eq!(clients, [false, true, true]);
    };
    check(&loaded);
    check(&txn.load(wanted).await.unwrap());
    let nothing = txn.load(LoadRequest::default()).await.unwrap();
    assert_eq!(nothing, Loaded::default());
}

pub(super) async fn a_load_of_a_thousand_rows_is_answered(database: &dyn Database) {
    let store = ready(database).await;
    let items: Vec<Item> = (0..1_000)
        .map(|n| Item::note(&format!("n{n:04}")))
        .collect();
    let evens = items.iter().step_by(2);
    write(&*store, [evens.fold(Draft::new("p", 1), Draft::insert)]).await;
    let wanted = LoadRequest {
        rows: items.iter().map(|item| item.key("p")).collect(),
        push_results: (0..1_000)
            .map(|n| push_key("p", "c1", &format!("m{n}")))
            .collect(),
        ..lock(&["p"])
    };
    let (_, loaded) = store.begin_write(wanted).await.unwrap();
    for (n, (row, item)) in loaded.rows.iter().zip(&items).enumerate() {
        let expected = (n % 2 == 0).then(|| item.stored());
        assert_eq!(*row, expected);
    }
    let recorded = loaded.push_results.iter().position(Option::is_some);
    assert_eq!(recorded, Some(1));
}

pub(super) async fn a_transaction_reads_its_own_writes(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n");
    let other = Item::note("m");
    write(&*store, [Draft::new("p", 1).insert(&other)]).await;
    let (mut txn, gate) = begin(&*store, "p").await;
    assert_eq!(gate.head, seq(1));
    let drafts = [
        Draft::new("p", 2).insert(&item),
        Draft::new("p", 3)
            .update(&item, &item.next())
            .delete(&other),
    ];
    txn.apply(drafts.map(Draft::build).to_vec()).await.unwrap();
    let wanted = LoadRequest {
        rows: vec![item.key("p"), other.key("p")],
        ..lock(&["p"])
    };
    let loaded = txn.load(wanted).await.unwrap();
    assert_eq!(loaded.gates[0].head, seq(3));
    assert_eq!(loaded.rows, [Some(item.next().stored()), None]);
}

pub(super) async fn a_transaction_may_load_another_partition_later(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let item = Item::note("n");
    write(&*store, [Draft::new("q", 1).insert(&item)]).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let wanted = LoadRequest {
        rows: vec![item.key("q")],
        ..lock(&["q"])
    };
    let loaded = txn.load(wanted).await.unwrap();
    assert_eq!(loaded.gates[0].head, seq(1));
    assert_eq!(loaded.rows, [Some(item.stored())]);
}

/// Every read, as text.
async fn reads(store: &dyn Store) -> String {
    let all = filter(&[("team", &["t1", "t2"])]);
    let values = ["t1".to_owned(), "t2".to_owned()];
    let (p, c1) = (partition("p"), client("c1"));
    format!(
        "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}",
        window(store, whole_log("p", NOTES, all.clone())).await,
        page(store, all_rows("p", NOTES, all)).await,
        store
            .newest_change(&p, NOTES, "team", &values)
            .await
            .unwrap(),
        store
            .find_push_result(&push_key("p", "c1", "m2"))
            .await
            .unwrap(),
        store.find_client(&p, &c1).await.unwrap(),
        store.list_clients(&p, None, 9).await.unwrap(),
        store.find_partition(&p).await.unwrap(),
        store.list_partitions(None, 9).await.unwrap(),
        store.retention_inputs(&p, 0, i64::MAX).await.unwrap(),
    )
}

pub(super) async fn nobody_else_sees_an_open_transaction(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n");
    let other = Item::note("m");
    write(&*store, [Draft::new("p", 1).insert(&item).insert(&other)]).await;
    let before = reads(&*store).await;
    let (mut txn, _) = begin(&*store, "p").await;
    assert_eq!(
        reads(&*store).await,
        before,
        "readers do not wait for a writer"
    );
    let draft = Draft::new("p", 2)
        .bind(NOW_MS)
        .update(&item, &item.next().team("t2"))
        .delete(&other)
        .insert(&Item::note("new"));
    txn.apply(vec![draft.build()]).await.unwrap();
    assert_eq!(reads(&*store).await, before);
    txn.load(lock(&["p"])).await.unwrap();
    assert_eq!(reads(&*store).await, before);
    finished(txn.finish(Vec::new()).await.unwrap());
    let after = reads(&*store).await;
    assert_ne!(after, before);
    assert!(after.contains("new"), "all of it is visible: {after}");
}

pub(super) async fn finishing_makes_everything_visible_at_once(database: &dyn Database) {
    let store = ready(database).await;
    let (mut txn, _) = begin(&*store, "p").await;
    txn.apply(vec![Draft::new("p", 1).insert(&Item::note("a")).build()])
        .await
        .unwrap();
    let last = Draft::new("p", 2).insert(&Item::note("b"));
    finished(txn.finish(vec![last.build()]).await.unwrap());
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(seen.row_ids(), [["a"], ["b"]]);
}

pub(super) async fn a_transaction_that_wrote_nothing_may_finish(database: &dyn Database) {
    let store = ready(database).await;
    for _ in 0..10 {
        let (txn, _) = begin(&*store, "p").await;
        finished(txn.finish(Vec::new()).await.unwrap());
    }
    let (mut txn, _) = begin(&*store, "p").await;
    assert_eq!(txn.apply(Vec::new()).await.unwrap(), None);
    finished(txn.finish(Vec::new()).await.unwrap());
    assert_eq!(head(&*store, "p").await, 0);
}

pub(super) async fn a_dropped_transaction_is_invisible_and_harmless(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    let before = reads(&*store).await;
    // More often than any pool has connections.
    for round in 0..40 {
        let (mut txn, gate) = begin(&*store, "p").await;
        assert_eq!(gate.head, seq(1), "round {round}");
        if round % 4 > 0 {
            let draft = Draft::new("p", 2)
                .bind(NOW_MS)
                .delete(&item)
                .insert(&Item::note("lost").code("x"));
            txn.apply(vec![draft.build()]).await.unwrap();
        }
        if round % 4 > 1 {
            txn.load(lock(&["p"])).await.unwrap();
        }
        drop(txn);
        if round % 4 > 2 {
            assert_eq!(reads(&*store).await, before, "round {round}");
        }
    }
    assert_eq!(reads(&*store).await, before);
}

pub(super) async fn a_begin_that_is_canceled_leaves_no_trace(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    at_every_moment(async |moment| {
        let wanted = LoadRequest {
            rows: vec![item.key("p")],
            ..lock(&["p"])
        };
        let ended = cancel(moment, store.begin_write(wanted)).await.is_some();
        serves(&*store, "p").await;
        ended
    })
    .await;
}

pub(super) async fn a_load_that_is_canceled_abandons_its_transaction(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    at_every_moment(async |moment| {
        let (mut txn, _) = begin(&*store, "p").await;
        txn.apply(vec![Draft::new("p", 2).delete(&item).build()])
            .await
            .unwrap();
        let wanted = LoadRequest {
            rows: vec![item.key("p")],
            ..LoadRequest::default()
        };
        let ended = cancel(moment, txn.load(wanted)).await.is_some();
        drop(txn);
        serves(&*store, "p").await;
        assert_eq!(head(&*store, "p").await, 1);
        ended
    })
    .await;
    let seen = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(seen.ids(), ["n"]);
}

pub(super) async fn an_apply_that_is_canceled_abandons_its_transaction(database: &dyn Database) {
    let store = ready(database).await;
    write(&*store, [Draft::new("p", 1)]).await;
    at_every_moment(async |moment| {
        let (mut txn, _) = begin(&*store, "p").await;
        let items: Vec<Item> = (0..20).map(|n| Item::note(&format!("n{n}"))).collect();
        let draft = items
            .iter()
            .fold(Draft::new("p", 2).bind(NOW_MS), Draft::insert);
        let ended = cancel(moment, txn.apply(vec![draft.build()]))
            .await
            .is_some();
        drop(txn);
        serves(&*store, "p").await;
        assert_eq!(head(&*store, "p").await, 1);
        ended
    })
    .await;
    let seen = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert!(seen.rows.is_empty());
    let bound = store.find_client(&partition("p"), &client("c1")).await;
    assert_eq!(bound.unwrap(), None);
}

pub(super) async fn a_finish_that_is_canceled_did_all_or_nothing(database: &dyn Database) {
    let store = ready(database).await;
    let mut attempt = 0;
    at_every_moment(async |moment| {
        attempt += 1;
        let id = format!("attempt{attempt}");
        let (mut txn, gate) = begin(&*store, "p").await;
        let place = gate.head.next().get();
        let applied = Item::note(&format!("a{attempt}"));
        let added = Item::note(&format!("b{attempt}"));
        txn.apply(vec![
            Draft::new("p", place).id("first").insert(&applied).build(),
        ])
        .await
        .unwrap();
        let draft = Draft::new("p", place + 1).id(&id).insert(&added);
        let ended = cancel(moment, txn.finish(vec![draft.build()])).await;
        serves(&*store, "p").await;
        // The caller finds out by the key, under the lock.
        let wanted = LoadRequest {
            rows: vec![applied.key("p"), added.key("p")],
            push_results: vec![push_key("p", "c1", &id)],
            ..lock(&["p"])
        };
        let (txn, loaded) = store.begin_write(wanted).await.unwrap();
        drop(txn);
        let done = loaded.push_results[0].is_some();
        assert_eq!(loaded.rows.map_present(), [done, done]);
        let expected = if done { place + 1 } else { place - 1 };
        assert_eq!(loaded.gates[0].head, seq(expected));
        match ended {
            Some(result) => {
                finished(result.unwrap());
                assert!(done, "a finish that answered is durable");
                true
            }
            None => false,
        }
    })
    .await;
}

/// Which of the rows are there.
trait Present {
    fn map_present(&self) -> Vec<bool>;
}

impl<T> Present for Vec<Option<T>> {
    fn map_present(&self) -> Vec<bool> {
        self.iter().map(Option::is_some).collect()
    }
}

pub(super) async fn reads_that_are_canceled_do_no_harm(database: &dyn Database) {
    let store = ready(database).await;
    let items: Vec<Item> = (0..50).map(|n| Item::note(&format!("n{n:02}"))).collect();
    write(
        &*store,
        [items.iter().fold(Draft::new("p", 1), Draft::insert)],
    )
    .await;
    for _ in 0..20 {
        at_every_moment(async |moment| {
            let log = store.read_window(whole_log("p", NOTES, team_one()));
            let log = cancel(moment, log).await;
            let rows = store.scan_rows(all_rows("p", NOTES, team_one()));
            let rows = cancel(moment, rows).await;
            log.is_some() && rows.is_some()
        })
        .await;
    }
    serves(&*store, "p").await;
    let seen = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(seen.rows.len(), 50);
}

pub(super) async fn the_next_writer_waits_and_sees_what_the_first_wrote(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n");
    let (txn, _) = begin(&*store, "p").await;
    let wanted = LoadRequest {
        rows: vec![item.key("p")],
        push_results: vec![push_key("p", "c1", "m1")],
        ..lock(&["p"])
    };
    let mut second = Box::pin(store.begin_write(wanted));
    for _ in 0..10 {
        assert!(
            poll_once(&mut second).await.is_pending(),
            "one writer at a time"
        );
        store.check().await.unwrap();
    }
    let draft = Draft::new("p", 1).insert(&item);
    finished(txn.finish(vec![draft.build()]).await.unwrap());
    let (_, loaded) = second.await.unwrap();
    assert_eq!(loaded.gates[0].head, seq(1));
    assert_eq!(loaded.rows, [Some(item.stored())]);
    assert!(loaded.push_results[0].is_some());
}

pub(super) async fn a_dropped_writer_lets_the_next_one_in(database: &dyn Database) {
    let store = ready(database).await;
    let (mut txn, _) = begin(&*store, "p").await;
    txn.apply(vec![Draft::new("p", 1).build()]).await.unwrap();
    let mut second = Box::pin(store.begin_write(lock(&["p"])));
    assert!(poll_once(&mut second).await.is_pending());
    drop(txn);
    let (_, loaded) = second.await.unwrap();
    assert_eq!(loaded.gates[0].head, CommitSeq::START);
}

pub(super) async fn a_waiting_writer_that_gives_up_holds_up_nobody(database: &dyn Database) {
    let store = ready(database).await;
    let (txn, _) = begin(&*store, "p").await;
    let mut gives_up = Box::pin(store.begin_write(lock(&["p"])));
    let mut stays = Box::pin(store.begin_write(lock(&["p"])));
    assert!(poll_once(&mut gives_up).await.is_pending());
    assert!(poll_once(&mut stays).await.is_pending());
    drop(gives_up);
    drop(txn);
    let (txn, _) = stays.await.unwrap();
    // It gives up at the moment at which its turn comes.
    let mut gives_up = Box::pin(store.begin_write(lock(&["p"])));
    assert!(poll_once(&mut gives_up).await.is_pending());
    drop(txn);
    drop(gives_up);
    serves(&*store, "p").await;
}

pub(super) async fn writers_of_other_partitions_do_not_wait_where_lanes_are_apart(
    database: &dyn Database,
) {
    let store = ready(database).await;
    if store.write_lanes() != WriteLanes::PerPartition {
        return;
    }
    touch(&*store, "q").await;
    let (first, _) = begin(&*store, "p").await;
    write(&*store, [Draft::new("q", 1).insert(&Item::note("n"))]).await;
    assert_eq!(head(&*store, "q").await, 1);
    finished(
        first
            .finish(vec![Draft::new("p", 1).build()])
            .await
            .unwrap(),
    );
}

/// Commits that all write one row, from several tasks at once.
const RACING_COMMITS: u64 = 40;

/// Updates the row `n` to the version that the next commit has as its place.
async fn count_up(store: Arc<dyn Store>) {
    for _ in 0..RACING_COMMITS {
        let item = Item::note("n");
        let wanted = LoadRequest {
            rows: vec![item.key("p")],
            ..lock(&["p"])
        };
        let (txn, loaded) = store.begin_write(wanted).await.unwrap();
        let place = loaded.gates[0].head.next().get();
        let next = Item {
            version: i64::try_from(place).unwrap(),
            ..item.clone()
        };
        let draft = Draft::new("p", place);
        let draft = match &loaded.rows[0] {
            Some(row) => {
                assert_eq!(row.row_version + 1, next.version, "no update is lost");
                draft.update(&item, &next)
            }
            None => draft.insert(&next),
        };
        assert!(matches!(
            txn.finish(vec![draft.build()]).await.unwrap(),
            Finished::Committed
        ));
    }
}

pub(super) async fn racing_writers_lose_nothing_and_every_read_is_one_snapshot(
    database: &dyn Database,
) {
    let store = ready(database).await;
    let writers: Vec<_> = (0..3)
        .map(|_| tokio::spawn(count_up(Arc::clone(&store))))
        .collect();
    let last = 3 * RACING_COMMITS;
    let mut seen_head = 0;
    while seen_head < last {
        let rows = page(&*store, all_rows("p", NOTES, team_one())).await;
        let version = rows.rows.first().map_or(0, |(_, version, _)| *version);
        assert_eq!(rows.gate.head.to_i64(), version, "rows and gate agree");
        assert!(
            rows.gate.head.get() >= seen_head,
            "a reader never goes back"
        );
        let log = window(&*store, whole_log("p", NOTES, team_one())).await;
        let head = log.gate.head.get();
        assert_eq!(
            log.seqs(),
            (1..=head).collect::<Vec<_>>(),
            "log and gate agree"
        );
        assert!(head >= rows.gate.head.get());
        let inputs = store
            .retention_inputs(&PartitionId::new("p"), 0, i64::MAX)
            .await
            .unwrap();
        assert_eq!(inputs.newest_before, inputs.gate.head);
        seen_head = head;
        if writers.iter().all(tokio::task::JoinHandle::is_finished) && seen_head < last {
            break;
        }
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(head(&*store, "p").await, last);
}
