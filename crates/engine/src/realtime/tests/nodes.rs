//! Several nodes on one database: commits, presence and logs of another process.

use std::sync::Arc;

use parking_lot::Mutex;
use tidewater_model::{LogEpoch, PartitionId};
use tidewater_store::signals::{MemoryNetwork, NodeId};

use super::*;
use crate::testing::{note, seq};

/// What a hook was given, in order.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<bytes::Bytes>>>);

impl Told {
    fn of(world: &World) -> Self {
        let told = Self::default();
        let out = told.clone();
        world.server.engine.on_presence(move |partition, notice| {
            assert_eq!(partition.as_str(), PARTITION);
            out.0.lock().push(notice);
        });
        told
    }

    fn carry_to(&self, node_id: &str, world: &World) {
        for notice in std::mem::take(&mut *self.0.lock()) {
            let engine = &world.server.engine;
            engine.presence_elsewhere(node_id, &partition(), &notice);
        }
    }
}

fn publish(session: &mut Session, doc: &str) {
    let text = format!(r#"{{"event":"presence","data":{{"scopeKey":"team:t1","doc":{doc}}}}}"#);
    session.receive(&text).unwrap();
}

#[tokio::test]
async fn a_commit_of_another_process_is_read_and_delivered_in_order() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    let engine = &world.server.engine;
    for id in ["n1", "n2"] {
        world.server.commit(&[note(id, "t1", "elsewhere")]).await;
    }
    world.server.commit(&[note("n3", "t9", "elsewhere")]).await;
    // Only the last one was heard of; and some of it twice.
    engine.commits_elsewhere(&partition(), seq(3));
    engine.commits_elsewhere(&partition(), seq(2));
    World::check(
        &world.heard(&mut session).await,
        &["delta 1 s+n1", "delta 2 s+n2"],
    );
    world.write("n4", "t1").await;
    engine.commits_elsewhere(&partition(), seq(4));
    World::check(&world.heard(&mut session).await, &["delta 4 s+n4"]);
}

#[tokio::test]
async fn a_commit_of_this_process_fills_the_gap_before_it_first() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.server.commit(&[note("n1", "t1", "elsewhere")]).await;
    world.write("n2", "t1").await;
    World::check(
        &world.heard(&mut session).await,
        &["delta 1 s+n1", "delta 2 s+n2"],
    );
}

#[tokio::test]
async fn a_gap_that_is_too_large_is_a_wake_up() {
    let world = World::start_with(HubConfig {
        gap_changes_max: 2,
        ..HubConfig::default()
    })
    .await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    let mut other = world.ready("bob/c2", &["t2"]).await;
    for id in ["n1", "n2", "n3"] {
        world.server.commit(&[note(id, "t1", "elsewhere")]).await;
    }
    let engine = &world.server.engine;
    engine.commits_elsewhere(&partition(), seq(3));
    World::check(
        &world.heard(&mut session).await,
        &["wake 3 catchup-required"],
    );
    // Nobody knows whether there was something for it.
    World::check(&world.heard(&mut other).await, &["wake 3 catchup-required"]);
}

#[tokio::test]
async fn catching_up_finds_what_nobody_told() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.server.commit(&[note("n1", "t1", "elsewhere")]).await;
    World::check(&world.heard(&mut session).await, &[]);
    world.server.engine.catch_up_all().await.unwrap();
    World::check(&world.heard(&mut session).await, &["delta 1 s+n1"]);
}

#[tokio::test]
async fn catching_up_finds_another_log() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    let epoch = LogEpoch::new("elsewhere");
    let store = &world.server.store;
    store.rotate_epoch(&partition(), &epoch, 0).await.unwrap();
    world.server.engine.catch_up_all().await.unwrap();
    World::check(&world.heard(&mut session).await, &["wake 0 reset-required"]);
    assert_eq!(world.server.epoch().await, "elsewhere");
}

