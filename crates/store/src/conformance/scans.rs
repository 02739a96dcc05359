//! Scans: pages of current rows (§4.7).

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, TASKS, all_rows, epoch, filter, page, schema, seq, team_one, touch,
    },
    support::{ready, write},
};
use crate::{RowScan, Store};

/// By UTF-8 bytes. By UTF-16 units the last two would change places; by a language's rules
/// nearly all would.
const IDS: [&str; 12] = [
    "10",
    "9",
    "A",
    "Z",
    "a",
    "a b",
    "aa",
    "b",
    "z",
    "\u{E9}",
    "\u{FF21}",
    "\u{1F600}",
];

async fn write_ids(store: &dyn Store) {
    // Neither in order nor all in one commit.
    for (place, step) in [(1, 0), (2, 1), (3, 2)] {
        let ids = IDS.iter().rev().skip(step).step_by(3);
        let draft = ids.fold(Draft::new("p", place), |draft, id| {
            draft.insert(&Item::note(id).body(id))
        });
        write(store, [draft]).await;
    }
}

pub(super) async fn rows_come_by_bytewise_row_id(database: &dyn Database) {
    let store = ready(database).await;
    write_ids(&*store).await;
    let seen = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(seen.ids(), IDS);
    assert!(!seen.has_more);
}

pub(super) async fn a_page_shows_version_and_payload_as_stored(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n").code("c").body("old");
    let next = item.next().body("new");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    write(&*store, [Draft::new("p", 2).update(&item, &next)]).await;
    let seen = page(&*store, all_rows("p", NOTES, team_one())).await;
    assert_eq!(seen.rows, [("n".to_owned(), 2, next.payload().to_vec())]);
    assert_eq!(seen.gate.head, seq(2));
    assert_eq!(seen.gate.log_epoch, Some(epoch("e1")));
}

pub(super) async fn a_page_of_rows_counts_the_bytes_it_holds(database: &dyn Database) {
    let store = ready(database).await;
    write_ids(&*store).await;
    let read = store
        .scan_rows(all_rows("p", NOTES, team_one()))
        .await
        .unwrap();
    let bytes: usize = read
        .rows()
        .map(|row| row.row_id.len() + row.payload.len())
        .sum();
    assert_eq!(read.byte_count(), bytes);
}

pub(super) async fn pages_read_one_after_the_other_are_all_rows(database: &dyn Database) {
    let store = ready(database).await;
    write_ids(&*store).await;
    for rows_max in 1..=IDS.len() + 1 {
        let mut ids = Vec::new();
        let mut after = None;
        loop {
            let scan = RowScan {
                after,
                rows_max,
                ..all_rows("p", NOTES, team_one())
            };
            let seen = page(&*store, scan).await;
            ids.extend(seen.ids().into_iter().map(str::to_owned));
            assert_eq!(
                seen.has_more,
                ids.len() < IDS.len(),
                "{rows_max} rows a page"
            );
            if !seen.has_more {
                break;
            }
            assert_eq!(seen.rows.len(), rows_max);
            after = ids.last().cloned();
        }
        assert_eq!(ids, IDS, "{rows_max} rows a page");
    }
}

pub(super) async fn a_page_begins_after_an_id_that_need_not_exist(database: &dyn Database) {
    let store = ready(database).await;
    write_ids(&*store).await;
    let after = async |id: &str| {
        let scan = RowScan {
            after: Some(id.to_owned()),
            ..all_rows("p", NOTES, team_one())
        };
        page(&*store, scan).await.ids().len()
    };
    assert_eq!(after("").await, 12);
    assert_eq!(after("a").await, 7);
    assert_eq!(after("a ").await, 7);
    assert_eq!(after("zz").await, 3);
    assert_eq!(after("\u{E000}").await, 2);
    assert_eq!(after("\u{10FFFF}").await, 0);
}

pub(super) async fn a_page_says_whether_a_matching_row_follows(database: &dyn Database) {
    let store = ready(database).await;
    let draft = Draft::new("p", 1)
        .insert(&Item::note("a"))
        .insert(&Item::note("b"))
        .insert(&Item::note("c").team("t2"))
        .insert(&Item::note("d").owner("o2"))
        .insert(&Item::task("e"));
    write(&*store, [draft]).await;
    let more = async |rows_max: usize, entries: &[(&str, &[&str])]| {
        let scan = RowScan {
            rows_max,
            ..all_rows("p", NOTES, filter(entries))
        };
        page(&*store, scan).await.has_more
    };
    assert!(more(2, &[("team", &["t1"])]).await, "d follows");
    assert!(!more(3, &[("team", &["t1"])]).await, "c is of another team");
    assert!(
        !more(2, &[("team", &["t1"]), ("owner", &["o1"])]).await,
        "d is not of o1"
    );
    assert!(more(1, &[("team", &["t1"]), ("owner", &["o1"])]).await);
    assert!(!more(1, &[("team", &["t2"])]).await);
}

