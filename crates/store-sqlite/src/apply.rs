//! Carries out commits that were decided: rows, log, tombstones, outcomes.
//!
//! Each commit is one atomic piece. A savepoint makes it so, but only for a commit that can break
//! a constraint, which takes a table with a unique index or one that an operator put constraints
//! on. If another one breaks a constraint, somebody changed the database under the open store:
//! the transaction is lost, and from then on every commit has a savepoint.

use std::sync::Arc;

use tidewater_model::{CommitSeq, Op, PartitionId, StoredScopes};
use tidewater_schema::TableIndex;
use tidewater_store::{
    AppliedCommit, ChangeKind, ChangeWrite, CommitWrite, RowState, StoreError, StoreErrorKind,
    Violation, outcome,
};
use tidewater_wire::row::decode_row;

use crate::{
    error::{failed, is_violation},
    layout::{Layout, TableLayout},
    scopes::ScopesWriter,
    session::{Head, Session, place},
    statements::{Queries, TableQueries},
    typed::Typed,
};

const DURING: &str = "apply commits";

/// Applies commits in order, up to the first that breaks a constraint.
pub(crate) fn apply_commits(
    session: &mut Session<'_>,
    commits: &[Arc<CommitWrite>],
) -> Result<Option<Violation>, StoreError> {
    for (index, commit) in commits.iter().enumerate() {
        match apply_guarded(session, commit) {
            Ok(()) => {}
            Err(Fault::Violation { op_index }) => {
                return Ok(Some(Violation {
                    commit: index,
                    op_index,
                }));
            }
            Err(Fault::Store(error)) => return Err(error),
        }
    }
    Ok(None)
}

enum Fault {
    Violation { op_index: i32 },
    Store(StoreError),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(failed(DURING)(error))
    }
}

fn apply_guarded(session: &mut Session<'_>, commit: &CommitWrite) -> Result<(), Fault> {
    let Some(applied) = &commit.applied else {
        return Ok(put_outcome(&mut session.queries, commit)?);
    };
    let layout = session.layout();
    let guarded = session.always_guarded
        || applied
            .changes
            .iter()
            .any(|change| layout.table(change.table).constrained);
    let head = load_head(session, &commit.key.partition)?;
    assert_eq!(
        applied.commit_seq,
        head.next(),
        "a commit's place is one above the head"
    );
    if guarded {
        session.queries.savepoint.execute(&[])?;
    }
    let result = append_commit(session, &layout, commit, applied);
    match &result {
        Ok(()) if guarded => {
            session.queries.release.execute(&[])?;
        }
        Ok(()) => {}
        Err(Fault::Violation { .. }) if guarded => {
            session.queries.rollback_to.execute(&[])?;
            session.queries.release.execute(&[])?;
        }
        Err(Fault::Violation { .. }) => {
            session.always_guarded = true;
            return Err(Fault::Store(StoreError::new(
                StoreErrorKind::Contention,
                DURING,
            )));
        }
        Err(Fault::Store(_)) => {}
    }
    result?;
    let head = Head {
        seq: applied.commit_seq,
        moved: true,
    };
    match session.heads.get_mut(&commit.key.partition) {
        Some(stored) => *stored = head,
        None => drop(session.heads.insert(commit.key.partition.clone(), head)),
    }
    Ok(())
}

fn load_head(session: &mut Session<'_>, partition: &PartitionId) -> Result<CommitSeq, Fault> {
    if let Some(head) = session.heads.get(partition) {
        return Ok(head.seq);
    }
    let stored = session
        .queries
        .head
        .find(&[&partition.as_str()], |row| row.get(0))?;
    let seq = place(stored.unwrap_or(0), DURING)?;
    let head = Head { seq, moved: false };
    session.heads.insert(partition.clone(), head);
    Ok(seq)
}

