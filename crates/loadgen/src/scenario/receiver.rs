//! Those who listen: each has a place in the log and a socket, takes deltas as they come, pulls
//! when it is woken, and remembers what arrived when.
//!
//! They run beside the load, as tasks of the runtime, and are told at the end what must have
//! arrived. A receiver that waits for something that never comes is a lost commit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tidewater_model::ScopeFilter;
use tidewater_wire::Pull;
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    args::{CommonArgs, ReceiverArgs},
    client::{Client, SUBSCRIPTION_ID, advance, default_pull_header, pull_of},
    descriptors,
    error::RoundError,
    round::{Round, Section},
    setup::Setup,
    socket::{Received, Socket},
    verify::{ProblemKind, Problems, section::check_section},
};

/// Receivers that are prepared at once.
const PREPARED_AT_ONCE: usize = 32;

/// Who listens, with its place in the log.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) partition: u32,
    /// `None` is every list.
    pub(super) list: Option<u32>,
    pub(super) client: Client,
    pub(super) pull: Pull,
}

/// What arrived at one listener.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    pub(super) partition: u32,
    /// Places of the log, in the order they came, with the moment if they came as a delta.
    pub(super) commits: Vec<(i64, Option<Instant>)>,
    /// Bytes of deltas.
    pub(super) bytes: u64,
    pub(super) wake_ups: u64,
    pub(super) problems: Problems,
}

/// What must have arrived at the end, by partition and list.
pub(super) type Expected = HashMap<(u32, Option<u32>), BTreeSet<i64>>;

/// What is left to be said to listeners: nothing, or what they must have seen.
pub(super) type End = watch::Receiver<Option<Arc<Expected>>>;

/// The parameters with an actor for each client and listener, unless they say otherwise.
pub(super) fn spread(common: &CommonArgs, sockets: u32) -> anyhow::Result<CommonArgs> {
    descriptors::make_room(sockets + common.clients)?;
    let mut common = common.clone();
    let all = common.clients + sockets;
    common.actors.get_or_insert(all);
    Ok(common)
}

/// Makes listeners that are up to date. `first` is the number of the first.
pub(super) async fn prepare(
    setup: &Setup,
    args: &ReceiverArgs,
    first: u32,
    count: u32,
) -> Result<Vec<Listener>, RoundError> {
    let listeners = (first..first + count).map(|number| listener(setup, args, number));
    stream::iter(listeners)
        .buffer_unordered(PREPARED_AT_ONCE)
        .try_collect()
        .await
}

async fn listener(setup: &Setup, args: &ReceiverArgs, number: u32) -> Result<Listener, RoundError> {
    let table = &setup.workload.table;
    let list = (!args.every_list).then(|| setup.workload.list_of(number));
    let filter = table.filter(list);
    let mut pull = pull_of(&table.name, &filter, -1, default_pull_header());
    let mut client = setup.client(number);
    client.acquire_epoch(&pull).await?;
    client.catch_up(&mut pull).await?;
    client.hang_up();
    Ok(Listener {
        partition: setup.partition_of(number),
        list,
        client,
        pull,
    })
}

/// Opens the sockets of listeners.
pub(super) async fn open(
    listeners: &[Listener],
    receive_buffer: Option<u32>,
) -> Result<Vec<Socket>, RoundError> {
    let sockets = listeners
        .iter()
        .map(|listener| listener.client.open_socket(receive_buffer));
    stream::iter(sockets)
        .buffered(PREPARED_AT_ONCE)
        .try_collect()
        .await
}

/// Lets listeners listen until they are told the end.
pub(super) fn listen(
    listeners: Vec<Listener>,
    sockets: Vec<Socket>,
    acknowledge: bool,
    patience: Duration,
    end: &End,
) -> Vec<JoinHandle<Arrived>> {
    let pairs = listeners.into_iter().zip(sockets);
    let tasks = pairs.map(|(listener, socket)| {
        let partition = listener.partition;
        let receiver = Receiver {
            filter: listener.pull.subscriptions[0].scopes.clone(),
            listener,
            socket,
            acknowledge,
            arrived: Arrived {
                partition,
                ..Arrived::default()
            },
        };
        tokio::spawn(receiver.run(end.clone(), patience))
    });
    tasks.collect()
}

/// A listener at work.
struct Receiver {
    listener: Listener,
    socket: Socket,
    filter: ScopeFilter,
    acknowledge: bool,
    arrived: Arrived,
}

impl Receiver {
    async fn run(mut self, mut end: End, patience: Duration) -> Arrived {
        if let Err(error) = self.follow(&mut end, patience).await {
            self.arrived.problems.add(ProblemKind::Unfinished, error);
        }
        self.arrived
    }

