//! Asks what a client may see: its record for what it subscribed to, the resolver for what of it
//! is allowed (§8.1).
//!
//! **Invariant:** whoever asks takes a ticket first. An answer that comes late is recognized by
//! it, and never gives back what was taken away meanwhile.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt, StreamExt, stream};
use tidewater_model::{ActorId, AllowedScopes, ClientId};
use tidewater_store::{ClientKey, ClientRecord};
use tidewater_wire::WireVersion;

use super::{
    hub::SharedRoom,
    registrations::Registration,
    room::{Ticket, Who},
};
use crate::{Engine, Identity, ResolveRequest, scope};

/// What a client's record and the resolver say together.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) registrations: Vec<Registration>,
    /// Whether every subscription of the record was registered.
    pub(crate) is_complete: bool,
    /// Whether the registrations are what its last pull told the client that it sees, as far as
    /// anybody here knows.
    pub(crate) is_as_pulled: bool,
}

/// What of a client's subscriptions may be registered. Without an answer of the resolver it is
/// nothing, and incomplete.
pub(crate) async fn load(
    engine: &Engine,
    identity: &Identity,
    client: &ClientId,
    record: &ClientRecord,
) -> Loaded {
    let registrations = allowed(engine, identity, client, record).await;
    let registrations = registrations.unwrap_or_default();
    let key = ClientKey {
        partition: identity.partition.clone(),
        client: client.clone(),
    };
    // Who asks for no more than is allowed mostly did so before.
    let is_whole = || {
        registrations
            .iter()
            .map(|registration| &registration.effective)
            .eq(candidates(engine, record)
                .iter()
                .map(|asked| &asked.effective))
    };
    let is_as_pulled = engine.hub.views.is(&key, &registrations);
    Loaded {
        is_complete: registrations.len() == record.subscriptions.len(),
        is_as_pulled: is_as_pulled.unwrap_or_else(is_whole),
        registrations,
    }
}

/// The version that a client's record says it speaks, if this server does.
pub(crate) fn version(record: &ClientRecord) -> Option<WireVersion> {
    let number = u16::try_from(record.wire_version).ok()?;
    WireVersion::from_number(number)
}

/// Asks anew for all of these and tells the room each answer. `must_answer` says that a
/// connection without one holds nothing.
pub(crate) async fn reload_all(
    engine: Arc<Engine>,
    room: Arc<SharedRoom>,
    whos: Vec<Who>,
    ticket: Ticket,
    must_answer: bool,
) {
    let at_once = engine.hub.config().refreshes_at_once.max(1);
    let reloads = whos.into_iter().map(|who| {
        let (engine, room) = (&engine, &room);
        async move {
            // A resolver that panics gives no answer.
            let answer = AssertUnwindSafe(reload(engine, &who)).catch_unwind().await;
            let answer = answer.unwrap_or_default();
            let hub = &engine.hub;
            hub.with(room, |room| {
                let now_ms = hub.now_ms();
                if must_answer {
                    room.refresh_ended(who.session, ticket, answer, now_ms);
                } else {
                    room.reload_ended(who.session, ticket, answer, now_ms);
                }
            });
        }
    });
    stream::iter(reloads)
        .for_each_concurrent(at_once, |reload| reload)
        .await;
}

/// Asks anew for the connections of an actor, or of everybody (§8.7).
pub(crate) fn refresh(
    engine: &Arc<Engine>,
    room: &Arc<SharedRoom>,
    actor: Option<&ActorId>,
) -> impl Future<Output = ()> + Send + use<> {
    let hub = &engine.hub;
    let ticket = hub.ticket();
    let whos = hub.with(room, |room| {
        room.refresh_started(actor, ticket, hub.now_ms())
    });
    spawn(engine, room, whos, ticket, true)
}