pub(super) async fn a_page_ends_before_the_row_that_exceeds_its_bytes(database: &dyn Database) {
    let store = ready(database).await;
    let ids = ["a", "b", "c", "d"];
    let draft = ids.iter().fold(Draft::new("p", 1), |draft, id| {
        draft
            .insert(&Item::note(id).body(&"x".repeat(100)))
            .insert(&Item::note(&format!("{id}{}", "y".repeat(300))).team("t2"))
    });
    write(&*store, [draft]).await;
    let size = Item::note("a").body(&"x".repeat(100)).payload().len();
    let limited = async |after: Option<&str>, bytes_max: usize| {
        let scan = RowScan {
            after: after.map(str::to_owned),
            bytes_max,
            ..all_rows("p", NOTES, team_one())
        };
        let seen = page(&*store, scan).await;
        (seen.ids().concat(), seen.has_more)
    };
    assert_eq!(
        limited(None, 0).await,
        ("a".to_owned(), true),
        "one row at least"
    );
    assert_eq!(limited(None, 2 * size - 1).await, ("a".to_owned(), true));
    assert_eq!(limited(None, 2 * size).await, ("ab".to_owned(), true));
    assert_eq!(limited(None, 4 * size - 1).await, ("abc".to_owned(), true));
    assert_eq!(limited(None, 4 * size).await, ("abcd".to_owned(), false));
    assert_eq!(limited(Some("c"), 1).await, ("d".to_owned(), false));
}

pub(super) async fn a_page_without_room_still_holds_one_row(database: &dyn Database) {
    let store = ready(database).await;
    write_ids(&*store).await;
    let scan = RowScan {
        rows_max: 0,
        ..all_rows("p", NOTES, team_one())
    };
    let seen = page(&*store, scan).await;
    assert_eq!(seen.ids(), ["10"]);
    assert!(seen.has_more);
}

pub(super) async fn a_page_holds_what_the_filter_selects(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let draft = Draft::new("p", 1)
        .insert(&Item::note("a"))
        .insert(&Item::note("b").team("t2"))
        .insert(&Item::note("c").owner("o2"))
        .insert(&Item::note("d").team("t2").owner("o2"))
        .insert(&Item::task("e"));
    write(&*store, [draft]).await;
    write(&*store, [Draft::new("q", 1).insert(&Item::note("f"))]).await;
    let select = async |entries: &[(&str, &[&str])]| {
        let seen = page(&*store, all_rows("p", NOTES, filter(entries))).await;
        assert!(!seen.has_more);
        seen.ids().concat()
    };
    assert_eq!(select(&[("team", &["t1"])]).await, "ac");
    assert_eq!(select(&[("team", &["t2", "t1", "t2"])]).await, "abcd");
    assert_eq!(select(&[("owner", &["o2"])]).await, "cd");
    assert_eq!(select(&[("team", &["t1"]), ("owner", &["o2"])]).await, "c");
    assert_eq!(
        select(&[("team", &["t1", "t2"]), ("owner", &["o1", "o3"])]).await,
        "ab"
    );
    assert_eq!(select(&[("team", &["t3"])]).await, "");
    assert_eq!(select(&[("team", &[])]).await, "");
    assert_eq!(select(&[("team", &["t1"]), ("owner", &[])]).await, "");
    assert_eq!(select(&[("region", &["t1"])]).await, "");
    assert_eq!(select(&[]).await, "", "an empty filter selects nothing");
    let tasks = page(&*store, all_rows("p", TASKS, team_one())).await;
    assert_eq!(tasks.ids(), ["e"]);
    let other = page(&*store, all_rows("q", NOTES, team_one())).await;
    assert_eq!(other.ids(), ["f"]);
}

pub(super) async fn a_page_of_an_unknown_partition_is_empty(database: &dyn Database) {
    let store = ready(database).await;
    let seen = page(&*store, all_rows("nobody", NOTES, team_one())).await;
    assert!(seen.rows.is_empty());
    assert!(!seen.has_more);
    assert_eq!(seen.gate.log_epoch, None);
    assert_eq!(seen.gate.schema_version, schema().version());
}

pub(super) async fn a_scan_with_ten_thousand_values_is_served(database: &dyn Database) {
    let store = ready(database).await;
    let draft = (0..50).fold(Draft::new("p", 1), |draft, n| {
        draft.insert(&Item::note(&format!("n{n:02}")).team(&format!("team-{}", n * 200)))
    });
    write(&*store, [draft]).await;
    let values: Vec<String> = (0..10_000).map(|n| format!("team-{n}")).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let many = filter(&[("team", &values)]);
    let mut ids = Vec::new();
    loop {
        let scan = RowScan {
            after: ids.last().cloned(),
            rows_max: 20,
            ..all_rows("p", NOTES, many.clone())
        };
        let seen = page(&*store, scan).await;
        ids.extend(seen.ids().into_iter().map(str::to_owned));
        if !seen.has_more {
            break;
        }
    }
    assert_eq!(ids, (0..50).map(|n| format!("n{n:02}")).collect::<Vec<_>>());
}
