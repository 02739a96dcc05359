//! One operation: from its payload to the row that would be stored (§6.2, §6.6).
//!
//! The verdict comes from `decide`; here the payload is read before it, and CRDT columns are
//! merged and blobs looked for among those held after it.

use bytes::Bytes;
use tidewater_model::{AllowedScopes, ColumnType, ErrorCode};
use tidewater_schema::{Schema, Table};
use tidewater_store::{ChangeKind, ResultRecord, RowKey, RowState, StoredRow};
use tidewater_wire::{
    BlobRef, Operation, OperationAction, RejectionDetails,
    row::{Field, Slot, Value, decode_row, decode_sparse_row, encode_row},
};

use super::{
    candidate::{Candidate, RowSlot},
    commit::{Author, error_record},
    decide::{self, Incoming, Refusal, Upsert},
    ground::Stop,
};
use crate::{Engine, RoundError};

/// What an accepted operation does; `None` for a delete of nothing.
pub(super) struct Accepted {
    pub(super) key: RowKey,
    pub(super) stored: Option<StoredRow>,
    pub(super) kind: Option<ChangeKind>,
}

/// Decides one operation on the rows as the commit sees them.
pub(super) fn decide(
    engine: &Engine,
    author: &Author<'_>,
    operation: &Operation,
    op_index: i32,
    candidate: &Candidate,
) -> Result<Accepted, Stop> {
    let schema: &Schema = engine.schema();
    let known = author.view.find(&operation.table);
    let Some((index, shown)) = known.and_then(|index| Some((index, author.view.table(index)?)))
    else {
        return Err(Stop::reject(
            op_index,
            ErrorCode::UnknownTable,
            "the table is unknown",
        ));
    };
    let Some(allowed) = author.allowed else {
        let message = "the actor's permissions could not be resolved";
        return Err(Stop::reject(op_index, ErrorCode::Forbidden, message));
    };
    let key = RowKey {
        partition: author.partition.clone(),
        table: index,
        row_id: operation.row_id.clone(),
    };
    let slot = candidate.row(&key);
    let kind = match &operation.action {
        OperationAction::Delete => decide_delete(schema.table(index), slot, allowed)
            .map_err(|refusal| refused(op_index, refusal, slot.row.as_ref()))?,
        OperationAction::Upsert(payload) => {
            let table = schema.table(index);
            let mut incoming = read_payload(shown, author.sparse, operation, payload)
                .map_err(|message| Stop::reject(op_index, ErrorCode::InvalidRequest, message))?;
            // What an older author does not know is NULL in a new row and stays in an old one.
            let unknown = match &slot.row {
                Some(_) => Slot::Absent,
                None => Slot::Null,
            };
            incoming.slots.resize(table.columns.len(), unknown);
            let upsert = match &slot.row {
                Some(stored) => decide::decide_update(table, incoming, stored, allowed),
                None => decide::decide_insert(table, incoming, slot.tombstone.as_ref(), allowed),
            }
            .map_err(|refusal| refused(op_index, refusal, slot.row.as_ref()))?;
            check_blobs(author, table, &upsert, op_index)?;
            Some(ChangeKind::Upsert {
                row: row_state(engine, table, &upsert, op_index)?,
                scopes_before: slot.row.as_ref().map(|stored| stored.scopes.clone()),
            })
        }
    };
    let stored = slot.row.clone();
    Ok(Accepted { key, stored, kind })
}

fn decide_delete(
    table: &Table,
    slot: &RowSlot,
    allowed: &AllowedScopes,
) -> Result<Option<ChangeKind>, Refusal> {
    let Some(stored) = &slot.row else {
        return Ok(None);
    };
    decide::decide_delete(table, stored, allowed)?;
    Ok(Some(ChangeKind::Delete {
        scopes: stored.scopes.clone(),
    }))
}

