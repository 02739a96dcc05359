//! One request and its response, on any binding (§1.4, §1.7).
//!
//! The order of work is the protocol's and matters: the epoch before the schema, both before any
//! identity check, those before the resolver, and the resolver before anything is written. The
//! push half is finished before the first byte, so that what follows can be streamed.
//!
//! Whatever fails before the first byte fails the request. Once a push was answered, or bytes
//! have left, a failure travels inside the response as an ERROR frame.

mod body;
pub(crate) mod check;

use std::{borrow::Cow, sync::Arc};

use bytes::{Bytes, BytesMut};
use tidewater_model::{
    AllowedScopes, ClientId, CommitSeq, Cursor, ErrorCode, HorizonSeq, LogEpoch, ScopeFilter,
};
use tidewater_schema::{SchemaView, TableIndex};
use tidewater_store::{ClientKey, ClientRecord, FailureReport};
use tidewater_wire::{
    Request, RequestParts, ResponseFrame, ResponseHeader, RoundFailure, Subscription, WireVersion,
    begin_response, put_end, put_response_frame,
};

pub use self::body::RoundBody;
use crate::{
    Engine, Identity, ResolveError, ResolveRequest, RoundError,
    partition::PartitionState,
    pull::{PullOutcome, PullRun},
    push,
    realtime::{self, Asker, Ticket},
    scope,
};

/// What every part of a round needs to know.
pub(crate) struct RoundContext {
    pub(crate) engine: Arc<Engine>,
    pub(crate) identity: Identity,
    pub(crate) client: ClientId,
    pub(crate) version: WireVersion,
    /// The schema version the requester's rows are encoded for.
    pub(crate) schema_version: i32,
    /// The schema as the requester knows it.
    pub(crate) view: Arc<SchemaView>,
    pub(crate) log_epoch: LogEpoch,
    /// Read once, after the pushes.
    pub(crate) head: CommitSeq,
    pub(crate) horizon: HorizonSeq,
    pub(crate) now_ms: i64,
    /// Taken before the scopes were resolved.
    pub(crate) ticket: Ticket,
    /// The connection it came over, if it did.
    pub(crate) asker: Option<Asker>,
}

impl RoundContext {
    /// A stored row in the columns of the requester.
    pub(crate) fn shown<'a>(
        &self,
        table: TableIndex,
        payload: &'a [u8],
    ) -> Result<Cow<'a, [u8]>, RoundError> {
        self.view.project(table, payload).ok_or_else(|| {
            tracing::error!("a stored row does not decode under its own table");
            RoundError::new(ErrorCode::InternalError, "internal server error")
        })
    }

    pub(crate) fn client_key(&self) -> ClientKey {
        ClientKey {
            partition: self.identity.partition.clone(),
            client: self.client.clone(),
        }
    }
}

/// A subscription that passed the checks, with what it may see; `None` means revoked.
pub(crate) struct SectionPlan {
    pub(crate) subscription: Subscription,
    pub(crate) table: TableIndex,
    pub(crate) effective: Option<ScopeFilter>,
}

/// A response of one piece goes out with its length; larger ones are streamed in such pieces.
const CHUNK_BYTES_TARGET: usize = 64 * 1024;

