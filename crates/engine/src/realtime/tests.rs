//! Sessions on a whole engine over the memory store: what a connection hears of commits, rounds
//! and acknowledgments (§8.1, §8.2, §8.7). What it hears is written down as text.

mod crowd;
mod nodes;
mod peers;
mod scopes;
mod window;

use std::sync::atomic::{AtomicU64, Ordering};

use tidewater_model::{AllowedScopes, ErrorCode};
use tidewater_store::Store;
use tidewater_wire::{
    Operation, OperationAction, ResponseFrame, WireVersion,
    control::{PresenceChange, ServerControl, WakeReason},
    row::{Value, encode_sparse_row},
};

use crate::{
    EngineConfig, HubConfig, Identity, Outgoing, RoundError, Session,
    testing::{self, Answer, Ask, Grants, PARTITION, TestServer, partition, subscription},
};

/// A request for the notes of these teams.
fn notes(teams: &[&str], cursor: i64) -> Ask {
    Ask::pull([subscription("s", "notes", &[("team_id", teams)], cursor)])
}

fn upsert(id: &str, team: &str, body: &str) -> Operation {
    let cells = [id, team, body].map(|text| {
        let mut out = Vec::new();
        Value::String(text).encode(&mut out);
        out
    });
    let row = encode_sparse_row(&cells.each_ref().map(|cell| Some(Some(cell.as_slice()))));
    Operation {
        table: "notes".into(),
        row_id: id.into(),
        action: OperationAction::Upsert(row.into()),
        base_version: None,
    }
}

/// A server with devices: client `c` belongs to actor `a` for a device `a/c`.
struct World {
    server: TestServer,
    pushes: AtomicU64,
}

impl World {
    async fn start() -> Self {
        Self::start_with(HubConfig::default()).await
    }

    async fn start_with(hub: HubConfig) -> Self {
        let config = EngineConfig {
            hub,
            ..EngineConfig::default()
        };
        Self {
            server: TestServer::start_with(config).await,
            pushes: AtomicU64::new(0),
        }
    }

    fn identity(device: &str) -> (Identity, &str) {
        let (actor, client) = device.split_once('/').unwrap();
        (Identity::new(PARTITION, actor), client)
    }

    /// A round over HTTP.
    async fn round(&self, device: &str, ask: Ask) -> Answer {
        let (identity, client) = Self::identity(device);
        let ask = ask.of_client(client);
        self.server.try_round(&identity, ask).await.unwrap()
    }

    async fn try_connect(&self, device: &str) -> Result<Session, RoundError> {
        let (identity, client) = Self::identity(device);
        let client = tidewater_model::ClientId::new(client);
        self.server.engine.connect(identity, client).await
    }

    async fn connect(&self, device: &str) -> Session {
        self.try_connect(device).await.unwrap()
    }

    /// A connected device that has everything of these teams, and has heard the hello.
    async fn ready(&self, device: &str, teams: &[&str]) -> Session {
        self.round(device, notes(teams, -1)).await;
        let mut session = self.connect(device).await;
        let heard = self.heard(&mut session).await;
        let hello = heard.first().cloned().unwrap_or_default();
        assert!(
            hello.starts_with("hello ") && !hello.ends_with(" sync"),
            "{heard:?}"
        );
        session
    }

    /// Pushes a note over HTTP from another device.
    async fn write(&self, id: &str, team: &str) -> i64 {
        self.write_body(id, team, "text").await
    }

    async fn write_body(&self, id: &str, team: &str, body: &str) -> i64 {
        let number = self.pushes.fetch_add(1, Ordering::Relaxed);
        let ask = Ask::new().push(&format!("w{number}"), vec![upsert(id, team, body)]);
        let answer = self.round("writer/w", ask).await;
        match answer.results[0].outcome {
            tidewater_wire::PushOutcome::Applied(seq) => seq,
            ref other => panic!("not applied: {other:?}"),
        }
    }

    /// Everything a connection has heard since the last time.
    async fn heard(&self, session: &mut Session) -> Vec<String> {
        self.server.engine.hub.settled().await;
        std::iter::from_fn(|| session.try_next())
            .map(|out| text(&out))
            .collect()
    }

