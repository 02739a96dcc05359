//! The blobs that a push references, held before it is decided (§5.9.6, OQ-22).

use std::collections::BTreeSet;

use tidewater_model::{ColumnType, PartitionId};
use tidewater_objects::{BlobStore, HELD_BLOBS_MAX, HOLD_MS};
use tidewater_schema::SchemaView;
use tidewater_wire::{
    BlobRef, OperationAction, PushCommit,
    row::{Slot, Value, decode_row, decode_sparse_row},
};

use super::STORE_TIMEOUT;
use crate::{Engine, RoundError, round::RoundContext};

/// Blobs that are there, and that the sweep leaves alone for now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    present: BTreeSet<String>,
    at_ms: i64,
}

impl Held {
    /// Whether a reference to the blob may be written.
    pub(crate) fn has(&self, blob_id: &str) -> bool {
        self.present.contains(blob_id)
    }

    /// Whether the hold still protects. A push that waited longer than this must hold again.
    pub(crate) fn is_good_at(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.at_ms) < HOLD_MS
    }
}

/// Holds every blob that commits reference. Which of the references are new is decided later, on
/// the rows: holding what was referenced already does no harm.
pub(crate) async fn hold(
    context: &RoundContext,
    partition: &PartitionId,
    commits: &[PushCommit],
    is_sparse: bool,
) -> Result<Held, RoundError> {
    let engine = &context.engine;
    let at_ms = engine.parts.clock.now_ms();
    let ids = references(&context.view, commits, is_sparse);
    let Some(blobs) = engine
        .parts
        .transfers
        .blobs
        .as_ref()
        .filter(|_| !ids.is_empty())
    else {
        return Ok(Held {
            present: BTreeSet::new(),
            at_ms,
        });
    };
    let mut present = ids.clone();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    for ids in ids.chunks(HELD_BLOBS_MAX) {
        for missing in hold_some(engine, blobs.as_ref(), partition, ids).await? {
            present.remove(&missing);
        }
    }
    Ok(Held { present, at_ms })
}

/// Whether a blob is there; if so, it is held for whoever asks.
pub(super) async fn is_present(
    engine: &Engine,
    blobs: &dyn BlobStore,
    partition: &PartitionId,
    blob_id: &str,
) -> Result<bool, RoundError> {
    let missing = hold_some(engine, blobs, partition, &[blob_id]).await?;
    Ok(missing.is_empty())
}

async fn hold_some(
    engine: &Engine,
    blobs: &dyn BlobStore,
    partition: &PartitionId,
    ids: &[&str],
) -> Result<Vec<String>, RoundError> {
    const DURING: &str = "hold blobs";
    let bytes_max = engine.parts.config.blob_bytes_max;
    let now_ms = engine.parts.clock.now_ms();
    // An upload past this server is read and hashed here.
    let held = blobs.hold(partition, ids, bytes_max, now_ms);
    match tokio::time::timeout(STORE_TIMEOUT, held).await {
        Ok(missing) => missing.map_err(|error| RoundError::internal(&error, DURING)),
        Err(elapsed) => Err(RoundError::internal(&elapsed, DURING)),
    }
}

/// The blobs named by the payloads of upserts. A payload that does not decode names none: it is
/// refused when it is decided.
fn references(view: &SchemaView, commits: &[PushCommit], is_sparse: bool) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    let operations = commits.iter().flat_map(|commit| &commit.operations);
    for operation in operations {
        let OperationAction::Upsert(payload) = &operation.action else {
            continue;
        };
        let Some(table) = view
            .find(&operation.table)
            .and_then(|index| view.table(index))
        else {
            continue;
        };
        let columns = &table.columns;
        if !columns
            .iter()
            .any(|column| column.kind == ColumnType::BlobRef)
        {
            continue;
        }
        let slots = if is_sparse {
            decode_sparse_row(columns, table.primary_key, payload)
        } else {
            let fields = decode_row(columns, payload);
            fields.map(|fields| {
                let slot = |field: Option<_>| field.map_or(Slot::Null, Slot::Present);
                fields.into_iter().map(slot).collect()
            })
        };
        let named = slots.into_iter().flatten().filter_map(|slot| match slot {
            Slot::Present(field) => match field.value {
                Value::BlobRef(text) => BlobRef::parse(text).map(|blob| blob.blob_id),
                _ => None,
            },
            Slot::Absent | Slot::Null => None,
        });
        ids.extend(named);
    }
    ids
}
