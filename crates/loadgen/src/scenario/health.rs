//! The server's health, asked for again and again while something else happens.
//!
//! From a thread of its own, because a generator that is busy must not look like a server that
//! is. Whatever is not an answer of 200 in time is what an orchestrator would restart it for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use crate::{
    http1::Connection,
    setup::Setup,
    verify::{ProblemKind, Problems},
};

/// How long the server may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between an answer and the next question.
const INTERVAL: Duration = Duration::from_millis(20);

/// Asks until it is stopped.
pub(super) struct Probe {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Health>>,
}

/// What was answered.
#[derive(Debug, Default)]
pub(super) struct Health {
    pub(super) checks: u64,
    pub(super) longest: Duration,
    pub(super) problems: Problems,
}

impl Probe {
    /// Begins to ask for a path below the mount.
    pub(super) fn start(setup: &Setup, path: &str) -> anyhow::Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&stop);
        let connection = setup.connection(PATIENCE);
        let path = path.to_owned();
        let thread = std::thread::Builder::new().name("health".to_owned());
        let thread = thread.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("start the runtime of the health check")?;
            Ok(runtime.block_on(ask(connection, &path, &flag)))
        })?;
        Ok(Self { stop, thread })
    }

    /// Lets it end what it began.
    pub(super) fn stop(self) -> anyhow::Result<Health> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the thread of the health check panicked"))?
    }
}

async fn ask(mut connection: Connection, path: &str, stop: &AtomicBool) -> Health {
    let mut health = Health::default();
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let answered = connection.get(path, "").await;
        health.checks += 1;
        health.longest = health.longest.max(asked.elapsed());
        let problem = match answered {
            Ok(reply) if reply.status == 200 => None,
            Ok(reply) => Some(format!("the health check got {}", reply.status)),
            Err(error) => Some(format!("the health check got no answer: {error}")),
        };
        if let Some(problem) = problem {
            health.problems.add(ProblemKind::Unhealthy, problem);
        }
        tokio::time::sleep(INTERVAL).await;
    }
    health
}
