//! What operators read and forget: whole tables, reactions, old outcomes.

use std::{ops::Bound, sync::Arc};

use bytestring::ByteString;
use tidewater_model::{ClientId, PartitionId};

use super::state::{Partition, State};
use crate::{
    AppliedCommit, PushKey, ReactionRecord, ReactionStatus, RowPage, RowPageBuilder, StoredResult,
    TableScan,
};

impl State {
    pub(super) fn scan_table(&self, scan: &TableScan) -> RowPage {
        let mut page = RowPageBuilder::default();
        let has_more = self.fill_table_page(scan, &mut page);
        page.finish(self.gate(&scan.partition), has_more)
    }

    /// Whether a row is left.
    fn fill_table_page(&self, scan: &TableScan, page: &mut RowPageBuilder) -> bool {
        let Some(table) = self.table(&scan.partition, scan.table) else {
            return false;
        };
        let after = scan.after.as_deref().map(ByteString::from);
        let lower = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        for (row_id, row) in table.rows.range::<_, ByteString>((lower, Bound::Unbounded)) {
            let payload = &row.stored.payload;
            if page.row_count() > 0
                && (page.row_count() >= scan.rows_max
                    || page.byte_count() + payload.len() > scan.bytes_max)
            {
                return true;
            }
            page.row(row_id, row.stored.row_version, payload);
        }
        false
    }

    pub(super) fn list_reactions(
        &self,
        partition: &PartitionId,
        status: Option<ReactionStatus>,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<ReactionRecord> {
        let Some(entry) = self.partitions.get(partition) else {
            return Vec::new();
        };
        let after = after.map(str::to_owned);
        let lower = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        entry
            .reactions
            .range::<_, String>((lower, Bound::Unbounded))
            .map(|(_, reaction)| reaction)
            .filter(|reaction| status.is_none_or(|status| reaction.status == status))
            .map(|reaction| ReactionRecord::clone(reaction))
            .take(limit)
            .collect()
    }

    /// Deletes old outcomes among the next ones: the last looked at if there may be more, and
    /// how many were deleted.
    pub(super) fn prune_push_results(
        &mut self,
        partition: &PartitionId,
        after: Option<&PushKey>,
        recorded_before_ms: i64,
        limit: usize,
    ) -> (Option<PushKey>, u64) {
        let Some(entry) = self.partitions.get_mut(partition) else {
            return (None, 0);
        };
        let entry = Arc::make_mut(entry);
        let after = after.map(|key| (key.client.clone(), key.client_commit_id.clone()));
        let lower = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let looked_at: Vec<(ClientId, ByteString)> = entry
            .results
            .range::<_, (ClientId, ByteString)>((lower, Bound::Unbounded))
            .map(|(key, _)| key.clone())
            .take(limit)
            .collect();
        let mut deleted = 0;
        for key in &looked_at {
            if is_recorded_before(&entry.results[key], recorded_before_ms) {
                entry.results.remove(key);
                deleted += 1;
            }
        }
        let last = looked_at.into_iter().nth(limit.saturating_sub(1));
        let last = last.map(|(client, client_commit_id)| PushKey {
            partition: partition.clone(),
            client,
            client_commit_id,
        });
        (last, deleted)
    }
}

impl Partition {
    /// Records the reactions of a commit, except those whose key is known.
    pub(super) fn put_reactions(&mut self, key: &PushKey, applied: &AppliedCommit) {
        for write in &applied.reactions {
            let entry = self.reactions.entry(write.idempotency_key.clone());
            entry.or_insert_with(|| {
                Arc::new(ReactionRecord {
                    write: write.clone(),
                    client: key.client.clone(),
                    client_commit_id: key.client_commit_id.clone(),
                    commit_seq: applied.commit_seq,
                    created_at_ms: applied.created_at_ms,
                    available_at_ms: applied.created_at_ms,
                    status: ReactionStatus::Pending,
                    attempts: 0,
                })
            });
        }
    }
}

fn is_recorded_before(result: &StoredResult, at_ms: i64) -> bool {
    match result {
        StoredResult::Readable(record) => record.recorded_at_ms.is_some_and(|at| at < at_ms),
        StoredResult::Unreadable => false,
    }
}
