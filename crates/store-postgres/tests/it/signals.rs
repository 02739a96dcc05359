//! Signals between nodes, and what breaks the way they take.

use std::{sync::Arc, time::Duration};

use tidewater_model::{ActorId, PartitionId};
use tidewater_pgtest::Server;
use tidewater_store::{
    Finished, Store,
    conformance::fixtures::{Draft, Item, epoch, lock, partition, schema, seq, touch},
    signals::{NodeId, Signal, SignalEvent, SignalStream, Signals},
};
use tidewater_store_postgres::{PostgresConfig, PostgresStore};
use tokio::time::timeout;

use crate::support::{TestDatabase, commit, write};

/// A store that takes part, and what it hears.
struct Node {
    store: PostgresStore,
    signals: Arc<dyn Signals>,
    stream: SignalStream,
}

impl Node {
    /// A node that hears the others.
    async fn of(store: PostgresStore) -> Self {
        let signals = store.signals().unwrap();
        let stream = signals.subscribe();
        let mut node = Self {
            store,
            signals,
            stream,
        };
        node.until_resumed().await;
        node
    }

    async fn join(database: &TestDatabase) -> Self {
        Self::of(database.ready_with(watchful).await).await
    }

    fn id(&self) -> &NodeId {
        self.signals.node()
    }

    async fn next(&mut self) -> SignalEvent {
        let event = timeout(Duration::from_secs(30), self.stream.next()).await;
        event.expect("an event comes").expect("the stream goes on")
    }

    async fn until_resumed(&mut self) {
        while self.next().await != SignalEvent::Resumed {}
    }

    /// Hears exactly this from another node, next.
    #[track_caller]
    fn hears(&mut self, from: &Self, signal: Signal) -> impl Future<Output = ()> {
        let from = from.id().clone();
        async move { assert_eq!(self.next().await, SignalEvent::Received { from, signal }) }
    }
}

/// Announces inside transactions, so that a test need not.
fn watchful(config: &mut PostgresConfig) {
    // Short enough for a test to wait for, and long for a machine that is busy with others.
    config.keepalive = Duration::from_secs(1);
    config.announces_within = true;
}

fn commits(up_to: u64) -> Signal {
    Signal::Commits {
        partition: partition("p"),
        up_to: seq(up_to),
    }
}

fn presence(bytes: Vec<u8>) -> Signal {
    Signal::Presence {
        partition: PartitionId::new("p \"☃\""),
        bytes: bytes.into(),
    }
}

fn note(number: u64) -> Item {
    Item::note(&format!("n{number:04}"))
}

/// The sessions that listen.
const LISTENERS: &str = "FROM pg_stat_activity WHERE datname = current_database() \
    AND application_name LIKE '% signals'";

#[tokio::test]
async fn commits_are_announced_once_when_they_are_durable_and_to_the_others_only() {
    let database = TestDatabase::new();
    let [mut a, mut b] = [Node::join(&database).await, Node::join(&database).await];
    write(&a.store, [Draft::new("p", 1).insert(&note(1))]).await;
    let (txn, _) = a.store.begin_write(lock(&["p"])).await.unwrap();
    drop(txn);
    let (mut txn, _) = a.store.begin_write(lock(&["p"])).await.unwrap();
    txn.apply(vec![Draft::new("p", 2).insert(&note(2)).build()])
        .await
        .unwrap();
    drop(txn);
    let drafts = [2, 3, 4].map(|place| Draft::new("p", place).insert(&note(place)));
    write(&a.store, drafts).await;
    commit(&a.store, [Draft::rejected("p", "m9")])
        .await
        .unwrap();
    a.store
        .rotate_epoch(&partition("p"), &epoch("e2"), 1)
        .await
        .unwrap();
    b.hears(&a, commits(1)).await;
    b.hears(&a, commits(4)).await;
    let registry = Signal::Registry {
        partition: partition("p"),
    };
    b.hears(&a, registry).await;
    b.signals.publish(Signal::Gone);
    a.hears(&b, Signal::Gone).await;
}

#[tokio::test]
async fn a_commit_that_breaks_a_constraint_is_not_announced_and_those_before_it_are() {
    let database = TestDatabase::new();
    let [a, mut b] = [Node::join(&database).await, Node::join(&database).await];
    let good = Draft::new("p", 1).insert(&note(1).code("x"));
    let bad = Draft::new("p", 2).insert(&note(2).code("x"));
    let Finished::Violated(txn, _) = commit(&a.store, [good, bad]).await.unwrap() else {
        panic!("the code is taken");
    };
    let rejected = Draft::rejected("p", "m2").build();
    let finished = txn.finish(vec![rejected]).await.unwrap();
    assert!(matches!(finished, Finished::Committed));
    a.signals.publish(Signal::Gone);
    b.hears(&a, commits(1)).await;
    b.hears(&a, Signal::Gone).await;
}