    async fn follow(&mut self, end: &mut End, patience: Duration) -> Result<(), RoundError> {
        if self.socket.hello.requires_sync {
            self.pull().await?;
        }
        let expected = loop {
            let received = tokio::select! {
                received = self.socket.next() => received?,
                ended = end.wait_for(Option::is_some) => {
                    break ended.ok().and_then(|ended| ended.clone());
                }
            };
            self.take(received).await?;
        };
        let key = (self.listener.partition, self.listener.list);
        let expected = expected.as_ref().and_then(|expected| expected.get(&key));
        let last = expected.and_then(|expected| expected.last().copied());
        let waiting = async {
            while last.is_some_and(|last| self.cursor() < last) {
                let received = self.socket.next().await?;
                self.take(received).await?;
            }
            Ok::<_, RoundError>(())
        };
        let is_late = match tokio::time::timeout(patience, waiting).await {
            Ok(waited) => {
                waited?;
                false
            }
            Err(_) => true,
        };
        self.check(expected.unwrap_or(&BTreeSet::new()), is_late);
        Ok(())
    }

    /// Nothing is missing, nothing came twice.
    fn check(&mut self, expected: &BTreeSet<i64>, is_late: bool) {
        let seen: BTreeSet<i64> = self.arrived.commits.iter().map(|(seq, _)| *seq).collect();
        let problems = &mut self.arrived.problems;
        if seen.len() != self.arrived.commits.len() {
            problems.add(ProblemKind::OutOfOrder, "a commit arrived twice");
        }
        if let Some(missing) = expected.difference(&seen).next() {
            let when = if is_late { " in time" } else { "" };
            let text = format!("commit {missing} did not arrive{when}");
            problems.add(ProblemKind::LostCommit, text);
        }
    }

    fn cursor(&self) -> i64 {
        self.listener.pull.subscriptions[0].cursor
    }

    async fn take(&mut self, received: Received) -> Result<(), RoundError> {
        match received {
            Received::Delta(delta) => {
                let at = Instant::now();
                self.arrived.bytes += u64::try_from(delta.len()).unwrap_or(u64::MAX);
                let round = Round::parse(&delta, self.listener.client.version())?;
                self.apply(round.into_section(SUBSCRIPTION_ID)?, Some(at));
                if self.acknowledge {
                    self.socket.acknowledge(self.cursor()).await?;
                }
                Ok(())
            }
            Received::WakeUp => {
                self.arrived.wake_ups += 1;
                self.pull().await
            }
            Received::Chunk(_) => Err(RoundError::unexpected("a chunk came without a round")),
            Received::Other => Ok(()),
        }
    }

    /// Pulls over the socket, and says how far it came.
    async fn pull(&mut self) -> Result<(), RoundError> {
        loop {
            let listener = &self.listener;
            let round = listener
                .client
                .socket_round(&mut self.socket, &listener.pull)
                .await?;
            if self.apply(round.into_section(SUBSCRIPTION_ID)?, None) {
                break;
            }
        }
        self.socket.acknowledge(self.cursor()).await
    }

    fn apply(&mut self, section: Section, at: Option<Instant>) -> bool {
        let cursor = self.cursor();
        let arrived = &mut self.arrived;
        check_section(&section, cursor, &self.filter, &mut arrived.problems);
        let seqs = section.commits.iter().map(|commit| (commit.commit_seq, at));
        arrived.commits.extend(seqs);
        advance(&mut self.listener.pull, section)
    }
}

/// Puts the findings of listeners together.
pub(super) async fn gather(
    tasks: Vec<JoinHandle<Arrived>>,
    problems: &mut Problems,
) -> Vec<Arrived> {
    let mut all = Vec::with_capacity(tasks.len());
    for task in tasks {
        match task.await {
            Ok(arrived) => {
                problems.merge(&arrived.problems);
                all.push(arrived);
            }
            Err(error) => problems.add(ProblemKind::Unfinished, error),
        }
    }
    all
}

/// What each list of each partition must have seen of acknowledged commits.
pub(super) fn expected(setup: &Setup, acks: &super::Acks, every_list: bool) -> Expected {
    let mut expected = Expected::new();
    for (&partition, acks) in acks {
        for ack in acks {
            if every_list {
                let seen = expected.entry((partition, None)).or_default();
                seen.insert(ack.commit_seq);
                continue;
            }
            for write in setup.workload.commit(ack.client, ack.number).writes {
                let seen = expected.entry((partition, Some(write.list))).or_default();
                seen.insert(ack.commit_seq);
            }
        }
    }
    expected
}

/// When each commit was pushed, by partition.
pub(super) type Pushed = BTreeMap<i64, Instant>;

#[cfg(test)]
mod tests;
