//! The scenarios: what is prepared, who works, what is checked afterwards.

mod bootstrap;
mod fan_out;
mod floor;
mod health;
mod idle;
mod mixed;
mod pull;
mod push;
mod receiver;
mod reconnect;
mod slow;
mod sockets;
mod storm;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::{
    args::Scenario,
    drive::{Measured, Worker, note, run_phase},
    error::RoundError,
    observer::Observer,
    process,
    report::{Checked, Report},
    setup::Setup,
    table::Table,
    verify::{
        ProblemKind, Problems,
        log::{Ack, LogCheck},
    },
};

/// Does what the command line says.
pub(crate) async fn run(scenario: Scenario) -> anyhow::Result<Report> {
    let (run, json) = match scenario {
        Scenario::Schema(args) => {
            let table = Table::new(args.columns, args.scopes, args.lists)?;
            let text = serde_json::to_string_pretty(&table.schema_document())?;
            return Ok(Report::Schema(text));
        }
        Scenario::Push(args) => (push::run(&args).await?, args.common.json),
        Scenario::PullIdle(args) => (pull::run_idle(&args).await?, args.common.json),
        Scenario::PullWindow(args) => (pull::run_window(&args).await?, args.common.json),
        Scenario::Bootstrap(args) => (bootstrap::run(&args).await?, args.common.json),
        Scenario::Storm(args) => (storm::run(&args).await?, args.common.json),
        Scenario::Mixed(args) => (mixed::run(&args).await?, args.common.json),
        Scenario::Idle(args) => (idle::run(&args).await?, args.common.json),
        Scenario::FanOut(args) => (fan_out::run(&args).await?, args.common.json),
        Scenario::Sockets(args) => (sockets::run(&args).await?, args.common.json),
        Scenario::Reconnect(args) => (reconnect::run(&args).await?, args.common.json),
        Scenario::SlowReaders(args) => (slow::run(&args).await?, args.common.json),
        Scenario::Floor(args) => (floor::run(&args).await?, args.json),
    };
    Ok(Report::Run {
        run: Box::new(run),
        json,
    })
}

/// An observer in each partition, with the table filled.
async fn prepare(setup: &Setup) -> anyhow::Result<Vec<Observer>> {
    let mut observers = Vec::new();
    for partition in 0..setup.common.partitions {
        let mut observer = Observer::start(setup, partition).await?;
        if !setup.fill.skip_fill {
            observer
                .fill(&setup.workload, setup.fill.rows, setup.common.quiet)
                .await?;
        }
        observers.push(observer);
    }
    Ok(observers)
}

/// Warms up and measures.
async fn load<W: Worker>(setup: &Setup, workers: Vec<W>) -> anyhow::Result<(Vec<W>, Measured)> {
    let (workers, _) = run_phase(workers, setup.warmup()).await?;
    if let Some(pid) = setup.common.server_pid.filter(|_| setup.common.reset_peak) {
        process::reset_peak(pid)?;
    }
    run_phase(workers, setup.measured()).await
}

/// One commit in each partition, outside of any measurement.
async fn load_one(setup: &Setup) -> anyhow::Result<Vec<fan_out::Timed>> {
    let mut pushers = Vec::new();
    for client in 0..setup.common.partitions {
        let mut pusher = fan_out::Timed::start(setup, client, 1).await?;
        pusher.operation().await?;
        pushers.push(pusher);
    }
    Ok(pushers)
}

/// Acknowledged commits of each partition.
type Acks = HashMap<u32, Vec<Ack>>;

/// Reads the logs and the rows of all partitions, and holds them against what was acknowledged.
async fn check_writes(
    setup: &Setup,
    observers: &mut [Observer],
    starts: &[i64],
    acks: &Acks,
    checked: &mut Checked,
    problems: &mut Problems,
) {
    for (partition, (observer, &start)) in (0..).zip(observers.iter_mut().zip(starts)) {
        let acks = acks.get(&partition).map_or(&[][..], Vec::as_slice);
        if !setup.common.quiet {
            note(&format!("checking {} acknowledged commits", acks.len()));
        }
        let check = check_partition(setup, observer, start, acks, checked, problems);
        if let Err(error) = check.await {
            problems.add(ProblemKind::Unfinished, error);
        }
    }
}

/// The commits behind a place in the log, and how many are not.
fn split(acks: &[Ack], start: i64) -> (Vec<Ack>, u64) {
    let (behind, before): (Vec<Ack>, Vec<Ack>) =
        acks.iter().partition(|ack| ack.commit_seq > start);
    (behind, u64::try_from(before.len()).unwrap_or(u64::MAX))
}

async fn check_partition(
    setup: &Setup,
    observer: &mut Observer,
    mut start: i64,
    acks: &[Ack],
    checked: &mut Checked,
    problems: &mut Problems,
) -> Result<(), RoundError> {
    let read = loop {
        let (acks, older) = split(acks, start);
        let mut check = LogCheck::new(&setup.workload, start, &acks);
        match observer.read_log(start, &mut check, problems).await {
            Ok(head) => {
                checked.out_of_reach += older;
                break check.finish(head);
            }
            // A load that wrote much: from nearer by, then. Where nothing is near enough, the
            // server does not give its log out.
            Err(error @ RoundError::Reset(_)) => {
                let newest = acks.iter().map(|ack| ack.commit_seq).max();
                let nearer = newest.map(|newest| start + (newest - start) / 2);
                start = nearer.filter(|&nearer| nearer > start).ok_or(error)?;
            }
            Err(error) => return Err(error),
        }
    };
    problems.merge(&read.problems);
    checked.found += read.found;
    checked.unacknowledged += read.unacknowledged;
    checked.rows += observer
        .read_rows(&setup.workload, read.rows, problems)
        .await?;
    Ok(())
}
