//! `push`: commits, one request after the other, and every acknowledged one is looked for.

use std::{rc::Rc, time::Instant};

use tidewater_wire::PushOutcome;

use super::{Acks, check_writes, load, prepare};
use crate::{
    args::PushArgs,
    client::{Client, default_pull_header, pull_of},
    error::RoundError,
    measure::{Done, OperationKind},
    observer::body_len,
    report::{Checked, RunReport},
    round::check_results,
    setup::Setup,
    verify::{ProblemKind, Problems, log::Ack},
    workload::Workload,
};

/// Acknowledged commits of a client that are pushed again.
const REPLAYS: usize = 20;

pub(super) async fn run(args: &PushArgs) -> anyhow::Result<RunReport> {
    let setup = Setup::new(&args.common, &args.table, &args.fill, Some(&args.shape))?;
    let mut observers = prepare(&setup).await?;
    let mut starts = Vec::new();
    for observer in &mut observers {
        starts.push(observer.head().await?);
    }
    let mut pushers = Vec::new();
    for client in 0..args.common.clients {
        pushers.push(Pusher::start(&setup, client, args.shape.commits).await?);
    }
    let (mut pushers, measured) = load(&setup, pushers).await?;
    let mut checked = Checked::default();
    let mut problems = Problems::default();
    let mut acks = Acks::new();
    for pusher in &mut pushers {
        if !args.common.no_verify {
            let replay = pusher.replay(&mut checked.replayed, &mut problems);
            if let Err(error) = replay.await {
                problems.add(ProblemKind::Unfinished, error);
            }
        }
        checked.acknowledged += u64::try_from(pusher.acks.len()).unwrap_or(u64::MAX);
        acks.entry(setup.partition_of(pusher.number))
            .or_default()
            .append(&mut pusher.acks);
    }
    if !args.common.no_verify {
        check_writes(
            &setup,
            &mut observers,
            &starts,
            &acks,
            &mut checked,
            &mut problems,
        )
        .await;
    }
    let mut report = RunReport::new("push", &setup, &measured, checked, problems);
    let commits = args.shape.commits.to_string();
    report.parameters.insert("commits", commits);
    Ok(report)
}

/// Pushes commits and remembers which were acknowledged.
#[derive(Debug)]
pub(super) struct Pusher {
    pub(super) number: u32,
    client: Client,
    workload: Rc<Workload>,
    commits_per_request: u32,
    next_commit: u32,
    pub(super) acks: Vec<Ack>,
}

impl Pusher {
    pub(super) async fn start(
        setup: &Setup,
        number: u32,
        commits_per_request: u32,
    ) -> Result<Self, RoundError> {
        let mut client = setup.client(number);
        let table = &setup.workload.table;
        let list = setup.workload.list_of(number);
        let filter = table.filter(Some(list));
        let pull = pull_of(&table.name, &filter, -1, default_pull_header());
        client.acquire_epoch(&pull).await?;
        Ok(Self {
            number,
            client,
            workload: Rc::clone(&setup.workload),
            commits_per_request,
            next_commit: 0,
            acks: Vec::new(),
        })
    }

    /// Pushes some acknowledged commits again: each must get its stored result (§2.3).
    async fn replay(
        &mut self,
        replayed: &mut u64,
        problems: &mut Problems,
    ) -> Result<(), RoundError> {
        let step = self.acks.len().div_ceil(REPLAYS).max(1);
        for ack in self.acks.iter().step_by(step) {
            let planned = self.workload.commit(self.number, ack.number);
            let commit = self.workload.encode(&planned);
            let round = self.client.round(vec![commit], None).await?;
            let outcome = round.results[0].outcome;
            if outcome != PushOutcome::Cached(ack.commit_seq) {
                let text = format!("{} at {}: {outcome:?}", planned.id, ack.commit_seq);
                problems.add(ProblemKind::NotCached, text);
            }
            *replayed += 1;
        }
        Ok(())
    }
}

impl crate::drive::Worker for Pusher {
    async fn operation(&mut self) -> Result<Done, RoundError> {
        let first = self.next_commit;
        // An id is used once even if its request fails: nobody knows what became of it.
        self.next_commit += self.commits_per_request;
        let numbers = first..self.next_commit;
        let commits: Vec<_> = numbers
            .clone()
            .map(|number| {
                self.workload
                    .encode(&self.workload.commit(self.number, number))
            })
            .collect();
        let ids: Vec<_> = commits
            .iter()
            .map(|commit| commit.client_commit_id.clone())
            .collect();
        let request = self.client.encode(commits, None)?;
        let reply = self.client.send(&request).await?;
        let received = Instant::now();
        let round = self.client.parse(&reply.decoded()?)?;
        check_results(&round.results, &ids)?;
        for (number, result) in numbers.zip(&round.results) {
            let PushOutcome::Applied(commit_seq) = result.outcome else {
                return Err(not_applied(result));
            };
            self.acks.push(Ack {
                commit_seq,
                client: self.number,
                number,
            });
        }
        let commits = u64::from(self.commits_per_request);
        Ok(Done {
            kind: OperationKind::Push,
            commits,
            rows: commits * u64::from(self.workload.operations),
            bytes: body_len(&reply.body),
            received,
        })
    }
}

pub(super) fn not_applied(result: &tidewater_wire::PushResult) -> RoundError {
    let code = result.results.iter().find_map(|record| match record {
        tidewater_wire::OpResult::Error { code, .. }
        | tidewater_wire::OpResult::Conflict { code, .. } => Some(code.to_string()),
        tidewater_wire::OpResult::Applied { .. } => None,
    });
    let code = code.unwrap_or_default();
    match result.outcome {
        PushOutcome::Rejected => RoundError::Unexpected(format!("commit rejected: {code}")),
        PushOutcome::Cached(_) => RoundError::unexpected("a new commit was answered as cached"),
        PushOutcome::Applied(_) => RoundError::unexpected("commit applied"),
    }
}
