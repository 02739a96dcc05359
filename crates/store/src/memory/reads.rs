//! The reads: each is a function of one snapshot.

use std::{collections::HashSet, ops::Bound};

use bytestring::ByteString;
use tidewater_model::{ClientId, CommitSeq, Cursor, PartitionId, StoredScopes};
use tidewater_schema::TableIndex;

use super::{
    index::Matcher,
    state::{LogChange, State},
};
use crate::{
    Child, ChildQuestion, ClientRecord, IndexScan, PartitionRecord, RetentionInputs, RowKey,
    RowPage, RowPageBuilder, RowScan, ScopeSize, ScopeSizeRequest, ScopesTest, StorageCode,
    StoreError, StoredRow, Window, WindowBuilder, WindowRequest,
};

impl State {
    pub(super) fn read_window(&self, request: &WindowRequest) -> Window {
        let mut window = WindowBuilder::default();
        let exhausted = self.fill_window(request, &mut window);
        window.finish(self.gate(&request.partition), exhausted)
    }

    /// Whether the span was read to its end.
    fn fill_window(&self, request: &WindowRequest, window: &mut WindowBuilder) -> bool {
        let Some(table) = self.table(&request.partition, request.table) else {
            return true;
        };
        let commits = &self.partitions[&request.partition].commits;
        let matcher = Matcher::new(&request.filter);
        if request.after >= request.through {
            return true;
        }
        let candidates = table.commits_by_scope.candidates(
            &request.filter,
            Bound::Excluded(&request.after),
            Bound::Included(&request.through),
        );
        for seq in candidates {
            let commit = &commits[seq];
            let changes: Vec<&LogChange> = commit
                .changes
                .iter()
                .filter(|change| change.table == table.name && matcher.matches(&change.scopes))
                .collect();
            if changes.is_empty() {
                continue;
            }
            let bytes: usize = changes.iter().map(|change| payload_bytes(change)).sum();
            if window.change_count() > 0
                && (window.change_count() + changes.len() > request.changes_max
                    || window.byte_count() + bytes > request.bytes_max)
            {
                return false;
            }
            window.commit(*seq, commit.created_at_ms, commit.actor.as_str());
            for change in changes {
                let row = change
                    .row
                    .as_ref()
                    .map(|(row_version, payload)| (*row_version, &payload[..]));
                window.change(&change.row_id, row, &change.scopes);
            }
        }
        true
    }

    pub(super) fn scan_rows(&self, scan: &RowScan) -> RowPage {
        let mut page = RowPageBuilder::default();
        let has_more = self.fill_page(scan, &mut page);
        page.finish(self.gate(&scan.partition), has_more)
    }

    /// Whether a matching row is left.
    fn fill_page(&self, scan: &RowScan, page: &mut RowPageBuilder) -> bool {
        let Some(table) = self.table(&scan.partition, scan.table) else {
            return false;
        };
        let matcher = Matcher::new(&scan.filter);
        let after = scan.after.as_deref().map(ByteString::from);
        let lower = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let candidates = table
            .rows_by_scope
            .candidates(&scan.filter, lower, Bound::Unbounded);
        for row_id in candidates {
            let row = &table.rows[row_id].stored;
            if !matcher.matches(&row.scopes) {
                continue;
            }
            if page.row_count() > 0
                && (page.row_count() >= scan.rows_max
                    || page.byte_count() + row.payload.len() > scan.bytes_max)
            {
                return true;
            }
            page.row(row_id, row.row_version, &row.payload);
        }
        false
    }

    pub(super) fn scope_size(&self, request: &ScopeSizeRequest) -> ScopeSize {
        let Some(table) = self.table(&request.partition, request.table) else {
            return ScopeSize::default();
        };
        let ScopeSizeRequest {
            variable,
            values,
            limit,
            ..
        } = request;
        let span = (
            Bound::Excluded(&request.after),
            Bound::Included(&request.through),
        );
        let commits = if request.after < request.through {
            table.commits_by_scope.count(variable, values, span, *limit)
        } else {
            0
        };
        let all = (Bound::Unbounded, Bound::Unbounded);
        ScopeSize {
            rows: table.rows_by_scope.count(variable, values, all, *limit),
            commits,
        }
    }

    pub(super) fn scan_index(
        &self,
        scan: &IndexScan,
    ) -> Result<Vec<(ByteString, StoredRow)>, StoreError> {
        let declared = self.schema().table(scan.table);
        if !declared.materialized {
            return Err(no_indexes(&declared.name));
        }
        let Some(table) = self.table(&scan.partition, scan.table) else {
            return Ok(Vec::new());
        };
        let found = table
            .indexes
            .lookup(declared, scan.index, &scan.values)
            .ok_or_else(|| no_indexes(&declared.name))?;
        let after = scan.after.as_deref().map(ByteString::from);
        let lower = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        Ok(found
            .range::<_, ByteString>((lower, Bound::Unbounded))
            .map(|row_id| (row_id.clone(), table.rows[row_id].stored.clone()))
            .take(scan.limit)
            .collect())
    }

