//! Promises of a segment store.

#![expect(missing_docs, reason = "cases say in their names what they check")]

use std::{io::Write, sync::Arc};

use bytes::Bytes;
use tidewater_model::{CommitSeq, LogEpoch, PartitionId};
use tidewater_wire::{MediaType, content_address};

use crate::{
    FoundSegment, NewSegment, ObjectError, ObjectErrorKind, PageSize, Prune, PublicationContext,
    SegmentId, SegmentKey, SegmentRecord, SegmentStore,
};

/// How long a publication lives in the stores of the suite.
pub const LIFETIME_MS: i64 = 1_000;

fn key() -> SegmentKey {
    SegmentKey {
        partition: PartitionId::new("p1"),
        log_epoch: LogEpoch::new("e1"),
        table: "notes".to_owned(),
        schema_version: 2,
        media_type: MediaType::Rows,
        scope_digest: "d1".to_owned(),
        as_of: CommitSeq::new(7).unwrap(),
    }
}

fn page(row_cursor: Option<&str>, next_row_cursor: Option<&str>) -> PublicationContext {
    PublicationContext {
        key: key(),
        row_cursor: row_cursor.map(str::to_owned),
        next_row_cursor: next_row_cursor.map(str::to_owned),
    }
}

fn whole() -> PublicationContext {
    page(None, None)
}

fn of_partition(partition: &str) -> PublicationContext {
    let mut context = whole();
    context.key.partition = PartitionId::new(partition);
    context
}

fn content(byte: u8, length: usize) -> Bytes {
    Bytes::from(vec![byte; length])
}

async fn try_publish(
    store: &impl SegmentStore,
    context: PublicationContext,
    row_count: u64,
    bytes: Bytes,
    now_ms: i64,
) -> Result<Arc<SegmentRecord>, ObjectError> {
    let segment = NewSegment::from_bytes(context, row_count, bytes);
    store.publish(segment, now_ms).await
}

async fn publish(
    store: &impl SegmentStore,
    context: PublicationContext,
    row_count: u64,
    bytes: Bytes,
    now_ms: i64,
) -> Arc<SegmentRecord> {
    try_publish(store, context, row_count, bytes, now_ms)
        .await
        .unwrap()
}

async fn read(store: &impl SegmentStore, id: &SegmentId) -> Option<Bytes> {
    let stream = store.open(id.as_str(), None).await.unwrap()?;
    Some(stream.collect(usize::MAX).await.unwrap())
}

async fn find(store: &impl SegmentStore, key: &SegmentKey, now_ms: i64) -> Option<FoundSegment> {
    store.find(key, now_ms).await.unwrap()
}

async fn record(store: &impl SegmentStore, id: &SegmentId) -> Option<Arc<SegmentRecord>> {
    store.record(id.as_str()).await.unwrap()
}

pub async fn a_published_segment_is_found_by_its_key_and_read_by_its_address(
    store: &impl SegmentStore,
) {
    for media_type in [MediaType::Rows, MediaType::Sqlite] {
        let mut context = whole();
        context.key.media_type = media_type;
        let bytes = content(media_type.tag(), 10);
        let published = publish(store, context.clone(), 3, bytes.clone(), 50).await;
        assert_eq!(published.id.as_str(), content_address(&bytes));
        assert_eq!((published.byte_length, published.row_count), (10, 3));
        assert_eq!(published.publications.len(), 1);
        let publication = &published.publications[0];
        assert_eq!(publication.created_at_ms, 50);
        assert_eq!(publication.expires_at_ms, 50 + LIFETIME_MS);

        let found = find(store, &context.key, 60).await.unwrap();
        assert_eq!(found.record, published);
        assert_eq!(*found.context, context);
        assert_eq!(
            record(store, &published.id).await,
            Some(Arc::clone(&published))
        );
        assert_eq!(read(store, &published.id).await, Some(bytes));
    }
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.published, stats.hits, stats.misses), (2, 2, 0));
}

pub async fn a_segment_of_another_context_is_not_found(store: &impl SegmentStore) {
    publish(store, whole(), 3, content(1, 10), 0).await;
    let changes: [fn(&mut SegmentKey); 7] = [
        |key| key.partition = PartitionId::new("p2"),
        |key| key.log_epoch = LogEpoch::new("e2"),
        |key| key.table = "folders".to_owned(),
        |key| key.schema_version = 3,
        |key| key.media_type = MediaType::Sqlite,
        |key| key.scope_digest = "d2".to_owned(),
        |key| key.as_of = CommitSeq::new(8).unwrap(),
    ];
    for change in changes {
        let mut other = key();
        change(&mut other);
        assert!(find(store, &other, 0).await.is_none(), "{other:?}");
    }
    assert!(find(store, &key(), 0).await.is_some());
}

