//! Windows: which part of the log a filter and limits select (§4.5).

use tidewater_model::{CommitSeq, HorizonSeq};

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, TASKS, epoch, filter, partition, schema, seq, team_one, whole_log,
        window,
    },
    support::{ready, write},
};
use crate::{Store, WindowRequest};

/// Eight commits: team `t1` in those with odd places, `t2` in the others; owners in turn.
async fn write_eight(store: &dyn Store) {
    for place in 1..=8_u64 {
        let item = Item::note(&format!("n{place}"))
            .team(["t2", "t1"][usize::try_from(place % 2).unwrap()])
            .owner(["o0", "o1", "o2"][usize::try_from(place % 3).unwrap()]);
        write(store, [Draft::new("p", place).insert(&item)]).await;
    }
}

pub(super) async fn a_window_holds_what_the_filter_selects_oldest_first(database: &dyn Database) {
    let store = ready(database).await;
    write_eight(&*store).await;
    let select = async |entries: &[(&str, &[&str])]| {
        window(&*store, whole_log("p", NOTES, filter(entries)))
            .await
            .seqs()
    };
    assert_eq!(select(&[("team", &["t1"])]).await, [1, 3, 5, 7]);
    assert_eq!(select(&[("owner", &["o1"])]).await, [1, 4, 7]);
    assert_eq!(
        select(&[("team", &["t2", "t1"])]).await,
        [1, 2, 3, 4, 5, 6, 7, 8],
        "values are alternatives"
    );
    assert_eq!(
        select(&[("team", &["t1"]), ("owner", &["o1"])]).await,
        [1, 7],
        "every variable must match"
    );
    assert_eq!(
        select(&[("team", &["t2"]), ("owner", &["o2", "o0"])]).await,
        [2, 6, 8]
    );
    assert_eq!(
        select(&[("team", &["t1", "t9", "t1"])]).await,
        [1, 3, 5, 7],
        "a value that is repeated or unknown changes nothing"
    );
    assert!(select(&[("team", &["t9"])]).await.is_empty());
    assert!(select(&[("team", &[])]).await.is_empty());
    assert!(
        select(&[("team", &["t1"]), ("owner", &[])])
            .await
            .is_empty()
    );
    assert!(select(&[("region", &["t1"])]).await.is_empty());
    assert!(
        select(&[("team", &["t1"]), ("region", &["t1"])])
            .await
            .is_empty()
    );
    assert!(select(&[("team", &["T1"])]).await.is_empty());
}

pub(super) async fn a_window_of_an_empty_filter_is_empty(database: &dyn Database) {
    let store = ready(database).await;
    write_eight(&*store).await;
    let seen = window(&*store, whole_log("p", NOTES, filter(&[]))).await;
    assert!(seen.commits.is_empty());
    assert!(seen.exhausted);
    assert_eq!(seen.gate.head, seq(8));
}

pub(super) async fn a_window_shows_only_the_matching_changes_of_a_commit(database: &dyn Database) {
    let store = ready(database).await;
    let draft = Draft::new("p", 1)
        .insert(&Item::note("a"))
        .insert(&Item::task("b"))
        .insert(&Item::note("c").team("t2"))
        .insert(&Item::note("d").owner("o2"))
        .insert(&Item::note("e"));
    write(&*store, [draft]).await;
    let one = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(one.row_ids(), [["a", "d", "e"]]);
    let both = filter(&[("team", &["t1"]), ("owner", &["o1"])]);
    let both = window(&*store, whole_log("p", NOTES, both)).await;
    assert_eq!(both.row_ids(), [["a", "e"]]);
    let tasks = window(&*store, whole_log("p", TASKS, team_one())).await;
    assert_eq!(tasks.row_ids(), [["b"]]);
}

pub(super) async fn a_window_begins_after_its_start_and_ends_with_its_end(database: &dyn Database) {
    let store = ready(database).await;
    write_eight(&*store).await;
    let span = async |after: u64, through: u64| {
        let request = WindowRequest {
            after: seq(after),
            through: seq(through),
            ..whole_log("p", NOTES, filter(&[("team", &["t1", "t2"])]))
        };
        let seen = window(&*store, request).await;
        assert!(seen.exhausted);
        assert_eq!(seen.gate.head, seq(8));
        seen.seqs()
    };
    assert_eq!(span(0, 3).await, [1, 2, 3]);
    assert_eq!(span(3, 5).await, [4, 5]);
    assert_eq!(span(7, 8).await, [8]);
    assert_eq!(
        span(7, 1_000).await,
        [8],
        "an end beyond the head is the head"
    );
    assert!(span(4, 4).await.is_empty());
    assert!(span(5, 4).await.is_empty());
    assert!(span(8, 8).await.is_empty());
    assert!(span(900, 1_000).await.is_empty());
}

