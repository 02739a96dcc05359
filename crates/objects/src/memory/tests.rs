//! What is found, renewed, expired and evicted, at which time.

use super::*;

use tidewater_model::{CommitSeq, LogEpoch, PartitionId};
use tidewater_wire::MediaType;

const LIFETIME_MS: i64 = 1_000;
const PLENTY: usize = 1 << 20;

impl Cache {
    fn publish(
        &self,
        context: PublicationContext,
        row_count: u64,
        bytes: Bytes,
        now_ms: i64,
    ) -> Result<Arc<SegmentRecord>, ObjectError> {
        self.check_size(bytes.len() + publication_charge(&context))?;
        let id = SegmentId::new(content_address(&bytes));
        self.publish_at(id, context, row_count, bytes, now_ms)
    }
}

fn store(bytes_max: usize) -> Cache {
    Cache::new(bytes_max, LIFETIME_MS)
}

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

/// A whole table of another partition.
fn of_partition(partition: &str) -> PublicationContext {
    let mut context = whole();
    context.key.partition = PartitionId::new(partition);
    context
}

fn content(byte: u8, length: usize) -> Bytes {
    Bytes::from(vec![byte; length])
}

/// Every map agrees with every other and with the sums.
#[track_caller]
fn check_consistent(store: &Cache) {
    let state = store.state.lock();
    let mut bytes = 0;
    let mut publications = 0;
    for (id, entry) in &state.entries {
        let record = &entry.record;
        assert_eq!(*id, record.id);
        assert!(
            state
                .expiries
                .contains(&(record.expires_at_ms(), id.clone()))
        );
        bytes += entry.bytes.len();
        publications += record.publications.len();
        for publication in &record.publications {
            let context = &publication.context;
            bytes += publication_charge(context);
            let pages = &state.pages[&context.key][&context.row_cursor];
            let indexed = pages.iter().filter(|page| page.context == *context);
            assert_eq!(indexed.filter(|page| page.id == *id).count(), 1);
        }
    }
    let indexed = state.pages.values().flat_map(BTreeMap::values);
    assert_eq!(indexed.map(Vec::len).sum::<usize>(), publications);
    assert_eq!(state.expiries.len(), state.entries.len());
    assert_eq!(state.stats.segments, count(state.entries.len()));
    assert_eq!(state.stats.publications, count(publications));
    assert_eq!(state.bytes, bytes);
    assert!(bytes <= store.bytes_max);
}

#[test]
fn a_published_segment_is_found_by_its_key_and_fetched_by_its_address() {
    let store = store(PLENTY);
    let bytes = content(1, 10);
    let record = store.publish(whole(), 3, bytes.clone(), 50).unwrap();
    assert_eq!(record.id.as_str(), content_address(&bytes));
    assert_eq!((record.byte_length, record.row_count), (10, 3));
    assert_eq!(record.publications.len(), 1);
    let publication = &record.publications[0];
    assert_eq!(publication.created_at_ms, 50);
    assert_eq!(publication.expires_at_ms, 50 + LIFETIME_MS);

    let found = store.find(&key(), 60).unwrap();
    assert_eq!(found.record, record);
    assert_eq!(*found.context, whole());
    assert_eq!(store.record(record.id.as_str()), Some(Arc::clone(&record)));
    assert_eq!(store.bytes(record.id.as_str()), Some(bytes));
    assert_eq!(store.record("sha256:none"), None);
    assert_eq!(store.bytes("sha256:none"), None);
    check_consistent(&store);
}

#[test]
fn a_segment_of_another_context_is_not_found() {
    let store = store(PLENTY);
    store.publish(whole(), 3, content(1, 10), 0).unwrap();
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
        assert!(store.find(&other, 0).is_none(), "{other:?}");
    }
    assert!(store.find(&key(), 0).is_some());
}

#[test]
fn a_page_of_a_table_is_not_the_whole_table() {
    for context in [page(None, Some("m")), page(Some("m"), None)] {
        let store = store(PLENTY);
        store.publish(context, 3, content(1, 10), 0).unwrap();
        assert!(store.find(&key(), 0).is_none());
    }
}

#[test]
fn a_publication_has_ended_at_the_very_millisecond_of_its_expiry() {
    let store = store(PLENTY);
    let record = store.publish(whole(), 3, content(1, 10), 0).unwrap();
    assert!(store.find(&key(), LIFETIME_MS - 1).is_some());
    assert!(store.find(&key(), LIFETIME_MS).is_none());
    // Until somebody publishes, a late client still learns that it expired.
    let publication = &store.record(record.id.as_str()).unwrap().publications[0];
    assert!(publication.is_expired(LIFETIME_MS));
    assert!(!publication.is_expired(LIFETIME_MS - 1));
}

