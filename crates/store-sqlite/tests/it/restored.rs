//! Backups, and databases that went back in time (§2.1).

use std::fs;

use tidewater_store::{
    ActivityBatch, StorageCode, Store, StoreError, StoreErrorKind,
    conformance::fixtures::{Draft, Item, epoch, partition, schema, touch},
};
use tidewater_store_sqlite::{SqliteConfig, SqliteStore, back_up, restore};

use crate::support::{Files, write};

/// A database that was served and whose only partition has this many commits.
async fn served(files: &Files, commits: u64) -> SqliteStore {
    let store = prepared(files.config()).await.unwrap();
    touch(&store, "p").await;
    for number in 1..=commits {
        write(&store, [insert(number)]).await;
    }
    store
}

async fn prepared(config: SqliteConfig) -> Result<SqliteStore, StoreError> {
    let store = SqliteStore::open(config).unwrap();
    store.prepare(&schema()).await.map(|()| store)
}

fn insert(number: u64) -> Draft {
    Draft::new("p", number).insert(&Item::note(&format!("n{number}")))
}

async fn refusal(files: &Files) -> String {
    let error = prepared(files.config()).await.unwrap_err();
    let refused = StoreErrorKind::Refused(StorageCode::DatabaseRestored);
    assert_eq!(error.kind, refused, "{error}");
    error.to_string()
}

async fn head(store: &SqliteStore) -> u64 {
    let found = store.find_partition(&partition("p")).await.unwrap();
    found.unwrap().head.get()
}

#[tokio::test]
async fn an_older_copy_of_the_file_is_refused_until_its_epochs_are_rotated() {
    let files = Files::new();
    drop(served(&files, 2).await);
    let copy = files.path().with_extension("copy");
    fs::copy(files.path(), &copy).unwrap();
    let store = prepared(files.config()).await.unwrap();
    write(&store, [insert(3)]).await;
    drop(store);
    fs::copy(&copy, files.path()).unwrap();

    let sentence = refusal(&files).await;
    assert!(
        sentence.contains("has 2 commits and 3 were served"),
        "{sentence}"
    );
    assert!(
        sentence.contains("tidewater epoch rotate --all"),
        "{sentence}"
    );
    refusal(&files).await;

    let accepting = SqliteConfig {
        accept_restored: true,
        ..files.config()
    };
    let store = prepared(accepting.clone()).await.unwrap();
    drop(store);
    refusal(&files).await;
    let store = prepared(accepting).await.unwrap();
    store
        .rotate_epoch(&partition("p"), &epoch("e2"), 9)
        .await
        .unwrap();
    store.adopt().await.unwrap();
    drop(store);
    let store = prepared(files.config()).await.unwrap();
    assert_eq!(head(&store).await, 2);
}

#[tokio::test]
async fn a_server_that_was_killed_is_not_mistaken_for_a_restored_one() {
    let files = Files::new();
    let store = served(&files, 1).await;
    store.put_activity(ActivityBatch::default()).await.unwrap();
    let mark = files.path().with_extension("mark");
    let before = fs::read_to_string(&mark).unwrap();
    write(&store, [insert(2)]).await;
    drop(store);
    // As a crash leaves it: commits that the mark does not know yet.
    assert_ne!(fs::read_to_string(&mark).unwrap(), before);
    fs::write(&mark, before).unwrap();
    let store = prepared(files.config()).await.unwrap();
    assert_eq!(head(&store).await, 2);
}

#[tokio::test]
async fn the_mark_follows_what_is_committed_while_the_server_runs() {
    let files = Files::new();
    let store = served(&files, 2).await;
    store.put_activity(ActivityBatch::default()).await.unwrap();
    let mark = fs::read_to_string(files.path().with_extension("mark")).unwrap();
    assert!(mark.ends_with("\n2\n"), "{mark}");
    drop(store);
}

#[tokio::test]
async fn a_database_without_its_mark_or_with_another_ones_is_refused() {
    let files = Files::new();
    drop(served(&files, 1).await);
    let mark = files.path().with_extension("mark");
    let kept = fs::read(&mark).unwrap();
    fs::remove_file(&mark).unwrap();
    let sentence = refusal(&files).await;
    assert!(sentence.contains("has no file"), "{sentence}");

    let other = Files::new();
    drop(served(&other, 1).await);
    fs::copy(other.path().with_extension("mark"), &mark).unwrap();
    let sentence = refusal(&files).await;
    assert!(sentence.contains("is not the one"), "{sentence}");

    fs::write(&mark, kept).unwrap();
    prepared(files.config()).await.unwrap();
}

#[tokio::test]
async fn a_new_database_may_take_the_place_of_one_that_was_deleted() {
    let files = Files::new();
    drop(served(&files, 3).await);
    fs::remove_file(files.path()).unwrap();
    drop(served(&files, 1).await);
    prepared(files.config()).await.unwrap();
}

#[tokio::test]
async fn a_backup_of_a_database_in_use_has_every_commit_and_is_not_served_by_accident() {
    let files = Files::new();
    let store = served(&files, 3).await;
    let copy = Files::new();
    back_up(&files.path(), &copy.path()).unwrap();
    write(&store, [insert(4)]).await;

    let sentence = refusal(&copy).await;
    assert!(sentence.contains("is a backup"), "{sentence}");
    assert_eq!(copy.number("SELECT max_commit_seq FROM sync_partitions"), 3);
    let again = back_up(&files.path(), &copy.path()).unwrap_err();
    assert!(again.to_string().contains("exists"), "{again}");
    // The database itself goes on.
    drop(store);
    prepared(files.config()).await.unwrap();
}

#[tokio::test]
async fn a_backup_goes_back_where_it_came_from_and_the_old_files_stay() {
    let files = Files::new();
    let store = served(&files, 2).await;
    let copy = Files::new();
    back_up(&files.path(), &copy.path()).unwrap();
    write(&store, [insert(3)]).await;
    let in_use = restore(&copy.path(), &files.path(), true).unwrap_err();
    assert_eq!(
        in_use.kind,
        StoreErrorKind::Refused(StorageCode::DatabaseInUse)
    );
    drop(store);
    let exists = restore(&copy.path(), &files.path(), false).unwrap_err();
    assert!(exists.to_string().contains("exists"), "{exists}");

    restore(&copy.path(), &files.path(), true).unwrap();
    refusal(&files).await;
    assert_eq!(
        files.number("SELECT max_commit_seq FROM sync_partitions"),
        2
    );
    let mut old = files.path().into_os_string();
    old.push(".old");
    assert!(fs::exists(old).unwrap());
    let twice = restore(&copy.path(), &files.path(), true).unwrap_err();
    assert!(twice.to_string().contains("exists"), "{twice}");
}

#[tokio::test]
async fn a_damaged_backup_is_not_restored() {
    let files = Files::new();
    drop(served(&files, 30).await);
    let copy = Files::new();
    back_up(&files.path(), &copy.path()).unwrap();
    let mut bytes = fs::read(copy.path()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0xa5);
    fs::write(copy.path(), bytes).unwrap();
    let empty = Files::new();
    let error = restore(&copy.path(), &empty.path(), false).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Corrupt, "{error}");
    assert!(!empty.path().exists());
}
