//! Recorded outcomes as frames, in the wire version of whoever asks (§6.3, OQ-10).

use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::ErrorCode;
use tidewater_schema::{Schema, SchemaView, Table};
use tidewater_store::{PushResultRecord, PushStatus, ResultRecord};
use tidewater_wire::{
    OpResult, PushCommit, PushOutcome, PushResult, PushResultDetails, RejectionDetail, WireVersion,
    row::{decode_row, encode_row, presence_bitmap},
};

/// The frames that answer one commit.
pub(crate) struct PushAnswer {
    pub(crate) result: PushResult,
    pub(crate) details: Option<PushResultDetails>,
}

/// What a lane says about one commit.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(super) client_commit_id: ByteString,
    /// The table that a conflict's row belongs to.
    pub(super) conflict_table: Option<ByteString>,
    pub(super) told: Told,
}

/// How an outcome came about.
#[derive(Clone, Debug)]
pub(super) enum Told {
    /// Decided now and recorded.
    Fresh(Arc<PushResultRecord>),
    /// Recorded earlier.
    Replayed(Arc<PushResultRecord>),
    /// Recorded earlier and no longer readable. Never recorded itself.
    Unreadable,
}

impl Outcome {
    /// What is said about `commit`.
    pub(super) fn new(commit: &PushCommit, told: Told) -> Self {
        let conflict_table = match &told {
            Told::Fresh(record) | Told::Replayed(record) => {
                record.results.iter().find_map(|result| match result {
                    ResultRecord::Conflict { op_index, .. } => {
                        let operation = usize::try_from(*op_index).ok()?;
                        Some(commit.operations.get(operation)?.table.clone())
                    }
                    _ => None,
                })
            }
            Told::Unreadable => None,
        };
        Self {
            client_commit_id: commit.client_commit_id.clone(),
            conflict_table,
            told,
        }
    }

    /// The frames for a requester on this wire version who knows the schema like this.
    pub(crate) fn into_answer(
        self,
        schema: &Schema,
        view: &SchemaView,
        version: WireVersion,
    ) -> PushAnswer {
        let (record, replayed) = match &self.told {
            Told::Fresh(record) => (record, false),
            Told::Replayed(record) => (record, true),
            Told::Unreadable => return self.cache_miss(),
        };
        let outcome = match (record.status, replayed) {
            (PushStatus::Applied(seq), false) => PushOutcome::Applied(seq.to_i64()),
            (PushStatus::Applied(seq), true) => PushOutcome::Cached(seq.to_i64()),
            (PushStatus::Rejected, _) => PushOutcome::Rejected,
        };
        let results = record
            .results
            .iter()
            .map(|result| self.op_result(result, schema, view, version, record.schema_version))
            .collect::<Option<Vec<_>>>();
        let Some(results) = results else {
            return self.cache_miss();
        };
        let details = details_frame(&self.client_commit_id, record);
        let client_commit_id = self.client_commit_id;
        PushAnswer {
            result: PushResult {
                client_commit_id,
                outcome,
                results,
            },
            details,
        }
    }

    /// One record; `None` when its row cannot be shown in the requester's columns.
    fn op_result(
        &self,
        record: &ResultRecord,
        schema: &Schema,
        view: &SchemaView,
        version: WireVersion,
        recorded_version: Option<i32>,
    ) -> Option<OpResult> {
        Some(match record {
            ResultRecord::Applied { op_index } => OpResult::Applied {
                op_index: *op_index,
            },
            ResultRecord::Error {
                op_index,
                code,
                message,
                retryable,
                ..
            } => OpResult::Error {
                op_index: *op_index,
                code: code.as_str().into(),
                message: message.as_str().into(),
                retryable: *retryable,
            },
            ResultRecord::Conflict {
                op_index,
                code,
                message,
                server_version,
                server_row,
                conflict_columns,
            } => {
                let (mut row, mut bitmap) = (
                    server_row.clone(),
                    conflict_columns.clone().unwrap_or_default(),
                );
                if recorded_version != Some(schema.version()) || conflict_columns.is_none() {
                    let table = schema.table(schema.find(self.conflict_table.as_ref()?)?);
                    row = project_row(table, server_row)?;
                    bitmap = project_bitmap(table, conflict_columns.as_deref());
                }
                if view.version() != schema.version() {
                    let index = view.find(self.conflict_table.as_ref()?)?;
                    row = view.project(index, &row)?.into_owned().into();
                    bitmap = cut_bitmap(&bitmap, view.table(index)?.columns.len());
                }
                if !version.is_sparse() {
                    bitmap = Bytes::new();
                }
                OpResult::Conflict {
                    op_index: *op_index,
                    code: code.as_str().into(),
                    message: message.as_str().into(),
                    server_version: *server_version,
                    server_row: row,
                    conflict_columns: bitmap,
                }
            }
        })
    }

    fn cache_miss(self) -> PushAnswer {
        let code = ErrorCode::IdempotencyCacheMiss;
        let result = OpResult::Error {
            op_index: 0,
            code: code.as_str().into(),
            message: "the recorded outcome cannot be read now".into(),
            retryable: code.is_retryable(),
        };
        let client_commit_id = self.client_commit_id;
        let outcome = PushOutcome::Rejected;
        let result = PushResult {
            client_commit_id,
            outcome,
            results: vec![result],
        };
        PushAnswer {
            result,
            details: None,
        }
    }
}

fn details_frame(
    client_commit_id: &ByteString,
    record: &PushResultRecord,
) -> Option<PushResultDetails> {
    let entries: Vec<RejectionDetail> = record
        .results
        .iter()
        .filter_map(|result| match result {
            ResultRecord::Error {
                op_index,
                details: Some(details),
                ..
            } => Some(RejectionDetail {
                op_index: *op_index,
                details: details.as_str().into(),
            }),
            _ => None,
        })
        .collect();
    let client_commit_id = client_commit_id.clone();
    (!entries.is_empty()).then_some(PushResultDetails {
        client_commit_id,
        entries,
    })
}

/// A row recorded under an older schema version, in today's columns: columns are only ever
/// appended, so it is a row of the first so many columns, and the rest are NULL.
fn project_row(table: &Table, row: &Bytes) -> Option<Bytes> {
    let columns = &table.columns;
    if decode_row(columns, row).is_ok() {
        return Some(row.clone());
    }
    (1..columns.len()).rev().find_map(|count| {
        let fields = decode_row(&columns[..count], row).ok()?;
        let added = &columns[count..];
        if !added.iter().all(|column| column.nullable) {
            return None;
        }
        let mut values: Vec<Option<&[u8]>> = fields
            .iter()
            .map(|field| field.as_ref().map(|field| field.encoded))
            .collect();
        values.resize(columns.len(), None);
        Some(encode_row(&values).into())
    })
}

/// The bits of the first columns: the others are not known to whoever asks.
fn cut_bitmap(bitmap: &[u8], columns: usize) -> Bytes {
    let is_set = |column: &usize| {
        let byte = bitmap.get(column / 8).copied().unwrap_or_default();
        byte & (1 << (column % 8)) != 0
    };
    presence_bitmap(columns, (0..columns).filter(is_set)).into()
}

/// A bitmap sized for today's columns; every comparable column when none was recorded (OQ-11).
fn project_bitmap(table: &Table, recorded: Option<&[u8]>) -> Bytes {
    let size = table.columns.len().div_ceil(8);
    match recorded {
        Some(bitmap) => {
            let mut bitmap = bitmap.to_vec();
            bitmap.resize(size, 0);
            bitmap.into()
        }
        None => super::decide::all_comparable(table).into(),
    }
}
