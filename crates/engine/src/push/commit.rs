//! Decides one commit against the candidate state, all or nothing (§6.3).

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::{AllowedScopes, ColumnType, ErrorCode, PartitionId};
use tidewater_schema::{Schema, Table, TableIndex};
use tidewater_store::{ChangeKind, ChangeWrite, ResultRecord, RowKey, RowState, StoredRow};
use tidewater_wire::{
    BlobRef, Operation, OperationAction, PushCommit,
    row::{Field, Slot, Value, decode_row, decode_sparse_row, encode_row},
};

use super::{
    candidate::Candidate,
    decide::{self, Incoming, Refusal, Upsert},
};
use crate::RoundError;

/// Who writes, under which rules.
pub(super) struct Author<'a> {
    pub(super) partition: &'a PartitionId,
    /// `None` when the resolver failed: everything is then forbidden.
    pub(super) allowed: Option<&'a AllowedScopes>,
    pub(super) sparse: bool,
}

/// What the operations of a commit come to.
#[derive(Debug)]
pub(super) enum Decision {
    /// All of them are accepted; the candidate state shows their effect.
    Apply(Vec<ChangeWrite>),
    /// This record terminates the commit; the candidate state must be rolled back.
    Reject(ResultRecord),
}

/// Decides the operations in order. Later ones see the effect of earlier ones.
///
/// An error means that nothing may be recorded: the request fails.
pub(super) fn decide(
    schema: &Schema,
    author: &Author<'_>,
    commit: &PushCommit,
    candidate: &mut Candidate,
) -> Result<Decision, RoundError> {
    let mut changes = Vec::with_capacity(commit.operations.len());
    for (index, operation) in commit.operations.iter().enumerate() {
        let op_index = i32::try_from(index).expect("a request has few operations");
        match decide_operation(schema, author, operation, op_index, candidate) {
            Ok(None) => {}
            Ok(Some(change)) => changes.push(change),
            Err(Stop::Reject(record)) => return Ok(Decision::Reject(*record)),
            Err(Stop::Fail(error)) => return Err(error),
        }
    }
    Ok(Decision::Apply(changes))
}

/// Why a commit ends before its last operation.
enum Stop {
    Reject(Box<ResultRecord>),
    Fail(RoundError),
}

impl Stop {
    fn error(op_index: i32, code: ErrorCode, message: &str) -> Self {
        Self::Reject(Box::new(error_record(op_index, code, message)))
    }

    fn refusal(op_index: i32, refusal: Refusal, stored: Option<&StoredRow>) -> Self {
        match (refusal, stored) {
            (Refusal::Error(code, message), _) => Self::error(op_index, code, message),
            (Refusal::Conflict { columns }, Some(stored)) => {
                Self::Reject(Box::new(ResultRecord::Conflict {
                    op_index,
                    code: ErrorCode::VersionConflict.as_str().to_owned(),
                    message: "the row was written since the author saw it".to_owned(),
                    server_version: stored.row_version,
                    server_row: stored.payload.clone(),
                    conflict_columns: Some(columns.into()),
                }))
            }
            (Refusal::Corrupt, _) | (Refusal::Conflict { .. }, None) => {
                tracing::error!("a stored row does not decode under its own table");
                Self::Fail(RoundError::new(
                    ErrorCode::InternalError,
                    "internal server error",
                ))
            }
        }
    }
}

/// An error record of the catalogue, without details.
pub(super) fn error_record(op_index: i32, code: ErrorCode, message: &str) -> ResultRecord {
    ResultRecord::Error {
        op_index,
        code: code.as_str().to_owned(),
        message: message.to_owned(),
        retryable: false,
        details: None,
    }
}

