//! Runs a group of waiting commits in one transaction: load in bulk, decide, apply in bulk.
//!
//! All rows, outcomes and clients that the group names are read at once, under the lock. Then
//! each commit is decided in memory, seeing what those before it wrote, and all of them are
//! written at once. A group costs the same few trips to the database whatever its size.
//!
//! The one thing memory cannot foresee is a constraint of the database. The commit that breaks
//! one is recorded as rejected, and those after it are decided again from what is really there.
//!
//! A panic, in a decision or in the database, ends its transaction like a failure, and only the
//! commit that panics again on its own is failed by it.
//!
//! **Invariant:** nobody is answered before the transaction is durable.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::Arc,
};

use futures_util::FutureExt;
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

/// Why a transaction of a group came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The decision of a commit panicked, or the database did.
    #[error("it panicked")]
    Panicked,
}

impl From<Failure> for RoundError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Store(error) => error.into(),
            Failure::Panicked => Self::internal(&failure, "decide a commit"),
        }
    }
}

/// Runs the jobs to their end, one result each.
///
/// When the group fails as a whole, each job is tried alone, so that what broke one of them
/// does not fail the others. A commit whose first attempt became durable after all is found by
/// its key; a lone job whose outcome is unknown is run again to find out.
pub(super) async fn run(engine: &Engine, jobs: &[Job]) -> Vec<JobResult> {
    let mut unknown = Unknown::default();
    let failure = match attempt(engine, jobs, None, &mut unknown).await {
        Ok(results) => return results,
        Err(failure) => failure,
    };
    if let [job] = jobs
        && unknown.0.is_empty()
    {
        return vec![split(engine, job, failure, &mut unknown).await];
    }
    tracing::warn!(error = %failure, jobs = jobs.len(), "a group of commits failed; trying each alone");
    let mut results = Vec::with_capacity(jobs.len());
    for job in jobs {
        let alone = attempt(engine, std::slice::from_ref(job), None, &mut unknown).await;
        results.push(match alone {
            Ok(mut one) => one.pop().expect("one result for one job"),
            Err(failure) => split(engine, job, failure, &mut unknown).await,
        });
    }
    results
}

/// What becomes of a lone job that failed. Which of its commits panicked shows when each has its
/// own transaction: those before it stand, and the request fails there, as it does when a
/// reaction cannot be planned.
async fn split(engine: &Engine, job: &Job, failure: Failure, unknown: &mut Unknown) -> JobResult {
    if !matches!(failure, Failure::Panicked) || job.commits.len() == 1 {
        return Err(failure.into());
    }
    let mut outcomes = Vec::with_capacity(job.commits.len());
    for place in 0..job.commits.len() {
        let mut one = attempt(engine, std::slice::from_ref(job), Some(place), unknown).await?;
        outcomes.append(&mut one.pop().expect("one result for one job")?);
    }
    Ok(outcomes)
}

/// Runs the jobs, or the commit at one place of each, in one transaction.
async fn attempt(
    engine: &Engine,
    jobs: &[Job],
    place: Option<usize>,
    unknown: &mut Unknown,
) -> Result<Vec<JobResult>, Failure> {
    let mut tries = 0;
    loop {
        let mut group = Group::new(engine, jobs, place);
        let mut is_finishing = false;
        // The group is given up with the transaction, so nobody sees what a panic left half done.
        let transacted = AssertUnwindSafe(transact(engine, &mut group, &mut is_finishing))
            .catch_unwind()
            .await;
        let failure = match transacted {
            Ok(Ok(())) => return Ok(group.settle(unknown)),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Panicked,
        };
        if is_finishing {
            unknown.0.append(&mut group.writes);
        }
        match failure {
            Failure::Store(error)
                if error.kind == StoreErrorKind::Contention && tries < CONTENTION_RETRIES =>
            {
                tries += 1;
            }
            failure => return Err(failure),
        }
    }
}

/// Runs a group to the end of its transaction. `is_finishing` is left true when it is not known
/// whether the transaction is durable.
async fn transact(
    engine: &Engine,
    group: &mut Group<'_>,
    is_finishing: &mut bool,
) -> Result<(), Failure> {
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
        *is_finishing = true;
        match txn.finish(group.writes[group.applied..].to_vec()).await? {
            Finished::Committed => return Ok(()),
            Finished::Violated(open, violation) => {
                *is_finishing = false;
                txn = open;
                let commit = group.applied + violation.commit;
                let violation = Violation {
                    commit,
                    ..violation
                };
                next = group.redo(violation, txn.as_mut()).await?;
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