#[tokio::test]
async fn presence_travels_between_nodes_and_ends_with_its_node() {
    let (here, there) = (World::start().await, World::start().await);
    let told = Told::of(&there);
    let mut ann = here.ready("ann/c1", &["t1"]).await;
    let mut bob = there.ready("bob/c2", &["t1"]).await;
    publish(&mut bob, r#"{"n":1}"#);
    publish(&mut bob, r#"{"n":2}"#);
    told.carry_to("there", &here);
    World::check(
        &here.heard(&mut ann).await,
        &[
            r#"bob/c2 joins team:t1 {"n":1}"#,
            r#"bob/c2 at team:t1 {"n":2}"#,
        ],
    );
    here.server.engine.node_lost("there");
    World::check(&here.heard(&mut ann).await, &["bob/c2 leaves team:t1"]);
    // The node comes back and says all there is.
    for (partition, notice) in there.server.engine.presence_here() {
        let engine = &here.server.engine;
        engine.presence_elsewhere("there", &partition, &notice);
    }
    drop(bob);
    told.carry_to("there", &here);
    World::check(
        &here.heard(&mut ann).await,
        &[r#"bob/c2 joins team:t1 {"n":2}"#, "bob/c2 leaves team:t1"],
    );
}

#[tokio::test]
async fn a_document_of_another_node_waits_for_those_who_come_later() {
    let (here, there) = (World::start().await, World::start().await);
    let told = Told::of(&there);
    let mut bob = there.ready("bob/c2", &["t1"]).await;
    publish(&mut bob, "{}");
    told.carry_to("there", &here);
    here.round("ann/c1", notes(&["t1"], -1)).await;
    let mut ann = here.connect("ann/c1").await;
    World::check(
        &here.heard(&mut ann).await,
        &["hello 0 of 0", "bob/c2 joins team:t1 {}"],
    );
    drop(ann);
    here.server.engine.node_lost("there");
    assert!(here.server.engine.hub.rooms().is_empty());
}

#[tokio::test]
async fn a_client_that_moves_to_another_node_does_not_leave() {
    let (here, there) = (World::start().await, World::start().await);
    let (told_here, told_there) = (Told::of(&here), Told::of(&there));
    let mut ann = here.ready("ann/c1", &["t1"]).await;
    let mut old = here.ready("bob/c2", &["t1"]).await;
    publish(&mut old, r#"{"n":1}"#);
    told_here.carry_to("here", &there);
    let mut new = there.ready("bob/c2", &["t1"]).await;
    publish(&mut new, r#"{"n":2}"#);
    told_there.carry_to("there", &here);
    drop(old);
    told_here.carry_to("here", &there);
    World::check(
        &here.heard(&mut ann).await,
        &[
            r#"bob/c2 joins team:t1 {"n":1}"#,
            r#"bob/c2 at team:t1 {"n":2}"#,
        ],
    );
    assert_eq!(there.server.engine.realtime_stats().presence_documents, 1);
}

#[tokio::test]
async fn words_that_cannot_be_read_are_ignored() {
    let world = World::start().await;
    let engine = &world.server.engine;
    for notice in [&b"\xff"[..], b"{}", br#"{"key":1}"#] {
        engine.presence_elsewhere("there", &PartitionId::new("p9"), notice);
    }
    assert!(engine.hub.rooms().is_empty());
}

/// A node that follows the others.
struct Node {
    world: World,
    upkeep: tokio::task::JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.upkeep.abort();
    }
}

impl Node {
    fn run(server: TestServer, network: &MemoryNetwork, name: &str) -> Self {
        let engine = &server.engine;
        engine.join_nodes(network.join(name));
        let upkeep = tokio::spawn(Arc::clone(engine).run_maintenance());
        let pushes = AtomicU64::new(0);
        let world = World { server, pushes };
        Self { world, upkeep }
    }

    async fn heard(&self, session: &mut Session) -> Vec<String> {
        // Whatever can be done now is done, on every node.
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
        self.world.heard(session).await
    }
}

async fn two_nodes() -> (MemoryNetwork, Node, Node) {
    let network = MemoryNetwork::new();
    let a = TestServer::start().await;
    let b = a.beside(EngineConfig::default()).await;
    let (a, b) = (Node::run(a, &network, "a"), Node::run(b, &network, "b"));
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
    (network, a, b)
}

#[tokio::test(start_paused = true)]
async fn a_commit_on_one_node_is_a_delta_on_the_other() {
    let (_network, a, b) = two_nodes().await;
    let mut ann = b.world.ready("ann/c1", &["t1"]).await;
    a.world.write("n1", "t1").await;
    a.world.write("n2", "t2").await;
    World::check(&b.heard(&mut ann).await, &["delta 1 s+n1"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_missed_while_nothing_was_heard_is_delivered_afterwards() {
    let (network, a, b) = two_nodes().await;
    let mut ann = b.world.ready("ann/c1", &["t1"]).await;
    network.cut(&NodeId::new("b"));
    a.world.write("n1", "t1").await;
    World::check(&b.heard(&mut ann).await, &[]);
    network.heal(&NodeId::new("b"));
    let heard = b.heard(&mut ann).await;
    // Its scopes may have been changed meanwhile: they are asked for, and it has to pull.
    let woken = |text: &String| text.starts_with("wake 1 ");
    assert!(
        heard.iter().any(woken) || heard == ["delta 1 s+n1"],
        "{heard:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn presence_is_known_on_every_node_and_ends_with_a_good_bye() {
    let (_network, a, b) = two_nodes().await;
    let mut ann = b.world.ready("ann/c1", &["t1"]).await;
    let mut bob = a.world.ready("bob/c2", &["t1"]).await;
    publish(&mut bob, r#"{"n":1}"#);
    let joins = r#"bob/c2 joins team:t1 {"n":1}"#;
    World::check(&b.heard(&mut ann).await, &[joins]);
    a.world.server.engine.close().await.unwrap();
    World::check(&b.heard(&mut ann).await, &["bob/c2 leaves team:t1"]);
}

#[tokio::test(start_paused = true)]
async fn who_left_while_nothing_was_heard_is_not_there_afterwards() {
    let (network, a, b) = two_nodes().await;
    let mut ann = b.world.ready("ann/c1", &["t1"]).await;
    let mut bob = a.world.ready("bob/c2", &["t1"]).await;
    let mut eve = a.world.ready("eve/c3", &["t1"]).await;
    publish(&mut bob, "{}");
    publish(&mut eve, "{}");
    b.heard(&mut ann).await;
    network.cut(&NodeId::new("b"));
    drop(bob);
    a.heard(&mut eve).await;
    network.heal(&NodeId::new("b"));
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    b.heard(&mut ann).await;
    assert_eq!(b.world.server.engine.realtime_stats().presence_documents, 1);
}

#[tokio::test(start_paused = true)]
async fn a_permission_that_is_taken_away_on_one_node_is_gone_on_every_node() {
    let (_network, a, b) = two_nodes().await;
    let mut ann = b.world.ready("ann/c1", &["t1"]).await;
    b.world.server.resolver.switch(Grants::Fails);
    let engine = &a.world.server.engine;
    engine.refresh_scopes(&partition(), None).await;
    b.heard(&mut ann).await;
    a.world.write_again("n1", "t1").await;
    let heard = b.heard(&mut ann).await;
    let is_delta = |text: &String| text.starts_with("delta");
    assert!(!heard.iter().any(is_delta), "{heard:?}");
}

#[tokio::test(start_paused = true)]
async fn clients_of_every_node_are_woken() {
    let (_network, a, b) = two_nodes().await;
    let mut ann = a.world.ready("ann/c1", &["t1"]).await;
    let mut bob = b.world.ready("bob/c2", &["t1"]).await;
    let engine = &a.world.server.engine;
    engine.wake(&partition(), WakeReason::CatchupRequired);
    for (node, session) in [(&a, &mut ann), (&b, &mut bob)] {
        World::check(&node.heard(session).await, &["wake 0 catchup-required"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_pulled_more_at_another_node_is_registered_for_it_when_it_is_back() {
    let (_network, a, b) = two_nodes().await;
    let mut ann = a.world.ready("ann/c1", &["t1"]).await;
    let cursor = a.world.write("n1", "t1").await;
    World::check(&a.heard(&mut ann).await, &["delta 1 s+n1"]);
    drop(ann);
    b.world.round("ann/c1", notes(&["t1", "t2"], -1)).await;
    // Until its record is written.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let mut ann = a.world.connect("ann/c1").await;
    let heard = a.heard(&mut ann).await;
    // Its scopes are not those that it was told of here: it has to pull.
    assert_eq!(heard, [format!("hello {cursor} of {cursor} sync")]);
    a.world
        .socket_round(&mut ann, "ann/c1", notes(&["t1", "t2"], cursor))
        .await;
    ack(&mut ann, cursor);
    a.world.write("n2", "t2").await;
    World::check(&a.heard(&mut ann).await, &["delta 2 s+n2"]);
}