/// Answers a request.
pub(crate) async fn answer(
    engine: &Arc<Engine>,
    identity: Identity,
    bytes: Bytes,
    asker: Option<Asker>,
) -> Result<RoundBody, RoundError> {
    let request = Request::decode(&bytes)?.into_parts();
    let version = request.version;
    let mut state = engine.partitions.touch(engine, &identity.partition).await?;
    if check::knows_more(&request, &state) {
        // Another node has told it, and has not told us yet; or it is from another timeline.
        let partition = &identity.partition;
        state = engine.partitions.look_again(engine, partition).await?;
    }
    let reset = check::epoch(&request, &state)?;
    let view = engine.schema().view(request.header.schema_version);
    let Some(view) = view.cloned() else {
        return header_only(engine, version, &state, true, reset);
    };
    if reset {
        return header_only(engine, version, &state, false, true);
    }

    let client = ClientId::new(request.header.client_id.as_ref());
    // Of the binding's span, which began before anybody knew.
    tracing::Span::current().record("client_id", client.as_str());
    if asker.as_ref().is_some_and(|asker| asker.client != client) {
        return Err(RoundError::new(
            ErrorCode::InvalidClientId,
            "the connection is of another client",
        ));
    }
    let key = ClientKey {
        partition: identity.partition.clone(),
        client: client.clone(),
    };
    let record = engine
        .activity
        .find_client(engine.store().as_ref(), &key)
        .await?;
    check::client(&identity, &client, record.as_ref())?;
    check::operations(
        &request.commits,
        engine.parts.config.operations_per_request_max,
    )?;
    if let Some(pull) = &request.pull {
        check::pull(&view, pull)?;
    }
    let ticket = engine.hub.ticket();
    let allowed = resolve(engine, &identity, &client).await?;

    let context = RoundContext {
        engine: Arc::clone(engine),
        identity,
        client,
        version,
        schema_version: request.header.schema_version,
        view,
        log_epoch: state.log_epoch,
        head: state.head,
        horizon: state.horizon,
        now_ms: engine.parts.clock.now_ms(),
        ticket,
        asker,
    };
    Box::pin(serve(context, request, record, allowed)).await
}

/// Pushes, then pulls.
async fn serve(
    mut context: RoundContext,
    request: RequestParts,
    record: Option<ClientRecord>,
    allowed: Option<Arc<AllowedScopes>>,
) -> Result<RoundBody, RoundError> {
    let mut out = BytesMut::new();
    begin_response(context.version, &mut out);
    let header = ResponseHeader {
        required_schema_version: None,
        latest_schema_version: Some(context.engine.schema().version()),
        log_epoch: context.log_epoch.as_str().into(),
        reset_required: false,
    };
    put(&ResponseFrame::Header(header), context.version, &mut out)?;

    let pushed = !request.commits.is_empty();
    if pushed {
        let is_bound = record.is_some() && context.engine.activity.is_bound(&context.client_key());
        let answers = push::push(&context, request.commits, allowed.clone(), is_bound).await?;
        for answer in answers {
            put(
                &ResponseFrame::PushResult(answer.result),
                context.version,
                &mut out,
            )?;
            if let Some(details) = answer.details {
                let frame = ResponseFrame::PushResultDetails(details);
                put(&frame, context.version, &mut out)?;
            }
        }
    }
    if let Some(state) = context.engine.partitions.find(&context.identity.partition) {
        context.head = context.head.max(state.head);
        context.horizon = context.horizon.max(state.horizon);
    }

    let context = Arc::new(context);
    let pull = match request.pull {
        Some(pull) => {
            let plans = plan_sections(&context, pull.subscriptions, allowed.as_deref())?;
            Some(PullRun::new(Arc::clone(&context), pull.header, plans))
        }
        None => None,
    };
    let finish = Finish {
        context,
        record,
        failure: request.round_failure,
    };
    body::start(out, pull, finish, pushed).await
}

fn plan_sections(
    context: &RoundContext,
    subscriptions: Vec<Subscription>,
    allowed: Option<&AllowedScopes>,
) -> Result<Vec<SectionPlan>, RoundError> {
    let view = &context.view;
    subscriptions
        .into_iter()
        .map(|subscription| {
            let (table, _) = check::known_table(view, &subscription.table)?;
            let effective =
                allowed.and_then(|allowed| scope::effective(&subscription.scopes, allowed));
            Ok(SectionPlan {
                subscription,
                table,
                effective,
            })
        })
        .collect()
}