    #[track_caller]
    fn check(heard: &[String], expected: &[&str]) {
        assert_eq!(heard, expected);
    }

    async fn request(&self, device: &str, ask: Ask) -> bytes::Bytes {
        let (_, client) = Self::identity(device);
        let epoch = tidewater_model::LogEpoch::new(self.server.epoch().await);
        let schema = self.server.engine.schema().version();
        ask.of_client(client).encode(&epoch, schema)
    }

    /// A whole round over a connection.
    async fn socket_round(&self, session: &mut Session, device: &str, ask: Ask) -> Answer {
        let request = self.request(device, ask).await;
        let body = session.round(request).await.unwrap();
        let bytes = testing::collect(body).await;
        session.round_ended();
        Answer::decode(&bytes)
    }

    /// A client's cursor as it is stored.
    async fn stored_cursor(&self, client: &str) -> Option<i64> {
        let client = tidewater_model::ClientId::new(client);
        let record = self.server.store.find_client(&partition(), &client).await;
        record.unwrap().map(|record| record.cursor.to_i64())
    }
}

fn ack(session: &mut Session, cursor: i64) {
    let text = format!(r#"{{"type":"ack","cursor":{cursor}}}"#);
    session.receive(&text).unwrap();
}

fn text(outgoing: &Outgoing) -> String {
    match outgoing {
        Outgoing::Close(reason) => format!("close {}", reason.code()),
        Outgoing::Delta(frame) => delta_text(frame),
        Outgoing::Text(text) => control_text(str::from_utf8(text).unwrap()),
    }
}

/// `delta 6 s+n1-n2`: what each section brings.
fn delta_text(frame: &bytes::Bytes) -> String {
    let response = tidewater_wire::Response::decode(frame).unwrap();
    let mut out = String::new();
    let mut end = 0;
    for frame in response.frames {
        match frame {
            ResponseFrame::SubStart(start) => out += &format!(" {}", start.id),
            ResponseFrame::Commit(commit) => {
                for change in &commit.changes {
                    let sign = if change.row.is_some() { '+' } else { '-' };
                    out += &format!("{sign}{}", change.row_id);
                }
            }
            ResponseFrame::SubEnd(sub) => end = sub.next_cursor,
            _ => {}
        }
    }
    format!("delta {end}{out}")
}

fn control_text(text: &str) -> String {
    match ServerControl::parse(text).unwrap() {
        ServerControl::Hello(hello) => {
            let sync = if hello.requires_sync { " sync" } else { "" };
            format!("hello {} of {}{sync}", hello.cursor, hello.latest_cursor)
        }
        ServerControl::WakeUp(wake) => format!("wake {} {}", wake.cursor, wake.reason.as_str()),
        ServerControl::Presence(fanout) => {
            let who = format!("{}/{}", fanout.actor_id, fanout.client_id);
            match fanout.change {
                PresenceChange::Join(doc) => format!("{who} joins {} {doc}", fanout.scope_key),
                PresenceChange::Update(doc) => format!("{who} at {} {doc}", fanout.scope_key),
                PresenceChange::Leave => format!("{who} leaves {}", fanout.scope_key),
            }
        }
        ServerControl::PresenceError {
            scope_key, error, ..
        } => format!("{} {scope_key}", error.as_str()),
        other => panic!("not expected: {other:?}"),
    }
}

#[tokio::test]
async fn a_current_client_hears_of_a_matching_commit_and_of_no_other() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.write("n1", "t1").await;
    world.write("n2", "t2").await;
    World::check(&world.heard(&mut session).await, &["delta 1 s+n1"]);
    assert_eq!(world.server.engine.realtime_stats().deltas, 1);
}

#[tokio::test]
async fn a_client_that_never_pulled_is_told_to_and_gets_nothing() {
    let world = World::start().await;
    let mut session = world.connect("ann/c1").await;
    world.write("n1", "t1").await;
    World::check(&world.heard(&mut session).await, &["hello -1 of 0 sync"]);
}

