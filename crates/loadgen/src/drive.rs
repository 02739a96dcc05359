//! Runs workers through a phase and measures around it.
//!
//! All workers live on one thread. A phase ends when each has finished what it began, and only
//! then are the counters of the server read: every operation that is counted is paid for in the
//! CPU time beside it, and no other is.
//!
//! Bounded in time by the phase, in failures by [`FAILURES_IN_A_ROW_MAX`]: a run against a server
//! that is gone stops by itself.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::Future,
    io::Write as _,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::task::{JoinSet, LocalSet};

use crate::{
    error::RoundError,
    measure::{Done, OperationKind, Recorder, Tally},
    process::{Usage, machine_cpu},
    schedule::{Pacer, Schedule},
};

/// Somebody who does one operation after the other.
pub(crate) trait Worker: 'static {
    /// Does one operation.
    fn operation(&mut self) -> impl Future<Output = Result<Done, RoundError>>;
}

/// How long workers work, and how often they begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) duration: Duration,
    /// Operations after which nobody begins another.
    pub(crate) count: Option<u64>,
    /// Arrivals per second; `None` lets each worker begin when it has finished.
    pub(crate) rate: Option<f64>,
    pub(crate) server_pid: Option<u32>,
    pub(crate) quiet: bool,
}

/// What a phase measured.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) began: Instant,
    pub(crate) elapsed: Duration,
    pub(crate) tallies: BTreeMap<OperationKind, Tally>,
    pub(crate) errors: BTreeMap<String, u64>,
    /// Arrivals that nobody could begin in time.
    pub(crate) unsent: u64,
    /// The server before and after.
    pub(crate) server: Option<(Usage, Usage)>,
    /// CPU time of this process.
    pub(crate) generator_cpu: Duration,
    /// CPU time of the machine.
    pub(crate) machine_cpu: Duration,
}

/// A server that answers nothing usable is given up.
const FAILURES_IN_A_ROW_MAX: u32 = 20;
/// So that a refused connection does not become a busy loop.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(50);
/// How much longer than planned an open-loop phase may go on to begin what is overdue.
const OVERTIME_FACTOR: u32 = 2;

/// What something cost, beside its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    pub(crate) began: Instant,
    pub(crate) elapsed: Duration,
    /// The server before and after.
    pub(crate) server: Option<(Usage, Usage)>,
    /// CPU time of this process.
    pub(crate) generator_cpu: Duration,
    /// CPU time of the machine.
    pub(crate) machine_cpu: Duration,
}

/// Reads every counter before and after some work.
pub(crate) async fn with_costs<T>(
    server_pid: Option<u32>,
    work: impl Future<Output = T>,
) -> anyhow::Result<(T, Costs)> {
    let read_server = || server_pid.map(Usage::read).transpose();
    let machine_before = machine_cpu()?;
    let server_before = read_server()?;
    let generator_before = Usage::read(std::process::id())?;
    let started = Instant::now();
    let done = work.await;
    let elapsed = started.elapsed();
    let server_after = read_server()?;
    let generator_after = Usage::read(std::process::id())?;
    let machine_after = machine_cpu()?;
    let costs = Costs {
        began: started,
        elapsed,
        server: server_before.zip(server_after),
        generator_cpu: generator_after.cpu.saturating_sub(generator_before.cpu),
        machine_cpu: machine_after.saturating_sub(machine_before),
    };
    Ok((done, costs))
}

/// Runs the workers and gives them back, in no particular order.
pub(crate) async fn run_phase<W: Worker>(
    workers: Vec<W>,
    phase: Phase,
) -> anyhow::Result<(Vec<W>, Measured)> {
    let recorder = Rc::new(RefCell::new(Recorder::default()));
    let pace = Rc::new(Pace::new(phase, workers.len())?);
    let local = LocalSet::new();
    let load = local.run_until(async {
        let progress = tokio::task::spawn_local(show_progress(phase, Rc::clone(&recorder)));
        let mut running = JoinSet::new();
        for worker in workers {
            running.spawn_local(work(worker, Rc::clone(&pace), Rc::clone(&recorder)));
        }
        let workers = running.join_all().await;
        progress.abort();
        workers
    });
    let (workers, costs) = with_costs(phase.server_pid, load).await?;
    let measured = Measured::new(costs, recorder.take(), pace.unsent());
    Ok((workers, measured))
}

impl Measured {
    pub(crate) fn new(costs: Costs, recorder: Recorder, unsent: u64) -> Self {
        let (tallies, errors) = recorder.finish();
        Self {
            began: costs.began,
            elapsed: costs.elapsed,
            tallies,
            errors,
            unsent,
            server: costs.server,
            generator_cpu: costs.generator_cpu,
            machine_cpu: costs.machine_cpu,
        }
    }
}

async fn work<W: Worker>(mut worker: W, pace: Rc<Pace>, recorder: Rc<RefCell<Recorder>>) -> W {
    let mut failures_in_a_row = 0;
    while let Some(intended) = pace.next().await {
        match worker.operation().await {
            Ok(done) => {
                failures_in_a_row = 0;
                let latency = done.received.saturating_duration_since(intended);
                recorder.borrow_mut().record(done, latency);
            }
            Err(error) => {
                recorder.borrow_mut().error(&error);
                failures_in_a_row += 1;
                if failures_in_a_row == FAILURES_IN_A_ROW_MAX {
                    break;
                }
                tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
            }
        }
    }
    worker
}

