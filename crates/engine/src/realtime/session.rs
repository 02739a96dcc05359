//! The handle a socket holds: what comes out of the hub for it, what its client says, its rounds.
//!
//! **Invariant:** the connection is part of its partition's fan-out from before its client's
//! record was read until the handle is dropped.

use std::{future::poll_fn, sync::Arc};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tidewater_model::{ClientId, CommitSeq};
use tidewater_store::{ClientKey, StoreError};
use tidewater_wire::{
    ResponseFrame, ResponseHeader, WireVersion, begin_response,
    control::{ClientControl, ControlError},
    put_end, put_response_frame,
};

use super::{
    Outgoing,
    hub::Seat,
    load::{self, Loaded},
    registrations::Registration,
    room::{Admission, After, PulledRound, SessionId, Stale},
};
use crate::{
    Engine, Identity, RoundBody, RoundError,
    pull::PullOutcome,
    round::{self, RoundContext},
};

/// One connection of a client. Dropping it disconnects.
pub struct Session {
    engine: Arc<Engine>,
    identity: Identity,
    client: ClientId,
    seat: Seat,
    round: Option<Asker>,
}

/// A connection that a round is answered over.
#[derive(Clone)]
pub(crate) struct Asker {
    pub(crate) client: ClientId,
    session: SessionId,
    /// Filled when the round has pulled and succeeded.
    pulled: Arc<Mutex<Option<PulledRound>>>,
}

/// Lets a client in (§8.1). Its first message is the hello.
pub(crate) async fn connect(
    engine: &Arc<Engine>,
    identity: Identity,
    client: ClientId,
) -> Result<Session, RoundError> {
    let partition = &identity.partition;
    let mut state = engine.partitions.touch(engine, partition).await?;
    round::check::client(&identity, &client, None)?;
    let seat = engine.hub.enter(identity.clone(), client.clone());
    let key = ClientKey {
        partition: partition.clone(),
        client: client.clone(),
    };
    loop {
        let ticket = engine.hub.ticket();
        let store = engine.store().as_ref();
        if engine.nodes.are_joined() {
            // It may have pulled at another node since it was here.
            engine.activity.unremember(&key);
        }
        let record = engine.activity.find_client(store, &key).await?;
        round::check::client(&identity, &client, record.as_ref())?;
        let loaded = match &record {
            Some(record) => load::load(engine, &identity, &client, record).await,
            None => Loaded::default(),
        };
        let admission = Admission {
            ticket,
            epoch: state.log_epoch.clone(),
            cursor: record.as_ref().map(|record| record.cursor),
            version: record.as_ref().and_then(load::version),
            registrations: loaded.registrations,
            is_complete: loaded.is_complete,
            is_as_pulled: loaded.is_as_pulled,
            session_name: engine.parts.ids.fresh(),
        };
        let now_ms = engine.parts.clock.now_ms();
        let mut is_stale = false;
        let latest = &mut state;
        engine.hub.work(&seat.room, |room| {
            // What is known at this moment: nobody can announce anything in between.
            if let Some(known) = engine.partitions.find(partition) {
                *latest = known;
            }
            let session = seat.session;
            let admitted = room.admit(session, admission, &latest.log_epoch, latest.head, now_ms);
            is_stale = admitted == Err(Stale);
            room.has_work()
        });
        if !is_stale {
            break;
        }
    }
    Ok(Session {
        engine: Arc::clone(engine),
        identity,
        client,
        seat,
        round: None,
    })
}

impl Session {
    /// The next message for the client. May be dropped and asked for again.
    pub async fn next(&mut self) -> Outgoing {
        poll_fn(|context| self.seat.mailbox.poll_next(context)).await
    }

    /// The next message for the client, if one waits.
    pub fn try_next(&mut self) -> Option<Outgoing> {
        self.seat.mailbox.try_next()
    }

    /// Takes a text message of the client. An error is malformed presence, which ends the
    /// connection.
    pub fn receive(&mut self, text: &str) -> Result<(), ControlError> {
        match ClientControl::parse(text)? {
            ClientControl::Ack { cursor } => {
                if let Some(seq) = CommitSeq::from_i64(cursor) {
                    self.ack(seq);
                }
            }
            ClientControl::Presence { scope_key, doc } => {
                let seat = &self.seat;
                let now_ms = seat.hub.now_ms();
                seat.hub.with_presence(&seat.room, |room| {
                    room.publish(seat.session, &scope_key, doc, now_ms);
                });
            }
            ClientControl::Unknown => {}
        }
        Ok(())
    }

    /// Lets the fan-out know at once, and the database with the next batch of activity (§8.2).
    fn ack(&self, seq: CommitSeq) {
        let seat = &self.seat;
        let now_ms = seat.hub.now_ms();
        let news = seat
            .hub
            .with(&seat.room, |room| room.ack(seat.session, seq, now_ms));
        let Some((epoch, seq)) = news else { return };
        let key = ClientKey {
            partition: self.identity.partition.clone(),
            client: self.client.clone(),
        };
        let activity = &self.engine.activity;
        activity.ack_client(key, epoch, &self.identity.actor, seq, now_ms);
    }