fn refused(op_index: i32, refusal: Refusal, stored: Option<&StoredRow>) -> Stop {
    match (refusal, stored) {
        (Refusal::Error(code, message), _) => Stop::reject(op_index, code, message),
        (Refusal::Conflict { columns }, Some(stored)) => {
            Stop::Reject(Box::new(ResultRecord::Conflict {
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
            Stop::Fail(RoundError::new(
                ErrorCode::InternalError,
                "internal server error",
            ))
        }
    }
}

/// Decodes the payload in the columns that its author knows and holds it against the row id.
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

/// Refuses new references to blobs that are not there (§5.9.6). Those the row had already are
/// not looked at (OQ-20).
fn check_blobs(
    author: &Author<'_>,
    table: &Table,
    upsert: &Upsert<'_>,
    op_index: i32,
) -> Result<(), Stop> {
    let changed = upsert
        .changed
        .iter()
        .filter(|&&column| table.columns[column].kind == ColumnType::BlobRef);
    for blob_id in changed.filter_map(|&column| blob_id(&upsert.values[column])) {
        let Some(held) = author.held else {
            tracing::warn!("a commit waited so long that its blobs are no longer held");
            let message = "internal server error";
            return Err(RoundError::new(ErrorCode::InternalError, message).into());
        };
        if !held.has(&blob_id) {
            let message = "a referenced blob is absent";
            return Err(Stop::reject(op_index, ErrorCode::BlobNotFound, message));
        }
    }
    Ok(())
}

fn row_state(
    engine: &Engine,
    table: &Table,
    upsert: &Upsert<'_>,
    op_index: i32,
) -> Result<RowState, Stop> {
    let mut merged = Vec::with_capacity(upsert.merges.len());
    let mut column_versions = upsert.column_versions.clone();
    for (column, before) in &upsert.merges {
        let state = merge(engine, table, *column, before.as_ref(), upsert, op_index)?;
        let mut encoded = Vec::with_capacity(state.len() + 4);
        Value::Crdt(&state).encode(&mut encoded);
        let is_new = before.is_none_or(|before| before.encoded != encoded);
        if let Some(versions) = column_versions.as_mut().filter(|_| is_new) {
            versions.advance(*column, upsert.row_version);
        }
        merged.push((*column, encoded));
    }
    let mut encoded: Vec<Option<&[u8]>> = upsert
        .values
        .iter()
        .map(|value| value.as_ref().map(|field| field.encoded))
        .collect();
    for (column, value) in &merged {
        encoded[*column] = Some(value);
    }
    Ok(RowState {
        row_version: upsert.row_version,
        scopes: upsert.scopes.clone(),
        payload: encode_row(&encoded).into(),
        column_versions: column_versions.map(|versions| versions.encode().into()),
        blob_ids: blob_ids(table, upsert),
    })
}

/// Merges one CRDT column. What a merge costs is bounded by the sizes of what goes into it.
fn merge(
    engine: &Engine,
    table: &Table,
    column: usize,
    before: Option<&Field<'_>>,
    upsert: &Upsert<'_>,
    op_index: i32,
) -> Result<Vec<u8>, Stop> {
    let stored = before.map(crdt_bytes);
    let incoming = upsert.values[column]
        .as_ref()
        .map(crdt_bytes)
        .unwrap_or_default();
    let limit = engine.parts.config.crdt_bytes_max;
    if incoming.len() + stored.map_or(0, <[u8]>::len) > limit {
        return Err(too_large(table, column, op_index));
    }
    let kind = table.metas[column].crdt_type.as_deref().unwrap_or_default();
    let merged = engine
        .parts
        .hooks
        .mergers
        .merge(kind, stored, incoming)
        .map_err(|error| {
            tracing::warn!(table = table.name, %error, "a CRDT column could not be merged");
            Stop::reject(op_index, ErrorCode::CrdtMergeFailed, "CRDT merger failed")
        })?;
    if merged.len() > limit {
        return Err(too_large(table, column, op_index));
    }
    Ok(merged)
}

fn too_large(table: &Table, column: usize, op_index: i32) -> Stop {
    let message = "the CRDT document is larger than this server merges";
    let mut record = error_record(op_index, ErrorCode::ConstraintViolation, message);
    if let ResultRecord::Error { details, .. } = &mut record {
        let name = table.columns[column].name.as_str();
        let built = RejectionDetails::new()
            .field_path(name)
            .reason("crdt_too_large")
            .build();
        // A column's name may be no field path; the record is clear without it.
        *details = built.ok().map(|text| text.to_string());
    }
    Stop::Reject(Box::new(record))
}

fn crdt_bytes<'a>(field: &Field<'a>) -> &'a [u8] {
    match field.value {
        Value::Crdt(bytes) => bytes,
        _ => &[],
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