/// Commits of one, two, three, two changes of team `t1`, and between them some of others.
async fn write_sizes(store: &dyn Store) {
    let mut place = 0;
    for size in [1, 2, 3, 2] {
        for team in ["t1", "t2"] {
            place += 1;
            let mut draft = Draft::new("p", place);
            for row in 0..size {
                draft = draft.insert(&Item::note(&format!("{place}-{row}")).team(team));
            }
            write(store, [draft]).await;
        }
    }
}

pub(super) async fn a_window_ends_before_the_commit_that_exceeds_its_changes(
    database: &dyn Database,
) {
    let store = ready(database).await;
    write_sizes(&*store).await;
    let limited = async |after: u64, changes_max: usize| {
        let request = WindowRequest {
            after: seq(after),
            changes_max,
            ..whole_log("p", NOTES, team_one())
        };
        let seen = window(&*store, request).await;
        (seen.seqs(), seen.exhausted)
    };
    assert_eq!(limited(0, 1).await, (vec![1], false));
    assert_eq!(
        limited(0, 2).await,
        (vec![1], false),
        "a commit is never split"
    );
    assert_eq!(limited(0, 3).await, (vec![1, 3], false));
    assert_eq!(limited(0, 5).await, (vec![1, 3], false));
    assert_eq!(limited(0, 6).await, (vec![1, 3, 5], false));
    assert_eq!(limited(0, 7).await, (vec![1, 3, 5], false));
    assert_eq!(
        limited(3, 1).await,
        (vec![5], false),
        "the first commit is whole"
    );
    assert_eq!(
        limited(3, 0).await,
        (vec![5], false),
        "even when nothing is allowed"
    );
    assert_eq!(
        limited(0, 8).await,
        (vec![1, 3, 5, 7], true),
        "nothing that matches follows, though a commit does"
    );
    assert_eq!(limited(5, 2).await, (vec![7], true));
    assert_eq!(limited(5, 0).await, (vec![7], true));
}

pub(super) async fn a_window_ends_before_the_commit_that_exceeds_its_bytes(
    database: &dyn Database,
) {
    let store = ready(database).await;
    let items: Vec<Item> = (0..4)
        .map(|n| Item::note(&format!("n{n}")).body(&"x".repeat(100)))
        .collect();
    for (place, item) in (1..).zip(&items) {
        // Another team's payload and row ids do not count.
        let other = Item::note(&"y".repeat(500))
            .team("t2")
            .body(&"y".repeat(5_000));
        let draft = Draft::new("p", place).insert(item);
        let draft = match place {
            1 => draft.insert(&other),
            2 => draft.update(&other, &other.next()),
            _ => draft,
        };
        write(&*store, [draft]).await;
    }
    let size = items[0].payload().len();
    let limited = async |after: u64, bytes_max: usize| {
        let request = WindowRequest {
            after: seq(after),
            bytes_max,
            ..whole_log("p", NOTES, team_one())
        };
        let seen = window(&*store, request).await;
        (seen.seqs(), seen.exhausted)
    };
    assert_eq!(
        limited(0, 0).await,
        (vec![1], false),
        "the first commit is whole"
    );
    assert_eq!(limited(0, 2 * size - 1).await, (vec![1], false));
    assert_eq!(limited(0, 2 * size).await, (vec![1, 2], false));
    assert_eq!(limited(0, 4 * size - 1).await, (vec![1, 2, 3], false));
    assert_eq!(limited(0, 4 * size).await, (vec![1, 2, 3, 4], true));
    assert_eq!(limited(3, 1).await, (vec![4], true));
}

pub(super) async fn deletes_have_no_bytes_in_a_window(database: &dyn Database) {
    let store = ready(database).await;
    let items: Vec<Item> = (0..20).map(|n| Item::note(&format!("n{n}"))).collect();
    let insert = items.iter().fold(Draft::new("p", 1), Draft::insert);
    write(&*store, [insert]).await;
    for (place, item) in (2..).zip(&items) {
        write(&*store, [Draft::new("p", place).delete(item)]).await;
    }
    let request = WindowRequest {
        after: seq(1),
        bytes_max: 0,
        ..whole_log("p", NOTES, team_one())
    };
    let seen = window(&*store, request).await;
    assert_eq!(seen.commits.len(), 20);
    assert!(seen.exhausted);
}