#[tokio::test]
async fn a_client_that_is_behind_gets_one_wake_up_until_it_acknowledges() {
    let world = World::start().await;
    world.round("ann/c1", notes(&["t1"], -1)).await;
    world.write("n1", "t1").await;
    let mut session = world.connect("ann/c1").await;
    world.write("n2", "t1").await;
    world.write("n3", "t1").await;
    let heard = world.heard(&mut session).await;
    World::check(&heard, &["hello 0 of 1 sync", "wake 3 catchup-required"]);
    world.round("ann/c1", notes(&["t1"], 0)).await;
    ack(&mut session, 3);
    world.write("n4", "t1").await;
    World::check(&world.heard(&mut session).await, &["delta 4 s+n4"]);
}

#[tokio::test]
async fn an_acknowledgment_is_stored_without_a_pull_and_never_goes_back_or_beyond_the_log() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.write("n1", "t1").await;
    world.write("n2", "t1").await;
    world.heard(&mut session).await;
    for (said, stored) in [(1, 1), (0, 1), (99, 2), (-1, 2)] {
        ack(&mut session, said);
        session.drain().await.unwrap();
        assert_eq!(
            world.stored_cursor("c1").await,
            Some(stored),
            "after {said}"
        );
    }
}

#[tokio::test]
async fn acknowledgments_wait_for_the_next_batch_and_survive_a_failed_one() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.server.engine.flush_activity().await.unwrap();
    world.write("n1", "t1").await;
    ack(&mut session, 1);
    assert_eq!(world.stored_cursor("c1").await, Some(0));
    world.server.store.fail_upkeep(1);
    assert!(session.drain().await.is_err(), "the failure is told");
    world.server.engine.close().await.unwrap();
    assert_eq!(world.stored_cursor("c1").await, Some(1));
}

#[tokio::test]
async fn a_connection_that_was_forgotten_by_the_cache_still_has_its_acknowledgment_stored() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.write("n1", "t1").await;
    world.server.engine.flush_activity().await.unwrap();
    world.server.engine.activity.forget(&partition());
    ack(&mut session, 1);
    session.drain().await.unwrap();
    assert_eq!(world.stored_cursor("c1").await, Some(1));
}

#[tokio::test]
async fn a_client_id_of_another_actor_cannot_connect() {
    let world = World::start().await;
    world.ready("ann/c1", &["t1"]).await;
    let Err(error) = world.try_connect("bob/c1").await else {
        panic!("it is connected");
    };
    assert_eq!(error.code, ErrorCode::InvalidClientId);
    assert_eq!(world.server.engine.realtime_stats().sessions, 0);
}

#[tokio::test]
async fn a_delta_over_the_limit_becomes_a_wake_up() {
    let world = World::start_with(HubConfig {
        delta_bytes_max: 1_000,
        ..HubConfig::default()
    })
    .await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.write_body("n1", "t1", &"x".repeat(2_000)).await;
    world.write("n2", "t1").await;
    let heard = world.heard(&mut session).await;
    World::check(&heard, &["wake 2 delta-too-large"]);
}

#[tokio::test]
async fn a_client_that_reads_nothing_keeps_one_wake_up_and_no_bytes() {
    let world = World::start_with(HubConfig {
        mailbox_bytes_max: 3_000,
        ..HubConfig::default()
    })
    .await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    for index in 0..8 {
        let id = format!("n{index}");
        world.write_body(&id, "t1", &"x".repeat(900)).await;
    }
    World::check(
        &world.heard(&mut session).await,
        &["wake 8 catchup-required"],
    );
    assert_eq!(world.server.engine.realtime_stats().queued_bytes, 0);
}

#[tokio::test]
async fn a_client_that_acknowledges_nothing_must_pull_after_a_while() {
    let world = World::start_with(HubConfig {
        unacknowledged_deltas_max: 2,
        ..HubConfig::default()
    })
    .await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    for id in ["n1", "n2"] {
        world.write(id, "t1").await;
    }
    World::check(
        &world.heard(&mut session).await,
        &["delta 1 s+n1", "delta 2 s+n2"],
    );
    world.write("n3", "t1").await;
    World::check(
        &world.heard(&mut session).await,
        &["wake 3 catchup-required"],
    );
}

