//! Commits of the log as they are delivered (§4.5).
//!
//! [`put_change`] is the only writer of a change: frames and [`crate::CommitWriter`] share it,
//! so the same change has the same bytes on every path.

use tidewater_model::{Op, utf16_cmp};

use crate::{
    Change, ChangeRow, CommitFrame, DecodeError, EncodeError,
    reader::{FrameReader, invalid_at},
    writer::FrameWriter,
};

const TABLE_INDEX: &str = "table index is out of range";

pub(super) fn read(payload: &mut FrameReader<'_>) -> Result<CommitFrame, DecodeError> {
    let commit_seq = payload.i64("commit sequence")?;
    let created_at_ms = payload.i64("creation time")?;
    let actor_id = payload.text("actor id")?;
    let tables = payload.shared_list("tables", |payload| payload.text("table"))?;
    let changes = payload.shared_list("changes", |payload| read_change(payload, tables.len()))?;
    Ok(CommitFrame {
        commit_seq,
        created_at_ms,
        actor_id,
        tables,
        changes,
    })
}

pub(super) fn put(commit: &CommitFrame, writer: &mut FrameWriter<'_>) -> Result<(), EncodeError> {
    put_head(
        writer,
        commit.commit_seq,
        commit.created_at_ms,
        &commit.actor_id,
    )?;
    writer.count(commit.tables.len(), "tables")?;
    for table in &commit.tables {
        writer.text(table, "table")?;
    }
    writer.count(commit.changes.len(), "changes")?;
    for change in &commit.changes {
        if usize::from(change.table_index) >= commit.tables.len() {
            return Err(EncodeError::Invalid(TABLE_INDEX));
        }
        let ascending = change
            .scopes
            .windows(2)
            .all(|pair| utf16_cmp(&pair[0].0, &pair[1].0).is_lt());
        if !ascending {
            return Err(EncodeError::Invalid("map keys do not ascend"));
        }
        let scopes = change.scopes.iter().map(|(key, value)| (&**key, &**value));
        let row = change
            .row
            .as_ref()
            .map(|row| (row.row_version, &row.row[..]));
        put_change(writer, change.table_index, &change.row_id, row, scopes)?;
    }
    Ok(())
}

/// Everything before the tables.
pub(crate) fn put_head(
    writer: &mut FrameWriter<'_>,
    commit_seq: i64,
    created_at_ms: i64,
    actor_id: &str,
) -> Result<(), EncodeError> {
    writer.i64(commit_seq)?;
    writer.i64(created_at_ms)?;
    writer.text(actor_id, "actor id")
}

fn read_change(payload: &mut FrameReader<'_>, table_count: usize) -> Result<Change, DecodeError> {
    let start = payload.position();
    let table_index = payload.u16("table index")?;
    if usize::from(table_index) >= table_count {
        return Err(invalid_at(start, TABLE_INDEX));
    }
    let row_id = payload.text("row id")?;
    let start = payload.position();
    let op = Op::from_tag(payload.u8("operation")?)
        .ok_or_else(|| invalid_at(start, "operation is neither upsert nor delete"))?;
    let version_at = payload.position();
    let row_version = payload.optional("row version", |payload, what| payload.i64(what))?;
    let scopes = payload.stored_scopes("scopes")?;
    let row_at = payload.position();
    let row = payload.optional("row", FrameReader::shared_bytes)?;
    let row = match (op, row_version, row) {
        (Op::Upsert, Some(row_version), Some(row)) => Some(ChangeRow { row_version, row }),
        (Op::Delete, None, None) => None,
        (Op::Upsert, None, _) => return Err(invalid_at(version_at, "upsert has no version")),
        (Op::Upsert, Some(_), None) => return Err(invalid_at(row_at, "upsert has no row")),
        (Op::Delete, Some(_), _) => return Err(invalid_at(version_at, "delete has a version")),
        (Op::Delete, None, Some(_)) => return Err(invalid_at(row_at, "delete has a row")),
    };
    Ok(Change {
        table_index,
        row_id,
        row,
        scopes,
    })
}

/// Writes one change. `scopes` must ascend.
pub(crate) fn put_change<'s>(
    writer: &mut FrameWriter<'_>,
    table_index: u16,
    row_id: &str,
    row: Option<(i64, &[u8])>,
    scopes: impl ExactSizeIterator<Item = (&'s str, &'s str)>,
) -> Result<(), EncodeError> {
    writer.u16(table_index);
    writer.text(row_id, "row id")?;
    let op = if row.is_some() {
        Op::Upsert
    } else {
        Op::Delete
    };
    writer.u8(op.tag());
    writer.optional(row, |writer, (row_version, _)| writer.i64(row_version))?;
    writer.count(scopes.len(), "scopes")?;
    for (variable, value) in scopes {
        writer.text(variable, "scopes")?;
        writer.text(value, "scopes")?;
    }
    writer.optional(row, |writer, (_, row)| writer.bytes(row, "row"))
}
