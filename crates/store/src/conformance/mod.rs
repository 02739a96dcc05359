//! The suite that every implementation of the contract runs.
//!
//! Each case is one promise of the contract and is named by it, so a failure says what is
//! broken. An implementation gives a [`Database`] and stamps the cases as its own tests:
//!
//! ```text
//! tidewater_store::store_conformance!(my_database());
//! ```
//!
//! Cases see the contract only. What it does not show, such as which rows reference a blob, a
//! [`Database`] can show beside it; where it does not, those checks are left out.
//!
//! [`history`] runs one random history on two stores and compares every read.

#![expect(clippy::unwrap_used, reason = "a suite of tests")]

mod blobs;
mod candidates;
mod clients;
mod constraints;
mod fences;
pub mod fixtures;
pub mod history;
mod log;
mod operator;
mod outcomes;
mod preparing;
mod registry;
mod retention;
mod rows;
mod scans;
mod seen;
mod streams;
mod support;
mod tombstones;
mod transactions;
mod windows;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use tidewater_model::{HorizonSeq, PartitionId};

use crate::{PushKey, RowKey, Store};

pub use seen::{SeenChange, SeenCommit, SeenPage, SeenWindow};

/// A database of its own for one case, empty at first.
#[async_trait]
pub trait Database: Send + Sync {
    /// Opens the database and does not prepare it. One store is open at a time.
    async fn open(&self) -> Arc<dyn Store>;

    /// Closes the store; the next [`Database::open`] finds what it wrote.
    async fn close(&self, store: Arc<dyn Store>) {
        drop(store);
    }

    /// The rows that reference a blob, where the implementation can tell.
    async fn rows_with_blob(
        &self,
        _store: &Arc<dyn Store>,
        _partition: &PartitionId,
        _blob_id: &str,
    ) -> Option<Vec<RowKey>> {
        None
    }

    /// Whether transactions stage candidate rows and read them. Where they do not, the cases
    /// about that pass without a check.
    fn stages(&self) -> bool {
        false
    }

    /// Whether transactions answer queries, in the dialect of SQLite.
    fn has_sql(&self) -> bool {
        false
    }

    /// Raises a horizon and deletes nothing, as pruning that was interrupted did in databases of
    /// the reference, where the implementation can; whether it did.
    async fn interrupt_prune(
        &self,
        _store: &Arc<dyn Store>,
        _partition: &PartitionId,
        _horizon: HorizonSeq,
    ) -> bool {
        false
    }

    /// Makes a recorded outcome unreadable, where the implementation can; whether it did.
    async fn damage_push_result(&self, _store: &Arc<dyn Store>, _key: &PushKey) -> bool {
        false
    }
}

/// One promise of the contract, as a test.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The promise.
    pub name: &'static str,
    run: CaseFn,
}

type CaseFn = for<'a> fn(&'a dyn Database) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A case that takes longer waits for something that never comes.
const CASE_SECONDS_MAX: u64 = 300;

/// Runs the case with this name.
///
/// # Panics
///
/// When the promise is broken, or when there is no such case.
pub fn run(name: &str, database: &dyn Database) {
    let case = CASES
        .iter()
        .find(|case| case.name == name)
        .expect("a case of the suite");
    block_on((case.run)(database));
}

/// Runs every case, each on a database of its own.
///
/// # Panics
///
/// At the first broken promise.
pub fn run_all(make: &dyn Fn() -> Box<dyn Database>) {
    for case in CASES {
        run(case.name, &*make());
    }
}

/// Runs a future to its end as the cases are run: on two threads, so that what can race does,
/// and with a deadline.
///
/// # Panics
///
/// When the deadline passes.
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

macro_rules! collect_cases {
    ([] $($group:ident { $($case:ident)* })*) => {
        /// Every case of the suite.
        pub static CASES: &[Case] = &[
            $($(Case {
                name: stringify!($case),
                run: |database| Box::pin($group::$case(database)),
            },)*)*
        ];
    };
}

crate::for_each_conformance_case! { [collect_cases] [] }