#[tokio::test]
async fn a_round_over_the_connection_registers_what_it_pulled() {
    let world = World::start().await;
    let mut session = world.connect("ann/c1").await;
    world.heard(&mut session).await;
    world
        .socket_round(&mut session, "ann/c1", notes(&["t1"], -1))
        .await;
    ack(&mut session, 0);
    world.write("n1", "t1").await;
    World::check(&world.heard(&mut session).await, &["delta 1 s+n1"]);
    // Another list replaces it.
    world
        .socket_round(&mut session, "ann/c1", notes(&["t2"], -1))
        .await;
    ack(&mut session, 1);
    world.write("n2", "t1").await;
    world.write("n3", "t2").await;
    World::check(&world.heard(&mut session).await, &["delta 3 s+n3"]);
}

#[tokio::test]
async fn a_round_that_pushes_and_pulls_brings_its_own_commits_without_an_echo() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    let mut other = world.ready("bob/c2", &["t1"]).await;
    let ask = notes(&["t1"], 0).push("k1", vec![upsert("n1", "t1", "mine")]);
    let answer = world.socket_round(&mut session, "ann/c1", ask).await;
    assert_eq!(answer.section().commits.len(), 1);
    World::check(&world.heard(&mut session).await, &[]);
    World::check(&world.heard(&mut other).await, &["delta 1 s+n1"]);
    world.write("n2", "t1").await;
    World::check(&world.heard(&mut session).await, &["delta 2 s+n2"]);
}

#[tokio::test]
async fn a_push_over_http_is_echoed_because_its_client_may_not_pull() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    let ask = Ask::new().push("k1", vec![upsert("n1", "t1", "mine")]);
    world.round("ann/c1", ask).await;
    World::check(&world.heard(&mut session).await, &["delta 1 s+n1"]);
}

#[tokio::test]
async fn a_commit_of_others_during_a_round_is_a_wake_up_and_never_a_delta() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    let request = world.request("ann/c1", notes(&["t1"], 0)).await;
    let answering = session.round(request);
    world.write("n1", "t1").await;
    World::check(
        &world.heard(&mut session).await,
        &["wake 1 catchup-required"],
    );
    testing::collect(answering.await.unwrap()).await;
    session.round_ended();
    World::check(&world.heard(&mut session).await, &[]);
    ack(&mut session, 1);
    world.write("n2", "t1").await;
    World::check(&world.heard(&mut session).await, &["delta 2 s+n2"]);
}

#[tokio::test]
async fn deltas_that_wait_when_a_round_begins_come_with_the_round() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.write("n1", "t1").await;
    world.server.engine.hub.settled().await;
    let answer = world
        .socket_round(&mut session, "ann/c1", notes(&["t1"], 0))
        .await;
    assert_eq!(answer.section().commits.len(), 1);
    World::check(&world.heard(&mut session).await, &[]);
}

#[tokio::test]
async fn a_round_that_fails_keeps_what_is_registered_and_asks_for_another() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.write("n1", "t1").await;
    world.server.engine.hub.settled().await;
    world.server.resolver.switch(Grants::IsOut);
    let request = world.request("ann/c1", notes(&["t2"], -1)).await;
    let Err(error) = session.round(request).await else {
        panic!("the round was answered");
    };
    session.refusal(WireVersion::V3, &error);
    session.round_ended();
    World::check(
        &world.heard(&mut session).await,
        &["wake 1 catchup-required"],
    );
    ack(&mut session, 1);
    world.write_again("n2", "t1").await;
    World::check(&world.heard(&mut session).await, &["delta 2 s+n2"]);
}

impl World {
    /// Writes although the resolver was switched.
    async fn write_again(&self, id: &str, team: &str) -> i64 {
        self.server.resolver.switch(Grants::Allowed(everything()));
        self.write(id, team).await
    }
}

fn everything() -> AllowedScopes {
    let any = |name: &str| (name.to_owned(), vec!["*".to_owned()]);
    AllowedScopes::from_lists([any("team_id"), any("org"), any("list")])
}

