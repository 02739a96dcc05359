//! `mixed`: devices that do what devices do, each in its own list.
//!
//! A device pushes and pulls in one round as published clients do, and holds every answer against
//! what it knows: cursors only move forward, rows are from its list, and its own commit arrives
//! not later than the cursor passes it.

use std::{collections::BTreeSet, rc::Rc, time::Instant};

use tidewater_model::ScopeFilter;
use tidewater_wire::PushOutcome;

use super::{Acks, check_writes, load, prepare, push::not_applied};
use crate::{
    args::MixedArgs,
    client::{Client, SUBSCRIPTION_ID, default_pull_header, pull_of},
    drive::Worker,
    error::RoundError,
    measure::{Done, OperationKind},
    observer::{body_len, bootstrap_round},
    report::{Checked, RunReport},
    round::{Section, check_results},
    setup::Setup,
    verify::{ProblemKind, Problems, log::Ack, rows::RowsCheck, section::check_section},
    workload::Workload,
};

pub(super) async fn run(args: &MixedArgs) -> anyhow::Result<RunReport> {
    let mut setup = Setup::new(&args.common, &args.table, &args.fill, Some(&args.shape))?;
    Rc::make_mut(&mut setup.workload).own_list = true;
    let weights = Weights::new(args)?;
    let mut observers = prepare(&setup).await?;
    let mut starts = Vec::new();
    for observer in &mut observers {
        starts.push(observer.head().await?);
    }
    let mut devices = Vec::new();
    for (number, &head) in (0..args.common.clients).zip(starts.iter().cycle()) {
        devices.push(Device::start(&setup, number, head, weights).await?);
    }
    let (devices, measured) = load(&setup, devices).await?;
    let mut checked = Checked::default();
    let mut problems = Problems::default();
    let mut acks = Acks::new();
    for mut device in devices {
        problems.merge(&device.problems);
        checked.acknowledged += u64::try_from(device.acks.len()).unwrap_or(u64::MAX);
        acks.entry(setup.partition_of(device.number))
            .or_default()
            .append(&mut device.acks);
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
    let mut report = RunReport::new("mixed", &setup, &measured, checked, problems);
    let weights = format!("{}:{}:{}", args.push, args.pull, args.bootstrap);
    report.parameters.insert("weights", weights);
    Ok(report)
}

/// How often a device does what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    push: u32,
    pull: u32,
    total: u32,
}

impl Weights {
    fn new(args: &MixedArgs) -> anyhow::Result<Self> {
        let total = args
            .push
            .checked_add(args.pull)
            .and_then(|sum| sum.checked_add(args.bootstrap))
            .filter(|&total| total > 0);
        Ok(Self {
            push: args.push,
            pull: args.pull,
            total: total.ok_or_else(|| anyhow::anyhow!("weights have no usable sum"))?,
        })
    }

    /// As many rounds that push as rounds that only pull.
    pub(super) fn even() -> Self {
        Self {
            push: 1,
            pull: 1,
            total: 2,
        }
    }

    fn choose(self, random: &mut fastrand::Rng) -> OperationKind {
        match random.u32(0..self.total) {
            point if point < self.push => OperationKind::Push,
            point if point - self.push < self.pull => OperationKind::Pull,
            _ => OperationKind::Bootstrap,
        }
    }
}

/// One device.
#[derive(Debug)]
pub(super) struct Device {
    number: u32,
    client: Client,
    workload: Rc<Workload>,
    filter: ScopeFilter,
    weights: Weights,
    random: fastrand::Rng,
    cursor: i64,
    next_commit: u32,
    pub(super) acks: Vec<Ack>,
    /// Own commits that were acknowledged and did not arrive yet.
    awaited: BTreeSet<i64>,
    pub(super) problems: Problems,
}

