//! `pull-idle` and `pull-window`: the same pull again and again.
//!
//! The first answer is checked in full. A later one that has the same bytes is right for the same
//! reason and costs the generator nothing; one that has not is checked in full again.

use std::{rc::Rc, time::Instant};

use bytes::Bytes;
use tidewater_model::ScopeFilter;
use tidewater_wire::PushOutcome;

use super::{load, prepare};
use crate::{
    args::{PullArgs, WindowArgs},
    client::{Client, SUBSCRIPTION_ID, default_pull_header, pull_of},
    drive::Worker,
    error::RoundError,
    measure::{Done, OperationKind},
    observer::body_len,
    report::{Checked, RunReport},
    round::Section,
    setup::Setup,
    verify::{
        ProblemKind, Problems,
        log::{Ack, LogCheck},
        section::check_section,
    },
};

/// Commits of the window in one request.
const WINDOW_BATCH: u32 = 100;
/// Stands for the client that pushed the window; no real client has this number.
const WINDOW_AUTHOR: u32 = u32::MAX - 1;

pub(super) async fn run_idle(args: &PullArgs) -> anyhow::Result<RunReport> {
    let setup = Setup::new(&args.common, &args.table, &args.fill, None)?;
    let mut windows = Vec::new();
    for observer in &mut prepare(&setup).await? {
        let head = observer.head().await?;
        windows.push(Window {
            cursor: head,
            end: head,
            acks: Rc::default(),
        });
    }
    run("pull-idle", &setup, &windows).await
}

pub(super) async fn run_window(args: &WindowArgs) -> anyhow::Result<RunReport> {
    let setup = Setup::new(&args.common, &args.table, &args.fill, None)?;
    let mut windows = Vec::new();
    for (partition, observer) in (0..).zip(&mut prepare(&setup).await?) {
        let cursor = observer.head().await?;
        let acks = push_window(&setup, partition, args.window).await?;
        windows.push(Window {
            cursor,
            end: cursor + i64::from(args.window),
            acks: acks.into(),
        });
    }
    let mut report = run("pull-window", &setup, &windows).await?;
    let window = args.window.to_string();
    report.parameters.insert("window", window);
    Ok(report)
}

/// What is pulled in a partition.
#[derive(Clone, Debug)]
struct Window {
    cursor: i64,
    end: i64,
    acks: Rc<[Ack]>,
}

/// Pushes `count` commits of one change each.
async fn push_window(setup: &Setup, partition: u32, count: u32) -> anyhow::Result<Vec<Ack>> {
    let workload = &setup.workload;
    let mut client = setup.observer(partition);
    let filter = workload.table.filter(None);
    let pull = pull_of(&workload.table.name, &filter, -1, default_pull_header());
    client.acquire_epoch(&pull).await?;
    let mut acks = Vec::new();
    let mut first = 0;
    while first < count {
        let numbers = first..(first + WINDOW_BATCH).min(count);
        let commits = numbers
            .clone()
            .map(|number| workload.encode(&workload.commit(WINDOW_AUTHOR, number)))
            .collect();
        let round = client.round(commits, None).await?;
        for (number, result) in numbers.zip(&round.results) {
            let PushOutcome::Applied(commit_seq) = result.outcome else {
                return Err(super::push::not_applied(result).into());
            };
            acks.push(Ack {
                commit_seq,
                client: WINDOW_AUTHOR,
                number,
            });
        }
        first += WINDOW_BATCH;
    }
    Ok(acks)
}

async fn run(
    scenario: &'static str,
    setup: &Setup,
    windows: &[Window],
) -> anyhow::Result<RunReport> {
    let mut pullers = Vec::new();
    for (client, window) in (0..setup.common.clients).zip(windows.iter().cycle()) {
        pullers.push(Puller::start(setup, client, window).await?);
    }
    let (pullers, measured) = load(setup, pullers).await?;
    let mut problems = Problems::default();
    for puller in &pullers {
        problems.merge(&puller.problems);
    }
    let acks: usize = windows.iter().map(|window| window.acks.len()).sum();
    let acknowledged = u64::try_from(acks).unwrap_or(u64::MAX);
    let checked = Checked {
        acknowledged,
        found: if problems.is_empty() { acknowledged } else { 0 },
        ..Checked::default()
    };
    Ok(RunReport::new(
        scenario, setup, &measured, checked, problems,
    ))
}

/// Pulls the same window for ever.
#[derive(Debug)]
struct Puller {
    client: Client,
    setup: Setup,
    window: Window,
    filter: ScopeFilter,
    request: Bytes,
    /// The last body that was checked, as it travelled.
    known: Option<Bytes>,
    problems: Problems,
}

impl Puller {
    async fn start(setup: &Setup, number: u32, window: &Window) -> Result<Self, RoundError> {
        let table = &setup.workload.table;
        let filter = table.filter(None);
        let pull = pull_of(&table.name, &filter, window.cursor, default_pull_header());
        let mut client = setup.client(number);
        client.acquire_epoch(&pull).await?;
        Ok(Self {
            request: client.encode(Vec::new(), Some(&pull))?,
            client,
            setup: setup.clone(),
            window: window.clone(),
            filter,
            known: None,
            problems: Problems::default(),
        })
    }

    fn check(&mut self, section: &Section) {
        let cursor = self.window.cursor;
        check_section(section, cursor, &self.filter, &mut self.problems);
        if section.end.next_cursor != self.window.end {
            let text = format!(
                "cursor {} for a log that ends at {}",
                section.end.next_cursor, self.window.end
            );
            self.problems.add(ProblemKind::WrongReply, text);
        }
        let mut check = LogCheck::new(&self.setup.workload, cursor, &self.window.acks);
        for commit in &section.commits {
            check.commit(commit);
        }
        self.problems.merge(&check.finish(self.window.end).problems);
    }
}

impl Worker for Puller {
    async fn operation(&mut self) -> Result<Done, RoundError> {
        let reply = self.client.send(&self.request).await?;
        let received = Instant::now();
        if self.known.as_ref() != Some(&reply.body) {
            let round = self.client.parse(&reply.decoded()?)?;
            let section = round.into_section(SUBSCRIPTION_ID)?;
            self.check(&section);
            self.known = Some(reply.body.clone());
        }
        let commits = u64::try_from(self.window.acks.len()).unwrap_or(u64::MAX);
        Ok(Done {
            kind: OperationKind::Pull,
            commits,
            rows: commits,
            bytes: body_len(&reply.body),
            received,
        })
    }
}