pub async fn a_page_is_not_the_whole_table(store: &impl SegmentStore) {
    for (byte, context) in [(1, page(None, Some("m"))), (2, page(Some("m"), None))] {
        publish(store, context, 3, content(byte, 10), 0).await;
        assert!(find(store, &key(), 0).await.is_none());
    }
}

pub async fn a_publication_ends_at_the_very_millisecond_of_its_expiry(store: &impl SegmentStore) {
    publish(store, whole(), 3, content(1, 10), 0).await;
    assert!(find(store, &key(), LIFETIME_MS - 1).await.is_some());
    assert!(find(store, &key(), LIFETIME_MS).await.is_none());
}

pub async fn an_expired_record_is_known_until_it_is_removed(store: &impl SegmentStore) {
    let published = publish(store, whole(), 3, content(1, 10), 0).await;
    let late = LIFETIME_MS + 1;
    assert!(find(store, &key(), late).await.is_none());
    let publication = &record(store, &published.id).await.unwrap().publications[0];
    assert!(publication.is_expired(late));
    store.expire(LIFETIME_MS - 1).await.unwrap();
    assert!(record(store, &published.id).await.is_some());
    store.expire(LIFETIME_MS).await.unwrap();
    assert_eq!(record(store, &published.id).await, None);
    assert_eq!(read(store, &published.id).await, None);
}

pub async fn publishing_an_equal_context_renews_that_publication_only(store: &impl SegmentStore) {
    publish(store, whole(), 3, content(1, 10), 0).await;
    publish(store, of_partition("p2"), 3, content(1, 10), 10).await;
    let renewed = publish(store, whole(), 3, content(1, 10), 500).await;
    let times: Vec<(i64, i64)> = renewed
        .publications
        .iter()
        .map(|publication| (publication.created_at_ms, publication.expires_at_ms))
        .collect();
    assert_eq!(times, [(0, 500 + LIFETIME_MS), (10, 10 + LIFETIME_MS)]);
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.published, stats.renewed), (2, 1));
    assert!(find(store, &key(), 400 + LIFETIME_MS).await.is_some());
    let other = of_partition("p2").key;
    assert!(find(store, &other, 9 + LIFETIME_MS).await.is_some());
    assert!(find(store, &other, 10 + LIFETIME_MS).await.is_none());
}

pub async fn a_clock_that_is_set_back_does_not_shorten_a_lifetime(store: &impl SegmentStore) {
    publish(store, whole(), 3, content(1, 10), 900).await;
    let renewed = publish(store, whole(), 3, content(1, 10), 100).await;
    assert_eq!(renewed.expires_at_ms(), 900 + LIFETIME_MS);
}

pub async fn equal_bytes_of_two_contexts_are_one_segment_with_two_publications(
    store: &impl SegmentStore,
) {
    let first = publish(store, whole(), 0, content(1, 10), 0).await;
    let mut other = whole();
    other.key.scope_digest = "d2".to_owned();
    let second = publish(store, other.clone(), 0, content(1, 10), 0).await;
    assert_eq!(first.id, second.id);
    assert_eq!(second.publications.len(), 2);
    assert_eq!(record(store, &first.id).await, Some(second));
    assert_eq!(
        *find(store, &other.key, 0).await.unwrap().context,
        other,
        "the one that was asked for"
    );
    assert_eq!(*find(store, &key(), 0).await.unwrap().context, whole());
}

pub async fn a_segment_with_another_row_count_is_refused(store: &impl SegmentStore) {
    let published = publish(store, whole(), 3, content(1, 10), 0).await;
    let refused = try_publish(store, of_partition("p2"), 4, content(1, 10), 0).await;
    assert_eq!(refused.unwrap_err().kind, ObjectErrorKind::ContentMismatch);
    assert_eq!(record(store, &published.id).await, Some(published));
}

fn file(bytes: &[u8]) -> tempfile::TempPath {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file.into_temp_path()
}

/// More than any part of an upload.
const LARGE: usize = 9 * 1024 * 1024 + 17;

fn large() -> Bytes {
    let bytes = (0..LARGE).map(|position| u8::try_from(position * 7 % 251).unwrap());
    bytes.collect()
}

