//! Carries out commits that were decided.
//!
//! Commits mostly break nothing, so a batch is written as one piece, in one round trip. If
//! something breaks, the piece is taken back and written again commit by commit and row by row,
//! which finds the operation to blame: a second round trip. A third takes that commit back. All of
//! it is under the lock of the partition, so the second time goes as the first.

use std::sync::Arc;

use tidewater_model::{CommitSeq, PartitionId};
use tidewater_store::{ChangeWrite, CommitWrite, StoreError, Violation, below_fence};

use crate::{
    batch::{Located, entry_steps, log_steps, row_step, row_steps},
    error::{class, failure, is_about_values, is_violation},
    gate,
    layout::Layout,
    params::Step,
    writer::Txn,
};

const DURING: &str = "apply commits";

/// Who is to blame when a step fails.
#[derive(Clone, Copy)]
enum Blame {
    /// A row that was written: whatever is wrong with its values.
    Row(Violation),
    /// What a commit leaves beside rows: a name that cannot be held.
    Names(Violation),
    Nobody,
}

/// Applies commits in order, up to the first that breaks a constraint.
pub(crate) async fn apply_commits(
    txn: &mut Txn,
    layout: &Layout,
    commits: &[Arc<CommitWrite>],
) -> Result<Option<Violation>, StoreError> {
    txn.unstage();
    if commits.is_empty() {
        return Ok(None);
    }
    let commits: Vec<&CommitWrite> = commits.iter().map(AsRef::as_ref).collect();
    know_heads(txn, &commits).await?;
    check_fences(txn, layout, &commits)?;
    let before = txn.heads.clone();
    for commit in &commits {
        advance(txn, commit);
    }
    let mut steps = vec![Step::command("SAVEPOINT batch")];
    steps.extend(row_steps(layout, changes(&commits))?);
    steps.extend(log_steps(layout, &commits));
    steps.push(Step::command("RELEASE batch"));
    let flight = txn.fly(&steps, DURING).await?;
    match flight.first_failure() {
        None => return Ok(None),
        Some((_, error)) if !is_about_values(error) => return Err(failure(error, DURING)),
        Some(_) => {}
    }
    let Some(violation) = apply_one_by_one(txn, layout, &commits).await? else {
        return Ok(None);
    };
    let undo = "ROLLBACK TO one_commit; RELEASE one_commit; RELEASE batch";
    let undone = txn.fly(&[Step::command(undo)], DURING).await?;
    undone.rows(DURING)?;
    txn.heads = before;
    for commit in &commits[..violation.commit] {
        advance(txn, commit);
    }
    Ok(Some(violation))
}

/// Whether this server may write to the partitions.
fn check_fences(txn: &Txn, layout: &Layout, commits: &[&CommitWrite]) -> Result<(), StoreError> {
    let writer = layout.version;
    for commit in commits.iter().filter(|commit| commit.applied.is_some()) {
        let partition = &commit.key.partition;
        if let Some(required) = txn.fences.get(partition).filter(|fence| **fence > writer) {
            return Err(below_fence(partition, *required, writer));
        }
    }
    Ok(())
}

/// Checks and remembers the place that a commit takes.
fn advance(txn: &mut Txn, commit: &CommitWrite) {
    let Some(applied) = &commit.applied else {
        return;
    };
    let head = txn.heads.entry(commit.key.partition.clone());
    let head = head.or_insert(CommitSeq::START);
    assert_eq!(
        applied.commit_seq,
        head.next(),
        "a commit's place is one above the head"
    );
    *head = applied.commit_seq;
}

/// Locks the partitions that were not locked before, and learns their heads.
async fn know_heads(txn: &mut Txn, commits: &[&CommitWrite]) -> Result<(), StoreError> {
    let mut unknown: Vec<&PartitionId> = commits
        .iter()
        .filter(|commit| commit.applied.is_some())
        .map(|commit| &commit.key.partition)
        .filter(|partition| !txn.heads.contains_key(*partition))
        .collect();
    unknown.sort_unstable();
    unknown.dedup();
    if unknown.is_empty() {
        return Ok(());
    }
    let mut steps = Vec::from(gate::lock(&unknown));
    steps.push(gate::read(&unknown));
    let mut answers = txn.fly(&steps, DURING).await?.rows(DURING)?;
    let gates = gate::gates(&answers.pop().unwrap_or_default(), DURING)?;
    for (partition, gate) in unknown.into_iter().zip(gates) {
        txn.know_gate(partition, &gate);
    }
    Ok(())
}

