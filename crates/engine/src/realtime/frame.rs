//! The bytes of a delta: a complete response with a section per registration (§8.2).
//!
//! Payloads are copied from where the commit lies, once per distinct set of registrations.
//!
//! A row that a commit deletes and brings back under other scopes has moved. Who sees both places
//! must not be told of the delete, because the client keeps one replica of a row and would lose
//! it (OQ-35).

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use tidewater_model::{ClientId, CommitSeq, LogEpoch, StoredScopes};
use tidewater_schema::{Schema, TableIndex};
use tidewater_store::{ChangeKind, CommitWrite};
use tidewater_wire::{
    CommitWriter, EncodeError, ResponseFrame, ResponseHeader, SubEnd, SubStart, SubStatus,
    WireVersion, begin_response, put_end, put_response_frame,
};

use super::registrations::Registration;

/// A commit as it is delivered, wherever it was read.
#[derive(Debug)]
pub(crate) struct Delivery<'a> {
    pub(crate) seq: CommitSeq,
    pub(crate) created_at_ms: i64,
    pub(crate) actor: &'a str,
    /// Who pushed it, if it is known.
    pub(crate) client: Option<&'a ClientId>,
    pub(crate) changes: Vec<DeliveryChange<'a>>,
}

/// A change of a commit: an upsert has a row, a delete has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeliveryChange<'a> {
    pub(crate) table: TableIndex,
    pub(crate) row_id: &'a str,
    pub(crate) row: Option<(i64, &'a [u8])>,
    pub(crate) scopes: &'a StoredScopes,
    /// The variable it was read by; `None` when all changes of the commit are here.
    pub(crate) via: Option<&'a str>,
}

impl<'a> Delivery<'a> {
    /// A commit that was just made; `None` when it was rejected.
    pub(crate) fn of(commit: &'a CommitWrite) -> Option<Self> {
        let applied = commit.applied.as_ref()?;
        let changes = applied.changes.iter().map(|change| {
            let (row, scopes) = match &change.kind {
                ChangeKind::Upsert { row, .. } => {
                    (Some((row.row_version, row.payload.as_ref())), &row.scopes)
                }
                ChangeKind::Delete { scopes } => (None, scopes),
            };
            DeliveryChange {
                table: change.table,
                row_id: &change.row_id,
                row,
                scopes,
                via: None,
            }
        });
        Some(Self {
            seq: applied.commit_seq,
            created_at_ms: applied.created_at_ms,
            actor: commit.actor.as_str(),
            client: Some(&commit.key.client),
            changes: changes.collect(),
        })
    }
}

/// A registration with the changes it sees, by their place in the commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section<'a> {
    pub(crate) registration: &'a Registration,
    pub(crate) changes: &'a [usize],
}

/// Encodes a delta; `None` when it is larger than `bytes_max`, or a row cannot be shown in the
/// version of its client, which a pull says better.
pub(crate) fn encode(
    schema: &Schema,
    log_epoch: &LogEpoch,
    version: WireVersion,
    delivery: &Delivery<'_>,
    sections: &[Section<'_>],
    bytes_max: usize,
) -> Result<Option<Bytes>, EncodeError> {
    let payload = |index: &usize| {
        let change = &delivery.changes[*index];
        change.row.map_or(0, |(_, row)| row.len())
    };
    let bytes: usize = sections
        .iter()
        .flat_map(|section| section.changes)
        .map(payload)
        .sum();
    if bytes > bytes_max {
        return Ok(None);
    }
    let mut out = BytesMut::with_capacity(bytes + 256);
    begin_response(version, &mut out);
    let header = ResponseHeader {
        required_schema_version: None,
        latest_schema_version: None,
        log_epoch: log_epoch.as_str().into(),
        reset_required: false,
    };
    put_response_frame(&ResponseFrame::Header(header), version, &mut out)?;
    for section in sections {
        let moved = moved_rows(delivery, section, sections);
        if !put_section(schema, version, delivery, section, &moved, &mut out)? {
            return Ok(None);
        }
    }
    put_end(&mut out);
    Ok((out.len() <= bytes_max).then(|| out.freeze()))
}

/// The rows whose delete is left out of a section because another section brings them back.
fn moved_rows<'a>(
    delivery: &Delivery<'a>,
    section: &Section<'_>,
    sections: &[Section<'_>],
) -> BTreeSet<&'a str> {
    let change = |index: &usize| delivery.changes[*index];
    let deletes = section
        .changes
        .iter()
        .filter(|index| change(index).row.is_none());
    let comes_back = |deleted: &usize| {
        let gone = change(deleted);
        sections.iter().any(|other| {
            !std::ptr::eq(other.registration, section.registration)
                && other.registration.table == section.registration.table
                && other.changes.iter().any(|index| {
                    let change = change(index);
                    index > deleted && change.row.is_some() && change.row_id == gone.row_id
                })
        })
    };
    if sections.len() < 2 {
        return BTreeSet::new();
    }
    deletes
        .filter(|index| comes_back(index))
        .map(|index| change(index).row_id)
        .collect()
}

/// A section, with rows in the columns of its client; whether they can be shown so.
fn put_section(
    schema: &Schema,
    version: WireVersion,
    delivery: &Delivery<'_>,
    section: &Section<'_>,
    moved: &BTreeSet<&str>,
    out: &mut BytesMut,
) -> Result<bool, EncodeError> {
    let is_sent = |index: &&usize| {
        let change = &delivery.changes[**index];
        change.row.is_some() || !moved.contains(change.row_id)
    };
    if !section.changes.iter().any(|index| is_sent(&index)) {
        return Ok(true);
    }
    let start = SubStart {
        id: section.registration.id.clone(),
        status: SubStatus::Active,
        reason_code: "".into(),
        effective_scopes: section.registration.effective.clone(),
        bootstrap: false,
    };
    put_response_frame(&ResponseFrame::SubStart(start), version, out)?;
    let seq = delivery.seq.to_i64();
    let table = section.registration.table;
    let view = schema.view(section.registration.schema_version);
    let name = &schema.table(table).name;
    let mut frame = CommitWriter::begin(out, seq, delivery.created_at_ms, delivery.actor, name);
    for index in section.changes.iter().filter(is_sent) {
        let change = &delivery.changes[*index];
        match change.row {
            Some((row_version, payload)) => {
                let Some(shown) = view.and_then(|view| view.project(table, payload)) else {
                    return Ok(false);
                };
                frame.change(change.row_id, Some((row_version, &*shown)), change.scopes);
            }
            None => frame.change(change.row_id, None, change.scopes),
        }
    }
    frame.finish()?;
    let end = SubEnd {
        next_cursor: seq,
        bootstrap_state: None,
    };
    put_response_frame(&ResponseFrame::SubEnd(end), version, out)?;
    Ok(true)
}

#[cfg(test)]
mod tests;
