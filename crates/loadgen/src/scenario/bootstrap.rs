//! `bootstrap`: the whole table from row 0, each time by a client that has nothing.
//!
//! One operation is all requests of one bootstrap. Its pages are checked in full unless they are,
//! byte for byte, those of one that was, or one was checked a moment ago: a check of a large table
//! costs more than serving it, and the generator shares the machine with the server.

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tidewater_model::ScopeFilter;
use tidewater_wire::{PullHeader, PushOutcome, row::encode_row};

use super::{load, prepare};
use crate::{
    args::{BootstrapArgs, Lane},
    client::{Client, accept, pull_of},
    drive::Worker,
    error::RoundError,
    measure::{Done, OperationKind},
    observer::{Batch, bootstrap_round, check_fetched, check_image},
    report::{Checked, RunReport},
    setup::Setup,
    verify::{ProblemKind, Problems, rows::RowsCheck},
    workload::Planned,
};

/// Requests of one bootstrap: more is a server that turns in circles.
const REQUESTS_MAX: u32 = 100_000;
/// How much time lies at least between two checks of pages that were not seen before.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

pub(super) async fn run(args: &BootstrapArgs) -> anyhow::Result<RunReport> {
    let setup = Setup::new(&args.common, &args.table, &args.fill, None)?;
    prepare(&setup).await?;
    let header = PullHeader {
        limit_commits: 0,
        limit_snapshot_rows: args.page_rows,
        max_snapshot_pages: args.pages,
        accept: accept(match args.lane {
            Lane::Inline => 0b0001,
            Lane::External => 0b0010,
            Lane::Rows => 0b0011,
            Lane::Image => 0b0111,
        }),
    };
    let seen = Rc::new(RefCell::new(Seen::default()));
    let mut devices = Vec::new();
    for client in 0..args.common.clients {
        let mut device = NewDevice::start(&setup, client, header, Rc::clone(&seen)).await?;
        device.cold = args.cold;
        devices.push(device);
    }
    let (_, measured) = load(&setup, devices).await?;
    let seen = seen.take();
    let checked = Checked {
        rows: seen.rows,
        ..Checked::default()
    };
    let mut report = RunReport::new("bootstrap", &setup, &measured, checked, seen.problems);
    for (name, value) in [
        ("page_rows", args.page_rows.to_string()),
        ("pages", args.pages.to_string()),
        ("lane", format!("{:?}", args.lane).to_lowercase()),
        ("requests", seen.requests.to_string()),
        ("cold", args.cold.to_string()),
    ] {
        report.parameters.insert(name, value);
    }
    Ok(report)
}

/// The last bootstrap that was checked, of whichever client.
#[derive(Debug, Default)]
struct Seen {
    pages: Vec<Bytes>,
    rows: u64,
    /// Requests it took, downloads of segments included.
    requests: u64,
    problems: Problems,
    checked_at: Option<Instant>,
}

/// Bootstraps for ever.
#[derive(Debug)]
struct NewDevice {
    client: Client,
    setup: Setup,
    header: PullHeader,
    filter: ScopeFilter,
    seen: Rc<RefCell<Seen>>,
    /// Pushes a commit before each bootstrap.
    cold: bool,
    number: u32,
    next_commit: u32,
}

impl NewDevice {
    async fn start(
        setup: &Setup,
        number: u32,
        header: PullHeader,
        seen: Rc<RefCell<Seen>>,
    ) -> Result<Self, RoundError> {
        let table = &setup.workload.table;
        let filter = table.filter(None);
        let mut client = setup.client(number);
        let pull = pull_of(&table.name, &filter, -1, header);
        client.acquire_epoch(&pull).await?;
        Ok(Self {
            client,
            setup: setup.clone(),
            header,
            filter,
            seen,
            cold: false,
            number,
            next_commit: 0,
        })
    }

