//! Commits and rows as statements: as few for many as for one.
//!
//! Constraints are broken by the order in which rows are written, so each table's rows are written
//! in the order of the changes. What the order makes no difference to is written once at the end:
//! the entries that find a row, its tombstone, the log.

use std::collections::{HashMap, HashSet, hash_map::Entry};

use tidewater_model::{PartitionId, StoredScopes};
use tidewater_store::{ChangeKind, ChangeWrite, RowState, StoreError, StoreErrorKind};
use tidewater_wire::row::decode_row;

use crate::{
    layout::{Layout, TableLayout},
    params::{Param, Step},
    scopes::ScopesWriter,
    typed,
};

mod log;

pub(crate) use self::log::log_steps;

const DURING: &str = "apply commits";

/// A change with its partition.
pub(crate) type Located<'a> = (&'a PartitionId, &'a ChangeWrite);

/// Writes rows and the entries that find them.
pub(crate) fn row_steps<'a>(
    layout: &'a Layout,
    changes: impl IntoIterator<Item = Located<'a>> + Clone,
) -> Result<Vec<Step<'a>>, StoreError> {
    let mut steps = Vec::new();
    for run in runs(changes.clone()) {
        steps.push(run.step(&layout.tables[run.table])?);
    }
    steps.extend(entry_steps(layout, changes));
    Ok(steps)
}

/// Writes the row of one change and nothing else.
pub(crate) fn row_step<'a>(
    layout: &'a Layout,
    change: Located<'a>,
) -> Result<Step<'a>, StoreError> {
    let run = Run::new(change);
    run.step(&layout.tables[run.table])
}

/// Changes of one kind to different rows of one table, in their order.
struct Run<'a> {
    table: usize,
    is_put: bool,
    changes: Vec<Located<'a>>,
    rows: HashSet<(&'a str, &'a str)>,
}

fn runs<'a>(changes: impl IntoIterator<Item = Located<'a>>) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'a>> = Vec::new();
    // The last run of each table.
    let mut last: HashMap<usize, usize> = HashMap::new();
    for change in changes {
        let taken = last
            .get(&change.1.table.0)
            .is_some_and(|at| runs[*at].take(change));
        if !taken {
            last.insert(change.1.table.0, runs.len());
            runs.push(Run::new(change));
        }
    }
    runs
}

fn is_put(change: &ChangeWrite) -> bool {
    matches!(change.kind, ChangeKind::Upsert { .. })
}

impl<'a> Run<'a> {
    fn new(change: Located<'a>) -> Self {
        let mut run = Self {
            table: change.1.table.0,
            is_put: is_put(change.1),
            changes: Vec::new(),
            rows: HashSet::new(),
        };
        run.take(change);
        run
    }

    /// Takes a change, if it goes on with the run.
    fn take(&mut self, change: Located<'a>) -> bool {
        let key = (change.0.as_str(), &*change.1.row_id);
        if is_put(change.1) != self.is_put || !self.rows.insert(key) {
            return false;
        }
        self.changes.push(change);
        true
    }

    fn step(&self, table: &'a TableLayout) -> Result<Step<'a>, StoreError> {
        let changes = || self.changes.iter();
        let mut params = vec![
            Param::texts(changes().map(|(partition, _)| partition.as_str()).collect()),
            Param::texts(changes().map(|(_, change)| &*change.row_id).collect()),
        ];
        if !self.is_put {
            return Ok(Step::new(table.sql.remove.as_str(), params));
        }
        let rows: Vec<&'a RowState> = changes()
            .filter_map(|(_, change)| match &change.kind {
                ChangeKind::Upsert { row, .. } => Some(row),
                ChangeKind::Delete { .. } => None,
            })
            .collect();
        let mut scopes = ScopesWriter::default();
        let scopes = rows.iter().map(|row| scopes.text(&row.scopes)).collect();
        let versions = rows.iter().map(|row| row.column_versions.as_deref());
        params.push(Param::integers(
            rows.iter().map(|row| row.row_version).collect(),
        ));
        params.push(Param::owned_texts(scopes));
        params.push(Param::bytes(
            rows.iter().map(|row| Some(&row.payload[..])).collect(),
        ));
        params.push(Param::bytes(versions.collect()));
        params.extend(typed_params(table, &rows)?);
        Ok(Step::new(table.sql.put.as_str(), params))
    }
}

fn typed_params<'a>(
    table: &'a TableLayout,
    rows: &[&'a RowState],
) -> Result<Vec<Param<'a>>, StoreError> {
    let mut columns = typed::columns(&table.table.columns, &table.typed);
    if columns.is_empty() {
        return Ok(Vec::new());
    }
    for row in rows {
        let fields = decode_row(&table.table.columns, &row.payload)
            .map_err(|error| StoreError::new(StoreErrorKind::Corrupt, DURING).with_source(error))?;
        for (column, at) in columns.iter_mut().zip(&table.typed) {
            column.push(fields[*at].as_ref());
        }
    }
    Ok(columns
        .into_iter()
        .map(typed::TypedColumn::into_param)
        .collect())
}