#[tokio::test]
async fn a_round_for_another_client_fails_and_changes_nothing() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    let request = world.request("ann/c2", notes(&["t2"], -1)).await;
    let Err(error) = session.round(request).await else {
        panic!("the round was answered");
    };
    assert_eq!(error.code, ErrorCode::InvalidClientId);
    session.round_ended();
    world.write("n1", "t1").await;
    World::check(&world.heard(&mut session).await, &["delta 1 s+n1"]);
}

#[tokio::test]
async fn a_pull_over_http_registers_after_the_client_has_shown_that_it_applied_it() {
    let world = World::start().await;
    let mut session = world.connect("ann/c1").await;
    world.heard(&mut session).await;
    world.round("ann/c1", notes(&["t1"], -1)).await;
    ack(&mut session, 0);
    world.write("n1", "t1").await;
    World::check(
        &world.heard(&mut session).await,
        &["wake 1 catchup-required"],
    );
    world.round("ann/c1", notes(&["t1"], 0)).await;
    ack(&mut session, 1);
    world.write("n2", "t1").await;
    World::check(&world.heard(&mut session).await, &["delta 2 s+n2"]);
}

#[tokio::test]
async fn a_closed_session_is_gone_from_the_fan_out() {
    let world = World::start().await;
    let session = world.ready("ann/c1", &["t1"]).await;
    assert_eq!(world.server.engine.realtime_stats().sessions, 1);
    drop(session);
    assert_eq!(world.server.engine.realtime_stats().sessions, 0);
    world.write("n1", "t1").await;
    assert_eq!(world.server.engine.realtime_stats().deltas, 0);
    assert!(world.server.engine.hub.rooms().is_empty());
}

#[tokio::test]
async fn a_host_wakes_everybody_in_a_partition() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    let engine = &world.server.engine;
    engine.wake(&partition(), WakeReason::ResetRequired);
    World::check(&world.heard(&mut session).await, &["wake 0 reset-required"]);
    assert_eq!(engine.realtime_stats().suppressed_sessions, 1);
}

#[tokio::test]
async fn another_log_is_started_over_and_old_acknowledgments_do_not_count() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.write("n1", "t1").await;
    world
        .server
        .engine
        .rotate_epoch(&partition())
        .await
        .unwrap();
    World::check(&world.heard(&mut session).await, &["wake 1 reset-required"]);
    ack(&mut session, 1);
    world.write("n2", "t1").await;
    World::check(&world.heard(&mut session).await, &[]);
    session.drain().await.unwrap();
    assert_eq!(world.stored_cursor("c1").await, None);
    world
        .socket_round(&mut session, "ann/c1", notes(&["t1"], -1))
        .await;
    ack(&mut session, 2);
    world.write("n3", "t1").await;
    World::check(&world.heard(&mut session).await, &["delta 3 s+n3"]);
}

#[tokio::test]
async fn a_hundred_connections_share_one_frame() {
    let world = World::start().await;
    let mut sessions = Vec::new();
    for index in 0..100 {
        let device = format!("ann/c{index}");
        sessions.push(world.ready(&device, &["t1"]).await);
    }
    world.write("n1", "t1").await;
    world.server.engine.hub.settled().await;
    let frames: Vec<Outgoing> = sessions
        .iter_mut()
        .map(|session| session.try_next().unwrap())
        .collect();
    let Outgoing::Delta(first) = &frames[0] else {
        panic!("not a delta");
    };
    for frame in &frames {
        let Outgoing::Delta(frame) = frame else {
            panic!("not a delta");
        };
        assert_eq!(frame.as_ptr(), first.as_ptr());
    }
    assert_eq!(
        world.server.engine.realtime_stats().queued_bytes,
        first.len()
    );
    drop(frames);
    assert_eq!(world.server.engine.realtime_stats().queued_bytes, 0);
}

#[tokio::test]
async fn a_client_with_too_many_values_gets_wake_ups_only() {
    let world = World::start_with(HubConfig {
        registered_values_max: 1,
        ..HubConfig::default()
    })
    .await;
    let mut session = world.ready("ann/c1", &["t1", "t2"]).await;
    world.write("n1", "t1").await;
    world.write("n2", "t2").await;
    World::check(
        &world.heard(&mut session).await,
        &["wake 2 catchup-required"],
    );
}