/// Asks the host what the actor may see; `None` when the resolver failed: everything is then
/// revoked and forbidden. A timeout or an outage fails the round instead, because a client that
/// is told "revoked" deletes its rows (OQ-36).
async fn resolve(
    engine: &Engine,
    identity: &Identity,
    client: &ClientId,
) -> Result<Option<Arc<AllowedScopes>>, RoundError> {
    let request = ResolveRequest {
        identity,
        client_id: Some(client.as_str()),
    };
    let answer = engine.parts.resolver.resolve(request);
    match tokio::time::timeout(engine.parts.config.resolver_timeout, answer).await {
        Ok(Ok(allowed)) => {
            scope::check_allowed(engine.schema(), &allowed)?;
            Ok(Some(Arc::new(allowed)))
        }
        Ok(Err(ResolveError::Failed(cause))) => {
            tracing::warn!(partition = %identity.partition, cause, "scope resolver failed");
            Ok(None)
        }
        // Without leases there is nothing that could stand in for the resolver (§7.3).
        Ok(Err(ResolveError::Outage(cause))) => {
            tracing::warn!(partition = %identity.partition, cause, "scope resolver is out");
            Err(RoundError::new(
                ErrorCode::AuthLeaseRequired,
                "authorization is not available",
            ))
        }
        Ok(Err(ResolveError::Code(code))) => {
            Err(RoundError::new(code, "the host refused the request"))
        }
        Err(elapsed) => Err(RoundError::internal(&elapsed, "resolve scopes")),
    }
}

/// The floor response and the reset response: a header and nothing else (§1.6, §2.1).
fn header_only(
    engine: &Engine,
    version: WireVersion,
    state: &PartitionState,
    floor: bool,
    reset: bool,
) -> Result<RoundBody, RoundError> {
    let schema = engine.schema();
    let header = ResponseHeader {
        required_schema_version: floor.then_some(schema.oldest_version()),
        latest_schema_version: Some(schema.version()),
        log_epoch: state.log_epoch.as_str().into(),
        reset_required: reset,
    };
    let mut out = BytesMut::new();
    begin_response(version, &mut out);
    put(&ResponseFrame::Header(header), version, &mut out)?;
    put_end(&mut out);
    Ok(RoundBody::whole(out.freeze()))
}

/// Writes a frame. Only a frame over 4 GiB fails, and bounds keep frames far below that.
fn put(frame: &ResponseFrame, version: WireVersion, out: &mut BytesMut) -> Result<(), RoundError> {
    put_response_frame(frame, version, out)
        .map_err(|error| RoundError::internal(&error, "encode a frame"))
}

/// What remains to be done when a round has ended well.
pub(crate) struct Finish {
    context: Arc<RoundContext>,
    record: Option<ClientRecord>,
    failure: Option<RoundFailure>,
}

impl Finish {
    fn version(&self) -> WireVersion {
        self.context.version
    }

    /// Replaces the client's record (§4.5). This is the only way its cursor may go down.
    async fn record(self, mut outcome: Option<PullOutcome>) -> Result<(), RoundError> {
        let context = &self.context;
        let previous = self.record.as_ref();
        let previous_cursor = previous.map_or(Cursor::Never, |record| record.cursor);
        let failure = match (&self.failure, previous) {
            (Some(report), Some(previous)) => Some(FailureReport {
                code: report.code.to_string(),
                at_ms: context.now_ms,
                streak: previous
                    .failure
                    .as_ref()
                    .map_or(0, |failure| failure.streak)
                    + 1,
            }),
            _ => None,
        };
        let is_new = self.record.is_none();
        let (cursor, subscriptions) = match &mut outcome {
            Some(outcome) => (
                outcome.cursor.map_or(previous_cursor, Cursor::At),
                std::mem::take(&mut outcome.subscriptions),
            ),
            None => (
                previous_cursor,
                self.record
                    .map(|record| record.subscriptions)
                    .unwrap_or_default(),
            ),
        };
        let record = ClientRecord {
            actor: context.identity.actor.clone(),
            cursor,
            subscriptions,
            wire_version: i32::from(context.version.number()),
            updated_at_ms: context.now_ms,
            failure,
        };
        let engine = &context.engine;
        let must_write = engine.activity.put_client(
            context.client_key(),
            context.log_epoch.clone(),
            record,
            is_new,
        );
        if must_write {
            engine.flush_activity().await?;
        }
        if let Some(outcome) = outcome {
            realtime::pulled(context, outcome);
        }
        Ok(())
    }
}
