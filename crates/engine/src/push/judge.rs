//! Lets the host judge: row validators, commit validators, the reaction planner (§6.7–6.9).
//!
//! Each runs behind a wall, and all of one commit under one deadline: one that panics, hangs or
//! fails rejects its own commit and nothing else, and many slow ones hold the writer no longer
//! than one may. The host's text stays in the log.

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use tidewater_model::ErrorCode;
use tidewater_store::{ReactionWrite, ResultRecord, StoredRow};
use tokio::time::Instant;

use super::{
    candidate::Candidate,
    commit::{Draft, Trace},
    ground::{Ground, Stop},
    reaction,
    reader::Reader,
};
use crate::{
    CandidateCommit, CandidateOperation, Engine, Rejection, RoundError, RowView, RowWrite,
    ValidatorError,
};

/// Longer than anybody waits, and no overflow when it is added to a time.
const FOREVER: Duration = Duration::from_secs(86_400 * 365);

/// When the host's code has had its time for a commit that is begun now.
pub(super) fn hooks_end(engine: &Engine) -> Instant {
    Instant::now() + engine.parts.config.hook_timeout.min(FOREVER)
}

/// Runs the validators of one write's table.
pub(super) async fn row(
    draft: &Draft<'_>,
    trace: &Trace,
    candidate: &Candidate,
    ground: &mut Ground<'_>,
) -> Result<(), Stop> {
    let table = draft.table(&trace.key);
    let Some(validators) = draft.engine.parts.hooks.row_validators.get(&table.name) else {
        return Ok(());
    };
    let view = |row: &Option<StoredRow>| -> Option<StoredRow> { row.clone() };
    let (after, before) = (view(&trace.after), view(&trace.before));
    let write = RowWrite {
        op: trace.op,
        table,
        row_id: &trace.key.row_id,
        actor: draft.author.actor,
        partition: draft.author.partition,
        row: after
            .as_ref()
            .map(|row| RowView::new(table, row.row_version, &row.payload)),
        stored: before
            .as_ref()
            .map(|row| RowView::new(table, row.row_version, &row.payload)),
    };
    let reader = Reader::new(draft, candidate, ground);
    for validator in validators {
        let verdict = guarded(draft, || validator.validate(&write, &reader)).await;
        reader.check().await?;
        let message = "write validator failed";
        judged(verdict, message).map_err(|rejected| at(trace.origin, rejected))?;
    }
    Ok(())
}

/// Runs the validators of the whole commit.
pub(super) async fn commit(
    draft: &Draft<'_>,
    candidate: &Candidate,
    ground: &mut Ground<'_>,
) -> Result<(), Stop> {
    let validators = &draft.engine.parts.hooks.commit_validators;
    if validators.is_empty() {
        return Ok(());
    }
    let operations = operations(draft);
    let commit = candidate_commit(draft, &operations);
    let reader = Reader::new(draft, candidate, ground);
    for validator in validators {
        let verdict = guarded(draft, || validator.validate(&commit, &reader)).await;
        reader.check().await?;
        judged(verdict, "whole-commit validator failed").map_err(|rejected| {
            let blamed = rejected
                .as_ref()
                .ok()
                .and_then(|rejection| rejection.op_index);
            let trace = draft
                .traces
                .iter()
                .find(|trace| Some(trace.op_index) == blamed);
            match (blamed, trace) {
                (None, _) => at(0, rejected),
                (Some(_), Some(trace)) => at(trace.origin, rejected),
                // An index that no operation has is a fault of the validator.
                (Some(_), None) => at(0, Err("whole-commit validator failed")),
            }
        })?;
    }
    Ok(())
}

/// Asks the planner what follows. Its failure fails the push and nothing is recorded.
pub(super) async fn reactions(
    draft: &Draft<'_>,
    candidate: &Candidate,
    ground: &mut Ground<'_>,
) -> Result<Vec<ReactionWrite>, Stop> {
    let Some(planner) = &draft.engine.parts.hooks.reaction_planner else {
        return Ok(Vec::new());
    };
    let operations = operations(draft);
    let commit = candidate_commit(draft, &operations);
    let reader = Reader::new(draft, candidate, ground);
    let planned = guarded(draft, || planner.plan(&commit, &reader)).await;
    reader.check().await?;
    let failed = |error: &dyn std::error::Error| -> Stop {
        RoundError::internal(error, "plan reactions").into()
    };
    let planned = planned
        .map_err(|failure| failed(&failure))?
        .map_err(|error| failed(error.as_ref()))?;
    reaction::check(
        planned,
        draft.author.partition,
        draft.author.client,
        draft.commit,
    )
    .map_err(|error| failed(&error))
}

fn operations<'a>(draft: &'a Draft<'_>) -> Vec<CandidateOperation<'a>> {
    draft
        .traces
        .iter()
        .map(|trace| {
            let table = draft.table(&trace.key);
            let view = |row: &'a StoredRow| RowView::new(table, row.row_version, &row.payload);
            CandidateOperation {
                op_index: trace.op_index,
                op: trace.op,
                table,
                row_id: &trace.key.row_id,
                row: trace.after.as_ref().map(view),
                stored: trace.before.as_ref().map(view),
            }
        })
        .collect()
}

fn candidate_commit<'a>(
    draft: &'a Draft<'_>,
    operations: &'a [CandidateOperation<'a>],
) -> CandidateCommit<'a> {
    CandidateCommit {
        client: draft.author.client,
        client_commit_id: &draft.commit.client_commit_id,
        actor: draft.author.actor,
        partition: draft.author.partition,
        operations,
    }
}

/// Why a host's code did not come to an end.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("it panicked")]
    Panicked,
    #[error("the {0:?} that a commit's validators and planner have were over")]
    Overran(Duration),
}

/// Runs code of the host under the deadline of its commit. What does not wait always comes to its
/// end, even after that. Making the future is the host's code as well.
async fn guarded<F: Future>(
    draft: &Draft<'_>,
    code: impl FnOnce() -> F,
) -> Result<F::Output, Failure> {
    let code = AssertUnwindSafe(async { code().await }).catch_unwind();
    match tokio::time::timeout_at(draft.hooks_end, code).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) => Err(Failure::Panicked),
        Err(_) => Err(Failure::Overran(draft.engine.parts.config.hook_timeout)),
    }
}

/// Sorts a verdict: accepted, rejected on purpose, or failed with a fixed text for the client.
fn judged(
    verdict: Result<Result<(), ValidatorError>, Failure>,
    failed: &'static str,
) -> Result<(), Result<Rejection, &'static str>> {
    let cause = match verdict {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(ValidatorError::Rejected(rejection))) => return Err(Ok(rejection)),
        Ok(Err(ValidatorError::Failed(error))) => error.to_string(),
        Err(failure) => failure.to_string(),
    };
    tracing::error!(cause, "{failed}");
    Err(Err(failed))
}

fn at(op_index: i32, rejected: Result<Rejection, &'static str>) -> Stop {
    match rejected {
        Err(failed) => Stop::reject(op_index, ErrorCode::ConstraintViolation, failed),
        Ok(rejection) => Stop::Reject(Box::new(ResultRecord::Error {
            op_index,
            code: rejection.code,
            message: rejection.message,
            retryable: false,
            details: rejection.details,
        })),
    }
}
