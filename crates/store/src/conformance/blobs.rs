//! The index of rows by the blobs they reference (§5.9.4).

use super::{
    Database,
    fixtures::{Draft, Item, NOTES, TASKS, partition, touch},
    support::{begin, ready, write},
};
use crate::{ScopesTest, Store};

async fn find(store: &dyn Store, name: &str, blob_id: &str, team: &'static str) -> Option<String> {
    let wanted = ScopesTest::new(move |_, scopes| scopes.value("team") == Some(team));
    let found = store
        .find_blob_row(&partition(name), blob_id, wanted)
        .await
        .unwrap();
    found.map(|key| {
        assert_eq!(key.partition, partition(name));
        format!("{}/{}", key.table.0, key.row_id)
    })
}

pub(super) async fn a_row_is_found_by_a_blob_it_references(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let draft = Draft::new("p", 1)
        .insert(&Item::note("a").blobs(&["b1", "b2"]))
        .insert(&Item::task("a").team("t2").blobs(&["b1"]))
        .insert(&Item::note("c").team("t3"));
    write(&*store, [draft]).await;
    assert_eq!(
        find(&*store, "p", "b1", "t1").await,
        Some(format!("{}/a", NOTES.0))
    );
    assert_eq!(
        find(&*store, "p", "b1", "t2").await,
        Some(format!("{}/a", TASKS.0))
    );
    assert_eq!(
        find(&*store, "p", "b2", "t1").await,
        Some(format!("{}/a", NOTES.0))
    );
    assert_eq!(find(&*store, "p", "b2", "t2").await, None);
    assert_eq!(find(&*store, "p", "b1", "t3").await, None);
    assert_eq!(find(&*store, "p", "b9", "t1").await, None);
    assert_eq!(find(&*store, "q", "b1", "t1").await, None);
}

pub(super) async fn a_row_that_no_longer_references_a_blob_is_not_found(database: &dyn Database) {
    let store = ready(database).await;
    let (a, b) = (
        Item::note("a").blobs(&["b1"]),
        Item::note("b").blobs(&["b1"]),
    );
    write(&*store, [Draft::new("p", 1).insert(&a).insert(&b)]).await;
    write(
        &*store,
        [Draft::new("p", 2).update(&a, &a.next().blobs(&["b2"]))],
    )
    .await;
    assert_eq!(
        find(&*store, "p", "b1", "t1").await,
        Some(format!("{}/b", NOTES.0))
    );
    assert_eq!(
        find(&*store, "p", "b2", "t1").await,
        Some(format!("{}/a", NOTES.0))
    );
    write(&*store, [Draft::new("p", 3).delete(&b)]).await;
    assert_eq!(find(&*store, "p", "b1", "t1").await, None);
}

pub(super) async fn a_blob_is_referenced_while_a_visible_row_says_so(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let (a, b) = (
        Item::note("a").blobs(&["b1", "b2"]),
        Item::task("b").blobs(&["b2"]),
    );
    write(&*store, [Draft::new("p", 1).insert(&a).insert(&b)]).await;
    let referenced = async |name: &str| {
        let ids = ["b1", "b9", "b2", "b1", "b3"].map(str::to_owned).to_vec();
        let asked = store.are_referenced(&partition(name), ids).await;
        asked.unwrap()
    };
    assert_eq!(referenced("p").await, [true, false, true, true, false]);
    assert_eq!(referenced("q").await, [false; 5]);
    let (mut txn, _) = begin(&*store, "p").await;
    let draft = Draft::new("p", 2).insert(&Item::note("c").blobs(&["b3"]));
    assert_eq!(txn.apply(vec![draft.build()]).await.unwrap(), None);
    assert_eq!(referenced("p").await, [true, false, true, true, false]);
    txn.finish(Vec::new()).await.unwrap();
    assert_eq!(referenced("p").await, [true, false, true, true, true]);
    write(&*store, [Draft::new("p", 3).delete(&a)]).await;
    assert_eq!(referenced("p").await, [false, false, true, false, true]);
    let none = store.are_referenced(&partition("p"), Vec::new()).await;
    assert_eq!(none.unwrap(), Vec::<bool>::new());
}
