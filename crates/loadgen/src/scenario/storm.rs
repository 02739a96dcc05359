//! `storm`: new devices that all come at once, each to bootstrap once, downloads included.
//!
//! One operation is all requests of one device's bootstrap. Its latency is the time until the
//! device has everything, counted from the moment at which all began. Nothing large is kept:
//! downloads are hashed and their rows counted as they stream by, and every device must have got
//! every row. One more device reads all rows afterwards and holds them against what was filled.
//!
//! Others who push and pull meanwhile have a thread of their own, so that what the generator does
//! with the storm's bytes is not taken for the server's delay.

mod others;

use std::{
    cell::RefCell,
    collections::BTreeSet,
    rc::Rc,
    time::{Duration, Instant},
};

use tidewater_model::ScopeFilter;
use tidewater_wire::{ContentHasher, MediaType, Pull, PullHeader, PushOutcome, SegmentRef};
use tokio::task::{JoinSet, LocalSet};

use self::others::Others;
use super::{Acks, bootstrap::compare_filled, check_writes, prepare};
use crate::{
    args::{Lane, StormArgs},
    client::{Client, SUBSCRIPTION_ID, accept, default_pull_header, pull_of},
    drive::{Measured, note, with_costs},
    error::RoundError,
    measure::{Done, OperationKind, Recorder},
    observer::{body_len, bootstrap_round, check_image},
    process,
    report::{Checked, RunReport},
    round::{Section, Segment},
    setup::Setup,
    verify::{
        ProblemKind, Problems,
        image::Inspector,
        rows::{RowsCheck, count_rows},
    },
    workload::Planned,
};

/// Requests of one bootstrap: more is a server that turns in circles.
const REQUESTS_MAX: u64 = 100_000;
/// The list that new devices ask for.
const STORM_LIST: u32 = 0;