/// Stamps every case of the suite as a test. The expression makes the [`Database`] of one case.
#[macro_export]
macro_rules! store_conformance {
    ($database:expr) => {
        $crate::for_each_conformance_case! { [$crate::stamp_conformance_cases] [$database] }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! stamp_conformance_cases {
    ([$database:expr] $($group:ident { $($case:ident)* })*) => {
        $($(
            #[test]
            fn $case() {
                $crate::conformance::run(stringify!($case), &$database);
            }
        )*)*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! for_each_conformance_case {
    ([$($callback:tt)*] [$($context:tt)*]) => {
        $($callback)*! { [$($context)*]
            log {
                commits_are_numbered_from_one_without_gaps
                a_commit_that_skips_a_place_panics
                a_commit_that_repeats_a_place_panics
                partitions_count_their_commits_for_themselves
                a_rejected_commit_takes_no_place
                a_commit_without_changes_takes_a_place
                an_abandoned_transaction_takes_no_place
                one_transaction_may_hold_many_commits
                a_store_with_one_lane_spans_partitions_in_a_transaction
                a_commit_keeps_its_actor_and_its_time
                a_change_keeps_its_row_its_version_and_its_scopes
                changes_keep_their_order_within_a_commit
                one_commit_may_change_a_row_more_than_once
                newest_change_names_the_last_commit_with_a_scope
                a_row_that_moves_leaves_one_scope_and_enters_another
            }
            windows {
                a_window_holds_what_the_filter_selects_oldest_first
                a_window_of_an_empty_filter_is_empty
                a_window_shows_only_the_matching_changes_of_a_commit
                a_window_begins_after_its_start_and_ends_with_its_end
                a_window_ends_before_the_commit_that_exceeds_its_changes
                a_window_ends_before_the_commit_that_exceeds_its_bytes
                deletes_have_no_bytes_in_a_window
                windows_read_one_after_the_other_are_the_whole_log
                a_window_holds_nothing_that_was_pruned
                a_window_of_an_unknown_partition_is_empty
                a_gate_names_what_guards_the_read
                a_filter_of_ten_thousand_values_is_served
                scope_values_are_compared_byte_by_byte
            }
            scans {
                rows_come_by_bytewise_row_id
                a_page_shows_version_and_payload_as_stored
                a_page_of_rows_counts_the_bytes_it_holds
                pages_read_one_after_the_other_are_all_rows
                a_page_begins_after_an_id_that_need_not_exist
                a_page_says_whether_a_matching_row_follows
                a_page_ends_before_the_row_that_exceeds_its_bytes
                a_page_without_room_still_holds_one_row
                a_page_holds_what_the_filter_selects
                a_page_of_an_unknown_partition_is_empty
                a_scan_with_ten_thousand_values_is_served
            }
            streams {
                a_stream_is_every_row_of_its_filter_in_order
                a_stream_of_nothing_is_one_empty_piece
                a_stream_shows_one_snapshot_whatever_is_written
                a_stream_names_the_newest_change_of_its_scope
                other_reads_do_not_wait_for_streams
                a_stream_that_is_dropped_holds_up_nobody
                a_scope_is_measured_up_to_a_limit
            }
            blobs {
                a_row_is_found_by_a_blob_it_references
                a_row_that_no_longer_references_a_blob_is_not_found
                a_blob_is_referenced_while_a_visible_row_says_so
            }
            rows {
                a_row_reads_back_as_written
                a_row_that_is_not_there_is_none
                an_update_replaces_the_whole_row
                no_column_versions_differ_from_empty_ones
                a_deleted_row_is_gone_from_every_read
                a_row_inserted_again_starts_anew
                an_update_that_keeps_its_scopes_stays_in_every_scan
                scans_follow_a_row_whose_scopes_move
                a_row_inserted_and_deleted_in_one_commit_leaves_nothing
                rows_are_found_in_the_order_of_their_keys
                one_primary_key_lives_in_two_partitions_and_two_tables
                a_payload_of_any_type_is_kept_byte_for_byte
                a_large_row_is_kept
                a_commit_of_five_hundred_rows_is_kept
                a_write_replaces_or_keeps_the_blobs_of_its_row
            }
            tombstones {
                a_deleted_row_leaves_its_place_and_its_scopes
                a_tombstone_stays_until_a_commit_ends_it
                a_later_delete_replaces_the_tombstone
                a_row_inserted_again_in_its_own_commit_leaves_no_tombstone
                a_transaction_sees_its_own_tombstones
                a_tombstone_at_or_below_the_horizon_is_none
            }
            constraints {
                a_value_that_is_taken_is_a_violation
                a_violation_names_the_operation_and_not_the_place_of_the_change
                an_update_to_a_value_that_is_taken_is_a_violation
                an_update_may_keep_its_own_value
                values_are_unique_within_a_partition_only
                nulls_never_collide
                what_is_not_a_number_is_null_or_one_value
                unique_values_are_compared_byte_by_byte
                a_unique_index_over_columns_compares_all_of_them
                a_value_freed_earlier_in_the_commit_is_free
                a_value_freed_later_in_the_commit_is_taken
                a_deleted_row_frees_its_value
                commits_before_a_violation_stay_and_those_after_leave_no_trace
                a_commit_that_breaks_a_constraint_leaves_no_trace
                a_transaction_goes_on_after_a_violation
                a_transaction_dropped_after_a_violation_leaves_no_trace
            }
            transactions {
                answers_come_in_the_order_of_the_questions
                a_load_of_a_thousand_rows_is_answered
                a_transaction_reads_its_own_writes
                a_transaction_may_load_another_partition_later
                nobody_else_sees_an_open_transaction
                finishing_makes_everything_visible_at_once
                a_transaction_that_wrote_nothing_may_finish
                a_dropped_transaction_is_invisible_and_harmless
                a_begin_that_is_canceled_leaves_no_trace
                a_load_that_is_canceled_abandons_its_transaction
                an_apply_that_is_canceled_abandons_its_transaction
                a_finish_that_is_canceled_did_all_or_nothing
                reads_that_are_canceled_do_no_harm
                the_next_writer_waits_and_sees_what_the_first_wrote
                a_dropped_writer_lets_the_next_one_in
                a_waiting_writer_that_gives_up_holds_up_nobody
                writers_of_other_partitions_do_not_wait_where_lanes_are_apart
                racing_writers_lose_nothing_and_every_read_is_one_snapshot
            }
            candidates {
                staged_rows_are_seen_by_their_transaction_alone
                staging_again_adds_to_what_is_staged
                unstaging_takes_everything_staged_back
                unstaging_keeps_what_was_applied
                applying_and_finishing_take_back_what_is_staged
                what_is_staged_and_not_applied_is_never_written
                staging_names_the_operation_that_breaks_a_constraint
                a_violation_after_staging_leaves_the_transaction_open
                a_stage_that_is_canceled_abandons_its_transaction
                a_transaction_scans_by_the_rules_of_every_scan
                an_index_finds_exactly_the_values_asked_for
                an_index_is_read_in_order_and_in_pages
                an_index_follows_staged_rows
                children_come_by_parent_and_then_by_row_id
                children_follow_staged_rows
                children_of_an_integer_key_are_found_by_its_text
                a_store_without_sql_refuses_a_query
                a_query_sees_what_is_staged
                a_query_has_values_of_every_kind
                a_candidate_table_is_known_by_its_place
            }
            outcomes {
                an_outcome_reads_back_as_recorded
                an_applied_outcome_names_its_place
                an_outcome_without_our_own_members_reads_back
                an_outcome_never_recorded_is_none
                the_first_outcome_recorded_stays
                partition_client_and_id_all_name_an_outcome
                an_outcome_outlives_its_log_and_its_epoch
                a_transaction_sees_the_outcome_it_records
                a_damaged_outcome_is_unreadable_and_stays
            }
            clients {
                a_client_record_reads_back_as_written
                a_client_record_is_replaced_whole
                clients_of_two_partitions_are_two_clients
                a_client_record_of_another_epoch_is_skipped
                a_client_record_of_another_actor_is_skipped
                activity_never_creates_a_partition
                an_empty_batch_of_activity_is_nothing
                activity_is_written_all_or_not_at_all
                a_commit_binds_a_client_that_is_new
                a_commit_leaves_a_client_that_is_known
                a_transaction_sees_the_client_it_binds
                clients_are_listed_by_bytewise_id
            }
            registry {
                a_store_answers_a_check
                touching_registers_a_partition_that_is_new
                touching_again_keeps_the_epoch_and_refreshes_the_time
                a_partition_record_shows_head_and_horizon
                a_log_does_not_register_its_partition
                partitions_are_listed_by_bytewise_name
                rotation_gives_a_new_epoch_and_requires_it
                rotation_registers_a_partition_that_is_new
                rotation_deletes_the_clients_of_its_partition_only
                rotation_keeps_rows_log_and_outcomes
                rotation_is_done_or_not_done
            }
            fences {
                a_partition_without_a_fence_has_no_barrier
                a_fence_only_rises
                a_commit_below_the_fence_is_refused_and_leaves_no_trace
                an_upgrade_raises_the_fence_of_every_partition
                a_fence_waits_for_the_writer_that_has_its_partition
                a_checkpoint_is_declared_claimed_advanced_and_activated
                a_gate_names_the_pending_checkpoints_of_its_partition
                a_claim_is_held_until_its_lease_ends
                of_two_that_claim_at_once_one_has_it
                a_checkpoint_that_lost_its_log_is_not_activated
                checkpoints_are_listed_by_partition_and_name
            }
            retention {
                the_oldest_cursor_is_the_least_of_clients_seen_since
                a_client_without_a_cursor_holds_back_nothing
                the_newest_aged_commit_is_strictly_older
                a_clock_that_went_back_does_not_hide_a_commit
                retention_inputs_come_with_their_gate
                pruning_removes_the_log_through_the_horizon
                newest_change_forgets_what_was_pruned
                pruning_keeps_rows_and_outcomes
                a_pruned_log_goes_on_where_it_was
                the_horizon_never_falls
                pruning_again_at_the_same_horizon_is_nothing
                pruning_finishes_what_was_interrupted
                pruning_under_another_epoch_is_refused
                pruning_an_unregistered_partition_is_refused
                pruning_is_done_or_not_done
            }
            operator {
                a_table_is_read_whole_whatever_its_scopes
                pages_of_a_table_are_all_its_rows
                a_page_of_a_table_ends_like_any_page
                a_table_of_an_unknown_partition_is_empty
                a_reaction_is_pending_from_its_commit_on
                the_first_reaction_recorded_under_a_key_stays
                an_abandoned_commit_leaves_no_reaction
                reactions_are_listed_by_bytewise_key_in_pages
                reactions_are_listed_by_their_status
                pruning_the_log_keeps_reactions
                outcomes_recorded_before_a_time_are_deleted
                an_outcome_without_a_time_is_kept
                a_damaged_outcome_is_not_pruned
                outcomes_are_pruned_in_pages
                outcomes_of_another_partition_are_kept
                a_pruned_outcome_may_be_recorded_again
                pruning_outcomes_is_done_or_not_done
            }
            preparing {
                preparing_again_changes_nothing
                a_database_that_is_opened_again_holds_what_was_written
                appended_columns_are_null_in_rows_that_were_there
                appended_columns_are_null_in_the_log_that_was_there
                a_new_version_adds_and_retires_tables
                a_new_version_replaces_the_indexes
                a_unique_index_over_values_that_repeat_is_refused
                a_removed_column_is_refused
                a_renamed_column_is_refused
                a_column_of_another_type_is_refused
                a_column_of_other_nullability_is_refused
                columns_in_another_order_are_refused
                an_appended_column_that_is_not_nullable_is_refused
                other_columns_at_the_same_version_are_refused
                another_table_at_the_same_version_is_refused
                an_older_schema_is_refused
            }
        }
    };
}