fn decide_operation(
    schema: &Schema,
    author: &Author<'_>,
    operation: &Operation,
    op_index: i32,
    candidate: &mut Candidate,
) -> Result<Option<ChangeWrite>, Stop> {
    let Some(index) = schema.find(&operation.table) else {
        return Err(Stop::error(
            op_index,
            ErrorCode::UnknownTable,
            "the table is unknown",
        ));
    };
    let Some(allowed) = author.allowed else {
        return Err(Stop::error(
            op_index,
            ErrorCode::Forbidden,
            "the actor's permissions could not be resolved",
        ));
    };
    let table = schema.table(index);
    let key = row_key(author, index, &operation.row_id);
    let slot = candidate.row(&key);
    let stored = slot.row.as_ref();
    let kind = match &operation.action {
        OperationAction::Delete => {
            let Some(stored) = stored else {
                return Ok(None);
            };
            decide::decide_delete(table, stored, allowed)
                .map_err(|refusal| Stop::refusal(op_index, refusal, Some(stored)))?;
            ChangeKind::Delete {
                scopes: stored.scopes.clone(),
            }
        }
        OperationAction::Upsert(payload) => {
            let incoming = read_payload(table, author.sparse, operation, payload)
                .map_err(|message| Stop::error(op_index, ErrorCode::InvalidRequest, message))?;
            let upsert = match stored {
                Some(stored) => decide::decide_update(table, incoming, stored, allowed),
                None => decide::decide_insert(table, incoming, slot.tombstone.as_ref(), allowed),
            }
            .map_err(|refusal| Stop::refusal(op_index, refusal, stored))?;
            check_dependencies(table, &upsert, op_index)?;
            ChangeKind::Upsert {
                row: row_state(table, &upsert),
                scopes_before: stored.map(|stored| stored.scopes.clone()),
            }
        }
    };
    candidate.write(&key, row_after(&kind));
    let row_id = key.row_id;
    Ok(Some(ChangeWrite {
        table: index,
        row_id,
        op_index,
        kind,
    }))
}

pub(super) fn row_key(author: &Author<'_>, table: TableIndex, row_id: &ByteString) -> RowKey {
    RowKey {
        partition: author.partition.clone(),
        table,
        row_id: row_id.clone(),
    }
}

/// Decodes the payload in the columns of its table and holds it against the row id.
fn read_payload<'a>(
    table: &Table,
    sparse: bool,
    operation: &Operation,
    payload: &'a Bytes,
) -> Result<Incoming<'a>, &'static str> {
    let slots: Vec<Slot<'a>> = if sparse {
        decode_sparse_row(&table.columns, table.primary_key, payload)
    } else {
        decode_row(&table.columns, payload).map(|fields| {
            fields
                .into_iter()
                .map(|field| field.map_or(Slot::Null, Slot::Present))
                .collect()
        })
    }
    .map_err(|_| "the payload does not decode in the columns of its table")?;
    let key = match &slots[table.primary_key] {
        Slot::Present(field) => field.value.render(),
        Slot::Absent | Slot::Null => None,
    };
    if key.as_deref() != Some(&*operation.row_id) {
        return Err("the primary key of the payload is not the row id");
    }
    Ok(Incoming {
        slots,
        base_version: operation.base_version,
        sparse,
    })
}

/// Refuses what needs something that is not there: a merger, a blob.
fn check_dependencies(table: &Table, upsert: &Upsert<'_>, op_index: i32) -> Result<(), Stop> {
    if !upsert.merges.is_empty() {
        return Err(Stop::error(
            op_index,
            ErrorCode::CrdtMergeFailed,
            "CRDT merger failed",
        ));
    }
    let new_reference = upsert.changed.iter().any(|&column| {
        table.columns[column].kind == ColumnType::BlobRef && upsert.values[column].is_some()
    });
    if new_reference {
        return Err(Stop::error(
            op_index,
            ErrorCode::BlobNotFound,
            "a referenced blob is absent",
        ));
    }
    Ok(())
}

fn row_state(table: &Table, upsert: &Upsert<'_>) -> RowState {
    let encoded: Vec<Option<&[u8]>> = upsert
        .values
        .iter()
        .map(|value| value.as_ref().map(|field| field.encoded))
        .collect();
    let row = encode_row(&encoded);
    RowState {
        row_version: upsert.row_version,
        scopes: upsert.scopes.clone(),
        payload: row.into(),
        column_versions: upsert.column_versions.clone().map(Bytes::from),
        blob_ids: blob_ids(table, upsert),
    }
}

/// The blobs the row references now, when the write changes any blob column.
fn blob_ids(table: &Table, upsert: &Upsert<'_>) -> Option<Vec<String>> {
    let touched = upsert
        .changed
        .iter()
        .any(|&column| table.columns[column].kind == ColumnType::BlobRef);
    touched.then(|| upsert.values.iter().filter_map(blob_id).collect())
}

fn blob_id(value: &Option<Field<'_>>) -> Option<String> {
    match value.as_ref()?.value {
        Value::BlobRef(text) => BlobRef::parse(text).map(|blob| blob.blob_id),
        _ => None,
    }
}

fn row_after(kind: &ChangeKind) -> Option<StoredRow> {
    match kind {
        ChangeKind::Delete { .. } => None,
        ChangeKind::Upsert { row, .. } => Some(StoredRow {
            row_version: row.row_version,
            scopes: row.scopes.clone(),
            payload: row.payload.clone(),
            column_versions: row.column_versions.clone(),
        }),
    }
}
