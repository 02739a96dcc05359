//! The push half: commits in, one answer each out, in order (§6).
//!
//! The blobs that commits reference are held before anything else, outside of every lock. Then a
//! commit travels: `lane` queues it beside others and groups them, `batch` loads everything a
//! group names and applies what was decided in one transaction, `group` is its state, `commit`
//! decides one commit against the candidate state, `decide` holds the tables for one operation,
//! `answer` turns recorded outcomes into frames.
//!
//! **Invariant:** a commit that reached its lane runs to its end whatever becomes of the round
//! that waits for it.

mod answer;
mod appended;
mod batch;
mod candidate;
mod column_versions;
mod commit;
mod decide;
mod ground;
mod group;
mod judge;
pub(crate) mod lane;
mod operation;
mod reaction;
mod reader;
mod references;
pub(crate) mod totals;

use std::sync::Arc;

use tidewater_model::AllowedScopes;
use tidewater_wire::PushCommit;
use tokio::sync::oneshot;

use self::lane::Job;
pub(crate) use self::{answer::PushAnswer, decide::is_allowed};
use crate::{RoundError, blobs, round::RoundContext};

/// Pushes the commits of one request in their order and waits for all of them.
pub(crate) async fn push(
    context: &RoundContext,
    commits: Vec<PushCommit>,
    allowed: Option<Arc<AllowedScopes>>,
    client_is_bound: bool,
) -> Result<Vec<PushAnswer>, RoundError> {
    let partition = &context.identity.partition;
    let is_sparse = context.version.is_sparse();
    let held = blobs::hold(context, partition, &commits, is_sparse).await?;
    let (reply, answers) = oneshot::channel();
    let job = Job {
        identity: context.identity.clone(),
        client: context.client.clone(),
        client_is_bound,
        version: context.version,
        view: Arc::clone(&context.view),
        log_epoch: context.log_epoch.clone(),
        allowed,
        held,
        commits,
        reply,
    };
    lane::submit(&context.engine, job)?;
    match answers.await {
        Ok(outcomes) => {
            let schema = context.engine.schema();
            Ok(outcomes?
                .into_iter()
                .map(|outcome| outcome.into_answer(schema, &context.view, context.version))
                .collect())
        }
        // The lane dropped the job: its batch panicked. The panic itself is in the log.
        Err(lost) => Err(RoundError::internal(&lost, "push a commit")),
    }
}

#[cfg(test)]
mod tests;
