//! Streams: every row of a scope from one snapshot (§5.3), and how large a scope is.

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, TASKS, all_rows, epoch, filter, page, partition, seq, team_one,
    },
    support::{ready, serves, write},
};
use crate::{RowStream, RowStreamRequest, ScopeSize, ScopeSizeRequest, Store};

fn request(entries: &[(&str, &[&str])]) -> RowStreamRequest {
    RowStreamRequest {
        partition: partition("p"),
        table: NOTES,
        filter: filter(entries),
        rows_max: 1_000,
        bytes_max: 1 << 20,
    }
}

/// The ids of each piece.
async fn read(mut stream: RowStream) -> Vec<Vec<String>> {
    let mut pieces = Vec::new();
    while let Some(piece) = stream.next().await.unwrap() {
        assert_eq!(piece.gate, stream.gate, "all of it is one snapshot");
        pieces.push(piece.rows().map(|row| row.row_id.to_owned()).collect());
    }
    pieces
}

/// Rows `0000` and on, two of three in team `t1`.
async fn write_rows(store: &dyn Store, count: usize) {
    let draft = (0..count).rev().fold(Draft::new("p", 1), |draft, number| {
        let item = Item::note(&format!("{number:04}")).body("some text");
        let team = if number % 3 == 2 { "t2" } else { "t1" };
        draft.insert(&item.team(team))
    });
    write(store, [draft]).await;
}

pub(super) async fn a_stream_is_every_row_of_its_filter_in_order(database: &dyn Database) {
    let store = ready(database).await;
    write_rows(&*store, 100).await;
    let expected = page(&*store, all_rows("p", NOTES, team_one())).await;
    let expected: Vec<&str> = expected.ids();
    for rows_max in [1, 7, 66, 67, 1_000] {
        let asked = RowStreamRequest {
            rows_max,
            ..request(&[("team", &["t1"])])
        };
        let pieces = read(store.stream_rows(asked).await.unwrap()).await;
        assert!(
            pieces
                .iter()
                .all(|piece| (1..=rows_max).contains(&piece.len()))
        );
        assert_eq!(pieces.concat(), expected, "{rows_max} rows a piece");
    }
    let asked = RowStreamRequest {
        bytes_max: 100,
        ..request(&[("team", &["t1", "t2"]), ("owner", &["o1"])])
    };
    let pieces = read(store.stream_rows(asked).await.unwrap()).await;
    assert!(pieces.len() > 20, "pieces end by their bytes, too");
    assert_eq!(pieces.concat().len(), 100);
}

pub(super) async fn a_stream_of_nothing_is_one_empty_piece(database: &dyn Database) {
    let store = ready(database).await;
    write_rows(&*store, 3).await;
    for entries in [&[("team", &["t9"][..])][..], &[]] {
        let stream = store.stream_rows(request(entries)).await.unwrap();
        assert_eq!(stream.gate.head, seq(1));
        assert_eq!(stream.newest_change, None);
        assert_eq!(read(stream).await, [Vec::<String>::new()]);
    }
}

pub(super) async fn a_stream_shows_one_snapshot_whatever_is_written(database: &dyn Database) {
    let store = ready(database).await;
    write_rows(&*store, 30).await;
    let asked = RowStreamRequest {
        rows_max: 1,
        ..request(&[("team", &["t1"])])
    };
    let mut stream = store.stream_rows(asked.clone()).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(first.rows().next().unwrap().row_id, "0000");
    let last = Item::note("0028").body("some text").team("t1");
    let drafts = [
        Draft::new("p", 2).insert(&Item::note("0029a")),
        Draft::new("p", 3).delete(&last),
    ];
    write(&*store, drafts).await;
    let rest = read(stream).await.concat();
    assert_eq!(rest.len(), 19);
    assert_eq!(rest.last().unwrap(), "0028");
    let stream = store.stream_rows(asked).await.unwrap();
    assert_eq!(stream.gate.head, seq(3));
    assert_eq!(stream.gate.log_epoch, Some(epoch("e1")));
    assert_eq!(read(stream).await.concat().last().unwrap(), "0029a");
}

