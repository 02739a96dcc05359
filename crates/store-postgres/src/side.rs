//! The one connection of a node that is not of the pool, and that is kept: it listens for the
//! signals of the other nodes, sends ours, and holds the locks of the jobs that one node does at
//! a time.
//!
//! What belongs to a session cannot go through a pooler that hands connections out per
//! transaction, so this connection may have an address of its own
//! ([`PostgresConfig::listen_at`](crate::PostgresConfig::listen_at)).
//!
//! **Invariant:** whoever listens is told [`SignalEvent::Interrupted`] as soon as the connection
//! is known to be gone, and [`SignalEvent::Resumed`] only after it listens again. That it is gone
//! is known after two keepalives at the latest, whatever became of it: each of them is a signal to
//! ourselves that has to arrive.
//!
//! [`SignalEvent::Interrupted`]: tidewater_store::signals::SignalEvent::Interrupted
//! [`SignalEvent::Resumed`]: tidewater_store::signals::SignalEvent::Resumed

mod pieces;
mod session;

pub(crate) use self::pieces::PAYLOAD_BYTES_MAX;
pub(crate) use self::session::KEEPALIVE_DEFAULT;

use std::{sync::Arc, time::Duration};

use tidewater_store::{
    Job, StoreError, StoreErrorKind,
    signals::{NodeId, Outbox, SignalStream, Subscribers},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use self::session::{Ended, Session};

/// The connection of one node, or the attempts to have it.
#[derive(Debug)]
pub(crate) struct Side {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    closing: watch::Sender<bool>,
    patience: Duration,
    /// Ends with us.
    _task: JoinSet<()>,
}

/// What the connection needs to be made, and to be made again.
#[derive(Clone)]
pub(crate) struct SideConfig {
    pub(crate) address: tokio_postgres::Config,
    pub(crate) tls: MakeRustlsConnect,
    pub(crate) node: NodeId,
    /// Whether signals go this way. Otherwise only locks do.
    pub(crate) listens: bool,
    pub(crate) keepalive: Duration,
    /// How long an order waits for a connection.
    pub(crate) patience: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    subscribers: Subscribers,
    outbox: Outbox,
}

/// Asks whether a job is ours; what comes of it.
struct Order {
    job: Job,
    reply: oneshot::Sender<bool>,
}

/// Orders that wait. There are few jobs.
const ORDERS_MAX: usize = 64;

/// How long to wait before the first attempt to connect again, and the longest such wait.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl Side {
    /// Begins to connect.
    pub(crate) fn start(config: SideConfig) -> Self {
        let shared = Arc::new(Shared::default());
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let (closing, closed) = watch::channel(false);
        let patience = config.patience;
        let mut task = JoinSet::new();
        let keeper = Keeper {
            config,
            shared: Arc::clone(&shared),
            orders: ordered,
            closed,
        };
        task.spawn(keeper.run());
        Self {
            shared,
            orders,
            closing,
            patience,
            _task: task,
        }
    }

    /// Sends a text to every node.
    pub(crate) fn send(&self, text: String) {
        self.shared.outbox.push(text);
    }

    pub(crate) fn subscribe(&self) -> SignalStream {
        self.shared.subscribers.subscribe()
    }

    /// Whether a job is ours now. It stays ours for as long as the connection does.
    pub(crate) async fn holds(&self, job: Job) -> Result<bool, StoreError> {
        let (reply, answer) = oneshot::channel();
        let asking = async {
            self.orders.send(Order { job, reply }).await.ok()?;
            answer.await.ok()
        };
        let answer = timeout(self.patience, asking).await.ok().flatten();
        answer.ok_or_else(|| {
            let mut error = StoreError::new(StoreErrorKind::Unavailable, "claim a job");
            error.detail = Some("the connection for locks and signals is not there".to_owned());
            error
        })
    }

    /// Has it end, and give the locks back.
    pub(crate) fn stop(&self) {
        self.closing.send_replace(true);
    }

    /// Sends what waits, gives the locks back and ends.
    pub(crate) async fn close(&self) {
        self.stop();
        // Closed once the keeper has ended.
        let ended = self.orders.closed();
        if timeout(self.patience, ended).await.is_err() {
            tracing::debug!("the connection for locks and signals did not end in time");
        }
    }
}

/// Has the connection, or tries to.
struct Keeper {
    config: SideConfig,
    shared: Arc<Shared>,
    orders: mpsc::Receiver<Order>,
    closed: watch::Receiver<bool>,
}

impl Keeper {
    async fn run(mut self) {
        let mut wait = BACKOFF.0;
        let mut is_failing = false;
        loop {
            let opening = Session::open(&self.config, &self.shared);
            let opened = tokio::select! {
                opened = timeout(self.config.keepalive.max(CONNECT_MIN), opening) => opened,
                () = until_closed(&mut self.closed) => break,
            };
            let failure = match opened {
                Ok(Ok(mut session)) => {
                    (wait, is_failing) = (BACKOFF.0, false);
                    tracing::debug!("the connection for locks and signals is there");
                    if self.config.listens {
                        self.shared.subscribers.resume();
                    }
                    let ended = session.serve(&mut self.orders, &mut self.closed).await;
                    self.shared.subscribers.interrupt();
                    match ended {
                        Ended::Closed => break,
                        Ended::Lost(why) => why,
                    }
                }
                Ok(Err(why)) => why,
                Err(_) => "nobody answered in time".to_owned(),
            };
            if !std::mem::replace(&mut is_failing, true) {
                tracing::warn!(
                    why = failure,
                    "the connection for locks and signals is gone"
                );
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = until_closed(&mut self.closed) => break,
            }
            wait = (wait * 2).min(BACKOFF.1);
        }
        self.shared.subscribers.close();
    }
}

/// Even with a short keepalive a connection has this long to come about.
const CONNECT_MIN: Duration = Duration::from_secs(5);

async fn until_closed(closed: &mut watch::Receiver<bool>) {
    // An error says that nobody is left who could close.
    drop(closed.wait_for(|closed| *closed).await);
}