fn changes<'a>(commits: &[&'a CommitWrite]) -> Vec<Located<'a>> {
    let changes = commits.iter().flat_map(|commit| {
        let applied = commit.applied.iter();
        let changes = applied.flat_map(|applied| &applied.changes);
        changes.map(|change| (&commit.key.partition, change))
    });
    changes.collect()
}

/// Writes a batch that breaks something, as far as that. The savepoint of the commit at fault is
/// left open.
async fn apply_one_by_one(
    txn: &mut Txn,
    layout: &Layout,
    commits: &[&CommitWrite],
) -> Result<Option<Violation>, StoreError> {
    let mut steps = vec![Step::command("ROLLBACK TO batch")];
    let mut blames = vec![Blame::Nobody];
    for (index, commit) in commits.iter().enumerate() {
        steps.push(Step::command("SAVEPOINT one_commit"));
        blames.push(Blame::Nobody);
        let one = std::slice::from_ref(commit);
        let changes = changes(one);
        let blame = |change: &ChangeWrite| Violation {
            commit: index,
            op_index: change.op_index,
        };
        for change in &changes {
            steps.push(row_step(layout, *change)?);
            blames.push(Blame::Row(blame(change.1)));
        }
        let names = match changes.first() {
            Some((_, change)) => Blame::Names(blame(change)),
            None => Blame::Nobody,
        };
        steps.extend(entry_steps(layout, changes));
        steps.extend(log_steps(layout, one));
        blames.resize(steps.len(), names);
        steps.push(Step::command("RELEASE one_commit"));
        blames.push(Blame::Nobody);
    }
    steps.push(Step::command("RELEASE batch"));
    blames.push(Blame::Nobody);
    let flight = txn.fly(&unprepared(steps), DURING).await?;
    let Some((at, error)) = flight.first_failure() else {
        return Ok(None);
    };
    match blames[at] {
        Blame::Row(violation) if is_about_values(error) => Ok(Some(violation)),
        Blame::Names(violation) if is_about_values(error) && !is_violation(error) => {
            tracing::debug!(class = class(error), "a commit names what cannot be held");
            Ok(Some(violation))
        }
        _ => Err(failure(error, DURING)),
    }
}

/// Steps for a transaction in which something has failed: until they have rolled that back,
/// nothing can be prepared in it.
fn unprepared(mut steps: Vec<Step<'_>>) -> Vec<Step<'_>> {
    for step in &mut steps {
        step.repeats = false;
    }
    steps
}

/// Writes candidate rows; the operation that breaks a constraint, if one does.
pub(crate) async fn stage(
    txn: &mut Txn,
    layout: &Layout,
    partition: &PartitionId,
    changes: &[ChangeWrite],
) -> Result<Option<i32>, StoreError> {
    const DURING: &str = "stage rows";
    let changes: Vec<Located<'_>> = changes.iter().map(|change| (partition, change)).collect();
    let mut steps = Vec::new();
    if !txn.is_staging() {
        steps.push(Step::command("SAVEPOINT staged"));
    }
    steps.push(Step::command("SAVEPOINT one_stage"));
    steps.extend(row_steps(layout, changes.iter().copied())?);
    steps.push(Step::command("RELEASE one_stage"));
    let flight = txn.fly(&steps, DURING).await?;
    txn.set_staging();
    match flight.first_failure() {
        None => return Ok(None),
        Some((_, error)) if !is_about_values(error) => return Err(failure(error, DURING)),
        Some(_) => {}
    }
    let mut steps = vec![Step::command("ROLLBACK TO one_stage")];
    for change in &changes {
        steps.push(row_step(layout, *change)?);
    }
    steps.extend(entry_steps(layout, changes.iter().copied()));
    let flight = txn.fly(&unprepared(steps), DURING).await?;
    let Some((at, error)) = flight.first_failure() else {
        // What failed does not fail again: nobody else can write here, so nothing explains it.
        return Err(StoreError::new(
            tidewater_store::StoreErrorKind::Contention,
            DURING,
        ));
    };
    if at == 0 || !is_about_values(error) {
        return Err(failure(error, DURING));
    }
    let at_fault = changes.get(at - 1).or_else(|| changes.first());
    let undo = "ROLLBACK TO one_stage; RELEASE one_stage";
    let undone = txn.fly(&[Step::command(undo)], DURING).await?;
    undone.rows(DURING)?;
    Ok(at_fault.map(|(_, change)| change.op_index))
}