const CLEAR_SCOPES: &str = "DELETE FROM sync_row_scopes s \
    USING unnest($1::text[], $2::text[], $3::text[]) AS q (partition, tbl, row_id) \
    WHERE s.partition = q.partition AND s.tbl = q.tbl AND s.row_id = q.row_id";

const PUT_SCOPES: &str = "INSERT INTO sync_row_scopes (partition, tbl, row_id, var, value) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) \
    ON CONFLICT DO NOTHING";

const CLEAR_BLOBS: &str = "DELETE FROM sync_blob_refs b \
    USING unnest($1::text[], $2::text[], $3::text[]) AS q (partition, tbl, row_id) \
    WHERE b.partition = q.partition AND b.tbl = q.tbl AND b.row_id = q.row_id";

const PUT_BLOBS: &str = "INSERT INTO sync_blob_refs (partition, tbl, row_id, blob_id) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) \
    ON CONFLICT DO NOTHING";

/// What finds a row after all changes.
#[derive(Default)]
struct Entries<'a> {
    /// Whether the row was there before the first of them, and so may have entries.
    was_there: bool,
    /// The scopes to have entries for, where that changes.
    scopes: Option<Option<&'a StoredScopes>>,
    /// The blobs to have entries for, where that changes.
    blobs: Option<&'a [String]>,
}

/// Writes what finds rows, once for each row.
pub(crate) fn entry_steps<'a>(
    layout: &'a Layout,
    changes: impl IntoIterator<Item = Located<'a>>,
) -> Vec<Step<'a>> {
    let mut order = Vec::new();
    let mut rows: HashMap<[&'a str; 3], Entries<'a>> = HashMap::new();
    for (partition, change) in changes {
        let table = layout.table(change.table).name();
        let key: [&'a str; 3] = [partition.as_str(), table, &change.row_id];
        let entries = match rows.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                order.push(key);
                let is_new = matches!(
                    &change.kind,
                    ChangeKind::Upsert { scopes_before, .. } if scopes_before.is_none()
                );
                entry.insert(Entries {
                    was_there: !is_new,
                    ..Entries::default()
                })
            }
        };
        match &change.kind {
            ChangeKind::Upsert { row, scopes_before } => {
                if scopes_before.as_ref() != Some(&row.scopes) {
                    entries.scopes = Some(Some(&row.scopes));
                }
                if let Some(blobs) = &row.blob_ids {
                    entries.blobs = Some(blobs);
                }
            }
            ChangeKind::Delete { .. } => {
                entries.scopes = Some(None);
                entries.blobs = Some(&[]);
            }
        }
    }
    let all = || order.iter().map(|key| (key, &rows[key]));
    let cleared = |is_cleared: &dyn Fn(&Entries<'a>) -> bool| -> Vec<[&'a str; 3]> {
        all()
            .filter(|(_, entries)| entries.was_there && is_cleared(entries))
            .map(|(key, _)| *key)
            .collect()
    };
    let mut steps = Vec::new();
    push_keys(
        &mut steps,
        CLEAR_SCOPES,
        &cleared(&|entries| entries.scopes.is_some()),
    );
    push_keys(
        &mut steps,
        CLEAR_BLOBS,
        &cleared(&|entries| entries.blobs.is_some()),
    );
    let scopes: Vec<[&str; 5]> = all()
        .filter_map(|(key, entries)| Some((key, entries.scopes??)))
        .flat_map(|([partition, table, row_id], scopes)| {
            let pairs = scopes.iter();
            pairs.map(|(variable, value)| [*partition, *table, *row_id, variable, value])
        })
        .collect();
    push_keys(&mut steps, PUT_SCOPES, &scopes);
    let blobs: Vec<[&str; 4]> = all()
        .filter_map(|(key, entries)| Some((key, entries.blobs?)))
        .flat_map(|([partition, table, row_id], blobs)| {
            let blobs = blobs.iter();
            blobs.map(|blob| [*partition, *table, *row_id, blob.as_str()])
        })
        .collect();
    push_keys(&mut steps, PUT_BLOBS, &blobs);
    steps
}

/// A statement about texts that belong together, if there are any.
fn push_keys<'a, const N: usize>(
    steps: &mut Vec<Step<'a>>,
    sql: &'static str,
    keys: &[[&'a str; N]],
) {
    if keys.is_empty() {
        return;
    }
    let column = |at: usize| Param::texts(keys.iter().map(|key| key[at]).collect());
    steps.push(Step::new(sql, (0..N).map(column).collect()));
}