    /// Writes the first row again as it is: the log moves on and the rows stay what was filled.
    async fn move_log(&mut self) -> Result<(), RoundError> {
        let workload = &self.setup.workload;
        let planned = Planned {
            id: format!(
                "{}-cold-{}-{}",
                workload.run_id, self.number, self.next_commit
            )
            .into(),
            writes: vec![workload.filled(0)],
        };
        self.next_commit += 1;
        let round = self.client.round(vec![workload.encode(&planned)], None);
        match round.await?.results.first() {
            Some(result) if matches!(result.outcome, PushOutcome::Applied(_)) => Ok(()),
            _ => Err(RoundError::unexpected(
                "the commit before a bootstrap was not applied",
            )),
        }
    }

    /// Checks a bootstrap unless its pages are known, and tells how many rows it had.
    fn check(&self, batches: &[Batch]) -> u64 {
        let seen = &mut *self.seen.borrow_mut();
        let mut image_rows = 0;
        for (reference, inspected) in batches.iter().flat_map(|batch| &batch.images) {
            image_rows += check_image(reference, inspected, &mut seen.problems);
        }
        let pages: Vec<Bytes> = batches
            .iter()
            .flat_map(|b| b.pages.iter().cloned())
            .collect();
        let is_recent = |at: Instant| at.elapsed() < CHECK_INTERVAL;
        if !pages.is_empty() && (pages == seen.pages || seen.checked_at.is_some_and(is_recent)) {
            return seen.rows;
        }
        let mut check = RowsCheck::new(&self.setup.workload.table, &self.filter);
        for batch in batches {
            check_fetched(batch, &mut seen.problems);
            for page in &batch.pages {
                check.page(page, |row_id, _, row| {
                    compare_filled(&self.setup, row_id, row, &mut seen.problems);
                });
            }
        }
        let (rows, problems) = check.finish();
        seen.problems.merge(&problems);
        seen.rows = rows + image_rows;
        if seen.rows < u64::from(self.setup.fill.rows) {
            let text = format!("{} rows of {}", seen.rows, self.setup.fill.rows);
            seen.problems.add(ProblemKind::MissingRow, text);
        }
        let fetched = batches.iter().flat_map(|batch| batch.refs.iter().flatten());
        let images = batches.iter().map(|batch| batch.images.len());
        let requests = batches.len() + fetched.count() + images.sum::<usize>();
        seen.requests = u64::try_from(requests).unwrap_or(u64::MAX);
        seen.pages = pages;
        seen.checked_at = Some(Instant::now());
        seen.rows
    }
}

/// Holds a row that the fill wrote against what it wrote.
pub(super) fn compare_filled(setup: &Setup, row_id: &str, row: &[u8], problems: &mut Problems) {
    let index = row_id
        .strip_prefix("task-")
        .and_then(|index| index.parse().ok())
        .filter(|&index| index < setup.fill.rows && !setup.fill.skip_fill);
    let Some(index) = index else { return };
    let cells = setup.workload.filled(index).cells;
    let values: Vec<Option<&[u8]>> = cells.iter().map(Option::as_deref).collect();
    if encode_row(&values) != row {
        let text = format!("{row_id} is not what the fill wrote");
        problems.add(ProblemKind::WrongContent, text);
    }
}

impl Worker for NewDevice {
    async fn operation(&mut self) -> Result<Done, RoundError> {
        if self.cold {
            self.move_log().await?;
        }
        let table = &self.setup.workload.table;
        let mut pull = pull_of(&table.name, &self.filter, -1, self.header);
        let mut batches = Vec::new();
        for _ in 0..REQUESTS_MAX {
            let batch = bootstrap_round(&mut self.client, &mut pull).await?;
            let is_last = batch.is_last;
            batches.push(batch);
            if is_last {
                let received = Instant::now();
                return Ok(Done {
                    kind: OperationKind::Bootstrap,
                    commits: 0,
                    rows: self.check(&batches),
                    bytes: batches.iter().map(|batch| batch.bytes).sum(),
                    received,
                });
            }
        }
        Err(RoundError::unexpected("a bootstrap does not end"))
    }
}
