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
    AppliedCommit, ChangeKind, ChangeWrite, CommitWrite, StoreError, StoreErrorKind, Violation,
    below_fence, outcome,
};

use crate::{
    layout::Layout,
    rows::{DURING, Fault, Target},
    scopes::ScopesWriter,
    session::{Head, Session, place},
    statements::Queries,
};

/// Applies commits in order, up to the first that breaks a constraint.
pub(crate) fn apply_commits(
    session: &mut Session<'_>,
    commits: &[Arc<CommitWrite>],
) -> Result<Option<Violation>, StoreError> {
    session.unstage(DURING)?;
    for (index, commit) in commits.iter().enumerate() {
        match apply_commit(session, commit) {
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

fn apply_commit(session: &mut Session<'_>, commit: &CommitWrite) -> Result<(), Fault> {
    let Some(applied) = &commit.applied else {
        return Ok(put_outcome(&mut session.queries, commit)?);
    };
    let layout = session.layout();
    let head = load_head(session, &layout, &commit.key.partition)?;
    assert_eq!(
        applied.commit_seq,
        head.next(),
        "a commit's place is one above the head"
    );
    guarded(session, &layout, &applied.changes, |session| {
        append_commit(session, &layout, commit, applied)
    })?;
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

/// Runs writes so that a broken constraint leaves no trace of them.
pub(crate) fn guarded(
    session: &mut Session<'_>,
    layout: &Layout,
    changes: &[ChangeWrite],
    write: impl FnOnce(&mut Session<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut tables = changes.iter().map(|change| layout.table(change.table));
    let guarded = session.always_guarded || tables.any(|table| table.constrained);
    if guarded {
        session.queries.savepoint.execute(&[])?;
    }
    let result = write(session);
    match &result {
        Ok(()) if guarded => {
            session.queries.release.execute(&[])?;
        }
        Err(Fault::Violation { .. }) if guarded => {
            session.queries.rollback_to.execute(&[])?;
            session.queries.release.execute(&[])?;
        }
        Err(Fault::Violation { .. }) => {
            session.always_guarded = true;
            let lost = StoreError::new(StoreErrorKind::Contention, DURING);
            return Err(Fault::Store(lost));
        }
        Ok(()) | Err(Fault::Store(_)) => {}
    }
    result
}

/// The head of a partition that this server may write to.
fn load_head(
    session: &mut Session<'_>,
    layout: &Layout,
    partition: &PartitionId,
) -> Result<CommitSeq, Fault> {
    if let Some(head) = session.heads.get(partition) {
        return Ok(head.seq);
    }
    let stored = session.queries.head.find(&[&partition.as_str()], |row| {
        Ok((row.get(0)?, row.get::<_, Option<i32>>(1)?))
    })?;
    let (head, fence): (Option<i64>, _) = stored.unwrap_or_default();
    if let Some(required) = fence
        && required > layout.version
    {
        return Err(Fault::Store(below_fence(
            partition,
            required,
            layout.version,
        )));
    }
    let seq = place(head.unwrap_or(0), DURING)?;
    let head = Head { seq, moved: false };
    session.heads.insert(partition.clone(), head);
    Ok(seq)
}

/// What a commit records whether or not it was applied.
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
        log_change(&mut target, seq, index, change, &mut texts)?;
    }
    put_outcome(&mut session.queries, commit)?;
    session.queries.append_commit.execute(&[
        &partition,
        &seq,
        &commit.key.client.as_str(),
        &client_commit,
        &commit.actor.as_str(),
        &applied.created_at_ms,
    ])?;
    append_scopes(&mut session.queries, layout, partition, applied)?;
    put_tombstones(&mut session.queries, layout, partition, applied)?;
    put_reactions(&mut session.queries, commit, applied)?;
    Ok(())
}

/// Appends a change to the log.
fn log_change<'a>(
    target: &mut Target<'_, '_>,
    seq: i64,
    index: usize,
    change: &'a ChangeWrite,
    texts: &mut ScopesWriter<'a>,
) -> rusqlite::Result<()> {
    let (op, row_version, payload) = match &change.kind {
        ChangeKind::Upsert { row, .. } => {
            (Op::Upsert, Some(row.row_version), Some(&row.payload[..]))
        }
        ChangeKind::Delete { .. } => (Op::Delete, None, None),
    };
    let index = i64::try_from(index).expect("a position in a commit is small");
    target.queries.append_change.execute(&[
        &target.partition,
        &seq,
        &index,
        &target.layout.table.name.as_str(),
        &target.row_id,
        &op.tag(),
        &row_version,
        &texts.text(change_scopes(change)),
        &payload,
    ])?;
    Ok(())
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
) -> rusqlite::Result<()> {
    let mut entries: Vec<(TableIndex, &str, &str)> = Vec::new();
    let mut before: Option<(TableIndex, &StoredScopes)> = None;
    for change in &applied.changes {
        let scopes = change_scopes(change);
        if before == Some((change.table, scopes)) {
            continue;
        }
        before = Some((change.table, scopes));
        let pairs = scopes.iter();
        entries.extend(pairs.map(|(variable, value)| (change.table, variable, value)));
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
) -> rusqlite::Result<()> {
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

fn put_reactions(
    queries: &mut Queries<'_>,
    commit: &CommitWrite,
    applied: &AppliedCommit,
) -> rusqlite::Result<()> {
    let client_commit: &str = &commit.key.client_commit_id;
    for reaction in &applied.reactions {
        queries.put_reaction.execute(&[
            &commit.key.partition.as_str(),
            &reaction.idempotency_key,
            &reaction.kind,
            &reaction.version,
            &reaction.payload,
            &commit.key.client.as_str(),
            &client_commit,
            &applied.commit_seq.to_i64(),
            &applied.created_at_ms,
            &reaction.max_attempts,
        ])?;
    }
    Ok(())
}