/// Asks anew for some connections whose rounds were answered with scopes that are too old.
pub(crate) fn reload_sessions(
    engine: &Arc<Engine>,
    room: &Arc<SharedRoom>,
    sessions: &[super::room::SessionId],
) {
    let hub = &engine.hub;
    let ticket = hub.ticket();
    let whos: Vec<Who> = hub.with(room, |room| {
        let now_ms = hub.now_ms();
        let started = sessions.iter();
        started
            .filter_map(|session| room.reload_started(*session, ticket, now_ms))
            .collect()
    });
    drop(spawn(engine, room, whos, ticket, false));
}

/// In a task of its own: what has begun must end, whoever waits for it.
fn spawn(
    engine: &Arc<Engine>,
    room: &Arc<SharedRoom>,
    whos: Vec<Who>,
    ticket: Ticket,
    must_answer: bool,
) -> impl Future<Output = ()> + Send + use<> {
    let reloads = reload_all(
        Arc::clone(engine),
        Arc::clone(room),
        whos,
        ticket,
        must_answer,
    );
    let task = tokio::spawn(reloads);
    async move {
        if let Err(error) = task.await {
            tracing::error!(%error, "scopes were not refreshed");
        }
    }
}

async fn reload(engine: &Engine, who: &Who) -> Option<Vec<Registration>> {
    let key = ClientKey {
        partition: who.identity.partition.clone(),
        client: who.client.clone(),
    };
    let store = engine.store().as_ref();
    let record = match engine.activity.find_client(store, &key).await {
        Ok(record) => record?,
        Err(error) => {
            tracing::warn!(partition = %key.partition, %error, "a client's record cannot be read");
            return None;
        }
    };
    if record.actor != who.identity.actor {
        return None;
    }
    allowed(engine, &who.identity, &who.client, &record).await
}

/// The subscriptions of a record as far as they are allowed; `None` when it is not known.
async fn allowed(
    engine: &Engine,
    identity: &Identity,
    client: &ClientId,
    record: &ClientRecord,
) -> Option<Vec<Registration>> {
    let candidates = candidates(engine, record);
    if candidates.is_empty() {
        return Some(candidates);
    }
    let allowed = resolve(engine, identity, client).await?;
    let allowed_of = |candidate: Registration| {
        let effective = scope::effective(&candidate.effective, &allowed)?;
        Some(Registration {
            effective,
            ..candidate
        })
    };
    Some(candidates.into_iter().filter_map(allowed_of).collect())
}

/// The subscriptions that may be registered, with what they ask for: those whose last section
/// ended active and complete, in a version of the window, of tables and variables that are served.
fn candidates(engine: &Engine, record: &ClientRecord) -> Vec<Registration> {
    let schema = engine.schema();
    if version(record).is_none() {
        return Vec::new();
    }
    record
        .subscriptions
        .iter()
        .filter(|subscription| subscription.complete == Some(true))
        .filter_map(|subscription| {
            let view = schema.view(subscription.schema_version?)?;
            let table = view.find(&subscription.table)?;
            scope::check_requested(schema.table(table), &subscription.scopes).ok()?;
            Some(Registration {
                id: subscription.id.as_str().into(),
                table,
                schema_version: view.version(),
                effective: subscription.scopes.clone(),
            })
        })
        .collect()
}

/// What the actor is allowed; `None` when there is no usable answer.
async fn resolve(engine: &Engine, identity: &Identity, client: &ClientId) -> Option<AllowedScopes> {
    let request = ResolveRequest {
        identity,
        client_id: Some(client.as_str()),
    };
    let answer = engine.parts.resolver.resolve(request);
    let partition = &identity.partition;
    match tokio::time::timeout(engine.parts.config.resolver_timeout, answer).await {
        Ok(Ok(allowed)) => match scope::check_allowed(engine.schema(), &allowed) {
            Ok(()) => Some(allowed),
            Err(error) => {
                tracing::warn!(%partition, %error, "scope resolver answered amiss");
                None
            }
        },
        Ok(Err(error)) => {
            tracing::warn!(%partition, %error, "scope resolver failed for a connection");
            None
        }
        Err(_elapsed) => {
            tracing::warn!(%partition, "scope resolver took too long for a connection");
            None
        }
    }
}
