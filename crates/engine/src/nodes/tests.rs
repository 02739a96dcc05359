//! Several engines on one store.

use std::sync::atomic::Ordering;

use tidewater_store::{Store, signals::MemoryNetwork};
use tidewater_wire::{Operation, OperationAction, PushOutcome, Subscription, WireVersion};
use tokio::task::JoinHandle;

use super::*;
use crate::{
    EngineConfig, Retention,
    partition::PartitionState,
    testing::{Ask, TestServer, full_row, note, partition, seq, subscription},
};

fn notes(cursor: i64) -> Subscription {
    subscription("s", "notes", &[("team_id", &["t1"])], cursor)
}

/// A node with its upkeep.
struct Node {
    server: TestServer,
    signals: Arc<dyn Signals>,
    upkeep: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.upkeep.abort();
    }
}

impl Node {
    fn run(server: TestServer, network: &MemoryNetwork, name: &str) -> Self {
        let signals = network.join(name);
        server.engine.join_nodes(Arc::clone(&signals));
        let upkeep = tokio::spawn(Arc::clone(&server.engine).run_maintenance());
        Self {
            server,
            signals,
            upkeep,
        }
    }

    /// Pushes a note.
    async fn push(&self, id: &str) {
        let text = |text| Some(tidewater_wire::row::Value::String(text));
        let operation = Operation {
            table: "notes".into(),
            row_id: id.into(),
            action: OperationAction::Upsert(full_row(&[text(id), text("t1"), text("")]).into()),
            base_version: None,
        };
        let ask = Ask::new().push(id, vec![operation]);
        let answer = self.server.round(ask.in_version(WireVersion::V2)).await;
        let outcome = answer.results[0].outcome;
        assert!(matches!(outcome, PushOutcome::Applied(_)), "{outcome:?}");
    }

    fn known_head(&self) -> Option<u64> {
        let state: Option<PartitionState> = self.server.engine.partitions.find(&partition());
        state.map(|state| state.head.get())
    }

    /// Where an incremental pull from `cursor` ends.
    async fn pull(&self, cursor: i64) -> i64 {
        let answer = self.server.round(Ask::pull([notes(cursor)])).await;
        let section = answer.section();
        assert_eq!(section.start.reason_code, "");
        section.next_cursor()
    }
}

/// Two nodes that know the default partition, whose log is empty.
async fn two() -> (MemoryNetwork, Node, Node) {
    let network = MemoryNetwork::new();
    let a = TestServer::start().await;
    let b = a.beside(EngineConfig::default()).await;
    let (a, b) = (Node::run(a, &network, "a"), Node::run(b, &network, "b"));
    settle().await;
    assert_eq!((a.pull(0).await, b.pull(0).await), (0, 0));
    (network, a, b)
}

