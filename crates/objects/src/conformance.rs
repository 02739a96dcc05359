//! The suites that every segment store and every blob store runs.
//!
//! Each case is one promise of a contract and is named by it. An implementation gives an
//! expression that makes an empty store of its own for one case; it is evaluated inside a runtime
//! and may await:
//!
//! ```text
//! tidewater_objects::segment_store_conformance!(Fixture::new(MySegments::open(LIFETIME_MS).await));
//! tidewater_objects::blob_store_conformance!(Fixture::new(MyBlobs::open().await));
//! ```
//!
//! Cases see the contracts only, and times of their own that lie far from today's.

#![expect(clippy::unwrap_used, reason = "a suite of tests")]

pub mod blobs;
pub mod segments;

use std::{any::Any, future::Future, time::Duration};

/// A store for one case, and what must live as long.
pub struct Fixture<T> {
    /// The store.
    pub store: T,
    _guard: Box<dyn Any + Send + Sync>,
}

impl<T> Fixture<T> {
    /// A store that needs nothing beside it.
    pub fn new(store: T) -> Self {
        Self::with_guard(store, ())
    }

    /// A store and its folder, or whatever is to be dropped after it.
    pub fn with_guard(store: T, guard: impl Any + Send + Sync) -> Self {
        Self {
            store,
            _guard: Box::new(guard),
        }
    }
}

/// A case that takes longer waits for something that never comes.
const CASE_SECONDS_MAX: u64 = 120;

/// Runs a case on two threads, so that what can race does, and with a deadline.
///
/// # Panics
///
/// When the promise is broken, or the deadline passes.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let deadline = Duration::from_secs(CASE_SECONDS_MAX);
    runtime
        .block_on(async { tokio::time::timeout(deadline, future).await })
        .expect("the store answers in time")
}

/// Stamps every promise of a segment store as a test.
#[macro_export]
macro_rules! segment_store_conformance {
    ($fixture:expr) => {
        $crate::stamp_object_cases! { segments [$fixture]
            a_published_segment_is_found_by_its_key_and_read_by_its_address
            a_segment_of_another_context_is_not_found
            a_page_is_not_the_whole_table
            a_publication_ends_at_the_very_millisecond_of_its_expiry
            an_expired_record_is_known_until_it_is_removed
            publishing_an_equal_context_renews_that_publication_only
            a_clock_that_is_set_back_does_not_shorten_a_lifetime
            equal_bytes_of_two_contexts_are_one_segment_with_two_publications
            a_segment_with_another_row_count_is_refused
            a_file_is_published_like_bytes
            a_file_that_is_not_what_its_address_says_is_refused
            a_segment_may_be_empty
            a_range_is_cut_at_the_end
            what_is_no_address_is_unknown
            a_page_is_found_where_it_starts_if_it_is_as_long_as_one_read_now
            of_two_pages_with_one_start_the_longer_is_found
            what_expired_is_removed_and_its_bytes_with_the_last_publication
            pruning_a_partition_leaves_what_others_share
            records_are_listed_in_order_page_by_page
            publishers_at_once_end_in_one_segment_with_all_publications
        }
    };
}

/// Stamps every promise of a blob store as a test.
#[macro_export]
macro_rules! blob_store_conformance {
    ($fixture:expr) => {
        $crate::stamp_object_cases! { blobs [$fixture]
            a_blob_reads_back_as_it_was_put
            a_blob_belongs_to_one_partition
            putting_a_blob_again_keeps_its_first_record
            content_that_is_not_what_its_address_says_is_not_stored
            content_above_its_bound_is_not_stored
            content_that_is_interrupted_is_not_stored
            a_large_blob_is_stored_whole_or_not_at_all
            a_blob_may_be_empty
            a_range_is_cut_at_the_end
            what_is_no_address_is_unknown
            holding_names_what_is_missing
            an_old_blob_is_removed_once
            a_young_blob_is_not_removed
            a_held_blob_is_not_removed
            a_blob_is_removed_from_its_partition_only
            a_removed_blob_can_be_put_again
            holding_or_removing_wins_and_never_both
            blobs_are_listed_in_order_page_by_page
            uploaders_at_once_store_one_blob
            partitions_may_have_any_name
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! stamp_object_cases {
    ($suite:ident [$fixture:expr] $($case:ident)*) => {
        mod $suite {
            #[expect(unused_imports, reason = "what the expression needs is not known here")]
            use super::*;

            $(
                #[test]
                fn $case() {
                    $crate::conformance::block_on(async {
                        let fixture = $fixture;
                        $crate::conformance::$suite::$case(&fixture.store).await;
                    });
                }
            )*
        }
    };
}
