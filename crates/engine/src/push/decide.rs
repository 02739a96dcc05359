//! Decides what one operation does to one row (§6.2). Pure.
//!
//! Rows in, verdict out: every rule of conflict and authorization is here, for all three wire
//! versions, and nowhere else.
//!
//! **Invariant:** the authorization row is the row as stored. A pushed payload never widens what
//! its author may write; it is consulted only when no row exists yet.
//!
//! Not here: whether the commit was pushed before (the batch knows), merging CRDT columns and
//! checking blobs (they follow an accepting verdict), and what a commit does as a whole.

use tidewater_model::{AllowedScopes, ColumnType, ErrorCode, StoredScopes};
use tidewater_schema::Table;
use tidewater_store::{StoredRow, Tombstone};
use tidewater_wire::row::{Field, Slot, decode_row, presence_bitmap};

use super::column_versions::ColumnVersions;

/// What the author sent for a row, column by column.
///
/// A full row of wire versions 1 and 2 has no absent column.
pub(crate) struct Incoming<'a> {
    /// One slot per column.
    pub(crate) slots: Vec<Slot<'a>>,
    /// The row version the author last saw.
    pub(crate) base_version: Option<i64>,
    /// Whether the rules of wire version 3 hold.
    pub(crate) sparse: bool,
}

/// An accepted upsert, before merging.
#[derive(Debug, PartialEq)]
pub(crate) struct Upsert<'a> {
    /// What each column holds afterwards; `None` is NULL. For a CRDT column the author wrote,
    /// this is the incoming update, to be merged with the stored one.
    pub(crate) values: Vec<Option<Field<'a>>>,
    /// The columns whose value is new or differs from the stored bytes.
    pub(crate) changed: Vec<usize>,
    /// The CRDT columns to merge, with the stored state.
    pub(crate) merges: Vec<(usize, Option<Field<'a>>)>,
    /// The row's version afterwards.
    pub(crate) row_version: i64,
    /// The row's scopes afterwards; an update never changes them.
    pub(crate) scopes: StoredScopes,
    /// Column versions afterwards; `None` for an insert, where all are 1. Those of full rows
    /// still lack the columns to merge: they move when merging changes their bytes (OQ-9).
    pub(crate) column_versions: Option<ColumnVersions>,
}

/// Why an operation stops its commit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Refusal {
    /// The row moved on since the author saw it.
    Conflict {
        /// Bitmap over the table's columns.
        columns: Vec<u8>,
    },
    /// A code of the catalogue with its fixed text.
    Error(ErrorCode, &'static str),
    /// The stored row is damaged: nothing is recorded and the request fails.
    Corrupt,
}

impl Refusal {
    const FORBIDDEN: Self = Self::Error(ErrorCode::Forbidden, "the actor may not write this row");
    const MISSING: Self = Self::Error(ErrorCode::RowMissing, "the row does not exist");
    const DELETED: Self = Self::Error(ErrorCode::RowDeleted, "the row was deleted");
    const SCOPE_CHANGED: Self = Self::Error(
        ErrorCode::InvalidRequest,
        "an update must not change a scope column",
    );
    const BASE_TOO_HIGH: Self = Self::Error(
        ErrorCode::InvalidRequest,
        "the base version is above the row's version",
    );
}

/// Decides a delete. `baseVersion` plays no part.
pub(crate) fn decide_delete(
    table: &Table,
    stored: &StoredRow,
    allowed: &AllowedScopes,
) -> Result<(), Refusal> {
    if is_allowed(table, &stored.scopes, allowed) {
        Ok(())
    } else {
        Err(Refusal::FORBIDDEN)
    }
}

/// Decides an upsert on a row that exists.
pub(crate) fn decide_update<'a>(
    table: &Table,
    incoming: Incoming<'a>,
    stored: &'a StoredRow,
    allowed: &AllowedScopes,
) -> Result<Upsert<'a>, Refusal> {
    if !is_allowed(table, &stored.scopes, allowed) {
        return Err(Refusal::FORBIDDEN);
    }
    // A row that does not decode under its own table is damage that no client caused.
    let before = decode_row(&table.columns, &stored.payload).map_err(|_| Refusal::Corrupt)?;
    let mut versions = ColumnVersions::decode(
        stored.column_versions.as_deref(),
        stored.row_version,
        table.columns.len(),
    )
    .map_err(|_| Refusal::Corrupt)?;
    if incoming.sparse {
        check_sparse(table, &incoming, stored, &before, &versions)?;
    } else if incoming
        .base_version
        .is_some_and(|base| base != stored.row_version)
    {
        return Err(Refusal::Conflict {
            columns: all_comparable(table),
        });
    }

    let sparse = incoming.sparse;
    let row_version = stored.row_version + 1;
    let mut update = Upsert {
        values: Vec::with_capacity(table.columns.len()),
        changed: Vec::new(),
        merges: Vec::new(),
        row_version,
        scopes: stored.scopes.clone(),
        column_versions: None,
    };
    for (column, (slot, before)) in incoming.slots.into_iter().zip(before).enumerate() {
        let incoming_value = match slot {
            Slot::Absent => None,
            // Versions 1 and 2 send scope columns with every row; they are never written.
            _ if !sparse && table.is_scope_column(column) => None,
            Slot::Null => Some(None),
            Slot::Present(field) => Some(Some(field)),
        };
        let Some(after) = incoming_value else {
            update.values.push(before);
            continue;
        };
        let differs = encoded(&after) != encoded(&before);
        if differs {
            update.changed.push(column);
        }
        let merges = is_crdt(table, column) && after.is_some();
        if (sparse || differs && !merges) && column != table.primary_key {
            versions.advance(column, row_version);
        }
        if merges {
            update.merges.push((column, before));
        }
        update.values.push(after);
    }
    update.column_versions = Some(versions);
    Ok(update)
}

