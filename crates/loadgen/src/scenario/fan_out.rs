//! `fan-out`: commits pushed over HTTP, and how long each takes to every socket that listens.
//!
//! Latency counts from the moment the push was sent to the moment the delta was there, so the
//! commit itself is in it. The CPU time beside it is all of the server's, the pushes included.

use std::{collections::HashMap, sync::Arc, time::Instant};

use tokio::sync::watch;

use super::{
    Acks, check_writes, load, prepare,
    push::Pusher,
    receiver::{self, Arrived, Pushed},
};
use crate::{
    args::FanOutArgs,
    drive::{Measured, Worker},
    error::RoundError,
    measure::{Done, OperationKind, Tally},
    process::Usage,
    report::{Checked, RunReport},
    setup::Setup,
    verify::Problems,
};

pub(super) async fn run(args: &FanOutArgs) -> anyhow::Result<RunReport> {
    let sockets = args.receivers.sockets;
    let common = receiver::spread(&args.common, sockets)?;
    let setup = Setup::new(&common, &args.table, &args.fill, Some(&args.shape))?;
    let mut observers = prepare(&setup).await?;
    let listeners = receiver::prepare(&setup, &args.receivers, common.clients, sockets).await?;
    let opened = receiver::open(&listeners, None).await?;
    let mut starts = Vec::new();
    for observer in &mut observers {
        starts.push(observer.head().await?);
    }
    let (end, ended) = watch::channel(None);
    let tasks = receiver::listen(
        listeners,
        opened,
        args.acknowledge,
        args.receivers.patience,
        &ended,
    );
    let mut pushers = Vec::new();
    for client in 0..common.clients {
        pushers.push(Timed::start(&setup, client, args.shape.commits).await?);
    }
    let (pushers, mut measured) = load(&setup, pushers).await?;
    let mut checked = Checked::default();
    let mut problems = Problems::default();
    let (acks, pushed) = collect(&setup, pushers, &mut checked);
    let expected = receiver::expected(&setup, &acks, args.receivers.every_list);
    end.send_replace(Some(Arc::new(expected)));
    let arrived = receiver::gather(tasks, &mut problems).await;
    let wake_ups: u64 = arrived.iter().map(|arrived| arrived.wake_ups).sum();
    add_deltas(&mut measured, &arrived, &pushed);
    // What was under way at the end of the load was paid for after it.
    if let (Some(pid), Some((_, after))) = (common.server_pid, measured.server.as_mut()) {
        *after = Usage::read(pid)?;
    }
    if !common.no_verify {
        let observers = &mut observers;
        check_writes(
            &setup,
            observers,
            &starts,
            &acks,
            &mut checked,
            &mut problems,
        )
        .await;
    }
    let mut report = RunReport::new("fan-out", &setup, &measured, checked, problems);
    let parameters = &mut report.parameters;
    parameters.insert("sockets", sockets.to_string());
    parameters.insert("acknowledge", args.acknowledge.to_string());
    parameters.insert("every_list", args.receivers.every_list.to_string());
    parameters.insert("wake_ups", wake_ups.to_string());
    add_cost(&mut report);
    Ok(report)
}

/// A pusher that remembers when it pushed what.
pub(super) struct Timed {
    pusher: Pusher,
    pushed: Vec<(i64, Instant)>,
}

impl Timed {
    pub(super) async fn start(
        setup: &Setup,
        number: u32,
        commits: u32,
    ) -> Result<Self, RoundError> {
        Ok(Self {
            pusher: Pusher::start(setup, number, commits).await?,
            pushed: Vec::new(),
        })
    }
}

impl Worker for Timed {
    async fn operation(&mut self) -> Result<Done, RoundError> {
        let begun = Instant::now();
        let before = self.pusher.acks.len();
        let done = self.pusher.operation().await?;
        let acks = self.pusher.acks[before..].iter();
        self.pushed.extend(acks.map(|ack| (ack.commit_seq, begun)));
        Ok(done)
    }
}

/// What was acknowledged, and when it was pushed.
pub(super) fn collect(
    setup: &Setup,
    pushers: Vec<Timed>,
    checked: &mut Checked,
) -> (Acks, HashMap<u32, Pushed>) {
    let mut acks = Acks::new();
    let mut pushed: HashMap<u32, Pushed> = HashMap::new();
    for mut timed in pushers {
        let partition = setup.partition_of(timed.pusher.number);
        checked.acknowledged += u64::try_from(timed.pusher.acks.len()).unwrap_or(u64::MAX);
        acks.entry(partition)
            .or_default()
            .append(&mut timed.pusher.acks);
        pushed.entry(partition).or_default().extend(timed.pushed);
    }
    (acks, pushed)
}

/// Adds what the server used for each delta that arrived, pushes and all.
pub(super) fn add_cost(report: &mut RunReport) {
    let deltas = report.operations.get(&OperationKind::Delta);
    let deltas = deltas.map_or(0, |deltas| deltas.count);
    if let Some(server) = report.server.as_ref().filter(|_| deltas > 0) {
        let each = server.cpu_seconds * 1e6 / crate::report::to_f64(deltas);
        let figure = format!("{each:.2}");
        report.parameters.insert("cpu_us_per_delta", figure);
    }
}

/// Adds the deltas that belong to the measured time.
pub(super) fn add_deltas(
    measured: &mut Measured,
    arrived: &[Arrived],
    pushed: &HashMap<u32, Pushed>,
) {
    let began = measured.began;
    let mut tally = Tally::new();
    for arrived in arrived {
        let Some(pushed) = pushed.get(&arrived.partition) else {
            continue;
        };
        let mean = arrived.bytes / u64::try_from(arrived.commits.len().max(1)).unwrap_or(1);
        for (seq, at) in &arrived.commits {
            let (Some(at), Some(&begun)) = (at, pushed.get(seq)) else {
                continue;
            };
            if begun < began {
                continue;
            }
            let done = Done {
                kind: OperationKind::Delta,
                commits: 0,
                rows: 0,
                bytes: mean,
                received: *at,
            };
            tally.record(done, at.saturating_duration_since(begun));
        }
    }
    measured.tallies.insert(OperationKind::Delta, tally);
}
