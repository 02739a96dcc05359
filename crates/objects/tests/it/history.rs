//! One random history on several segment stores: whoever asks gets the same answer.
//!
//! What has ended is left out: a store may forget it when it likes.

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;
use tidewater_model::{CommitSeq, LogEpoch, PartitionId};
use tidewater_objects::{
    Backend, BackendLimits, MemorySegments, NewSegment, PageSize, Prune, PublicationContext,
    RemoteSegments, SegmentKey, SegmentStore, conformance::block_on,
};
use tidewater_wire::{MediaType, content_address};

const LIFETIME_MS: i64 = 10;

#[derive(Clone, Debug)]
enum Step {
    Publish {
        content: u8,
        partition: u8,
        page: u8,
    },
    Expire,
    Prune {
        partition: u8,
    },
    Wait {
        ms: i64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4_u8, 0..2_u8, 0..3_u8).prop_map(|(content, partition, page)| {
            Step::Publish { content, partition, page }
        }),
        1 => Just(Step::Expire),
        1 => (0..2_u8).prop_map(|partition| Step::Prune { partition }),
        3 => (1..8_i64).prop_map(|ms| Step::Wait { ms }),
    ];
    prop::collection::vec(step, 1..40)
}

fn context(partition: u8, page: u8) -> PublicationContext {
    let (row_cursor, next_row_cursor) = match page {
        0 => (None, None),
        1 => (None, Some("m".to_owned())),
        _ => (Some("m".to_owned()), None),
    };
    PublicationContext {
        key: SegmentKey {
            partition: PartitionId::new(format!("p{partition}")),
            log_epoch: LogEpoch::new("e1"),
            table: "notes".to_owned(),
            schema_version: 2,
            media_type: MediaType::Rows,
            scope_digest: "d1".to_owned(),
            as_of: CommitSeq::new(7).unwrap(),
        },
        row_cursor,
        next_row_cursor,
    }
}

/// The same content has as many rows everywhere, and no two have equally many.
fn content(number: u8) -> (u64, Bytes) {
    (u64::from(number) + 1, Bytes::from(vec![number; 10]))
}

/// What a store says about everything, as text.
async fn view(store: &dyn SegmentStore, now_ms: i64) -> String {
    let mut view = String::new();
    for number in 0..4 {
        let id = content_address(&content(number).1);
        let record = store.record(&id).await.unwrap();
        let publications: BTreeSet<String> = record
            .iter()
            .flat_map(|record| &record.publications)
            .filter(|publication| !publication.is_expired(now_ms))
            .map(|publication| format!("{:?} {}", publication.context, publication.expires_at_ms))
            .collect();
        let is_there = !publications.is_empty() && store.open(&id, None).await.unwrap().is_some();
        view.push_str(&format!("{number}: {is_there} {publications:?}\n"));
    }
    for partition in 0..2 {
        let key = context(partition, 0).key;
        for row_cursor in [None, Some("m")] {
            for rows_max in 1..=4 {
                let size = PageSize {
                    rows_max,
                    full_bytes: 10,
                };
                let found = store.find_page(&key, row_cursor, size, now_ms).await;
                let found = found.unwrap().map(|found| found.record.row_count);
                view.push_str(&format!(
                    "{partition} {row_cursor:?} {rows_max}: {found:?}\n"
                ));
            }
        }
    }
    view
}

async fn run(steps: &[Step]) {
    let folder = tempfile::tempdir().unwrap();
    let directory = Backend::directory(folder.path(), false, BackendLimits::default()).unwrap();
    let stores: [(&str, Box<dyn SegmentStore>); 3] = [
        (
            "memory",
            Box::new(MemorySegments::new(1 << 20, LIFETIME_MS)),
        ),
        (
            "provider",
            Box::new(RemoteSegments::new(Backend::in_memory(), LIFETIME_MS)),
        ),
        (
            "files",
            Box::new(RemoteSegments::new(directory, LIFETIME_MS)),
        ),
    ];
    let mut now_ms = 0;
    for (position, step) in steps.iter().enumerate() {
        if let Step::Wait { ms } = step {
            now_ms += ms;
        }
        for (_, store) in &stores {
            match step {
                Step::Publish {
                    content: number,
                    partition,
                    page,
                } => {
                    let (row_count, bytes) = content(*number);
                    let context = context(*partition, *page);
                    let segment = NewSegment::from_bytes(context, row_count, bytes);
                    store.publish(segment, now_ms).await.unwrap();
                }
                Step::Expire => drop(store.expire(now_ms).await.unwrap()),
                Step::Prune { partition } => {
                    let partition = PartitionId::new(format!("p{partition}"));
                    store.prune(&Prune::Partition(partition)).await.unwrap();
                }
                Step::Wait { .. } => {}
            }
        }
        let expected = view(&*stores[0].1, now_ms).await;
        for (name, store) in &stores[1..] {
            let seen = view(&**store, now_ms).await;
            assert_eq!(seen, expected, "{name} after step {position}, {step:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_store_gives_the_same_answers(steps in steps()) {
        block_on(run(&steps));
    }
}
