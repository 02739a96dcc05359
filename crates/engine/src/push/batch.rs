//! Runs a group of waiting commits in one transaction: load in bulk, decide, apply in bulk.
//!
//! All rows, outcomes and clients that the group names are read at once, under the lock. Then
//! each commit is decided in memory, seeing what those before it wrote, and all of them are
//! written at once. A group costs the same few trips to the database whatever its size.
//!
//! The one thing memory cannot foresee is a constraint of the database. The commit that breaks
//! one is recorded as rejected, and those after it are decided again from what is really there.
//!
//! **Invariant:** nobody is answered before the transaction is durable.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tidewater_store::{
    CommitWrite, Finished, PushKey, PushResultRecord, StoreError, StoreErrorKind, Violation,
};

use super::{
    answer::{Outcome, Told},
    group::Group,
    lane::Job,
};
use crate::{Engine, RoundError};

/// Times a group is run again after it lost to another transaction.
const CONTENTION_RETRIES: usize = 3;

/// What became of one job: an outcome per commit, or one failure for the request.
pub(super) type JobResult = Result<Vec<Outcome>, RoundError>;

/// Runs the jobs to their end, one result each.
///
/// When the group fails as a whole, each job is tried alone, so that what broke one of them
/// does not fail the others. A commit whose first attempt became durable after all is found by
/// its key; a lone job whose outcome is unknown is run again to find out.
pub(super) async fn run(engine: &Engine, jobs: &[Job]) -> Vec<JobResult> {
    let mut unknown = Unknown::default();
    match attempt(engine, jobs, &mut unknown).await {
        Ok(results) => results,
        Err(error) if jobs.len() == 1 && unknown.0.is_empty() => {
            vec![Err(RoundError::from(error))]
        }
        Err(error) => {
            tracing::warn!(%error, jobs = jobs.len(), "a group of commits failed; trying each alone");
            let mut results = Vec::with_capacity(jobs.len());
            for job in jobs {
                let alone = attempt(engine, std::slice::from_ref(job), &mut unknown).await;
                results.push(match alone {
                    Ok(mut one) => one.pop().expect("one result for one job"),
                    Err(error) => Err(RoundError::from(error)),
                });
            }
            results
        }
    }
}

async fn attempt(
    engine: &Engine,
    jobs: &[Job],
    unknown: &mut Unknown,
) -> Result<Vec<JobResult>, StoreError> {
    let mut tries = 0;
    loop {
        match transact(engine, jobs, unknown).await {
            Err(error)
                if error.kind == StoreErrorKind::Contention && tries < CONTENTION_RETRIES =>
            {
                tries += 1;
            }
            result => return result,
        }
    }
}

async fn transact(
    engine: &Engine,
    jobs: &[Job],
    unknown: &mut Unknown,
) -> Result<Vec<JobResult>, StoreError> {
    let mut group = Group::new(engine, jobs);
    let wanted = group.wanted(0);
    let (mut txn, loaded) = engine.store().begin_write(wanted.clone()).await?;
    group.take(wanted, loaded);
    // Before anything of this group is written: what is durable for certain.
    group.heads = group
        .gates
        .iter()
        .map(|(partition, gate)| (partition.clone(), gate.head))
        .collect();
    let mut next = 0;
    loop {
        while next < group.entries.len() {
            next = match group.decide_next(next, txn.as_mut()).await? {
                None => next + 1,
                Some(violation) => group.redo(violation, txn.as_mut()).await?,
            };
        }
        match txn.finish(group.writes[group.applied..].to_vec()).await {
            Ok(Finished::Committed) => return Ok(group.settle(unknown)),
            Ok(Finished::Violated(open, violation)) => {
                txn = open;
                let commit = group.applied + violation.commit;
                let violation = Violation {
                    commit,
                    ..violation
                };
                next = group.redo(violation, txn.as_mut()).await?;
            }
            Err(error) => {
                unknown.0.append(&mut group.writes);
                return Err(error);
            }
        }
    }
}

/// Writes of transactions that failed while they finished. Some may be durable: a later attempt
/// finds them by their keys, and only then are observers told of them.
#[derive(Default)]
pub(super) struct Unknown(Vec<Arc<CommitWrite>>);

impl Unknown {
    /// Takes out the writes that turn out to be durable, given what a later attempt found.
    pub(super) fn take_durable(&mut self, group: &Group<'_>) -> Vec<Arc<CommitWrite>> {
        let anew: BTreeSet<&PushKey> = group.writes.iter().map(|write| &write.key).collect();
        self.0.retain(|write| !anew.contains(&write.key));
        let found: BTreeMap<&PushKey, &PushResultRecord> = group
            .entries
            .iter()
            .filter_map(|entry| match &entry.told {
                Some(Told::Replayed(record)) => Some((&entry.key, record.as_ref())),
                _ => None,
            })
            .collect();
        self.0
            .extract_if(.., |write| found.get(&write.key) == Some(&&write.result))
            .collect()
    }
}