#[tokio::test]
async fn signals_arrive_whole_in_their_order_and_each_of_them() {
    let database = TestDatabase::new();
    let [a, mut b] = [Node::join(&database).await, Node::join(&database).await];
    let large: Vec<u8> = (0..=250_u8).cycle().take(40_000).collect();
    let refresh = |actor: Option<&str>| Signal::RefreshScopes {
        partition: partition("p"),
        actor: actor.map(ActorId::new),
    };
    let sent = [
        presence(large.clone()),
        presence(b"join".to_vec()),
        presence(b"leave".to_vec()),
        // Equal to one before it: both count.
        presence(b"join".to_vec()),
        presence(large),
        refresh(Some("bob")),
        refresh(None),
        Signal::Alive { asks: true },
    ];
    for signal in &sent {
        a.signals.publish(signal.clone());
    }
    // Said by the transactions already.
    a.signals.publish(commits(9));
    a.signals.close().await;
    for signal in sent {
        b.hears(&a, signal).await;
    }
}

#[tokio::test]
async fn a_connection_that_was_cut_is_interrupted_and_comes_back() {
    let database = TestDatabase::new();
    let [a, mut b] = [Node::join(&database).await, Node::join(&database).await];
    for place in 1..4 {
        database.run(&format!("SELECT pg_terminate_backend(pid) {LISTENERS}"));
        assert_eq!(b.next().await, SignalEvent::Interrupted);
        b.until_resumed().await;
        write(&a.store, [Draft::new("p", place).insert(&note(place))]).await;
        b.hears(&a, commits(place)).await;
    }
}

#[tokio::test]
async fn a_server_that_stands_still_is_noticed() {
    let database = TestDatabase::new();
    let [a, mut b] = [Node::join(&database).await, Node::join(&database).await];
    let signal = |signal: &str, pids: &[String]| {
        let mut kill = std::process::Command::new("kill");
        assert!(kill.arg(signal).args(pids).status().unwrap().success());
    };
    let pids = database.texts(&format!("SELECT pid {LISTENERS}"));
    assert_eq!(pids.len(), 2);
    signal("-STOP", &pids);
    assert_eq!(b.next().await, SignalEvent::Interrupted);
    b.until_resumed().await;
    signal("-CONT", &pids);
    until_heard(&a, &mut b).await;
}

/// Commits until the other node hears of one. A busy machine may interrupt once more.
async fn until_heard(a: &Node, b: &mut Node) {
    for place in 1.. {
        write(&a.store, [Draft::new("p", place).insert(&note(place))]).await;
        match b.next().await {
            SignalEvent::Interrupted => b.until_resumed().await,
            SignalEvent::Received { from, .. } if from == *a.id() => return,
            other => panic!("not expected: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_server_that_was_restarted_is_listened_to_again() {
    let server = Server::start().unwrap_or_else(|why| panic!("{why}"));
    let database = server.database();
    let open = || {
        let mut config = PostgresConfig::from_url(&database.url()).unwrap();
        watchful(&mut config);
        PostgresStore::new(config).unwrap()
    };
    let (a, b) = (open(), open());
    a.prepare(&schema()).await.unwrap();
    b.prepare(&schema()).await.unwrap();
    touch(&a, "p").await;
    let [a, mut b] = [Node::of(a).await, Node::of(b).await];
    server.crash();
    assert_eq!(b.next().await, SignalEvent::Interrupted);
    server.crash_and_restart();
    b.until_resumed().await;
    until_heard(&a, &mut b).await;
}

#[tokio::test]
async fn signals_may_have_an_address_of_their_own() {
    let database = TestDatabase::new();
    let url = format!("{}&application_name=direct", database.0.url());
    let store = database
        .ready_with(|config| {
            config.listen_at(&url).unwrap();
        })
        .await;
    let node = Node::of(store).await;
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'direct signals'";
    assert_eq!(database.number(count), 1);
    node.signals.close().await;
    drop(node);
    while database.number(count) > 0 {}
}

#[tokio::test]
async fn a_node_with_signals_announces_afterwards_and_a_process_without_them_within() {
    let database = TestDatabase::new();
    let mut heard = Node::join(&database).await;
    let node = Node::of(database.ready().await).await;
    write(&node.store, [Draft::new("p", 1).insert(&note(1))]).await;
    node.signals.publish(commits(7));
    heard.hears(&node, commits(7)).await;
    let import = database.ready().await;
    write(&import, [Draft::new("p", 2).insert(&note(2))]).await;
    let event = heard.next().await;
    let SignalEvent::Received { from, signal } = event else {
        panic!("{event:?}");
    };
    assert!(from != *node.id() && signal == commits(2));
}

#[tokio::test]
async fn nothing_is_announced_where_signals_go_another_way() {
    let database = TestDatabase::new();
    let mut heard = Node::join(&database).await;
    let silent = database.ready_with(|config| config.announces = false).await;
    write(&silent, [Draft::new("p", 1).insert(&note(1))]).await;
    silent
        .rotate_epoch(&partition("p"), &epoch("e2"), 1)
        .await
        .unwrap();
    let other = Node::join(&database).await;
    other.signals.publish(Signal::Gone);
    heard.hears(&other, Signal::Gone).await;
}