impl Device {
    pub(super) async fn start(
        setup: &Setup,
        number: u32,
        head: i64,
        weights: Weights,
    ) -> Result<Self, RoundError> {
        let workload = Rc::clone(&setup.workload);
        let filter = workload.table.filter(Some(workload.list_of(number)));
        let mut client = setup.client(number);
        let pull = pull_of(&workload.table.name, &filter, -1, default_pull_header());
        client.acquire_epoch(&pull).await?;
        Ok(Self {
            number,
            client,
            random: fastrand::Rng::with_seed(workload.seed ^ u64::from(number)),
            workload,
            filter,
            weights,
            cursor: head,
            next_commit: 0,
            acks: Vec::new(),
            awaited: BTreeSet::new(),
            problems: Problems::default(),
        })
    }

    async fn round(&mut self, kind: OperationKind) -> Result<Done, RoundError> {
        let table = &self.workload.table.name;
        let pull = pull_of(table, &self.filter, self.cursor, default_pull_header());
        let mut commits = Vec::new();
        let number = self.next_commit;
        if kind == OperationKind::Push {
            self.next_commit += 1;
            let planned = self.workload.commit(self.number, number);
            commits.push(self.workload.encode(&planned));
        }
        let ids: Vec<_> = commits
            .iter()
            .map(|commit| commit.client_commit_id.clone())
            .collect();
        let request = self.client.encode(commits, Some(&pull))?;
        let reply = self.client.send(&request).await?;
        let received = Instant::now();
        let round = self.client.parse(&reply.decoded()?)?;
        check_results(&round.results, &ids)?;
        let mut done = Done {
            kind,
            commits: 0,
            rows: 0,
            bytes: body_len(&reply.body),
            received,
        };
        for result in &round.results {
            let PushOutcome::Applied(commit_seq) = result.outcome else {
                return Err(not_applied(result));
            };
            done.commits += 1;
            done.rows += u64::from(self.workload.operations);
            self.awaited.insert(commit_seq);
            self.acks.push(Ack {
                commit_seq,
                client: self.number,
                number,
            });
        }
        let counts = self.receive(&round.into_section(SUBSCRIPTION_ID)?);
        if kind == OperationKind::Pull {
            (done.commits, done.rows) = counts;
        }
        Ok(done)
    }

    /// Takes a section; counts its commits and changes.
    fn receive(&mut self, section: &Section) -> (u64, u64) {
        check_section(section, self.cursor, &self.filter, &mut self.problems);
        let mut received = (0, 0);
        for commit in &section.commits {
            received.0 += 1;
            received.1 += u64::try_from(commit.changes.len()).unwrap_or(u64::MAX);
            self.awaited.remove(&commit.commit_seq);
        }
        self.cursor = section.end.next_cursor;
        let later = self.awaited.split_off(&(self.cursor + 1));
        for missed in std::mem::replace(&mut self.awaited, later) {
            let text = format!("own commit {missed} did not arrive by {}", self.cursor);
            self.problems.add(ProblemKind::LostCommit, text);
        }
        received
    }

    async fn bootstrap(&mut self) -> Result<Done, RoundError> {
        let table = &self.workload.table;
        let mut pull = pull_of(&table.name, &self.filter, -1, default_pull_header());
        let mut check = RowsCheck::new(table, &self.filter);
        let mut bytes = 0;
        let mut received;
        loop {
            let batch = bootstrap_round(&mut self.client, &mut pull).await?;
            received = Instant::now();
            bytes += batch.bytes;
            for page in &batch.pages {
                check.page(page, |_, _, _| {});
            }
            if batch.is_last {
                break;
            }
        }
        let (rows, problems) = check.finish();
        self.problems.merge(&problems);
        Ok(Done {
            kind: OperationKind::Bootstrap,
            commits: 0,
            rows,
            bytes,
            received,
        })
    }
}

impl Worker for Device {
    async fn operation(&mut self) -> Result<Done, RoundError> {
        match self.weights.choose(&mut self.random) {
            OperationKind::Bootstrap => self.bootstrap().await,
            kind => self.round(kind).await,
        }
    }
}