#[test]
fn expired_segments_are_dropped_when_something_is_published() {
    let store = store(PLENTY);
    let old = store.publish(whole(), 3, content(1, 10), 0).unwrap();
    let young = of_partition("p2");
    let young = store.publish(young, 3, content(2, 10), 1).unwrap();
    store
        .publish(of_partition("p3"), 3, content(3, 10), LIFETIME_MS)
        .unwrap();
    assert_eq!(store.record(old.id.as_str()), None);
    assert!(store.record(young.id.as_str()).is_some());
    assert_eq!(store.stats().expired, 1);
    check_consistent(&store);
}

#[test]
fn publishing_an_equal_context_renews_that_publication_only() {
    let store = store(PLENTY);
    store.publish(whole(), 3, content(1, 10), 0).unwrap();
    store
        .publish(of_partition("p2"), 3, content(1, 10), 10)
        .unwrap();
    let record = store.publish(whole(), 3, content(1, 10), 500).unwrap();
    let times: Vec<(i64, i64)> = record
        .publications
        .iter()
        .map(|publication| (publication.created_at_ms, publication.expires_at_ms))
        .collect();
    assert_eq!(times, [(0, 500 + LIFETIME_MS), (10, 10 + LIFETIME_MS)]);
    let stats = store.stats();
    assert_eq!((stats.segments, stats.published, stats.renewed), (1, 2, 1));
    check_consistent(&store);

    assert!(store.find(&key(), 400 + LIFETIME_MS).is_some());
    let other = of_partition("p2").key;
    assert!(store.find(&other, 10 + LIFETIME_MS).is_none());
}

#[test]
fn a_clock_that_is_set_back_does_not_shorten_a_lifetime() {
    let store = store(PLENTY);
    store.publish(whole(), 3, content(1, 10), 900).unwrap();
    let record = store.publish(whole(), 3, content(1, 10), 100).unwrap();
    assert_eq!(record.expires_at_ms(), 900 + LIFETIME_MS);
    check_consistent(&store);
}

#[test]
fn equal_bytes_of_two_contexts_are_one_segment_with_two_publications() {
    let store = store(PLENTY);
    let first = store.publish(whole(), 0, content(1, 10), 0).unwrap();
    let second = store
        .publish(of_partition("p2"), 0, content(1, 10), 0)
        .unwrap();
    assert_eq!(first.id, second.id);
    assert_eq!(second.publications.len(), 2);
    assert_eq!(
        first.publications.len(),
        1,
        "a record in use does not change"
    );
    let found = store.find(&of_partition("p2").key, 0).unwrap();
    assert_eq!(*found.context, of_partition("p2"));
    check_consistent(&store);
}

#[test]
fn other_content_under_an_address_is_refused_and_the_first_stays() {
    let store = store(PLENTY);
    let record = store.publish(whole(), 3, content(1, 10), 0).unwrap();
    let again = |bytes, row_count| {
        store.publish_at(record.id.clone(), of_partition("p2"), row_count, bytes, 0)
    };
    for refused in [again(content(2, 10), 3), again(content(1, 10), 4)] {
        assert_eq!(refused.unwrap_err().kind, ObjectErrorKind::ContentMismatch);
    }
    assert_eq!(store.bytes(record.id.as_str()), Some(content(1, 10)));
    assert_eq!(
        store.record(record.id.as_str()).unwrap().publications.len(),
        1
    );
    check_consistent(&store);
}

#[track_caller]
fn check_page(stored: (PublicationContext, u64, usize), wanted: (Option<&str>, u64), found: bool) {
    let store = store(PLENTY);
    let (context, row_count, length) = stored;
    store
        .publish(context, row_count, content(1, length), 0)
        .unwrap();
    let size = PageSize {
        rows_max: wanted.1,
        full_bytes: 1_000,
    };
    assert_eq!(store.find_page(&key(), wanted.0, size, 0).is_some(), found);
}