    /// Waits until the acknowledgments so far are written, and everything else that was gathered
    /// (§8.2). What fails stays gathered, and is written with the next attempt.
    pub async fn drain(&self) -> Result<(), StoreError> {
        self.engine.flush_activity().await
    }

    /// Answers a request that came over the connection, as [`Engine::round`] does (§8.7). The
    /// round is in flight from now on until [`Session::round_ended`].
    pub fn round(
        &mut self,
        request: Bytes,
    ) -> impl Future<Output = Result<RoundBody, RoundError>> + Send + use<> {
        let seat = &self.seat;
        seat.hub
            .with(&seat.room, |room| room.round_started(seat.session));
        let asker = Asker {
            client: self.client.clone(),
            session: seat.session,
            pulled: Arc::default(),
        };
        self.round = Some(asker.clone());
        let engine = Arc::clone(&self.engine);
        let identity = self.identity.clone();
        async move { round::answer(&engine, identity, request, Some(asker)).await }
    }

    /// The last bytes of the response, or of its refusal, were handed to the socket; nothing of
    /// what [`Session::next`] gives from now on comes before them.
    pub fn round_ended(&mut self) {
        let Some(asker) = self.round.take() else {
            return;
        };
        let pulled = asker.pulled.lock().take();
        let seat = &self.seat;
        let now_ms = seat.hub.now_ms();
        let after = seat.hub.with(&seat.room, |room| {
            room.round_ended(seat.session, pulled, now_ms)
        });
        if after == After::Reload {
            load::reload_sessions(&self.engine, &seat.room, &[seat.session]);
        }
    }

    /// The response that tells the client why its round failed before the first byte (§8.7).
    pub fn refusal(&self, version: WireVersion, error: &RoundError) -> Bytes {
        if let Some(asker) = &self.round {
            // Whatever it did, its client does not get to see it.
            *asker.pulled.lock() = None;
        }
        let state = self.engine.partitions.find(&self.identity.partition);
        let header = ResponseHeader {
            required_schema_version: None,
            latest_schema_version: None,
            log_epoch: state.map_or_else(Default::default, |state| state.log_epoch.as_str().into()),
            reset_required: false,
        };
        let mut out = BytesMut::new();
        begin_response(version, &mut out);
        for frame in [
            ResponseFrame::Header(header),
            ResponseFrame::Error(error.to_frame()),
        ] {
            put_response_frame(&frame, version, &mut out).expect("both frames are small");
        }
        put_end(&mut out);
        out.freeze()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The response of its last round may have been lost with the connection. Its client must
        // not be taken for one that has everything when it comes back.
        if let Some(doubt) = self.seat.leave() {
            let key = ClientKey {
                partition: self.identity.partition.clone(),
                client: self.client.clone(),
            };
            let activity = &self.engine.activity;
            activity.doubt_client(key, doubt.epoch, &self.identity.actor, doubt.confirmed);
        }
    }
}

/// A round has pulled and succeeded, and its client's record says so. The connection it came over
/// learns it when the response is out, other connections of the client now.
pub(crate) fn pulled(context: &RoundContext, outcome: PullOutcome) {
    let engine = &context.engine;
    let asker = context.asker.as_ref();
    let reached = outcome.complete.iter().map(|section| section.reached).min();
    let acknowledged_as = outcome.complete.iter().map(|section| section.next_cursor);
    let acknowledged_as = acknowledged_as.min().unwrap_or(context.head);
    let registrations: Vec<Registration> = outcome
        .complete
        .into_iter()
        .map(|section| Registration {
            id: section.id,
            table: section.table,
            schema_version: context.schema_version,
            effective: section.effective,
        })
        .collect();
    engine.hub.views.put(context.client_key(), &registrations);
    let Some(room) = engine.hub.find(&context.identity.partition) else {
        return;
    };
    let pulled = PulledRound {
        ticket: context.ticket,
        epoch: context.log_epoch.clone(),
        version: context.version,
        head: context.head,
        reached: reached.unwrap_or(context.head),
        acknowledged_as,
        registrations,
    };
    let hub = &engine.hub;
    let except = asker.map(|asker| asker.session);
    let recorded = hub.ticket();
    let reloads = hub.with(&room, |room| {
        let now_ms = hub.now_ms();
        room.pulled_elsewhere(&context.client, except, &pulled, recorded, now_ms)
    });
    if !reloads.is_empty() {
        load::reload_sessions(engine, &room, &reloads);
    }
    if let Some(asker) = asker {
        *asker.pulled.lock() = Some(pulled);
    }
}