async fn show_progress(phase: Phase, recorder: Rc<RefCell<Recorder>>) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.tick().await;
    for second in 1_u64.. {
        seconds.tick().await;
        let line = recorder.borrow_mut().turn_second();
        if !phase.quiet {
            note(&format!("{} {second:>3}s  {line}", phase.name));
        }
    }
}

/// Writes a line of progress. That nobody reads it is no reason to stop.
pub(crate) fn note(line: &str) {
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}

/// Who may begin, and when they were meant to.
#[derive(Debug)]
struct Pace {
    end: Instant,
    /// Operations that may still begin.
    left: Cell<u64>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    schedule: Schedule,
    pacer: Pacer,
    next: Cell<u64>,
}

impl Pace {
    fn new(phase: Phase, workers: usize) -> anyhow::Result<Self> {
        let start = Instant::now();
        let left = Cell::new(phase.count.unwrap_or(u64::MAX));
        let Some(rate) = phase.rate else {
            return Ok(Self {
                end: start + phase.duration,
                left,
                open: None,
            });
        };
        let schedule = Schedule::new(start, rate, phase.duration)
            .ok_or_else(|| anyhow::anyhow!("{rate} arrivals per second are not possible"))?;
        Ok(Self {
            end: start + phase.duration * OVERTIME_FACTOR,
            left,
            open: Some(Open {
                schedule,
                pacer: Pacer::start(schedule, workers)?,
                next: Cell::new(0),
            }),
        })
    }

    /// Waits for the next arrival; `None` when there is none any more.
    async fn next(&self) -> Option<Instant> {
        let now = match &self.open {
            None => Instant::now(),
            Some(open) => {
                open.pacer.next().await;
                let number = open.next.get();
                if number >= open.schedule.total() {
                    return None;
                }
                if Instant::now() >= self.end {
                    return None;
                }
                open.next.set(number + 1);
                open.schedule.intended(number)
            }
        };
        if now >= self.end || self.left.get() == 0 {
            return None;
        }
        self.left.set(self.left.get() - 1);
        Some(now)
    }

    fn unsent(&self) -> u64 {
        self.open
            .as_ref()
            .filter(|_| self.left.get() > 0)
            .map_or(0, |open| open.schedule.total() - open.next.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails every `fail_every`th time.
    struct Counter {
        done: u64,
        fail_every: u64,
    }

    impl Worker for Counter {
        async fn operation(&mut self) -> Result<Done, RoundError> {
            self.done += 1;
            tokio::task::yield_now().await;
            if self.done.is_multiple_of(self.fail_every) {
                return Err(RoundError::Timeout);
            }
            Ok(Done {
                kind: OperationKind::Pull,
                commits: 0,
                rows: 1,
                bytes: 0,
                received: Instant::now(),
            })
        }
    }

    fn workers(count: usize, fail_every: u64) -> Vec<Counter> {
        let worker = |_| Counter {
            done: 0,
            fail_every,
        };
        (0..count).map(worker).collect()
    }

    fn phase(count: Option<u64>, rate: Option<f64>) -> Phase {
        Phase {
            name: "test",
            duration: Duration::from_millis(200),
            count,
            rate,
            server_pid: Some(std::process::id()),
            quiet: true,
        }
    }

    #[tokio::test]
    async fn a_count_ends_a_phase_exactly() {
        let phase = phase(Some(1000), None);
        let (workers, measured) = run_phase(workers(7, u64::MAX), phase).await.unwrap();
        assert_eq!(workers.iter().map(|worker| worker.done).sum::<u64>(), 1000);
        assert_eq!(measured.tallies[&OperationKind::Pull].operations(), 1000);
        assert!(measured.server.is_some());
    }

    #[tokio::test]
    async fn an_open_loop_begins_every_arrival_of_its_schedule() {
        let phase = phase(None, Some(5000.0));
        let (_, measured) = run_phase(workers(3, u64::MAX), phase).await.unwrap();
        assert_eq!(measured.tallies[&OperationKind::Pull].operations(), 1000);
        assert_eq!(measured.unsent, 0);
    }

    #[tokio::test]
    async fn a_worker_that_always_fails_is_given_up() {
        let phase = Phase {
            duration: Duration::from_secs(60),
            ..phase(None, None)
        };
        let (workers, measured) = run_phase(workers(2, 1), phase).await.unwrap();
        assert!(workers.iter().all(|worker| worker.done == 20));
        assert_eq!(measured.errors["no answer in time"], 40);
    }

    /// Is busy until half of the phase is over, then as fast as it can.
    struct Stalled(Instant);

    impl Worker for Stalled {
        async fn operation(&mut self) -> Result<Done, RoundError> {
            while self.0.elapsed() < Duration::from_millis(100) {
                tokio::task::yield_now().await;
            }
            Ok(Done {
                kind: OperationKind::Pull,
                commits: 0,
                rows: 0,
                bytes: 0,
                received: Instant::now(),
            })
        }
    }

    #[tokio::test]
    async fn latency_counts_from_the_intended_start() {
        let phase = phase(None, Some(1000.0));
        let stalled = vec![Stalled(Instant::now())];
        let (_, measured) = run_phase(stalled, phase).await.unwrap();
        let latency = &measured.tallies[&OperationKind::Pull].latency_us;
        assert_eq!(latency.len(), 200);
        // What was meant to start during the stall has waited, not only the one in the stall.
        assert!(latency.value_at_quantile(0.6) > 5_000);
    }
}
