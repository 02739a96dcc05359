//! Write lanes: commits wait here for their turn and are grouped while they wait.
//!
//! A lane takes what is waiting, bounded, runs it as one transaction and comes back. While it
//! runs, others queue up; that is the whole of group commit, and a lone client never waits for
//! company. Partitions that share a lane take turns, so one that pushes thousands of commits
//! does not make the others wait for all of them.
//!
//! **Invariant:** a job that was accepted is run, whoever is still waiting for it. **Bound:**
//! waiting commits are bounded in number and bytes over all lanes; more are refused at once.

use std::{
    collections::{BTreeMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::Arc,
};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tidewater_model::{AllowedScopes, ClientId, ErrorCode, LogEpoch, PartitionId};
use tidewater_schema::SchemaView;
use tidewater_store::{ClientKey, WriteLanes};
use tidewater_wire::{OperationAction, PushCommit, WireVersion};
use tokio::sync::{Notify, oneshot};

use super::batch::{self, JobResult};
use crate::{Engine, EngineConfig, Identity, RoundError, blobs::Held};

/// Commits in one transaction: enough to make the fsync cheap, few enough to keep it short.
const GROUP_COMMITS_MAX: usize = 256;

/// Operations in one transaction.
const GROUP_OPERATIONS_MAX: usize = 2_048;

/// When to come back after a refusal, in milliseconds: a full queue drains in less.
const RETRY_AFTER_MS: u64 = 500;

/// The commits of one request, waiting.
pub(crate) struct Job {
    pub(super) identity: Identity,
    pub(super) client: ClientId,
    /// Whether the client's record exists, so that it need not be looked up.
    pub(super) client_is_bound: bool,
    pub(super) version: WireVersion,
    /// The schema as the client knows it.
    pub(super) view: Arc<SchemaView>,
    /// The epoch the request was checked against.
    pub(super) log_epoch: LogEpoch,
    /// `None` when the resolver failed.
    pub(super) allowed: Option<Arc<AllowedScopes>>,
    /// The blobs that the commits reference and that are there.
    pub(super) held: Held,
    pub(super) commits: Vec<PushCommit>,
    pub(super) reply: oneshot::Sender<JobResult>,
}

impl Job {
    pub(super) fn client_key(&self) -> ClientKey {
        ClientKey {
            partition: self.identity.partition.clone(),
            client: self.client.clone(),
        }
    }

    fn weight(&self) -> Weight {
        let operations = self.commits.iter().flat_map(|commit| &commit.operations);
        let bytes = operations
            .clone()
            .map(|operation| match &operation.action {
                OperationAction::Upsert(payload) => payload.len() + operation.row_id.len(),
                OperationAction::Delete => operation.row_id.len(),
            })
            .sum();
        Weight {
            commits: self.commits.len(),
            operations: operations.count(),
            bytes,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    commits: usize,
    operations: usize,
    bytes: usize,
}

impl Weight {
    fn add(&mut self, other: Self) {
        self.commits += other.commits;
        self.operations += other.operations;
        self.bytes += other.bytes;
    }

    fn subtract(&mut self, other: Self) {
        self.commits -= other.commits;
        self.operations -= other.operations;
        self.bytes -= other.bytes;
    }
}

/// All lanes of one engine.
pub(crate) struct Lanes {
    kind: WriteLanes,
    waiting_max: Weight,
    state: Mutex<State>,
    idle: Notify,
}

#[derive(Default)]
struct State {
    /// `None` is the one lane that all partitions share.
    lanes: BTreeMap<Option<PartitionId>, Queue>,
    waiting: Weight,
    closed: bool,
}

/// The jobs of one lane, by partition. It exists while its task runs.
#[derive(Default)]
struct Queue {
    /// Partitions with waiting jobs; the next to be served is in front.
    turns: VecDeque<PartitionId>,
    jobs: BTreeMap<PartitionId, VecDeque<(Job, Weight)>>,
}

impl Queue {
    fn push(&mut self, job: Job, weight: Weight) {
        let partition = job.identity.partition.clone();
        let jobs = self.jobs.entry(partition.clone()).or_default();
        if jobs.is_empty() {
            self.turns.push_back(partition);
        }
        jobs.push_back((job, weight));
    }

    /// Takes the next group: one job of each partition in turn until the group is full.
    fn take_group(&mut self) -> (Vec<Job>, Weight) {
        let mut group = Vec::new();
        let mut taken = Weight::default();
        while let Some(partition) = self.turns.pop_front() {
            let jobs = self
                .jobs
                .get_mut(&partition)
                .expect("a partition in turn has jobs");
            let (_, weight) = jobs.front().expect("a partition in turn has jobs");
            let full = taken.commits + weight.commits > GROUP_COMMITS_MAX
                || taken.operations + weight.operations > GROUP_OPERATIONS_MAX;
            if full && !group.is_empty() {
                self.turns.push_front(partition);
                break;
            }
            let (job, weight) = jobs.pop_front().expect("a partition in turn has jobs");
            taken.add(weight);
            group.push(job);
            if jobs.is_empty() {
                self.jobs.remove(&partition);
            } else {
                self.turns.push_back(partition);
            }
        }
        (group, taken)
    }
}

impl Lanes {
    pub(crate) fn new(config: &EngineConfig, kind: WriteLanes) -> Self {
        let waiting_max = Weight {
            commits: config.queued_commits_max,
            operations: usize::MAX,
            bytes: config.queued_bytes_max,
        };
        Self {
            kind,
            waiting_max,
            state: Mutex::default(),
            idle: Notify::new(),
        }
    }

    /// Accepts no more jobs and waits until those accepted have run.
    pub(crate) async fn close(&self) {
        loop {
            let idle = self.idle.notified();
            {
                let mut state = self.state.lock();
                state.closed = true;
                if state.lanes.is_empty() {
                    return;
                }
            }
            idle.await;
        }
    }

    /// Queues a job. Returns the lane to start, if it was not running.
    fn enqueue(&self, job: Job) -> Result<Option<Option<PartitionId>>, RoundError> {
        let lane = match self.kind {
            WriteLanes::One => None,
            WriteLanes::PerPartition => Some(job.identity.partition.clone()),
        };
        let weight = job.weight();
        let mut state = self.state.lock();
        if state.closed {
            return Err(RoundError::new(
                ErrorCode::InternalError,
                "internal server error",
            ));
        }
        // A job larger than the bound still gets in when nothing else waits.
        let full = state.waiting.commits + weight.commits > self.waiting_max.commits
            || state.waiting.bytes + weight.bytes > self.waiting_max.bytes;
        if full && state.waiting.commits > 0 {
            return Err(RoundError::rate_limited(RETRY_AFTER_MS));
        }
        state.waiting.add(weight);
        let start = !state.lanes.contains_key(&lane);
        state
            .lanes
            .entry(lane.clone())
            .or_default()
            .push(job, weight);
        Ok(start.then_some(lane))
    }

    /// The next group of a lane; `None` ends it.
    fn next_group(&self, lane: &Option<PartitionId>) -> Option<Vec<Job>> {
        let mut state = self.state.lock();
        let queue = state
            .lanes
            .get_mut(lane)
            .expect("a lane exists while it runs");
        let (group, taken) = queue.take_group();
        state.waiting.subtract(taken);
        if group.is_empty() {
            state.lanes.remove(lane);
            self.idle.notify_waiters();
            return None;
        }
        Some(group)
    }
}

/// Hands a job to its lane, or refuses it at once.
pub(super) fn submit(engine: &Arc<Engine>, job: Job) -> Result<(), RoundError> {
    if let Some(lane) = engine.lanes.enqueue(job)? {
        let task = {
            let engine = Arc::clone(engine);
            Box::pin(async move { run(&engine, &lane).await })
        };
        if let Some(task) = engine.store().adopt_lane(task) {
            tokio::spawn(task);
        }
    }
    Ok(())
}

async fn run(engine: &Arc<Engine>, lane: &Option<PartitionId>) {
    while let Some(jobs) = engine.lanes.next_group(lane) {
        // Panics of a transaction are dealt with below. One beyond it fails the requests of this
        // group and nothing else: their replies are dropped.
        let Ok(results) = AssertUnwindSafe(batch::run(engine, &jobs))
            .catch_unwind()
            .await
        else {
            continue;
        };
        for (job, result) in jobs.into_iter().zip(results) {
            // The round may be gone; what it pushed is done all the same.
            let _ = job.reply.send(result);
        }
    }
}

#[cfg(test)]
mod tests;
