//! Which generations of documents are read, and what is kept when publications meet.

use super::*;

const DURING: &str = "test";

fn id() -> String {
    format!("sha256:{}", "ab".repeat(32))
}

/// A record as the reference wrote it, with more fields in it.
fn json(more: &str) -> String {
    format!(
        r#"{{"segmentId":"{}","partition":"p1","logEpoch":"e1","table":"notes",
            "schemaVersion":2,"mediaType":"sqlite","scopeDigest":"d1","asOfCommitSeq":7,
            "rowCount":3,"rowCursor":null,"nextRowCursor":null,"byteLength":10,
            "createdAtMs":50,"expiresAtMs":60{more}}}"#,
        id()
    )
}

fn publication(partition: &str, expires_at_ms: i64) -> Publication {
    let record = read_record(DURING, &id(), json("").as_bytes());
    let mut publication = record.unwrap().unwrap().publications[0].clone();
    let mut context = (*publication.context).clone();
    context.key.partition = PartitionId::new(partition);
    publication.context = Arc::new(context);
    publication.expires_at_ms = expires_at_ms;
    publication
}

#[track_caller]
fn check_digests(more: &str, expected: &[&str]) {
    let record = read_record(DURING, &id(), json(more).as_bytes());
    let record = record.unwrap().unwrap();
    assert_eq!((record.byte_length, record.row_count), (10, 3));
    let digests: Vec<&str> = record
        .publications
        .iter()
        .map(|publication| publication.context.key.scope_digest.as_str())
        .collect();
    assert_eq!(digests, expected);
    for publication in &record.publications {
        let key = &publication.context.key;
        assert_eq!(key.partition.as_str(), "p1");
        assert_eq!(key.media_type, MediaType::Sqlite);
        assert_eq!(publication.created_at_ms, 50);
        assert_eq!(publication.expires_at_ms, 60);
    }
}

#[test]
fn a_record_without_publications_is_one_publication_per_digest() {
    check_digests("", &["d1"]);
    check_digests(r#","scopeDigests":["d2","d1"]"#, &["d2", "d1"]);
    check_digests(r#","scopeDigests":["d2"]"#, &["d2", "d1"]);
    check_digests(r#","somethingNewer":{"a":1}"#, &["d1"]);
}

#[test]
fn the_oldest_record_is_read_from_metadata_with_and_without_padding() {
    let encoded = BASE64_URL_SAFE_NO_PAD.encode(json(""));
    let record = read_attribute(&id(), &encoded).unwrap();
    assert_eq!(record.publications.len(), 1);
    assert_eq!(read_attribute(&id(), &format!("{encoded}==")), Some(record));
    assert_eq!(read_attribute(&id(), "!"), None);
    let other = format!("sha256:{}", "cd".repeat(32));
    assert_eq!(read_attribute(&other, &encoded), None);
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let record = SegmentRecord {
        id: SegmentId::new(id()),
        byte_length: 1 << 40,
        row_count: 9,
        publications: vec![publication("p1", 60), publication("é\n\"", 70)],
    };
    let written = write_record(&record);
    let read = read_record(DURING, &id(), &written).unwrap();
    assert_eq!(read, Some(record.clone()));
    let removed = write_removed(&record);
    assert_eq!(read_record(DURING, &id(), &removed).unwrap(), None);
}

#[test]
fn what_is_no_record_is_corrupt() {
    for json in [
        "",
        "[]",
        "{}",
        &json("").replace("\"asOfCommitSeq\":7", "\"asOfCommitSeq\":-7"),
        &json("").replace("sqlite", "parquet"),
        &json("").replace("ab", "cd"),
    ] {
        let error = read_record(DURING, &id(), json.as_bytes()).unwrap_err();
        assert_eq!(error.kind, ObjectErrorKind::Corrupt, "{json}");
    }
}

#[test]
fn equal_contexts_are_renewed_and_never_shortened() {
    let mut publications = vec![publication("p1", 60)];
    assert!(merge(&mut publications, &publication("p1", 90)));
    assert!(merge(&mut publications, &publication("p1", 30)));
    assert_eq!(publications.len(), 1);
    assert_eq!(publications[0].expires_at_ms, 90);
    assert!(!merge(&mut publications, &publication("p2", 30)));
    assert_eq!(publications.len(), 2);
}

#[test]
fn of_too_many_publications_the_one_that_ends_first_goes() {
    let mut publications = Vec::new();
    for number in 0..PUBLICATIONS_PER_SEGMENT_MAX {
        let ends = 1_000 - i64::try_from(number).unwrap();
        merge(&mut publications, &publication(&format!("p{number}"), ends));
    }
    merge(&mut publications, &publication("new", 0));
    assert_eq!(publications.len(), PUBLICATIONS_PER_SEGMENT_MAX);
    let last = format!("p{}", PUBLICATIONS_PER_SEGMENT_MAX - 1);
    let has = |name: &str| {
        publications
            .iter()
            .any(|publication| publication.context.key.partition.as_str() == name)
    };
    assert!(has("new") && has("p0") && !has(&last));
}

#[test]
fn pages_of_one_start_are_bounded_and_of_different_sizes() {
    let page = |rows: u64, name: u8, expires_at_ms| PagePointer {
        segment_id: format!("s{name}"),
        row_count: rows,
        byte_length: 1,
        next_row_cursor: None,
        expires_at_ms,
    };
    let mut pointer = PagesPointer::default();
    assert_eq!(pointer.expires_at_ms(), None);
    pointer.add(page(3, 1, 10));
    pointer.add(page(3, 2, 20));
    assert_eq!(pointer.pages, [page(3, 2, 20)]);
    for rows in 4..20 {
        pointer.add(page(rows, 7 + u8::try_from(rows).unwrap(), 30));
    }
    assert_eq!(pointer.pages.len(), PAGES_PER_START_MAX);
    assert!(!pointer.pages.contains(&page(3, 2, 20)));
    assert_eq!(pointer.expires_at_ms(), Some(30));
}

#[test]
fn metadata_of_a_blob_is_the_references() {
    // base64url of {"byteLength":3,"mediaType":"text/plain","createdAtMs":12}
    let text = "eyJieXRlTGVuZ3RoIjozLCJtZWRpYVR5cGUiOiJ0ZXh0L3BsYWluIiwiY3JlYXRlZEF0TXMiOjEyfQ";
    let blob = BlobDocument {
        byte_length: Some(3),
        media_type: Some("text/plain".to_owned()),
        created_at_ms: 12,
    };
    assert_eq!(blob.to_attribute(), text);
    assert_eq!(BlobDocument::from_attribute(text), Some(blob));
    assert_eq!(BlobDocument::from_attribute("AAAA"), None);
}
