//! Presence between sessions (§8.6).

use super::*;

fn publish(session: &mut Session, key: &str, doc: &str) {
    let text = format!(r#"{{"event":"presence","data":{{"scopeKey":"{key}","doc":{doc}}}}}"#);
    session.receive(&text).unwrap();
}

#[tokio::test]
async fn a_document_joins_changes_and_leaves_and_its_author_hears_nothing_of_it() {
    let world = World::start().await;
    let mut ann = world.ready("ann/c1", &["t1"]).await;
    let mut bob = world.ready("bob/c2", &["t1"]).await;
    for doc in [r#"{"at":1}"#, r#"{"at":2}"#, "null", "null"] {
        publish(&mut ann, "team:t1", doc);
    }
    World::check(
        &world.heard(&mut bob).await,
        &[
            r#"ann/c1 joins team:t1 {"at":1}"#,
            r#"ann/c1 at team:t1 {"at":2}"#,
            "ann/c1 leaves team:t1",
        ],
    );
    World::check(&world.heard(&mut ann).await, &[]);
}

#[tokio::test]
async fn a_newcomer_is_told_who_is_there_and_everybody_when_somebody_goes() {
    let world = World::start().await;
    let mut ann = world.ready("ann/c1", &["t1"]).await;
    publish(&mut ann, "team:t1", "{}");
    assert_eq!(world.server.engine.realtime_stats().presence_documents, 1);
    world.round("bob/c2", notes(&["t1"], -1)).await;
    let mut bob = world.connect("bob/c2").await;
    World::check(
        &world.heard(&mut bob).await,
        &["hello 0 of 0", "ann/c1 joins team:t1 {}"],
    );
    drop(ann);
    World::check(&world.heard(&mut bob).await, &["ann/c1 leaves team:t1"]);
}

#[tokio::test]
async fn other_scopes_hear_nothing_and_a_key_that_is_not_held_is_forbidden() {
    let world = World::start().await;
    let mut ann = world.ready("ann/c1", &["t1"]).await;
    let mut bob = world.ready("bob/c2", &["t2"]).await;
    publish(&mut ann, "team:t1", "{}");
    publish(&mut ann, "team:t2", "{}");
    World::check(
        &world.heard(&mut ann).await,
        &["presence.forbidden team:t2"],
    );
    World::check(&world.heard(&mut bob).await, &[]);
}

#[tokio::test]
async fn the_size_of_a_document_is_counted_in_bytes() {
    let world = World::start_with(HubConfig {
        presence_bytes_max: 16,
        ..HubConfig::default()
    })
    .await;
    let mut ann = world.ready("ann/c1", &["t1"]).await;
    let mut bob = world.ready("bob/c2", &["t1"]).await;
    publish(&mut ann, "team:t1", r#"{"a":"ääää"}"#);
    publish(&mut ann, "team:t1", r#"{"a":"äääää"}"#);
    World::check(
        &world.heard(&mut ann).await,
        &["presence.too_large team:t1"],
    );
    World::check(
        &world.heard(&mut bob).await,
        &[r#"ann/c1 joins team:t1 {"a":"ääää"}"#],
    );
}

#[tokio::test]
async fn malformed_presence_is_an_error_of_the_connection() {
    let world = World::start().await;
    let mut ann = world.ready("ann/c1", &["t1"]).await;
    let text = r#"{"event":"presence","data":{"scopeKey":"","doc":{}}}"#;
    assert!(ann.receive(text).is_err());
    assert!(ann.receive("garbage").is_ok());
}

#[tokio::test]
async fn a_round_that_gives_up_a_key_leaves_it_and_one_that_gains_it_is_told_who_is_there() {
    let world = World::start().await;
    let mut ann = world.ready("ann/c1", &["t1"]).await;
    let mut bob = world.ready("bob/c2", &["t1", "t2"]).await;
    publish(&mut ann, "team:t1", r#"{"n":1}"#);
    publish(&mut bob, "team:t2", r#"{"n":2}"#);
    world.heard(&mut bob).await;
    world
        .socket_round(&mut ann, "ann/c1", notes(&["t2"], -1))
        .await;
    World::check(
        &world.heard(&mut ann).await,
        &[r#"bob/c2 joins team:t2 {"n":2}"#],
    );
    World::check(&world.heard(&mut bob).await, &["ann/c1 leaves team:t1"]);
}

#[tokio::test]
async fn a_revoked_scope_takes_its_presence_with_it() {
    let world = World::start().await;
    let mut ann = world.ready("ann/c1", &["t1"]).await;
    let mut bob = world.ready("bob/c2", &["t1"]).await;
    publish(&mut ann, "team:t1", "{}");
    world.heard(&mut bob).await;
    world.server.resolver.switch(Grants::Fails);
    let ann_id = tidewater_model::ActorId::new("ann");
    let engine = &world.server.engine;
    engine.refresh_scopes(&partition(), Some(&ann_id)).await;
    World::check(&world.heard(&mut bob).await, &["ann/c1 leaves team:t1"]);
    publish(&mut ann, "team:t1", "{}");
    World::check(
        &world.heard(&mut ann).await,
        &["wake 0 catchup-required", "presence.forbidden team:t1"],
    );
}

#[tokio::test(start_paused = true)]
async fn with_a_rate_cap_the_newest_document_is_sent_at_the_end_of_the_window() {
    let world = World::start_with(HubConfig {
        presence_window: Some(std::time::Duration::from_millis(100)),
        ..HubConfig::default()
    })
    .await;
    let mut ann = world.ready("ann/c1", &["t1"]).await;
    let mut bob = world.ready("bob/c2", &["t1"]).await;
    for number in 1..=4 {
        publish(&mut ann, "team:t1", &format!(r#"{{"n":{number}}}"#));
    }
    World::check(
        &world.heard(&mut bob).await,
        &[r#"ann/c1 joins team:t1 {"n":1}"#],
    );
    world.server.clock.advance_ms(100);
    assert_eq!(text(&bob.next().await), r#"ann/c1 at team:t1 {"n":4}"#);
    World::check(&world.heard(&mut bob).await, &[]);
}
