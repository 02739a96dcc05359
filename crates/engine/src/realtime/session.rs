//! The handle a socket holds: what comes out of the hub for it, what its client says, its rounds.
//!
//! **Invariant:** the connection is part of its partition's fan-out from before its client's
//! record was read until the handle is dropped.

use std::{future::poll_fn, sync::Arc};

use bytes::{Bytes, BytesMut};
use tidewater_model::{ClientId, CommitSeq, Cursor};
use tidewater_store::ClientKey;
use tidewater_wire::{
    ResponseFrame, ResponseHeader, WireVersion, begin_response,
    control::{ClientControl, ControlError, Hello, ServerControl},
    put_end, put_response_frame,
};

use super::{
    Outgoing,
    mailbox::{Gauges, Mailbox},
};
use crate::{Engine, Identity, RoundBody, RoundError, round};

/// One connection of a client. Dropping it disconnects.
pub struct Session {
    engine: Arc<Engine>,
    identity: Identity,
    client: ClientId,
    mailbox: Arc<Mailbox>,
}

/// Lets a client in (§8.1). Its first message is the hello.
pub(crate) async fn connect(
    engine: &Arc<Engine>,
    identity: Identity,
    client: ClientId,
) -> Result<Session, RoundError> {
    let state = engine.partitions.touch(engine, &identity.partition).await?;
    let key = ClientKey {
        partition: identity.partition.clone(),
        client: client.clone(),
    };
    let store = engine.store().as_ref();
    let record = engine.activity.find_client(store, &key).await?;
    round::check::client(&identity, &client, record.as_ref())?;
    let config = &engine.parts.config.hub;
    let mailbox = Arc::new(Mailbox::new(
        Arc::new(Gauges::default()),
        config.mailbox_bytes_max,
        config.queued_bytes_max,
    ));
    let cursor = record
        .as_ref()
        .map_or(Cursor::Never, |record| record.cursor);
    let hello = Hello {
        session_id: engine.parts.ids.fresh().into(),
        actor_id: identity.actor.as_str().into(),
        client_id: client.as_str().into(),
        cursor: cursor.to_i64(),
        latest_cursor: state.head.to_i64(),
        requires_sync: record.is_none() || cursor < Cursor::At(state.head),
        timestamp: engine.parts.clock.now_ms(),
    };
    let _ = mailbox.post_text(ServerControl::Hello(hello).to_text().into());
    Ok(Session {
        engine: Arc::clone(engine),
        identity,
        client,
        mailbox,
    })
}

impl Session {
    /// The next message for the client. May be dropped and asked for again.
    pub async fn next(&mut self) -> Outgoing {
        poll_fn(|context| self.mailbox.poll_next(context)).await
    }

    /// Takes a text message of the client. An error is malformed presence, which ends the
    /// connection.
    pub fn receive(&mut self, text: &str) -> Result<(), ControlError> {
        match ClientControl::parse(text)? {
            ClientControl::Ack { cursor } => self.ack(CommitSeq::from_i64(cursor)),
            ClientControl::Presence { .. } | ClientControl::Unknown => {}
        }
        Ok(())
    }

    fn ack(&mut self, _cursor: Option<CommitSeq>) {}

    /// Answers a request that came over the connection, as [`Engine::round`] does (§8.7). The
    /// round is in flight from now on until [`Session::round_ended`].
    pub fn round(
        &mut self,
        request: Bytes,
    ) -> impl Future<Output = Result<RoundBody, RoundError>> + Send + use<> {
        let engine = Arc::clone(&self.engine);
        let identity = self.identity.clone();
        async move { engine.round(identity, request).await }
    }

    /// The last bytes of the response, or of its refusal, were handed to the socket; nothing of
    /// what [`Session::next`] gives from now on comes before them.
    pub fn round_ended(&mut self) {}

    /// The response that tells the client why its round failed before the first byte (§8.7).
    pub fn refusal(&self, version: WireVersion, error: &RoundError) -> Bytes {
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
