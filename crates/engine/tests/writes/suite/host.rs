//! Validators and planners made of closures.

use std::{future::Future, pin::Pin, sync::Arc};

use async_trait::async_trait;
use tidewater_engine::{
    CandidateCommit, CandidateReader, CommitValidator, Hooks, PlannedReaction, ReactionPlanner,
    RowValidator, RowWrite, ValidatorError,
};

/// What a validator says, later.
pub(crate) type Verdict<'a> = Pin<Box<dyn Future<Output = Result<(), ValidatorError>> + Send + 'a>>;

/// What a planner plans, later.
pub(crate) type Plan<'a> = Pin<
    Box<
        dyn Future<Output = Result<Vec<PlannedReaction>, Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + 'a,
    >,
>;

struct RowFn<F>(F);
struct CommitFn<F>(F);
struct PlanFn<F>(F);

#[async_trait]
impl<F> RowValidator for RowFn<F>
where
    F: for<'a> Fn(&'a RowWrite<'a>, &'a dyn CandidateReader) -> Verdict<'a> + Send + Sync + 'static,
{
    async fn validate(
        &self,
        write: &RowWrite<'_>,
        reader: &dyn CandidateReader,
    ) -> Result<(), ValidatorError> {
        (self.0)(write, reader).await
    }
}

#[async_trait]
impl<F> CommitValidator for CommitFn<F>
where
    F: for<'a> Fn(&'a CandidateCommit<'a>, &'a dyn CandidateReader) -> Verdict<'a>
        + Send
        + Sync
        + 'static,
{
    async fn validate(
        &self,
        commit: &CandidateCommit<'_>,
        reader: &dyn CandidateReader,
    ) -> Result<(), ValidatorError> {
        (self.0)(commit, reader).await
    }
}

#[async_trait]
impl<F> ReactionPlanner for PlanFn<F>
where
    F: for<'a> Fn(&'a CandidateCommit<'a>, &'a dyn CandidateReader) -> Plan<'a>
        + Send
        + Sync
        + 'static,
{
    async fn plan(
        &self,
        commit: &CandidateCommit<'_>,
        reader: &dyn CandidateReader,
    ) -> Result<Vec<PlannedReaction>, Box<dyn std::error::Error + Send + Sync>> {
        (self.0)(commit, reader).await
    }
}

/// Adds a validator of the rows of `table`.
pub(crate) fn with_rows<F>(mut hooks: Hooks, table: &str, validator: F) -> Hooks
where
    F: for<'a> Fn(&'a RowWrite<'a>, &'a dyn CandidateReader) -> Verdict<'a> + Send + Sync + 'static,
{
    let validators = hooks.row_validators.entry(table.to_owned()).or_default();
    validators.push(Arc::new(RowFn(validator)));
    hooks
}

/// Adds a validator of commits.
pub(crate) fn with_commits<F>(mut hooks: Hooks, validator: F) -> Hooks
where
    F: for<'a> Fn(&'a CandidateCommit<'a>, &'a dyn CandidateReader) -> Verdict<'a>
        + Send
        + Sync
        + 'static,
{
    hooks.commit_validators.push(Arc::new(CommitFn(validator)));
    hooks
}

/// Sets the planner.
pub(crate) fn with_planner<F>(mut hooks: Hooks, planner: F) -> Hooks
where
    F: for<'a> Fn(&'a CandidateCommit<'a>, &'a dyn CandidateReader) -> Plan<'a>
        + Send
        + Sync
        + 'static,
{
    hooks.reaction_planner = Some(Arc::new(PlanFn(planner)));
    hooks
}