pub async fn a_file_is_published_like_bytes(store: &impl SegmentStore) {
    for (number, bytes) in [Bytes::from_static(b"image"), large()]
        .into_iter()
        .enumerate()
    {
        let mut context = whole();
        context.key.media_type = MediaType::Sqlite;
        context.key.table = format!("t{number}");
        let id = SegmentId::new(content_address(&bytes));
        let byte_length = u64::try_from(bytes.len()).unwrap();
        let path = file(&bytes);
        let left = path.to_path_buf();
        let segment = NewSegment::from_file(context.clone(), 1, path, id.clone(), byte_length);
        let published = store.publish(segment, 0).await.unwrap();
        assert_eq!((&published.id, published.byte_length), (&id, byte_length));
        assert!(!left.exists(), "the file belongs to the segment");
        assert!(find(store, &context.key, 0).await.is_some());
        assert!(read(store, &id).await.unwrap() == bytes);
        let stream = store.open(id.as_str(), Some(3..5)).await.unwrap().unwrap();
        assert_eq!(stream.total_length(), byte_length);
        assert_eq!(stream.collect(2).await.unwrap(), bytes[3..5]);
    }
}

pub async fn a_file_that_is_not_what_its_address_says_is_refused(store: &impl SegmentStore) {
    let id = SegmentId::new(content_address(b"right"));
    for (bytes, byte_length) in [(&b"wrong"[..], 5), (b"right", 4), (b"righ", 5)] {
        let segment = NewSegment::from_file(whole(), 1, file(bytes), id.clone(), byte_length);
        let error = store.publish(segment, 0).await.unwrap_err();
        assert!(
            matches!(
                error.kind,
                ObjectErrorKind::ContentMismatch | ObjectErrorKind::TooLarge
            ),
            "{error}"
        );
        assert_eq!(record(store, &id).await, None);
        assert_eq!(read(store, &id).await, None);
        assert!(find(store, &key(), 0).await.is_none());
    }
}

pub async fn a_segment_may_be_empty(store: &impl SegmentStore) {
    let published = publish(store, whole(), 0, Bytes::new(), 0).await;
    assert_eq!(read(store, &published.id).await, Some(Bytes::new()));
    assert!(find(store, &key(), 0).await.is_some());
}

pub async fn a_range_is_cut_at_the_end(store: &impl SegmentStore) {
    let bytes = Bytes::from_static(b"0123456789");
    let published = publish(store, whole(), 1, bytes, 0).await;
    for (range, expected) in [
        (0..10, &b"0123456789"[..]),
        (2..4, b"23"),
        (8..100, b"89"),
        (10..11, b""),
        (90..100, b""),
        (4..4, b""),
        (u64::MAX - 1..u64::MAX, b""),
    ] {
        let stream = store.open(published.id.as_str(), Some(range)).await;
        let stream = stream.unwrap().unwrap();
        assert_eq!(stream.total_length(), 10);
        assert_eq!(stream.collect(10).await.unwrap(), expected);
    }
}

pub async fn what_is_no_address_is_unknown(store: &impl SegmentStore) {
    let unknown = content_address(b"never published");
    for id in ["", "sha256:", "sha256:../../etc", "x", &unknown] {
        assert_eq!(store.record(id).await.unwrap(), None);
        assert!(store.open(id, None).await.unwrap().is_none());
        assert!(store.open(id, Some(0..1)).await.unwrap().is_none());
    }
}

async fn check_page(
    store: &impl SegmentStore,
    stored: (PublicationContext, u64, usize),
    wanted: (Option<&str>, u64),
    found: bool,
) {
    let (context, row_count, length) = stored;
    publish(store, context, row_count, content(1, length), 0).await;
    let size = PageSize {
        rows_max: wanted.1,
        full_bytes: 1_000,
    };
    let page = store.find_page(&key(), wanted.0, size, 0).await.unwrap();
    assert_eq!(page.is_some(), found);
    store.prune(&Prune::All).await.unwrap();
}

pub async fn a_page_is_found_where_it_starts_if_it_is_as_long_as_one_read_now(
    store: &impl SegmentStore,
) {
    let first = || page(None, Some("m"));
    let middle = || page(Some("m"), Some("t"));
    let last = || page(Some("m"), None);
    check_page(store, (first(), 5, 10), (None, 5), true).await;
    check_page(store, (first(), 5, 10), (Some("m"), 5), false).await;
    check_page(store, (middle(), 5, 10), (Some("m"), 5), true).await;
    check_page(store, (middle(), 5, 10), (None, 5), false).await;
    // More rows than the client takes.
    check_page(store, (middle(), 6, 10), (Some("m"), 5), false).await;
    // Cut for a client that takes less.
    check_page(store, (middle(), 4, 10), (Some("m"), 5), false).await;
    // Fewer rows because the table, or the page's bytes, end there.
    check_page(store, (last(), 4, 10), (Some("m"), 5), true).await;
    check_page(store, (middle(), 4, 1_000), (Some("m"), 5), true).await;
    check_page(store, (whole(), 0, 10), (None, 5), true).await;
}