pub(super) async fn windows_read_one_after_the_other_are_the_whole_log(database: &dyn Database) {
    let store = ready(database).await;
    write_eight(&*store).await;
    let whole = window(&*store, whole_log("p", NOTES, team_one())).await;
    for changes_max in 1..=5 {
        let mut commits = Vec::new();
        let mut after = CommitSeq::START;
        loop {
            let request = WindowRequest {
                after,
                changes_max,
                ..whole_log("p", NOTES, team_one())
            };
            let seen = window(&*store, request).await;
            after = seq(seen.commits.last().expect("it makes progress").seq);
            commits.extend(seen.commits);
            if seen.exhausted {
                break;
            }
        }
        assert_eq!(commits, whole.commits, "at {changes_max} changes");
    }
}

pub(super) async fn a_window_holds_nothing_that_was_pruned(database: &dyn Database) {
    let store = ready(database).await;
    write_eight(&*store).await;
    let horizon = HorizonSeq::at(seq(4));
    store
        .prune(&partition("p"), &epoch("e1"), horizon)
        .await
        .unwrap();
    let all = filter(&[("team", &["t1", "t2"])]);
    let seen = window(&*store, whole_log("p", NOTES, all)).await;
    assert_eq!(seen.seqs(), [5, 6, 7, 8]);
    assert_eq!(seen.gate.horizon, horizon);
    assert_eq!(seen.gate.head, seq(8));
}

pub(super) async fn a_window_of_an_unknown_partition_is_empty(database: &dyn Database) {
    let store = ready(database).await;
    let seen = window(&*store, whole_log("nobody", NOTES, team_one())).await;
    assert!(seen.commits.is_empty());
    assert!(seen.exhausted);
    assert_eq!(seen.gate.log_epoch, None);
    assert_eq!(seen.gate.head, CommitSeq::START);
    assert_eq!(seen.gate.horizon, HorizonSeq::START);
    assert_eq!(seen.gate.schema_version, schema().version());
}

pub(super) async fn a_gate_names_what_guards_the_read(database: &dyn Database) {
    let store = ready(database).await;
    write_eight(&*store).await;
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(seen.gate.log_epoch, Some(epoch("e1")));
    assert_eq!(seen.gate.schema_version, 1);
    assert_eq!(seen.gate.head, seq(8));
    assert_eq!(seen.gate.horizon, HorizonSeq::START);
}

pub(super) async fn a_filter_of_ten_thousand_values_is_served(database: &dyn Database) {
    let store = ready(database).await;
    write_eight(&*store).await;
    let many: Vec<String> = (0..10_000).map(|n| format!("many-{n}")).collect();
    let mut values: Vec<&str> = many.iter().map(String::as_str).collect();
    values.push("t1");
    values.reverse();
    let many = filter(&[("team", &values), ("owner", &["o0", "o1"])]);
    let seen = window(&*store, whole_log("p", NOTES, many)).await;
    assert_eq!(seen.seqs(), [1, 3, 7]);
    let values: Vec<String> = values.into_iter().map(str::to_owned).collect();
    let newest = store
        .newest_change(&partition("p"), NOTES, "team", &values)
        .await
        .unwrap();
    assert_eq!(newest, Some(seq(7)));
}

pub(super) async fn scope_values_are_compared_byte_by_byte(database: &dyn Database) {
    let store = ready(database).await;
    let values = [
        "a",
        "A",
        "a ",
        "\u{E9}",
        "e\u{301}",
        "%",
        "\u{1F600}",
        "t\"1\\",
    ];
    for (place, value) in (1..).zip(values) {
        let item = Item::note(&format!("n{place}")).team(value);
        write(&*store, [Draft::new("p", place).insert(&item)]).await;
    }
    for (place, value) in (1..).zip(values) {
        let one = filter(&[("team", &[value])]);
        let seen = window(&*store, whole_log("p", NOTES, one)).await;
        assert_eq!(seen.seqs(), [place], "{value:?}");
        let kept = seen.commits[0].changes[0].scopes.value("team");
        assert_eq!(kept, Some(value));
    }
}