/// Decides an upsert on a row that does not exist.
pub(crate) fn decide_insert<'a>(
    table: &Table,
    incoming: Incoming<'a>,
    tombstone: Option<&Tombstone>,
    allowed: &AllowedScopes,
) -> Result<Upsert<'a>, Refusal> {
    let scopes = table.stored_scopes(|column| match &incoming.slots[column] {
        Slot::Present(field) => Some(field.value),
        Slot::Absent | Slot::Null => None,
    });
    let is_permitted = || {
        scopes
            .as_ref()
            .is_some_and(|scopes| is_allowed(table, scopes, allowed))
    };
    if incoming.base_version.is_some_and(|base| base != 0) {
        return Err(if is_permitted() {
            Refusal::MISSING
        } else {
            Refusal::FORBIDDEN
        });
    }
    if incoming.sparse {
        if let (None, Some(tombstone)) = (incoming.base_version, tombstone) {
            let may_know = tombstone
                .scopes
                .as_ref()
                .is_none_or(|scopes| is_allowed(table, scopes, allowed));
            return Err(if may_know {
                Refusal::DELETED
            } else {
                Refusal::FORBIDDEN
            });
        }
        if incoming
            .slots
            .iter()
            .any(|slot| matches!(slot, Slot::Absent))
        {
            return Err(Refusal::MISSING);
        }
    }
    if !is_permitted() {
        return Err(Refusal::FORBIDDEN);
    }
    let scopes = scopes.ok_or(Refusal::FORBIDDEN)?;
    let values: Vec<Option<Field<'a>>> = incoming
        .slots
        .into_iter()
        .map(|slot| match slot {
            Slot::Present(field) => Some(field),
            Slot::Absent | Slot::Null => None,
        })
        .collect();
    let present = || {
        values
            .iter()
            .enumerate()
            .filter(|(_, value)| value.is_some())
    };
    let changed = present().map(|(column, _)| column).collect();
    let merges = present()
        .filter(|(column, _)| is_crdt(table, *column))
        .map(|(column, _)| (column, None))
        .collect();
    Ok(Upsert {
        values,
        changed,
        merges,
        row_version: 1,
        scopes,
        column_versions: None,
    })
}

/// The tests of wire version 3 on a row that exists, in the order of §6.2.
fn check_sparse(
    table: &Table,
    incoming: &Incoming<'_>,
    stored: &StoredRow,
    before: &[Option<Field<'_>>],
    versions: &ColumnVersions,
) -> Result<(), Refusal> {
    let scope_changed = incoming
        .slots
        .iter()
        .zip(before)
        .enumerate()
        .any(|(column, pair)| {
            table.is_scope_column(column)
                && match pair {
                    (Slot::Absent, _) | (Slot::Null, None) => false,
                    (Slot::Present(field), Some(before)) => field.encoded != before.encoded,
                    (Slot::Present(_), None) | (Slot::Null, Some(_)) => true,
                }
        });
    if scope_changed {
        return Err(Refusal::SCOPE_CHANGED);
    }
    let Some(base) = incoming.base_version else {
        return Ok(());
    };
    if base > stored.row_version {
        return Err(Refusal::BASE_TOO_HIGH);
    }
    let compared = (0..table.columns.len()).filter(|&column| {
        is_comparable(table, column) && !matches!(incoming.slots[column], Slot::Absent)
    });
    // Base 0 says "I inserted this": whoever came first is the conflict, whatever was written.
    let conflicting: Vec<usize> = compared
        .filter(|&column| base == 0 || versions.of(column) > base)
        .collect();
    if base == 0 || !conflicting.is_empty() {
        let columns = presence_bitmap(table.columns.len(), conflicting);
        return Err(Refusal::Conflict { columns });
    }
    Ok(())
}

/// Whether every declared variable has a value that is allowed (§3.4).
pub(crate) fn is_allowed(table: &Table, scopes: &StoredScopes, allowed: &AllowedScopes) -> bool {
    table.scopes.iter().all(|pattern| {
        scopes
            .value(&pattern.variable)
            .is_some_and(|value| !value.is_empty() && allowed.allows(&pattern.variable, value))
    })
}

pub(crate) fn all_comparable(table: &Table) -> Vec<u8> {
    let columns = (0..table.columns.len()).filter(|&column| is_comparable(table, column));
    presence_bitmap(table.columns.len(), columns)
}

/// Whether the column takes part in conflict tests: neither the key nor merged.
fn is_comparable(table: &Table, column: usize) -> bool {
    column != table.primary_key && !is_crdt(table, column)
}

fn is_crdt(table: &Table, column: usize) -> bool {
    table.columns[column].kind == ColumnType::Crdt
}

fn encoded<'a>(value: &Option<Field<'a>>) -> Option<&'a [u8]> {
    value.as_ref().map(|field| field.encoded)
}

#[cfg(test)]
mod tests;
