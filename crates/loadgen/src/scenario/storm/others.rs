//! Devices that were there before the storm and go on with their work.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::task::{JoinSet, LocalSet};

use super::{
    super::mixed::{Device, Weights},
    STORM_LIST,
};
use crate::{
    args::{ShapeArgs, StormArgs, Update},
    drive::{Measured, Worker},
    measure::{OperationKind, Recorder, Tally},
    setup::Setup,
    verify::{Problems, log::Ack},
};

/// What they push: one row at a time.
pub(super) const SHAPE: ShapeArgs = ShapeArgs {
    operations: 1,
    commits: 1,
    hot_rows: None,
    inserts: 0,
    update: Update::Full,
};

/// The devices, at work on their thread.
pub(super) struct Others {
    is_storm: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<OthersReport>>,
}

/// What they did and what they met.
pub(super) struct OthersReport {
    before: BTreeMap<OperationKind, Tally>,
    during: BTreeMap<OperationKind, Tally>,
    errors: BTreeMap<String, u64>,
    problems: Problems,
    pub(super) acks: Vec<Ack>,
}

impl Others {
    /// Starts them, if there are any.
    pub(super) fn start(
        args: &StormArgs,
        setup: &Setup,
        head: i64,
    ) -> anyhow::Result<Option<Self>> {
        if args.others == 0 {
            return Ok(None);
        }
        anyhow::ensure!(
            args.others_rate.is_finite() && args.others_rate > 0.0,
            "--others-rate must be above 0"
        );
        let mut args = args.clone();
        args.common.run_id = Some(setup.workload.run_id.clone());
        let (is_storm, stop) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let flags = (Arc::clone(&is_storm), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("others".to_owned());
        let thread = thread.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("start the runtime of the others")?;
            runtime.block_on(live(&args, head, flags))
        })?;
        Ok(Some(Self {
            is_storm,
            stop,
            thread,
        }))
    }

    /// What happens from now on happens during the storm.
    pub(super) fn storm_begins(&self) {
        self.is_storm.store(true, Ordering::Relaxed);
    }

    /// Lets them end what they began.
    pub(super) fn stop(self) -> anyhow::Result<OthersReport> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the thread of the others panicked"))?
    }
}

impl OthersReport {
    /// Adds what they met during the storm.
    pub(super) fn add_to(&self, measured: &mut Measured, problems: &mut Problems) {
        for (kind, tally) in &self.during {
            measured.tallies.insert(*kind, tally.clone());
        }
        for (label, count) in &self.errors {
            *measured.errors.entry(label.clone()).or_default() += count;
        }
        problems.merge(&self.problems);
    }

    /// How long all but one of a hundred of them waited at most before the storm.
    pub(super) fn p99_ms_before(&self) -> String {
        let us = self
            .before
            .values()
            .map(|tally| tally.latency_us.value_at_quantile(0.99))
            .max();
        us.map_or_else(
            || "-".to_owned(),
            |us| format!("{}.{:03}", us / 1_000, us % 1_000),
        )
    }
}

type Flags = (Arc<AtomicBool>, Arc<AtomicBool>);

async fn live(args: &StormArgs, head: i64, flags: Flags) -> anyhow::Result<OthersReport> {
    let mut setup = Setup::new(&args.common, &args.table, &args.fill, Some(&SHAPE))?;
    Rc::make_mut(&mut setup.workload).own_list = true;
    // Behind the numbers of the storm's devices and of those that prepare and check it.
    let numbers = (args.common.clients + 1..)
        .filter(|number| setup.workload.list_of(*number) != STORM_LIST)
        .zip(0..args.others);
    let mut devices = Vec::new();
    for (number, _) in numbers {
        devices.push(Device::start(&setup, number, head, Weights::even()).await?);
    }
    let recorders = Rc::new(RefCell::new([Recorder::default(), Recorder::default()]));
    let interval = Duration::from_secs_f64(f64::from(args.others) / args.others_rate);
    let start = Instant::now();
    let local = LocalSet::new();
    let devices = local
        .run_until(async {
            let mut running = JoinSet::new();
            for (index, device) in (0..args.others).zip(devices) {
                let first = start + interval.mul_f64(f64::from(index) / f64::from(args.others));
                let recorders = Rc::clone(&recorders);
                running.spawn_local(work(device, (first, interval), flags.clone(), recorders));
            }
            running.join_all().await
        })
        .await;
    let [before, during] = recorders.take();
    let (before, mut errors) = before.finish();
    let (during, more) = during.finish();
    for (label, count) in more {
        *errors.entry(label).or_default() += count;
    }
    let mut report = OthersReport {
        before,
        during,
        errors,
        problems: Problems::default(),
        acks: Vec::new(),
    };
    for mut device in devices {
        report.problems.merge(&device.problems);
        report.acks.append(&mut device.acks);
    }
    Ok(report)
}

/// One round after the other, each when it is due.
async fn work(
    mut device: Device,
    (mut due, interval): (Instant, Duration),
    (is_storm, stop): Flags,
    recorders: Rc<RefCell<[Recorder; 2]>>,
) -> Device {
    while !stop.load(Ordering::Relaxed) {
        // What is late is counted from when it was due, and what is not from when it began: a
        // timer that goes off a millisecond late is not the server's delay.
        let begun = if Instant::now() < due {
            tokio::time::sleep_until(due.into()).await;
            Instant::now()
        } else {
            due
        };
        due += interval;
        let during = usize::from(is_storm.load(Ordering::Relaxed));
        let done = device.operation().await;
        let recorder = &mut recorders.borrow_mut()[during];
        match done {
            Ok(done) => recorder.record(done, done.received.saturating_duration_since(begun)),
            Err(error) => recorder.error(&error),
        }
    }
    device
}
