//! What the other nodes on the same database do, and what they are told.
//!
//! A signal says that the database has changed; nothing is believed but that. So signals may
//! come twice, late or, after an interruption, not at all: whoever was interrupted forgets what
//! it knew and reads it again. From time to time everybody does, for a signal that was lost
//! without anybody's knowledge.
//!
//! **Invariant:** no request is answered from memory while signals are known not to arrive.
//!
//! Who is present has no place in the log: a node that may have missed something asks for it, at
//! most once per beat, and a node that was silent for some beats has nobody present any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use tidewater_model::{ActorId, CommitSeq, PartitionId};
use tidewater_store::signals::{NodeId, Roster, Signal, SignalEvent, Signals};
use tokio::{
    sync::{
        Notify,
        broadcast::{
            self,
            error::{RecvError, TryRecvError},
        },
    },
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use crate::{CommitEvent, Engine};

/// How often a node says that it is there.
const BEAT: Duration = Duration::from_secs(5);

/// A node that was silent for longer is lost.
const SILENCE_MS: i64 = 16_000;

/// Commits that are announced together.
const COMMITS_TOGETHER_MAX: usize = 4_096;

/// How often everything is looked at again, though no signal is known to be missing.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The other nodes, if there can be any.
#[derive(Default)]
pub(crate) struct Nodes(OnceLock<Arc<dyn Signals>>);

impl Nodes {
    /// Takes part in what the nodes tell one another. The first time counts.
    pub(crate) fn join(&self, signals: Arc<dyn Signals>) {
        // Whoever joins twice hears the same either way.
        drop(self.0.set(signals));
    }

    /// Whether there can be others.
    pub(crate) fn are_joined(&self) -> bool {
        self.0.get().is_some()
    }

    /// Tells the other nodes.
    pub(crate) fn tell(&self, signal: Signal) {
        if let Some(signals) = self.0.get() {
            signals.publish(signal);
        }
    }

    /// Says good-bye.
    pub(crate) async fn leave(&self) {
        if let Some(signals) = self.0.get() {
            signals.publish(Signal::Gone);
            signals.close().await;
        }
    }
}

/// Follows the other nodes and tells them what happens here, until it is dropped.
pub(crate) async fn follow_forever(engine: &Arc<Engine>) {
    let Some(signals) = engine.nodes.0.get() else {
        return;
    };
    let todo = Todo::default();
    tokio::join!(
        listen_forever(engine, signals, &todo),
        catch_up_forever(engine, &todo.catch_up),
        refresh_forever(engine, &todo)
    );
}

/// What signals ask for and takes longer than hearing them.
#[derive(Default)]
struct Todo {
    /// Connections may have missed commits of other nodes.
    catch_up: Notify,
    refresh: Notify,
    /// Whose scopes are to be resolved again.
    refreshes: Mutex<Refreshes>,
}

#[derive(Default)]
struct Refreshes {
    /// In each partition whose, or everybody's.
    asked: BTreeMap<PartitionId, Option<BTreeSet<ActorId>>>,
    /// A request may have been lost: everybody's in every partition.
    all: bool,
}

impl Todo {
    fn refresh(&self, partition: PartitionId, actor: Option<ActorId>) {
        let mut refreshes = self.refreshes.lock();
        if refreshes.asked.len() >= REFRESHES_MAX {
            refreshes.all = true;
        } else {
            let whose = refreshes.asked.entry(partition);
            let whose = whose.or_insert_with(|| Some(BTreeSet::new()));
            match (actor, &mut *whose) {
                (Some(actor), Some(actors)) if actors.len() < REFRESHES_MAX => {
                    actors.insert(actor);
                }
                _ => *whose = None,
            }
        }
        drop(refreshes);
        self.refresh.notify_one();
    }

    fn refresh_all(&self) {
        self.refreshes.lock().all = true;
        self.refresh.notify_one();
    }

    fn take_refreshes(&self, engine: &Engine) -> Vec<(PartitionId, Option<ActorId>)> {
        let refreshes = std::mem::take(&mut *self.refreshes.lock());
        if refreshes.all {
            let rooms = engine.rooms().into_iter();
            return rooms.map(|partition| (partition, None)).collect();
        }
        let asked = refreshes.asked.into_iter();
        asked
            .flat_map(|(partition, actors)| {
                let whose = match actors {
                    None => vec![None],
                    Some(actors) => actors.into_iter().map(Some).collect(),
                };
                whose
                    .into_iter()
                    .map(move |actor| (partition.clone(), actor))
            })
            .collect()
    }
}

/// Partitions, and actors of one, that wait to be refreshed; more are everybody.
const REFRESHES_MAX: usize = 1_024;

/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Delivers what connections missed, when something may be missing.
async fn catch_up_forever(engine: &Arc<Engine>, wanted: &Notify) {
    loop {
        wanted.notified().await;
        if let Err(error) = engine.catch_up_all().await {
            tracing::warn!(%error, "commits of other nodes could not be read; trying again");
            sleep(RETRY).await;
            wanted.notify_one();
        }
    }
}

/// Resolves scopes again. A request does not wait for those before it: from its first moment on
/// nothing is sent that may not be allowed any more.
async fn refresh_forever(engine: &Arc<Engine>, todo: &Todo) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = todo.refresh.notified(), if running.len() < REFRESHES_MAX => {
                running.extend(todo.take_refreshes(engine).into_iter().map(
                    |(partition, actor)| {
                        let engine = Arc::clone(engine);
                        async move { engine.refresh_here(&partition, actor.as_ref()).await }
                    },
                ));
            }
            Some(()) = running.next() => {}
        }
    }
}