#[test]
fn a_page_is_found_where_it_starts_if_it_is_as_long_as_one_read_now() {
    let first = || page(None, Some("m"));
    let middle = || page(Some("m"), Some("t"));
    let last = || page(Some("m"), None);
    check_page((first(), 5, 10), (None, 5), true);
    check_page((first(), 5, 10), (Some("m"), 5), false);
    check_page((middle(), 5, 10), (Some("m"), 5), true);
    check_page((middle(), 5, 10), (None, 5), false);
    // More rows than the client takes.
    check_page((middle(), 6, 10), (Some("m"), 5), false);
    // Cut for a client that takes less.
    check_page((middle(), 4, 10), (Some("m"), 5), false);
    // Fewer rows because the table, or the page's bytes, end there.
    check_page((last(), 4, 10), (Some("m"), 5), true);
    check_page((middle(), 4, 1_000), (Some("m"), 5), true);
    check_page((whole(), 0, 10), (None, 5), true);
}

#[test]
fn of_two_pages_with_one_start_the_longer_is_found() {
    let store = store(PLENTY);
    let publish = |next: &str, rows, byte| {
        let context = page(None, Some(next));
        store
            .publish(context, rows, content(byte, 2_000), 0)
            .unwrap();
    };
    publish("c", 3, 1);
    publish("f", 6, 2);
    publish("b", 2, 3);
    let find = |rows_max| {
        let size = PageSize {
            rows_max,
            full_bytes: 1_000,
        };
        store
            .find_page(&key(), None, size, 0)
            .map(|found| found.record.row_count)
    };
    assert_eq!(find(10), Some(6));
    assert_eq!(find(5), Some(3));
    assert_eq!(find(1), None);
    let stats = store.stats();
    assert_eq!((stats.hits, stats.misses), (2, 1));
    check_consistent(&store);
}

#[test]
fn a_segment_bigger_than_the_store_is_refused_and_drops_nothing() {
    let store = store(2_000);
    store.publish(whole(), 1, content(1, 10), 0).unwrap();
    let error = store
        .publish(of_partition("p2"), 1, content(2, 2_000), 0)
        .unwrap_err();
    assert_eq!(error.kind, ObjectErrorKind::TooLarge);
    assert!(
        error.to_string().contains("raise the cache's size"),
        "{error}"
    );
    assert_eq!(store.stats().segments, 1);
    check_consistent(&store);
}

#[test]
fn the_segment_used_longest_ago_makes_room() {
    let charge = publication_charge(&of_partition("p1"));
    let uses: [fn(&Cache, &SegmentId); 4] = [
        |store, _| drop(store.find(&of_partition("p1").key, 0)),
        |store, id| drop(store.record(id.as_str())),
        |store, id| drop(store.bytes(id.as_str())),
        |store, _| drop(store.publish(of_partition("p1"), 1, content(1, 100), 0)),
    ];
    for used in uses {
        let store = store(3 * (charge + 100));
        let publish = |partition: &str, byte| {
            let record = store.publish(of_partition(partition), 1, content(byte, 100), 0);
            record.unwrap().id.clone()
        };
        let first = publish("p1", 1);
        let second = publish("p2", 2);
        publish("p3", 3);
        used(&store, &first);
        publish("p4", 4);
        assert!(store.record(first.as_str()).is_some());
        assert_eq!(store.record(second.as_str()), None);
        let stats = store.stats();
        assert_eq!((stats.segments, stats.evicted), (3, 1));
        check_consistent(&store);
    }
}

#[test]
fn publications_of_one_segment_are_bounded_and_the_oldest_go() {
    let store = store(PLENTY << 4);
    let last = PUBLICATIONS_PER_SEGMENT_MAX;
    for number in 0..=last {
        let now_ms = i64::try_from(number).unwrap() / 10;
        let context = of_partition(&format!("p{number}"));
        store.publish(context, 0, content(1, 10), now_ms).unwrap();
    }
    let stats = store.stats();
    assert_eq!(
        (stats.segments, stats.publications),
        (1, count(PUBLICATIONS_PER_SEGMENT_MAX))
    );
    assert!(store.find(&of_partition("p0").key, 0).is_none());
    assert!(
        store
            .find(&of_partition(&format!("p{last}")).key, 0)
            .is_some()
    );
    check_consistent(&store);
}

#[test]
fn publications_are_charged_and_never_push_the_store_over_its_bound() {
    let charge = publication_charge(&of_partition("p1"));
    let store = store(100 + 2 * charge);
    for partition in ["p1", "p2", "p3"] {
        store
            .publish(of_partition(partition), 0, content(1, 100), 0)
            .unwrap();
        check_consistent(&store);
    }
    assert!(store.find(&of_partition("p1").key, 0).is_none());
    assert!(store.find(&of_partition("p2").key, 0).is_some());
    assert!(store.find(&of_partition("p3").key, 0).is_some());
}