pub async fn of_two_pages_with_one_start_the_longer_is_found(store: &impl SegmentStore) {
    for (next, rows, byte) in [("c", 3, 1), ("f", 6, 2), ("b", 2, 3)] {
        publish(store, page(None, Some(next)), rows, content(byte, 2_000), 0).await;
    }
    let find = async |rows_max, now_ms| {
        let size = PageSize {
            rows_max,
            full_bytes: 1_000,
        };
        let found = store.find_page(&key(), None, size, now_ms).await.unwrap();
        found.map(|found| found.record.row_count)
    };
    assert_eq!(find(10, 0).await, Some(6));
    assert_eq!(find(5, 0).await, Some(3));
    assert_eq!(find(1, 0).await, None);
    assert_eq!(find(10, LIFETIME_MS).await, None);
}

pub async fn what_expired_is_removed_and_its_bytes_with_the_last_publication(
    store: &impl SegmentStore,
) {
    let shared = publish(store, whole(), 3, content(1, 10), 0).await;
    publish(store, of_partition("p2"), 3, content(1, 10), 100).await;
    let removed = store.expire(LIFETIME_MS).await.unwrap();
    assert_eq!(
        (removed.segments, removed.publications, removed.bytes),
        (0, 1, 0)
    );
    let rest = record(store, &shared.id).await.unwrap();
    assert_eq!(rest.publications.len(), 1);
    assert_eq!(*rest.publications[0].context, of_partition("p2"));
    assert!(read(store, &shared.id).await.is_some());

    let removed = store.expire(LIFETIME_MS + 100).await.unwrap();
    assert_eq!(
        (removed.segments, removed.publications, removed.bytes),
        (1, 1, 10)
    );
    assert_eq!(record(store, &shared.id).await, None);
    assert_eq!(read(store, &shared.id).await, None);
    assert_eq!(store.expire(i64::MAX).await.unwrap().publications, 0);
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.segments, stats.bytes, stats.expired), (0, 0, 1));

    // It can be published again.
    let again = publish(store, whole(), 3, content(1, 10), 5_000).await;
    assert_eq!(again.publications.len(), 1);
    assert!(find(store, &key(), 5_000).await.is_some());
    assert_eq!(read(store, &again.id).await, Some(content(1, 10)));
}

pub async fn pruning_a_partition_leaves_what_others_share(store: &impl SegmentStore) {
    let shared = publish(store, whole(), 3, content(1, 10), 0).await;
    publish(store, of_partition("p2"), 3, content(1, 10), 0).await;
    let mut context = whole();
    context.key.table = "other".to_owned();
    let own = publish(store, context, 3, content(2, 10), 0).await;
    let prune = Prune::Partition(PartitionId::new("p1"));
    let removed = store.prune(&prune).await.unwrap();
    assert_eq!((removed.segments, removed.publications), (1, 2));
    assert_eq!(record(store, &own.id).await, None);
    assert!(find(store, &key(), 0).await.is_none());
    assert!(find(store, &of_partition("p2").key, 0).await.is_some());
    assert_eq!(
        record(store, &shared.id).await.unwrap().publications.len(),
        1
    );
    store.prune(&Prune::All).await.unwrap();
    assert_eq!(store.list(None, 10).await.unwrap(), []);
}

pub async fn records_are_listed_in_order_page_by_page(store: &impl SegmentStore) {
    let mut expected = Vec::new();
    for byte in 0..7 {
        let mut context = whole();
        context.key.table = format!("t{byte}");
        expected.push(publish(store, context, 1, content(byte, 10), 0).await);
    }
    expected.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    let mut listed = Vec::new();
    loop {
        let after = listed.last().map(|record: &Arc<SegmentRecord>| &record.id);
        let page = store.list(after, 3).await.unwrap();
        assert!(page.len() <= 3);
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    assert_eq!(listed, expected);
    assert_eq!(store.list(None, 0).await.unwrap(), []);
}

pub async fn publishers_at_once_end_in_one_segment_with_all_publications(
    store: &impl SegmentStore,
) {
    const PUBLISHERS: usize = 12;
    let publishers = (0..PUBLISHERS).map(|number| {
        let context = of_partition(&format!("p{number}"));
        async move {
            // Too many at once are told to come back.
            for _ in 0..20 {
                match try_publish(store, context.clone(), 3, content(1, 10), 0).await {
                    Err(error) if error.is_retryable() => {}
                    result => return result.unwrap(),
                }
            }
            panic!("publishing never works");
        }
    });
    let published = futures_util::future::join_all(publishers).await;
    let stored = record(store, &published[0].id).await.unwrap();
    assert_eq!(stored.publications.len(), PUBLISHERS);
    for number in 0..PUBLISHERS {
        let context = of_partition(&format!("p{number}"));
        assert!(stored.publication(&context).is_some());
        assert!(find(store, &context.key, 0).await.is_some());
    }
    assert_eq!(store.list(None, 10).await.unwrap().len(), 1);
}