/// Everything a commit writes beside its rows and its place in the log.
fn put_outcome(queries: &mut Queries<'_>, commit: &CommitWrite) -> rusqlite::Result<()> {
    let partition = commit.key.partition.as_str();
    let client = commit.key.client.as_str();
    let client_commit: &str = &commit.key.client_commit_id;
    if let Some(at_ms) = commit.bind_client_at_ms {
        let actor = commit.actor.as_str();
        queries
            .bind_client
            .execute(&[&partition, &client, &actor, &at_ms])?;
    }
    let outcome = outcome::encode(&commit.result);
    queries
        .put_push_result
        .execute(&[&partition, &client, &client_commit, &outcome])?;
    Ok(())
}

fn append_commit(
    session: &mut Session<'_>,
    layout: &Layout,
    commit: &CommitWrite,
    applied: &AppliedCommit,
) -> Result<(), Fault> {
    let partition = commit.key.partition.as_str();
    let client_commit: &str = &commit.key.client_commit_id;
    let seq = applied.commit_seq.to_i64();
    put_outcome(&mut session.queries, commit)?;
    session.queries.append_commit.execute(&[
        &partition,
        &seq,
        &commit.key.client.as_str(),
        &client_commit,
        &commit.actor.as_str(),
        &applied.created_at_ms,
    ])?;
    let mut texts = ScopesWriter::default();
    for (index, change) in applied.changes.iter().enumerate() {
        let mut target = Target {
            layout: layout.table(change.table),
            table: &mut session.tables[change.table.0],
            queries: &mut session.queries,
            partition,
            row_id: &change.row_id,
        };
        target.write(change, &mut texts)?;
        target.log(seq, index, change, &mut texts)?;
    }
    append_scopes(&mut session.queries, layout, partition, applied)?;
    put_tombstones(&mut session.queries, layout, partition, applied)?;
    Ok(())
}

/// The row that a change is about.
struct Target<'a, 'c> {
    layout: &'a TableLayout,
    table: &'a mut TableQueries<'c>,
    queries: &'a mut Queries<'c>,
    partition: &'a str,
    row_id: &'a str,
}

impl Target<'_, '_> {
    /// Writes the row itself, and the entries that find it.
    fn write<'a>(
        &mut self,
        change: &'a ChangeWrite,
        texts: &mut ScopesWriter<'a>,
    ) -> Result<(), Fault> {
        let table = self.layout.table.name.as_str();
        match &change.kind {
            ChangeKind::Upsert { row, scopes_before } => {
                let scopes = texts.text(&row.scopes);
                self.put(row, scopes, change.op_index)?;
                if scopes_before.as_ref() != Some(&row.scopes) {
                    if scopes_before.is_some() {
                        self.clear_scopes()?;
                    }
                    for (variable, value) in row.scopes.iter() {
                        self.queries.put_row_scope.execute(&[
                            &self.partition,
                            &table,
                            &variable,
                            &value,
                            &self.row_id,
                        ])?;
                    }
                }
                if let Some(blob_ids) = &row.blob_ids {
                    // A row that was not there has no references.
                    if scopes_before.is_some() {
                        self.clear_blobs()?;
                    }
                    for blob_id in blob_ids {
                        self.queries.put_blob_ref.execute(&[
                            &self.partition,
                            &table,
                            &self.row_id,
                            blob_id,
                        ])?;
                    }
                }
            }
            ChangeKind::Delete { .. } => {
                self.table
                    .remove
                    .execute(&[&self.partition, &self.row_id])
                    .map_err(|error| violation(error, change.op_index))?;
                self.clear_scopes()?;
                self.clear_blobs()?;
            }
        }
        Ok(())
    }

    /// Writes payload and typed columns with one statement.
    fn put(&mut self, row: &RowState, scopes: &str, op_index: i32) -> Result<(), Fault> {
        let statement = self.table.put.compiled()?;
        statement.raw_bind_parameter(1, self.partition)?;
        statement.raw_bind_parameter(2, self.row_id)?;
        statement.raw_bind_parameter(3, row.row_version)?;
        statement.raw_bind_parameter(4, scopes)?;
        statement.raw_bind_parameter(5, &row.payload[..])?;
        statement.raw_bind_parameter(6, row.column_versions.as_deref())?;
        if !self.layout.typed.is_empty() {
            let columns = &self.layout.table.columns;
            let fields = decode_row(columns, &row.payload).map_err(|error| {
                StoreError::new(StoreErrorKind::Corrupt, DURING).with_source(error)
            })?;
            for (parameter, at) in self.layout.typed.iter().enumerate() {
                let value = Typed::new(&columns[*at], fields[*at].as_ref());
                statement.raw_bind_parameter(parameter + 7, value)?;
            }
        }
        match statement.raw_execute() {
            Ok(_) => Ok(()),
            Err(error) => Err(violation(error, op_index)),
        }
    }

    fn clear_scopes(&mut self) -> Result<(), Fault> {
        let table = self.layout.table.name.as_str();
        self.queries
            .clear_row_scopes
            .execute(&[&self.partition, &table, &self.row_id])?;
        Ok(())
    }

    fn clear_blobs(&mut self) -> Result<(), Fault> {
        let table = self.layout.table.name.as_str();
        self.queries
            .clear_blob_refs
            .execute(&[&self.partition, &table, &self.row_id])?;
        Ok(())
    }

    /// Appends the change to the log.
    fn log<'a>(
        &mut self,
        seq: i64,
        index: usize,
        change: &'a ChangeWrite,
        texts: &mut ScopesWriter<'a>,
    ) -> Result<(), Fault> {
        let (op, row_version, payload) = match &change.kind {
            ChangeKind::Upsert { row, .. } => {
                (Op::Upsert, Some(row.row_version), Some(&row.payload[..]))
            }
            ChangeKind::Delete { .. } => (Op::Delete, None, None),
        };
        let index = i64::try_from(index).expect("a position in a commit is small");
        self.queries.append_change.execute(&[
            &self.partition,
            &seq,
            &index,
            &self.layout.table.name.as_str(),
            &self.row_id,
            &op.tag(),
            &row_version,
            &texts.text(change_scopes(change)),
            &payload,
        ])?;
        Ok(())
    }
}

