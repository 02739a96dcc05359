//! Tombstones: what is left of a deleted row until the horizon passes it (§2.2).

use tidewater_model::HorizonSeq;

use super::{
    Database,
    fixtures::{Draft, Item, epoch, lock, partition, seq, touch},
    support::{begin, ready, write},
};
use crate::{LoadRequest, Store, Tombstone};

async fn find(store: &dyn Store, name: &str, item: &Item) -> Option<Tombstone> {
    let wanted = LoadRequest {
        rows: vec![item.key(name)],
        ..lock(&[name])
    };
    let (_, mut loaded) = store.begin_write(wanted).await.unwrap();
    loaded.tombstones.remove(0)
}

fn tombstone(place: u64, item: &Item) -> Tombstone {
    Tombstone {
        commit_seq: seq(place),
        scopes: Some(item.scopes()),
    }
}

pub(super) async fn a_deleted_row_leaves_its_place_and_its_scopes(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let item = Item::note("n").team("t7").owner("o7");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    assert_eq!(find(&*store, "p", &item).await, None, "the row is there");
    write(&*store, [Draft::new("p", 2).delete(&item)]).await;
    assert_eq!(find(&*store, "p", &item).await, Some(tombstone(2, &item)));
    assert_eq!(find(&*store, "p", &Item::task("n")).await, None);
    assert_eq!(find(&*store, "p", &Item::note("m")).await, None);
    assert_eq!(find(&*store, "q", &item).await, None);
}

pub(super) async fn a_tombstone_stays_until_a_commit_ends_it(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    write(&*store, [Draft::new("p", 2).delete(&item)]).await;
    write(&*store, [Draft::new("p", 3).insert(&Item::note("m"))]).await;
    assert_eq!(find(&*store, "p", &item).await, Some(tombstone(2, &item)));
    write(&*store, [Draft::new("p", 4).insert(&item).clear(&item)]).await;
    assert_eq!(find(&*store, "p", &item).await, None);
}

pub(super) async fn a_later_delete_replaces_the_tombstone(database: &dyn Database) {
    let store = ready(database).await;
    let first = Item::note("n");
    let second = Item::note("n").team("t2");
    let drafts = [
        Draft::new("p", 1).insert(&first),
        Draft::new("p", 2).delete(&first),
        Draft::new("p", 3).insert(&second).clear(&second),
        Draft::new("p", 4).delete(&second),
    ];
    write(&*store, drafts).await;
    assert_eq!(
        find(&*store, "p", &first).await,
        Some(tombstone(4, &second))
    );
    // Deleted for good in the commit that inserted it.
    let third = Item::note("n").team("t3");
    let draft = Draft::new("p", 5)
        .insert(&third)
        .delete(&third)
        .clear(&third);
    write(&*store, [draft]).await;
    assert_eq!(find(&*store, "p", &first).await, Some(tombstone(5, &third)));
}

pub(super) async fn a_row_inserted_again_in_its_own_commit_leaves_no_tombstone(
    database: &dyn Database,
) {
    let store = ready(database).await;
    let item = Item::note("n");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    write(&*store, [Draft::new("p", 2).remove(&item).insert(&item)]).await;
    assert_eq!(find(&*store, "p", &item).await, None);
}

pub(super) async fn a_transaction_sees_its_own_tombstones(database: &dyn Database) {
    let store = ready(database).await;
    let item = Item::note("n");
    write(&*store, [Draft::new("p", 1).insert(&item)]).await;
    let (mut txn, _) = begin(&*store, "p").await;
    txn.apply(vec![Draft::new("p", 2).delete(&item).build()])
        .await
        .unwrap();
    let wanted = LoadRequest {
        rows: vec![item.key("p")],
        ..LoadRequest::default()
    };
    let loaded = txn.load(wanted).await.unwrap();
    assert_eq!(loaded.tombstones, [Some(tombstone(2, &item))]);
    assert_eq!(loaded.rows, [None]);
}

pub(super) async fn a_tombstone_at_or_below_the_horizon_is_none(database: &dyn Database) {
    let store = ready(database).await;
    let items: Vec<Item> = (0..4).map(|n| Item::note(&format!("n{n}"))).collect();
    write(
        &*store,
        [items.iter().fold(Draft::new("p", 1), Draft::insert)],
    )
    .await;
    for (place, item) in (2..).zip(&items) {
        write(&*store, [Draft::new("p", place).delete(item)]).await;
    }
    let horizon = HorizonSeq::at(seq(3));
    store
        .prune(&partition("p"), &epoch("e1"), horizon)
        .await
        .unwrap();
    assert_eq!(find(&*store, "p", &items[0]).await, None, "below");
    assert_eq!(find(&*store, "p", &items[1]).await, None, "at it");
    for (place, item) in (4..).zip(&items[2..]) {
        assert_eq!(find(&*store, "p", item).await, Some(tombstone(place, item)));
    }
}