/// Lets every task do what it can do now.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_of_another_node_is_pulled_and_a_pull_without_news_touches_no_table() {
    let (_network, a, b) = two().await;
    a.push("n1").await;
    settle().await;
    assert_eq!(b.known_head(), Some(1));
    assert_eq!(b.pull(0).await, 1);
    let reads = b.server.store.reads();
    assert_eq!(b.pull(1).await, 1);
    assert_eq!(b.server.store.reads(), reads);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_hears_nothing_asks_the_database() {
    let (network, a, b) = two().await;
    network.cut(b.signals.node());
    settle().await;
    a.push("n1").await;
    assert_eq!(b.pull(0).await, 1);
    a.push("n2").await;
    assert_eq!(b.pull(1).await, 2);
    network.heal(b.signals.node());
    settle().await;
    assert_eq!(b.known_head(), None, "what it knew is forgotten");
    assert_eq!(b.pull(1).await, 2);
    a.push("n3").await;
    settle().await;
    assert_eq!(b.known_head(), Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_was_lost_is_made_up_for() {
    let (_network, a, b) = two().await;
    // Written past the engine: nobody says so.
    a.server.commit(&[note("n1", "t1", "")]).await;
    assert_eq!(b.pull(0).await, 0);
    sleep(LOOK_AGAIN + Duration::from_millis(1)).await;
    assert_eq!(b.pull(0).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_died_before_it_said_what_it_had_committed_is_made_up_for() {
    let (_network, a, b) = two().await;
    // Heard once more, so that its silence counts from here.
    sleep(BEAT + Duration::from_millis(1)).await;
    a.upkeep.abort();
    a.server.commit(&[note("n1", "t1", "")]).await;
    assert_eq!(b.pull(0).await, 0);
    sleep(4 * BEAT).await;
    assert_eq!(b.pull(0).await, 1);
}

#[tokio::test]
async fn a_client_that_has_seen_more_than_its_node_is_not_reset() {
    let a = TestServer::start().await;
    let b = a.beside(EngineConfig::default()).await;
    b.round(Ask::pull([notes(0)])).await;
    a.commit(&[note("n1", "t1", "")]).await;
    let answer = b.round(Ask::pull([notes(1)])).await;
    assert_eq!(answer.section().start.reason_code, "");
    assert_eq!(answer.section().next_cursor(), 1);
    a.commit(&[note("n2", "t1", "")]).await;
    let token = r#"{"asOfCommitSeq":2,"tables":["notes"],"tableIndex":0,"rowCursor":null}"#;
    let resumed = Subscription {
        bootstrap_state: Some(token.into()),
        ..notes(1)
    };
    let answer = b.round(Ask::pull([resumed])).await;
    assert_eq!(answer.section().start.reason_code, "");
}

#[tokio::test(start_paused = true)]
async fn an_epoch_that_another_node_rotated_is_known_before_anything_is_decided() {
    let (network, a, b) = two().await;
    let before = b.server.epoch().await;
    network.cut(b.signals.node());
    let rotated = a.server.engine.rotate_epoch(&partition()).await.unwrap();
    let epoch = rotated.log_epoch.as_str();
    assert_ne!(before, epoch);
    let answer = b.server.round(Ask::pull([notes(0)]).of_epoch(epoch)).await;
    assert!(!answer.header.reset_required);
    network.heal(b.signals.node());
    settle().await;

    let rotated = a.server.engine.rotate_epoch(&partition()).await.unwrap();
    settle().await;
    let answer = b.server.round(Ask::pull([notes(0)]).of_epoch(epoch)).await;
    assert!(answer.header.reset_required);
    assert_eq!(answer.header.log_epoch, rotated.log_epoch.as_str());
}

#[tokio::test(start_paused = true)]
async fn a_push_under_an_epoch_that_is_over_is_refused_and_then_reset() {
    let a = TestServer::start().await;
    let b = a.beside(EngineConfig::default()).await;
    let epoch = b.epoch().await;
    a.epoch().await;
    a.engine.rotate_epoch(&partition()).await.unwrap();
    let ask = || {
        let operation = Operation {
            table: "notes".into(),
            row_id: "n1".into(),
            action: OperationAction::Delete,
            base_version: None,
        };
        Ask::new().push("k1", vec![operation]).of_epoch(&epoch)
    };
    let error = b.refusal(ask()).await;
    assert_eq!(error.code.as_str(), "sync.schema_not_ready");
    assert!(b.round(ask()).await.header.reset_required);
}

#[tokio::test]
async fn what_is_announced_while_a_partition_is_read_is_not_lost() {
    let server = TestServer::start().await;
    let engine = &server.engine;
    server.commit(&[note("n1", "t1", "")]).await;
    engine.partitions.forget_all();
    let record = || async {
        let found = server.store.find_partition(&partition()).await;
        found.map(Option::unwrap)
    };
    let read = async {
        let record = record().await;
        engine.partitions.advance_head(&partition(), seq(2));
        record
    };
    let state = engine.partitions.read(engine, &partition(), read).await;
    assert_eq!(state.unwrap().head, seq(2));
    let read = async {
        let record = record().await;
        engine.partitions.forget_all();
        record
    };
    let state = engine.partitions.read(engine, &partition(), read).await;
    assert_eq!(state.unwrap().head, seq(1), "nobody knows better");
    assert!(engine.partitions.find(&partition()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_job_of_another_node_is_left_to_it() {
    let config = EngineConfig {
        retention: Retention {
            active_window_ms: 0,
            forced_age_ms: 0,
            retained_commits: 1,
        },
        ..EngineConfig::default()
    };
    let a = TestServer::start_with(config).await;
    a.store.jobs_taken.store(true, Ordering::SeqCst);
    for id in ["n1", "n2", "n3"] {
        a.commit(&[note(id, "t1", "")]).await;
    }
    let upkeep = tokio::spawn(Arc::clone(&a.engine).run_maintenance());
    sleep(Duration::from_secs(301)).await;
    assert_eq!(a.horizon(partition().as_str()).await, 0);
    a.store.jobs_taken.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(301)).await;
    assert_eq!(a.horizon(partition().as_str()).await, 2);
    upkeep.abort();
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_silent_or_say_good_bye_are_gone() {
    let (network, a, b) = two().await;
    let c = network.join("c");
    let mut heard = c.subscribe();
    a.server.engine.close().await.unwrap();
    b.upkeep.abort();
    let mut gone = Vec::new();
    while let Some(event) = futures_util::FutureExt::now_or_never(heard.next()).flatten() {
        if let SignalEvent::Received { from, signal } = event
            && signal == Signal::Gone
        {
            gone.push(from);
        }
    }
    assert_eq!(gone, [NodeId::new("a")]);
}