    pub(super) fn load_children(&self, question: &ChildQuestion) -> Result<Vec<Child>, StoreError> {
        let declared = self.schema().table(question.table);
        let Some(table) = self.table(&question.partition, question.table) else {
            return Ok(Vec::new());
        };
        let mut children = Vec::new();
        for parent in &question.parents {
            let found = table
                .indexes
                .lookup_text(declared, question.column, parent)
                .ok_or_else(|| no_indexes(&declared.name))?;
            let left = question.limit - children.len();
            children.extend(found.iter().take(left).map(|row_id| Child {
                parent: parent.clone(),
                row_id: row_id.clone(),
            }));
        }
        Ok(children)
    }

    pub(super) fn newest_change(
        &self,
        partition: &PartitionId,
        table: TableIndex,
        variable: &str,
        values: &[String],
    ) -> Option<CommitSeq> {
        let table = self.table(partition, table)?;
        table.commits_by_scope.greatest(variable, values).copied()
    }

    pub(super) fn find_partition(&self, partition: &PartitionId) -> Option<PartitionRecord> {
        self.partitions.get(partition)?.record(partition)
    }

    pub(super) fn list_partitions(
        &self,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Vec<PartitionRecord> {
        let lower = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.partitions
            .range::<_, PartitionId>((lower, Bound::Unbounded))
            .filter_map(|(partition, entry)| entry.record(partition))
            .take(limit)
            .collect()
    }

    pub(super) fn list_clients(
        &self,
        partition: &PartitionId,
        after: Option<&ClientId>,
        limit: usize,
    ) -> Vec<(ClientId, ClientRecord)> {
        let Some(entry) = self.partitions.get(partition) else {
            return Vec::new();
        };
        let lower = after.map_or(Bound::Unbounded, Bound::Excluded);
        entry
            .clients
            .range::<_, ClientId>((lower, Bound::Unbounded))
            .map(|(client, record)| (client.clone(), ClientRecord::clone(record)))
            .take(limit)
            .collect()
    }

    pub(super) fn retention_inputs(
        &self,
        partition: &PartitionId,
        seen_since_ms: i64,
        aged_before_ms: i64,
    ) -> RetentionInputs {
        let entry = self.partitions.get(partition);
        let oldest_cursor = entry.and_then(|entry| {
            entry
                .clients
                .values()
                .filter(|client| client.updated_at_ms >= seen_since_ms)
                .filter_map(|client| match client.cursor {
                    Cursor::At(seq) => Some(seq),
                    Cursor::Never => None,
                })
                .min()
        });
        let newest_before = entry.and_then(|entry| {
            entry
                .commits
                .iter()
                .rev()
                .find(|(_, commit)| commit.created_at_ms < aged_before_ms)
                .map(|(seq, _)| *seq)
        });
        RetentionInputs {
            gate: self.gate(partition),
            oldest_cursor,
            newest_before: newest_before.unwrap_or_default(),
        }
    }

    pub(super) fn rows_with_blob(
        &self,
        partition: &PartitionId,
        blob_id: &str,
    ) -> Vec<(RowKey, StoredScopes)> {
        let mut found = Vec::new();
        for index in (0..self.schema().tables().len()).map(TableIndex) {
            let Some(table) = self.table(partition, index) else {
                continue;
            };
            for (row_id, row) in &table.rows {
                if row.blob_ids.iter().any(|referenced| referenced == blob_id) {
                    let key = RowKey {
                        partition: partition.clone(),
                        table: index,
                        row_id: row_id.clone(),
                    };
                    found.push((key, row.stored.scopes.clone()));
                }
            }
        }
        found
    }

    pub(super) fn find_blob_row(
        &self,
        partition: &PartitionId,
        blob_id: &str,
        wanted: &ScopesTest,
    ) -> Option<RowKey> {
        let mut rows = self.rows_with_blob(partition, blob_id).into_iter();
        let found = rows.find(|(key, scopes)| wanted.admits(key.table, scopes));
        found.map(|(key, _)| key)
    }

    pub(super) fn are_referenced(&self, partition: &PartitionId, blob_ids: &[String]) -> Vec<bool> {
        let Some(entry) = self.partitions.get(partition) else {
            return vec![false; blob_ids.len()];
        };
        let referenced: HashSet<&str> = entry
            .tables
            .values()
            .flat_map(|table| table.rows.values())
            .flat_map(|row| row.blob_ids.iter().map(String::as_str))
            .collect();
        let is_referenced = |id: &String| referenced.contains(id.as_str());
        blob_ids.iter().map(is_referenced).collect()
    }
}

fn no_indexes(table: &str) -> StoreError {
    StoreError::refused(
        StorageCode::QueryUnsupported,
        "look up an index",
        format!("table `{table}` has no such index in the database"),
    )
}

fn payload_bytes(change: &LogChange) -> usize {
    change.row.as_ref().map_or(0, |(_, payload)| payload.len())
}
