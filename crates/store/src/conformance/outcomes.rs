//! Recorded outcomes of pushed commits: the idempotency records (§2.3).

use bytes::Bytes;

use super::{
    Database,
    fixtures::{
        Draft, Item, NOTES, actor, epoch, lock, partition, push_key, seq, team_one, touch,
        whole_log, window,
    },
    support::{begin, head, ready, write},
};
use crate::{
    LoadRequest, PushKey, PushResultRecord, PushStatus, ResultRecord, Store, StoredResult,
};
use tidewater_model::HorizonSeq;

fn readable(record: &PushResultRecord) -> StoredResult {
    StoredResult::Readable(Box::new(record.clone()))
}

async fn find(store: &dyn Store, key: &PushKey) -> Option<StoredResult> {
    store.find_push_result(key).await.unwrap()
}

async fn load(store: &dyn Store, key: &PushKey) -> Option<StoredResult> {
    let wanted = LoadRequest {
        push_results: vec![key.clone()],
        ..lock(&[key.partition.as_str()])
    };
    let (_, mut loaded) = store.begin_write(wanted).await.unwrap();
    loaded.push_results.remove(0)
}

#[track_caller]
fn conflict(server_row: Vec<u8>, conflict_columns: Option<&'static [u8]>) -> ResultRecord {
    ResultRecord::Conflict {
        op_index: 3,
        code: "sync.version_conflict".to_owned(),
        message: "the row has moved on".to_owned(),
        server_version: 9_007_199_254_740_991,
        server_row: Bytes::from(server_row),
        conflict_columns: conflict_columns.map(Bytes::from_static),
    }
}

fn error(details: Option<&str>) -> ResultRecord {
    ResultRecord::Error {
        op_index: 0,
        code: "shop.closed".to_owned(),
        message: "closed \"today\" \u{1F512}".to_owned(),
        retryable: true,
        details: details.map(str::to_owned),
    }
}

pub(super) async fn an_outcome_reads_back_as_recorded(database: &dyn Database) {
    let store = ready(database).await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let details = r#"{"fieldPaths":["a.b"],"reason":"late","references":{"row":"n\"1"}}"#;
    let records = [
        conflict(all_bytes, Some(&[0x05, 0x00])),
        conflict(Vec::new(), Some(&[])),
        conflict(vec![0xFF], None),
        error(None),
        error(Some(details)),
    ];
    for (n, record) in records.into_iter().enumerate() {
        let result = PushResultRecord {
            status: PushStatus::Rejected,
            results: vec![record],
            recorded_at_ms: Some(1_700_000_000_001),
            actor: Some(actor("ada \u{1F600}")),
            schema_version: Some(7),
            content_digest: Some("sha256:ab".to_owned()),
        };
        let draft = Draft::rejected("p", &format!("no{n}")).outcome(result.clone());
        let key = draft.key();
        write(&*store, [draft]).await;
        assert_eq!(find(&*store, &key).await, Some(readable(&result)));
        assert_eq!(load(&*store, &key).await, Some(readable(&result)));
    }
}

pub(super) async fn an_applied_outcome_names_its_place(database: &dyn Database) {
    let store = ready(database).await;
    let items = (0..500).map(|n| Item::note(&format!("n{n}")));
    let draft = items.fold(Draft::new("p", 1), |draft, item| draft.insert(&item));
    let (key, expected) = (draft.key(), draft.result());
    assert_eq!(expected.status, PushStatus::Applied(seq(1)));
    assert_eq!(expected.results.len(), 500);
    write(&*store, [draft]).await;
    assert_eq!(find(&*store, &key).await, Some(readable(&expected)));
}

pub(super) async fn an_outcome_without_our_own_members_reads_back(database: &dyn Database) {
    let store = ready(database).await;
    let result = PushResultRecord {
        status: PushStatus::Rejected,
        results: Vec::new(),
        recorded_at_ms: None,
        actor: None,
        schema_version: None,
        content_digest: None,
    };
    let draft = Draft::rejected("p", "old").outcome(result.clone());
    let key = draft.key();
    write(&*store, [draft]).await;
    assert_eq!(find(&*store, &key).await, Some(readable(&result)));
}

pub(super) async fn an_outcome_never_recorded_is_none(database: &dyn Database) {
    let store = ready(database).await;
    for key in [push_key("p", "c1", "m1"), push_key("nobody", "c1", "m1")] {
        assert_eq!(find(&*store, &key).await, None);
        assert_eq!(load(&*store, &key).await, None);
    }
}