pub(super) async fn run(args: &StormArgs) -> anyhow::Result<RunReport> {
    anyhow::ensure!(
        args.others == 0 || args.table.lists > 1,
        "others write to lists of their own: pass --lists 2"
    );
    anyhow::ensure!(args.common.partitions == 1, "a storm is in one partition");
    let mut setup = Setup::new(&args.common, &args.table, &args.fill, Some(&others::SHAPE))?;
    Rc::make_mut(&mut setup.workload).own_list = true;
    let mut observers = prepare(&setup).await?;
    let mut starts = Vec::new();
    for observer in &mut observers {
        starts.push(observer.head().await?);
    }
    let mut devices = Vec::new();
    for number in 0..args.common.clients {
        devices.push(NewDevice::start(&setup, number, args).await?);
    }
    let others = Others::start(args, &setup, starts.first().copied().unwrap_or(0))?;
    // How long they wait when there is no storm.
    tokio::time::sleep(args.common.warmup).await;
    let mut problems = Problems::default();
    if args.cold {
        move_log(&setup).await?;
    } else {
        let first = NewDevice::start(&setup, args.common.clients, args).await?;
        first.bootstrap(&mut problems).await?;
    }
    if let Some(pid) = setup.common.server_pid.filter(|_| setup.common.reset_peak) {
        process::reset_peak(pid)?;
    }
    if let Some(others) = &others {
        others.storm_begins();
    }
    let seen = Rc::new(RefCell::new(Seen::default()));
    let storm = weather(devices, &seen, args.common.timeout * STORM_TIMEOUTS);
    let ((), costs) = with_costs(setup.common.server_pid, storm).await?;
    let others = others.map(Others::stop).transpose()?;
    let seen = seen.take();
    problems.merge(&seen.problems);
    let mut checked = check_rows(&setup, &mut problems).await?;
    let mut measured = Measured::new(costs, seen.recorder, 0);
    let mut acks = Acks::new();
    if let Some(others) = &others {
        others.add_to(&mut measured, &mut problems);
        checked.acknowledged = u64::try_from(others.acks.len()).unwrap_or(u64::MAX);
        acks.insert(0, others.acks.clone());
    }
    if !args.common.no_verify && !acks.is_empty() {
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
    let mut report = RunReport::new("storm", &setup, &measured, checked, problems);
    report.parameters.extend([
        ("lane", format!("{:?}", args.lane).to_lowercase()),
        ("signed", args.signed.to_string()),
        ("cold", args.cold.to_string()),
        ("requests", seen.requests.to_string()),
        ("different_answers", seen.digests.len().to_string()),
        ("others", args.others.to_string()),
    ]);
    let before = others.map(|others| ("others_p99_ms_before", others.p99_ms_before()));
    report.parameters.extend(before);
    Ok(report)
}

/// A storm that takes longer than so many of the longest waits has failed.
const STORM_TIMEOUTS: u32 = 20;

/// What came of the devices.
#[derive(Debug, Default)]
struct Seen {
    recorder: Recorder,
    problems: Problems,
    /// What the devices got, by its hash: one, if all got the same.
    digests: BTreeSet<String>,
    requests: u64,
}

/// Lets all devices begin at once, and waits for the last.
async fn weather(devices: Vec<NewDevice>, seen: &Rc<RefCell<Seen>>, timeout: Duration) {
    let began = Instant::now();
    let local = LocalSet::new();
    let all = local.run_until(async {
        let mut running = JoinSet::new();
        for device in devices {
            let seen = Rc::clone(seen);
            running.spawn_local(async move {
                let mut problems = Problems::default();
                let arrived = device.bootstrap(&mut problems).await;
                let mut seen = seen.borrow_mut();
                seen.problems.merge(&problems);
                match arrived {
                    Ok(arrived) => {
                        let latency = arrived.done.received.saturating_duration_since(began);
                        seen.recorder.record(arrived.done, latency);
                        seen.digests.insert(arrived.digest);
                        seen.requests += arrived.requests;
                    }
                    Err(error) => seen.recorder.error(&error),
                }
            });
        }
        running.join_all().await;
    });
    if tokio::time::timeout(timeout, all).await.is_err() {
        let mut seen = seen.borrow_mut();
        let text = "the storm did not end";
        seen.problems.add(ProblemKind::Unfinished, text);
    }
}

/// A device that has nothing.
#[derive(Debug)]
struct NewDevice {
    client: Client,
    pull: Pull,
    filter: ScopeFilter,
    rows: u64,
    is_hashing: bool,
}

/// A device that has everything.
#[derive(Debug)]
struct Arrived {
    done: Done,
    digest: String,
    requests: u64,
}

impl NewDevice {
    async fn start(setup: &Setup, number: u32, args: &StormArgs) -> Result<Self, RoundError> {
        let table = &setup.workload.table;
        let filter = table.filter(Some(STORM_LIST));
        let lane = match args.lane {
            Lane::Inline => 0b0001,
            Lane::External => 0b0010,
            Lane::Rows => 0b0011,
            Lane::Image => 0b0111,
        };
        let header = PullHeader {
            limit_commits: 0,
            limit_snapshot_rows: args.page_rows,
            max_snapshot_pages: args.pages,
            accept: accept(lane | (u8::from(args.signed) << 3)),
        };
        let mut client = setup.client(number);
        let pull = pull_of(&table.name, &filter, -1, header);
        client.acquire_epoch(&pull).await?;
        Ok(Self {
            client,
            pull,
            filter,
            rows: u64::from(setup.fill.rows.div_ceil(table.lists())),
            is_hashing: !args.common.no_verify,
        })
    }

    /// Takes everything there is.
    async fn bootstrap(mut self, problems: &mut Problems) -> Result<Arrived, RoundError> {
        let mut got = Got::default();
        for requests in 1..REQUESTS_MAX {
            let section = self.round(&mut got).await?;
            for segment in section.segments {
                self.take(segment, &mut got, problems).await?;
            }
            self.pull.subscriptions[0].bootstrap_state = section.end.bootstrap_state;
            if self.pull.subscriptions[0].bootstrap_state.is_some() {
                continue;
            }
            if got.rows < self.rows {
                let text = format!("{} rows of {}", got.rows, self.rows);
                problems.add(ProblemKind::MissingRow, text);
            }
            let done = Done {
                kind: OperationKind::Bootstrap,
                commits: 0,
                rows: got.rows,
                bytes: got.bytes,
                received: Instant::now(),
            };
            return Ok(Arrived {
                done,
                digest: got.hasher.finish(),
                requests: requests + got.downloads,
            });
        }
        Err(RoundError::unexpected("a bootstrap does not end"))
    }

    async fn round(&mut self, got: &mut Got) -> Result<Section, RoundError> {
        let request = self.client.encode(Vec::new(), Some(&self.pull))?;
        let reply = self.client.send(&request).await?;
        got.bytes += body_len(&reply.body);
        let round = self.client.parse(&reply.decoded()?)?;
        let section = round.into_section(SUBSCRIPTION_ID)?;
        if !section.start.bootstrap {
            return Err(RoundError::unexpected("cursor -1 got no bootstrap"));
        }
        Ok(section)
    }

    async fn take(
        &mut self,
        segment: Segment,
        got: &mut Got,
        problems: &mut Problems,
    ) -> Result<(), RoundError> {
        match segment {
            Segment::Inline(page) => {
                if self.is_hashing {
                    got.hasher.update(&page);
                }
                match count_rows(&page) {
                    Some(rows) => got.rows += rows,
                    None => problems.add(ProblemKind::BadSegment, "a page is no page"),
                }
            }
            Segment::Ref(reference) => self.fetch(&reference, got, problems).await?,
        }
        Ok(())
    }

    async fn fetch(
        &mut self,
        reference: &SegmentRef,
        got: &mut Got,
        problems: &mut Problems,
    ) -> Result<(), RoundError> {
        let inspector = Inspector::new(self.is_hashing);
        let inspecting = self
            .client
            .inspect_segment(reference, &self.filter, inspector);
        let (inspected, travelled) = inspecting.await?;
        got.bytes += travelled;
        got.downloads += 1;
        got.hasher.update(reference.segment_id.as_bytes());
        got.rows += match reference.media_type {
            MediaType::Sqlite => check_image(reference, &inspected, problems),
            MediaType::Rows => {
                let is_right = *inspected.id == *reference.segment_id
                    && u64::try_from(reference.byte_length) == Ok(inspected.byte_length);
                if !is_right {
                    problems.add(ProblemKind::BadSegment, &reference.segment_id);
                }
                u64::try_from(reference.row_count).unwrap_or(0)
            }
        };
        Ok(())
    }
}

/// What a device has so far.
#[derive(Debug, Default)]
struct Got {
    rows: u64,
    bytes: u64,
    downloads: u64,
    hasher: ContentHasher,
}

/// Writes the first row again as it is: the log moves on and the rows stay what was filled.
async fn move_log(setup: &Setup) -> Result<(), RoundError> {
    let workload = &setup.workload;
    let mut client = setup.client(setup.common.clients);
    let filter = workload.table.filter(Some(STORM_LIST));
    let pull = pull_of(&workload.table.name, &filter, -1, default_pull_header());
    client.acquire_epoch(&pull).await?;
    let planned = Planned {
        id: format!("{}-cold", workload.run_id).into(),
        writes: vec![workload.filled(0)],
    };
    let round = client.round(vec![workload.encode(&planned)], None).await?;
    match round.results.first() {
        Some(result) if matches!(result.outcome, PushOutcome::Applied(_)) => Ok(()),
        _ => Err(RoundError::unexpected(
            "the commit before the storm was not applied",
        )),
    }
}

/// Reads all rows that a device of the storm gets, and holds each against what was filled.
async fn check_rows(setup: &Setup, problems: &mut Problems) -> anyhow::Result<Checked> {
    let mut checked = Checked::default();
    if setup.common.no_verify {
        return Ok(checked);
    }
    if !setup.common.quiet {
        note("reading the rows");
    }
    let table = &setup.workload.table;
    let filter = table.filter(Some(STORM_LIST));
    let mut client = setup.client(setup.common.clients);
    let mut pull = pull_of(&table.name, &filter, -1, default_pull_header());
    client.acquire_epoch(&pull).await?;
    let mut check = RowsCheck::new(table, &filter);
    loop {
        let batch = bootstrap_round(&mut client, &mut pull).await?;
        for page in &batch.pages {
            check.page(page, |row_id, _, row| {
                compare_filled(setup, row_id, row, problems);
            });
        }
        if batch.is_last {
            break;
        }
    }
    let (rows, found) = check.finish();
    problems.merge(&found);
    checked.rows = rows;
    Ok(checked)
}
