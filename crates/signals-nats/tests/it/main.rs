//! Signals over a real NATS server: what arrives, and what happens when it is gone for a while.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod server;

use std::{sync::Arc, time::Duration};

use tidewater_model::{CommitSeq, PartitionId};
use tidewater_signals_nats::NatsConfig;
use tidewater_store::signals::{Signal, SignalEvent, SignalStream, Signals};
use tokio::time::timeout;

use self::server::Server;

struct Node {
    signals: Arc<dyn Signals>,
    stream: SignalStream,
}

impl Node {
    async fn join(server: &Server, subject: &str) -> Self {
        let mut config = NatsConfig::from_addresses(&server.address(), subject).unwrap();
        config.keepalive = Duration::from_secs(1);
        let signals = config.open().await.unwrap();
        let stream = signals.subscribe();
        Self { signals, stream }
    }

    async fn next(&mut self) -> SignalEvent {
        let event = timeout(Duration::from_secs(30), self.stream.next()).await;
        event.expect("an event comes").expect("the stream goes on")
    }

    async fn until(&mut self, wanted: SignalEvent) {
        while self.next().await != wanted {}
    }

    async fn hears(&mut self, from: &Self, signal: Signal) {
        let from = from.signals.node().clone();
        assert_eq!(self.next().await, SignalEvent::Received { from, signal });
    }
}

fn commits(up_to: u64) -> Signal {
    Signal::Commits {
        partition: PartitionId::new("p"),
        up_to: CommitSeq::new(up_to).unwrap(),
    }
}

#[tokio::test]
async fn signals_arrive_in_their_order_at_everybody_else_of_the_same_subject() {
    let server = Server::start();
    let mut a = Node::join(&server, "one").await;
    let mut b = Node::join(&server, "one").await;
    let mut other = Node::join(&server, "two").await;
    for node in [&mut a, &mut b, &mut other] {
        node.until(SignalEvent::Resumed).await;
    }
    let presence = Signal::Presence {
        partition: PartitionId::new("p \"☃\""),
        bytes: vec![7; 40_000].into(),
    };
    let sent = [commits(1), presence.clone(), commits(2), presence];
    for signal in &sent {
        a.signals.publish(signal.clone());
        other.signals.publish(Signal::Anything);
    }
    a.signals.close().await;
    for signal in sent {
        b.hears(&a, signal).await;
    }
    b.signals.publish(Signal::Gone);
    other.signals.close().await;
    assert_eq!(other.stream.next().await, None);
}

#[tokio::test]
async fn a_server_that_comes_late_or_goes_away_is_waited_for() {
    let server = Server::start();
    server.stop();
    let mut a = Node::join(&server, "s").await;
    let mut b = Node::join(&server, "s").await;
    assert_eq!(b.next().await, SignalEvent::Interrupted);
    server.run();
    for place in 1..3 {
        a.until(SignalEvent::Resumed).await;
        b.until(SignalEvent::Resumed).await;
        a.signals.publish(commits(place));
        let from = a.signals.node().clone();
        let signal = commits(place);
        b.until(SignalEvent::Received { from, signal }).await;
        server.stop();
        a.until(SignalEvent::Interrupted).await;
        b.until(SignalEvent::Interrupted).await;
        server.run();
    }
}

#[tokio::test]
async fn a_server_that_stands_still_is_noticed() {
    let server = Server::start();
    let mut a = Node::join(&server, "s").await;
    a.until(SignalEvent::Resumed).await;
    server.pause();
    a.until(SignalEvent::Interrupted).await;
    server.go_on();
    a.until(SignalEvent::Resumed).await;
}

#[tokio::test]
async fn what_could_not_be_sent_is_anything() {
    let server = Server::start();
    let mut a = Node::join(&server, "s").await;
    let mut b = Node::join(&server, "s").await;
    a.until(SignalEvent::Resumed).await;
    b.until(SignalEvent::Resumed).await;
    server.stop();
    a.until(SignalEvent::Interrupted).await;
    server.run();
    let from = a.signals.node().clone();
    let signal = Signal::Anything;
    b.until(SignalEvent::Received { from, signal }).await;
}
