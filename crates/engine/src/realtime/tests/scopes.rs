//! Refreshes: what is taken away is gone at once (§8.7).

use std::sync::Arc;

use super::*;

#[tokio::test]
async fn a_revoked_scope_is_gone_before_the_refresh_returns() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1", "t2"]).await;
    world.server.resolver.allow(&[("team_id", &["t1"])]);
    let engine = &world.server.engine;
    engine.refresh_scopes(&partition(), None).await;
    World::check(
        &world.heard(&mut session).await,
        &["wake 0 catchup-required"],
    );
    world.write_again("n1", "t2").await;
    World::check(&world.heard(&mut session).await, &[]);
    ack(&mut session, 1);
    world.write("n2", "t2").await;
    world.write("n3", "t1").await;
    World::check(&world.heard(&mut session).await, &["delta 3 s+n3"]);
}

#[tokio::test]
async fn nothing_is_sent_while_the_resolver_is_being_asked() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.write("n0", "t1").await;
    world.server.engine.hub.settled().await;
    world.server.resolver.switch(Grants::NeverAnswers);
    let engine = Arc::clone(&world.server.engine);
    let refresh = tokio::spawn(async move { engine.refresh_scopes(&partition(), None).await });
    tokio::task::yield_now().await;
    world.write_again("n1", "t1").await;
    // What had been waiting is taken back, too.
    World::check(
        &world.heard(&mut session).await,
        &["wake 2 catchup-required"],
    );
    refresh.abort();
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_nothing_is_held() {
    for grants in [Grants::Fails, Grants::IsOut, Grants::NeverAnswers] {
        let world = World::start().await;
        let mut session = world.ready("ann/c1", &["t1"]).await;
        world.server.resolver.switch(grants.clone());
        let engine = &world.server.engine;
        engine.refresh_scopes(&partition(), None).await;
        World::check(
            &world.heard(&mut session).await,
            &["wake 0 catchup-required"],
        );
        ack(&mut session, 0);
        world.write_again("n1", "t1").await;
        World::check(&world.heard(&mut session).await, &[]);
        // Until the next load.
        engine.refresh_scopes(&partition(), None).await;
        assert_eq!(world.heard(&mut session).await.len(), 1);
        world
            .socket_round(&mut session, "ann/c1", notes(&["t1"], 0))
            .await;
        ack(&mut session, 1);
        world.write("n2", "t1").await;
        World::check(&world.heard(&mut session).await, &["delta 2 s+n2"]);
    }
}

#[tokio::test]
async fn only_the_connections_of_the_actor_are_asked_for() {
    let world = World::start().await;
    let mut anns = world.ready("ann/c1", &["t1"]).await;
    let mut bobs = world.ready("bob/c2", &["t1"]).await;
    world.server.resolver.allow(&[("team_id", &[])]);
    let ann = tidewater_model::ActorId::new("ann");
    world
        .server
        .engine
        .refresh_scopes(&partition(), Some(&ann))
        .await;
    World::check(&world.heard(&mut anns).await, &["wake 0 catchup-required"]);
    world.write_again("n1", "t1").await;
    World::check(&world.heard(&mut anns).await, &[]);
    World::check(&world.heard(&mut bobs).await, &["delta 1 s+n1"]);
}

#[tokio::test]
async fn a_refresh_that_changes_nothing_disturbs_nobody() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    world.server.engine.refresh_scopes(&partition(), None).await;
    world.write("n1", "t1").await;
    World::check(&world.heard(&mut session).await, &["delta 1 s+n1"]);
}

#[tokio::test]
async fn a_round_that_was_answered_before_a_refresh_does_not_give_back_what_it_took() {
    let world = World::start().await;
    let mut session = world.ready("ann/c1", &["t1"]).await;
    let request = world.request("ann/c1", notes(&["t1", "t2"], -1)).await;
    let body = session.round(request).await.unwrap();
    testing::collect(body).await;
    world.server.resolver.allow(&[("team_id", &["t1"])]);
    world.server.engine.refresh_scopes(&partition(), None).await;
    session.round_ended();
    let engine = &world.server.engine;
    while engine.hub.stats().suppressed_sessions == 0 {
        tokio::task::yield_now().await;
    }
    world.server.engine.refresh_scopes(&partition(), None).await;
    world.heard(&mut session).await;
    ack(&mut session, 0);
    world.write_again("n1", "t2").await;
    world.write("n2", "t1").await;
    let heard = world.heard(&mut session).await;
    assert!(
        heard == ["delta 2 s+n2"] || heard == ["wake 2 catchup-required"],
        "{heard:?}"
    );
}

#[tokio::test]
async fn a_refresh_during_a_connect_is_not_missed() {
    let world = World::start().await;
    world.round("ann/c1", notes(&["t1"], -1)).await;
    world.server.resolver.switch(Grants::NeverAnswers);
    let mut connecting = Box::pin(world.connect("ann/c1"));
    let calls = world.server.resolver.calls();
    while world.server.resolver.calls() == calls {
        assert!(futures_util::poll!(&mut connecting).is_pending());
    }
    // The answer that is being waited for was asked for before this, and must not count.
    world.server.resolver.allow(&[("team_id", &["t9"])]);
    world.server.engine.refresh_scopes(&partition(), None).await;
    drop(connecting);
    assert_eq!(world.server.engine.realtime_stats().sessions, 0);
}