pub(super) async fn a_stream_names_the_newest_change_of_its_scope(database: &dyn Database) {
    let store = ready(database).await;
    let drafts = [
        Draft::new("p", 1).insert(&Item::note("a")),
        Draft::new("p", 2).insert(&Item::note("b").team("t2").owner("o2")),
        Draft::new("p", 3).insert(&Item::task("c")),
        Draft::new("p", 4).insert(&Item::note("d").team("t3")),
    ];
    write(&*store, drafts).await;
    let newest = async |entries: &[(&str, &[&str])]| {
        let stream = store.stream_rows(request(entries)).await.unwrap();
        assert_eq!(stream.gate.head, seq(4));
        stream.newest_change
    };
    assert_eq!(newest(&[("team", &["t1"])]).await, Some(seq(1)));
    assert_eq!(newest(&[("team", &["t1", "t2"])]).await, Some(seq(2)));
    // The first variable alone counts.
    let both: &[(&str, &[&str])] = &[("owner", &["o2"]), ("team", &["t1"])];
    let first = filter(both).entries()[0].variable.clone();
    let expected = if first == "owner" { 2 } else { 1 };
    assert_eq!(newest(both).await, Some(seq(expected)));
}

pub(super) async fn other_reads_do_not_wait_for_streams(database: &dyn Database) {
    let store = ready(database).await;
    write_rows(&*store, 60).await;
    let asked = RowStreamRequest {
        rows_max: 1,
        ..request(&[("team", &["t1"])])
    };
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(store.stream_rows(asked.clone()).await.unwrap());
    }
    for _ in 0..16 {
        serves(&*store, "p").await;
        let seen = page(&*store, all_rows("p", NOTES, team_one())).await;
        assert_eq!(seen.rows.len(), 40);
    }
    write(&*store, [Draft::new("p", 2).insert(&Item::note("z"))]).await;
    for stream in open {
        assert_eq!(read(stream).await.len(), 40);
    }
}

pub(super) async fn a_stream_that_is_dropped_holds_up_nobody(database: &dyn Database) {
    let store = ready(database).await;
    write_rows(&*store, 60).await;
    let asked = RowStreamRequest {
        rows_max: 1,
        ..request(&[("team", &["t1"])])
    };
    for taken in 0..10 {
        let mut stream = store.stream_rows(asked.clone()).await.unwrap();
        for _ in 0..taken {
            stream.next().await.unwrap().unwrap();
        }
    }
    let stream = store.stream_rows(asked).await.unwrap();
    assert_eq!(read(stream).await.len(), 40);
    serves(&*store, "p").await;
}

pub(super) async fn a_scope_is_measured_up_to_a_limit(database: &dyn Database) {
    let store = ready(database).await;
    let drafts = (1..=9).map(|place| {
        let id = format!("n{place}");
        let team = if place <= 6 { "t1" } else { "t2" };
        Draft::new("p", place)
            .insert(&Item::note(&id).team(team))
            .insert(&Item::new(TASKS, &id))
    });
    write(&*store, drafts).await;
    let size = async |values: &[&str], after: u64, through: u64, limit: u64| {
        let request = ScopeSizeRequest {
            partition: partition("p"),
            table: NOTES,
            variable: "team".to_owned(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
            after: seq(after),
            through: seq(through),
            limit,
        };
        let ScopeSize { rows, commits } = store.scope_size(request).await.unwrap();
        (rows, commits)
    };
    assert_eq!(size(&["t1"], 0, 9, 100).await, (6, 6));
    assert_eq!(size(&["t1", "t1"], 0, 9, 100).await, (6, 6));
    assert_eq!(size(&["t1"], 2, 4, 100).await, (6, 2));
    assert_eq!(size(&["t2", "t1"], 4, 9, 100).await, (9, 5));
    assert_eq!(size(&["t2", "t1"], 0, 9, 4).await, (4, 4));
    assert_eq!(size(&["t9"], 0, 9, 100).await, (0, 0));
    assert_eq!(size(&["t1"], 9, 9, 100).await, (6, 0));
}