fn violation(error: rusqlite::Error, op_index: i32) -> Fault {
    if is_violation(&error) {
        Fault::Violation { op_index }
    } else {
        Fault::from(error)
    }
}

/// The scopes that the log finds a change by.
fn change_scopes(change: &ChangeWrite) -> &StoredScopes {
    match &change.kind {
        ChangeKind::Upsert { row, .. } => &row.scopes,
        ChangeKind::Delete { scopes } => scopes,
    }
}

/// Makes the commit findable by each scope value of its changes, once.
fn append_scopes(
    queries: &mut Queries<'_>,
    layout: &Layout,
    partition: &str,
    applied: &AppliedCommit,
) -> Result<(), Fault> {
    let mut entries: Vec<(TableIndex, &str, &str)> = Vec::new();
    let mut before: Option<(TableIndex, &StoredScopes)> = None;
    for change in &applied.changes {
        let scopes = change_scopes(change);
        if before == Some((change.table, scopes)) {
            continue;
        }
        before = Some((change.table, scopes));
        entries.extend(
            scopes
                .iter()
                .map(|(variable, value)| (change.table, variable, value)),
        );
    }
    entries.sort_unstable();
    entries.dedup();
    let seq = applied.commit_seq.to_i64();
    for (table, variable, value) in entries {
        let table = layout.table(table).table.name.as_str();
        queries
            .append_change_scope
            .execute(&[&partition, &table, &variable, &value, &seq])?;
    }
    Ok(())
}

fn put_tombstones(
    queries: &mut Queries<'_>,
    layout: &Layout,
    partition: &str,
    applied: &AppliedCommit,
) -> Result<(), Fault> {
    for (table, row_id) in &applied.tombstones_cleared {
        let table = layout.table(*table).table.name.as_str();
        let row_id: &str = row_id;
        queries
            .clear_tombstone
            .execute(&[&partition, &table, &row_id])?;
    }
    let seq = applied.commit_seq.to_i64();
    let mut texts = ScopesWriter::default();
    for (table, row_id, scopes) in &applied.tombstones {
        let table = layout.table(*table).table.name.as_str();
        let row_id: &str = row_id;
        let scopes = texts.text(scopes);
        queries
            .put_tombstone
            .execute(&[&partition, &table, &row_id, &seq, &scopes])?;
    }
    Ok(())
}