pub(super) async fn the_first_outcome_recorded_stays(database: &dyn Database) {
    let store = ready(database).await;
    let first = Draft::rejected("p", "m").actor("first");
    let (key, expected) = (first.key(), readable(&first.result()));
    write(&*store, [first]).await;
    write(&*store, [Draft::rejected("p", "m").actor("second")]).await;
    assert_eq!(find(&*store, &key).await, Some(expected.clone()));
    // Whatever else a later commit under the key does, it does not change what was answered.
    write(&*store, [Draft::new("p", 1).id("m").actor("third")]).await;
    assert_eq!(find(&*store, &key).await, Some(expected.clone()));
    let twice = [
        Draft::rejected("p", "twice").actor("first"),
        Draft::rejected("p", "twice").actor("second"),
    ];
    let (key, expected) = (twice[0].key(), readable(&twice[0].result()));
    write(&*store, twice).await;
    assert_eq!(find(&*store, &key).await, Some(expected));
}

pub(super) async fn partition_client_and_id_all_name_an_outcome(database: &dyn Database) {
    let store = ready(database).await;
    touch(&*store, "q").await;
    let names = [
        ("p", "c1", "m"),
        ("q", "c1", "m"),
        ("p", "c2", "m"),
        ("p", "c1", "M"),
        ("p", "c1", "m "),
        ("p", "c", "1m"),
        ("p", "c1\u{1F600}", "m\u{E9}"),
    ];
    for (n, (name, client, id)) in names.into_iter().enumerate() {
        let draft = Draft::rejected(name, id)
            .client(client)
            .actor(&format!("a{n}"));
        write(&*store, [draft]).await;
    }
    for (n, (name, client, id)) in names.into_iter().enumerate() {
        let found = find(&*store, &push_key(name, client, id)).await;
        let Some(StoredResult::Readable(record)) = found else {
            panic!("{name} {client} {id} is recorded");
        };
        assert_eq!(record.actor, Some(actor(&format!("a{n}"))));
    }
}

pub(super) async fn an_outcome_outlives_its_log_and_its_epoch(database: &dyn Database) {
    let store = ready(database).await;
    let draft = Draft::new("p", 1).insert(&Item::note("n"));
    let (key, expected) = (draft.key(), readable(&draft.result()));
    write(&*store, [draft, Draft::new("p", 2)]).await;
    store
        .prune(&partition("p"), &epoch("e1"), HorizonSeq::at(seq(2)))
        .await
        .unwrap();
    store
        .rotate_epoch(&partition("p"), &epoch("e2"), 5)
        .await
        .unwrap();
    assert_eq!(find(&*store, &key).await, Some(expected.clone()));
    assert_eq!(load(&*store, &key).await, Some(expected));
}

pub(super) async fn a_transaction_sees_the_outcome_it_records(database: &dyn Database) {
    let store = ready(database).await;
    let (mut txn, _) = begin(&*store, "p").await;
    let draft = Draft::rejected("p", "no");
    let (key, expected) = (draft.key(), readable(&draft.result()));
    txn.apply(vec![draft.build()]).await.unwrap();
    let wanted = LoadRequest {
        push_results: vec![key.clone()],
        ..LoadRequest::default()
    };
    let loaded = txn.load(wanted).await.unwrap();
    assert_eq!(loaded.push_results, [Some(expected)]);
    drop(txn);
    assert_eq!(find(&*store, &key).await, None);
}

pub(super) async fn a_damaged_outcome_is_unreadable_and_stays(database: &dyn Database) {
    let store = ready(database).await;
    let draft = Draft::new("p", 1).insert(&Item::note("n"));
    let key = draft.key();
    write(&*store, [draft]).await;
    if !database.damage_push_result(&store, &key).await {
        return;
    }
    assert_eq!(find(&*store, &key).await, Some(StoredResult::Unreadable));
    assert_eq!(load(&*store, &key).await, Some(StoredResult::Unreadable));
    write(&*store, [Draft::rejected("p", "m1")]).await;
    assert_eq!(find(&*store, &key).await, Some(StoredResult::Unreadable));
    assert_eq!(head(&*store, "p").await, 1);
    let seen = window(&*store, whole_log("p", NOTES, team_one())).await;
    assert_eq!(seen.seqs(), [1]);
}