async fn listen_forever(engine: &Engine, signals: &Arc<dyn Signals>, todo: &Todo) {
    let mut events = signals.subscribe();
    let mut commits = engine.follow_commits();
    let mut follower = Follower::new(engine, signals, todo);
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks = interval(LOOK_AGAIN);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(SignalEvent::Resumed) => {
                    follower.take(SignalEvent::Resumed);
                    beats.reset_immediately();
                }
                Some(event) => follower.take(event),
                None => return,
            },
            commit = commits.recv() => match commit {
                Ok(event) => announce(&event, &mut commits, signals),
                Err(RecvError::Lagged(_)) => signals.publish(Signal::Anything),
                Err(RecvError::Closed) => return,
            },
            _ = beats.tick() => signals.publish(follower.beat()),
            _ = looks.tick() => follower.look_again(),
        }
    }
}

/// Tells the other nodes of a commit and of those that are there by now: of each partition once.
fn announce(
    first: &CommitEvent,
    commits: &mut broadcast::Receiver<CommitEvent>,
    signals: &Arc<dyn Signals>,
) {
    let mut newest = BTreeMap::new();
    newest.insert(first.partition().clone(), first.commit_seq());
    for _ in 0..COMMITS_TOGETHER_MAX {
        let event = match commits.try_recv() {
            Ok(event) => event,
            Err(TryRecvError::Lagged(_)) => {
                signals.publish(Signal::Anything);
                continue;
            }
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        };
        let place = newest.entry(event.partition().clone());
        let place = place.or_insert(CommitSeq::START);
        *place = event.commit_seq().max(*place);
    }
    for (partition, up_to) in newest {
        signals.publish(Signal::Commits { partition, up_to });
    }
}

struct Follower<'a> {
    engine: &'a Engine,
    signals: &'a Arc<dyn Signals>,
    todo: &'a Todo,
    roster: Roster,
    since: Instant,
    is_told: bool,
    /// Whether the others are to say who is present, with the next beat.
    asks: bool,
}

impl<'a> Follower<'a> {
    fn new(engine: &'a Engine, signals: &'a Arc<dyn Signals>, todo: &'a Todo) -> Self {
        Self {
            engine,
            signals,
            todo,
            roster: Roster::new(SILENCE_MS),
            since: Instant::now(),
            is_told: true,
            asks: true,
        }
    }

    /// Milliseconds on a clock that never jumps.
    fn now_ms(&self) -> i64 {
        i64::try_from(self.since.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    fn take(&mut self, event: SignalEvent) {
        match event {
            SignalEvent::Interrupted => {
                self.is_told = false;
                self.engine.partitions.distrust();
            }
            SignalEvent::Resumed => {
                self.is_told = true;
                self.asks = true;
                let now_ms = self.now_ms();
                self.roster.excuse(now_ms);
                // Who left meanwhile is not told again; whoever is there is asked for.
                for node in self.roster.nodes() {
                    self.engine.node_lost(node.as_str());
                }
                self.todo.refresh_all();
                self.look_again();
            }
            SignalEvent::Received { from, signal } => self.receive(&from, signal),
        }
    }

    fn receive(&mut self, from: &NodeId, signal: Signal) {
        let now_ms = self.now_ms();
        self.roster.hear(from, now_ms);
        match signal {
            Signal::Commits { partition, up_to } => {
                self.engine.commits_elsewhere(&partition, up_to);
            }
            Signal::Registry { partition } => {
                self.engine.partitions.forget(&partition);
                self.todo.catch_up.notify_one();
            }
            Signal::Anything => {
                self.asks = true;
                self.engine.node_lost(from.as_str());
                self.todo.refresh_all();
                self.look_again();
            }
            Signal::Gone => {
                self.roster.remove(from);
                self.engine.node_lost(from.as_str());
            }
            Signal::Presence { partition, bytes } => {
                self.engine
                    .presence_elsewhere(from.as_str(), &partition, &bytes);
            }
            Signal::RefreshScopes { partition, actor } => self.todo.refresh(partition, actor),
            Signal::Wake { partition, reason } => self.engine.wake_here(&partition, reason),
            Signal::Alive { asks: true } => {
                for (partition, bytes) in self.engine.presence_here() {
                    self.signals.publish(Signal::Presence { partition, bytes });
                }
            }
            Signal::Alive { asks: false } => {}
        }
    }

    /// Says that we are there, and finds out who is not any more.
    fn beat(&mut self) -> Signal {
        if self.is_told {
            let now_ms = self.now_ms();
            for node in self.roster.take_lost(now_ms) {
                tracing::info!(%node, "another node is gone");
                self.engine.node_lost(node.as_str());
                // It may have made a commit and not said so any more.
                self.look_again();
            }
        }
        Signal::Alive {
            asks: std::mem::take(&mut self.asks),
        }
    }

    /// Forgets what is known of partitions: it is read again when it is asked for, and at once
    /// where somebody is connected.
    fn look_again(&self) {
        if self.is_told {
            self.engine.partitions.forget_all();
        }
        self.todo.catch_up.notify_one();
    }
}

#[cfg(test)]
mod tests;
