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
    sync::{Arc, OnceLock},
    time::Duration,
};

use tidewater_model::{CommitSeq, PartitionId};
use tidewater_store::signals::{NodeId, Roster, Signal, SignalEvent, Signals};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{CommitEvent, Engine};

/// How often a node says that it is there.
const BEAT: Duration = Duration::from_secs(5);

/// A node that was silent for longer is lost.
const SILENCE_MS: i64 = 16_000;

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
pub(crate) async fn follow_forever(engine: &Engine) {
    let Some(signals) = engine.nodes.0.get() else {
        return;
    };
    let mut events = signals.subscribe();
    let mut commits = engine.follow_commits();
    let mut follower = Follower::new(engine);
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
                Ok(event) => signals.publish(announced(&event)),
                Err(RecvError::Lagged(_)) => signals.publish(Signal::Anything),
                Err(RecvError::Closed) => return,
            },
            _ = beats.tick() => signals.publish(follower.beat()),
            _ = looks.tick() => follower.look_again(),
        }
    }
}

fn announced(event: &CommitEvent) -> Signal {
    Signal::Commits {
        partition: event.partition().clone(),
        up_to: event.commit_seq(),
    }
}

struct Follower<'a> {
    engine: &'a Engine,
    roster: Roster,
    since: Instant,
    is_told: bool,
    /// Whether the others are to say who is present, with the next beat.
    asks: bool,
}

impl<'a> Follower<'a> {
    fn new(engine: &'a Engine) -> Self {
        Self {
            engine,
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
                self.look_again();
            }
            SignalEvent::Received { from, signal } => self.receive(&from, signal),
        }
    }

    fn receive(&mut self, from: &NodeId, signal: Signal) {
        let now_ms = self.now_ms();
        self.roster.hear(from, now_ms);
        match signal {
            Signal::Commits { partition, up_to } => commits(self.engine, &partition, up_to),
            Signal::Registry { partition } => {
                self.engine.partitions.forget(&partition);
            }
            Signal::Anything => {
                self.asks = true;
                self.look_again();
            }
            Signal::Gone => {
                self.roster.remove(from);
            }
            // Nobody is present, and no scopes are kept, without the realtime channel.
            Signal::Presence { .. } | Signal::RefreshScopes { .. } | Signal::Alive { .. } => {}
        }
    }

    /// Says that we are there, and finds out who is not any more.
    fn beat(&mut self) -> Signal {
        if self.is_told {
            let now_ms = self.now_ms();
            for node in self.roster.take_lost(now_ms) {
                tracing::info!(%node, "another node is gone");
            }
        }
        Signal::Alive {
            asks: std::mem::take(&mut self.asks),
        }
    }

    /// Forgets what is known of partitions: it is read again when it is asked for.
    fn look_again(&self) {
        if self.is_told {
            self.engine.partitions.forget_all();
        }
    }
}

/// Commits of another node, up to this place, are durable.
fn commits(engine: &Engine, partition: &PartitionId, up_to: CommitSeq) {
    engine.partitions.advance_head(partition, up_to);
}

#[cfg(test)]
mod tests;
