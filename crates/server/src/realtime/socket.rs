//! One socket, from the upgrade to its end: a task that owns everything about it.
//!
//! Whatever can happen is waited for at once: bytes to write and to read, the hub's mailbox, the
//! next chunk of a response, the next deadline. What is put into the outbox is taken from the
//! mailbox or the response only while there is room, so a peer that does not read fills neither:
//! its deltas turn into one wake-up in the hub, and it is cut off when it stays stuck.
//!
//! **Invariant:** the future holds no buffer. Bytes are read into the stack and taken apart
//! there.

use std::{
    future::poll_fn,
    io,
    mem::MaybeUninit,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use tidewater_engine::{CloseReason, Identity, Outgoing, RoundError, Session};
use tidewater_model::{ClientId, ErrorCode};
use tidewater_wire::{
    WireVersion,
    control::{DELTA_TAG, ROUND_TAG, ServerControl},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    time::Sleep,
};
use tracing::Instrument as _;
use tungstenite::protocol::frame::coding::CloseCode;

use super::{
    deadlines::{Deadlines, Due},
    inbound::{Inbound, Incoming, Violation, policy},
    outbox::Outbox,
    round::{Chunk, Round, Stop},
    seats::Seat,
};
use crate::{Server, error::rounds_overloaded, round_log::RoundLog, state::Stage};

/// A socket that was agreed upon.
pub(crate) struct Socket<S> {
    pub(super) server: Arc<Server>,
    pub(super) stream: S,
    pub(super) session: Session,
    pub(super) identity: Identity,
    pub(super) client: ClientId,
    pub(super) seat: Seat,
}

/// The socket at work.
struct Running {
    server: Arc<Server>,
    /// Gone when the goodbye was said.
    session: Option<Session>,
    identity: Identity,
    client: ClientId,
    inbound: Inbound,
    outbox: Outbox,
    incoming: Vec<Incoming>,
    /// The answer to the last ping: the one that counts.
    pong: Option<Bytes>,
    round: Option<Box<Round>>,
    deadlines: Deadlines,
    /// What the server is known to be at.
    stage: Stage,
    /// The socket ends when the round in flight has.
    leaving: Option<Goodbye>,
    /// Nothing more is said.
    is_closing: bool,
    /// The peer has said goodbye, too.
    peer_left: bool,
}

/// A reason to close.
type Goodbye = Violation;

/// What happened.
enum Event {
    /// Bytes were written, read or both.
    Moved {
        written: usize,
        read: usize,
    },
    /// The peer is gone.
    Gone(io::Error),
    /// The peer broke a rule.
    Broken(Violation),
    Mail(Outgoing),
    Chunk(Result<Chunk, Stop>),
    Time,
    Stage(Stage),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    /// Serves the socket to its end.
    pub(super) async fn run(self) {
        let Self {
            server,
            mut stream,
            session,
            identity,
            client,
            seat,
        } = self;
        let stages = server.stages();
        let mut running = Running::new(server, session, identity, client);
        running.drive(&mut stream, stages).await;
        drop(running);
        drop(seat);
    }
}

impl Running {
    fn new(server: Arc<Server>, session: Session, identity: Identity, client: ClientId) -> Self {
        let inbound = Inbound::new(
            server.config.request_bytes_max,
            Arc::clone(&server.buffered_bytes),
        );
        let deadlines = Deadlines::new(
            &server.config.realtime,
            server.config.body_timeout,
            identity.expires_at_ms,
            server.engine.clock().now_ms(),
        );
        Self {
            server,
            session: Some(session),
            identity,
            client,
            inbound,
            outbox: Outbox::default(),
            incoming: Vec::new(),
            pong: None,
            round: None,
            deadlines,
            stage: Stage::Serving,
            leaving: None,
            is_closing: false,
            peer_left: false,
        }
    }

    async fn drive<S>(&mut self, stream: &mut S, mut stages: watch::Receiver<Stage>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut timer = pin!(tokio::time::sleep_until(self.deadlines.next()));
        loop {
            let event = self.next(stream, &mut stages, timer.as_mut()).await;
            let ended = self.handle(event);
            if ended || (self.is_closing && self.outbox.is_empty() && self.peer_left) {
                return;
            }
            let due = self.deadlines.next();
            // Moving a timer is not free, so it is moved only to come earlier.
            if due < timer.deadline() || timer.is_elapsed() {
                timer.as_mut().reset(due);
            }
        }
    }

    /// Waits for whatever comes first.
    async fn next<S>(
        &mut self,
        stream: &mut S,
        stages: &mut watch::Receiver<Stage>,
        timer: Pin<&mut Sleep>,
    ) -> Event
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let has_room = self.outbox.has_room();
        let stage_seen = self.stage;
        let (inbound, outbox, incoming) = (&mut self.inbound, &mut self.outbox, &mut self.incoming);
        let may_read = !self.peer_left;
        let moved = poll_fn(|context| {
            poll_stream(
                stream,
                outbox,
                may_read.then_some(&mut *inbound),
                incoming,
                context,
            )
        });
        let mail = async {
            match &mut self.session {
                Some(session) => session.next().await,
                None => std::future::pending().await,
            }
        };
        let chunk = async {
            match &mut self.round {
                Some(round) => round.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = moved => event,
            chunk = chunk, if has_room => Event::Chunk(chunk),
            mail = mail, if has_room => Event::Mail(mail),
            stage = stages.wait_for(|stage| *stage > stage_seen) => Event::Stage(stage.map_or(Stage::Ended, |stage| *stage)),
            () = timer => Event::Time,
        }
    }

    /// Says whether this was the end.
    fn handle(&mut self, event: Event) -> bool {
        match event {
            Event::Moved { written, read } => {
                self.deadlines.written(written, self.outbox.is_empty());
                if read > 0 {
                    self.deadlines.read(read, self.inbound.is_waiting());
                }
                self.take_incoming();
            }
            Event::Gone(error) => {
                tracing::debug!(client_id = %self.client, %error, "socket ended");
                return true;
            }
            Event::Broken(violation) => {
                // What came before it counts.
                self.take_incoming();
                tracing::debug!(client_id = %self.client, reason = violation.reason, "violation");
                self.close(violation);
            }
            Event::Mail(mail) => {
                self.take_mail(mail);
                self.take_more_mail();
            }
            Event::Chunk(chunk) => self.take_chunk(chunk),
            Event::Stage(stage) => {
                self.stage = stage;
                match stage {
                    Stage::Serving => {}
                    Stage::Draining => self.drain(),
                    Stage::Ended => return true,
                }
            }
            Event::Time => return self.take_time(),
        }
        if self.outbox.has_room()
            && let Some(pong) = self.pong.take()
        {
            self.outbox.push_pong(pong);
        }
        if !self.outbox.is_empty() {
            self.deadlines.waiting();
        }
        false
    }

    fn drain(&mut self) {
        let spread = self.server.config.realtime.drain_spread;
        self.deadlines.drain(self.server.realtime.sockets(), spread);
    }

    fn take_mail(&mut self, mail: Outgoing) {
        match mail {
            Outgoing::Text(text) => self.outbox.push_text(text),
            Outgoing::Delta(delta) => self.outbox.push_tagged(DELTA_TAG, delta),
            Outgoing::Close(reason) => self.close(goodbye(reason)),
        }
    }

    /// What waits behind it goes out with the same write.
    fn take_more_mail(&mut self) {
        while self.outbox.has_room() {
            let more = self.session.as_mut().and_then(Session::try_next);
            let Some(mail) = more else { return };
            self.take_mail(mail);
        }
    }

    fn take_incoming(&mut self) {
        for incoming in std::mem::take(&mut self.incoming) {
            match incoming {
                Incoming::Close => {
                    self.peer_left = true;
                    self.close(Goodbye {
                        code: CloseCode::Normal,
                        reason: "",
                    });
                }
                _ if self.is_closing => {}
                Incoming::Ping(payload) => self.pong = Some(payload),
                Incoming::Text(text) => {
                    let session = self.session.as_mut();
                    if session.is_some_and(|session| session.receive(&text).is_err()) {
                        self.close(policy("the control message is malformed"));
                    }
                }
                Incoming::Request(request) => self.begin_round(request),
            }
        }
    }

    fn begin_round(&mut self, request: Bytes) {
        let Some(session) = &mut self.session else {
            return;
        };
        let version = request_version(&request);
        let held = (self.server.rounds.take(1), self.inbound.take_share());
        let log = RoundLog::begin(&self.identity.partition, request.len());
        let is_overloaded = held.0.is_none();
        let asked = session.round(request);
        let asked: futures_util::future::BoxFuture<'static, _> = match &log {
            _ if is_overloaded => Box::pin(std::future::ready(Err(rounds_overloaded()))),
            Some(log) => Box::pin(asked.instrument(log.span().clone())),
            None => Box::pin(asked),
        };
        self.round = Some(Box::new(Round::begin(asked, version, log, held)));
        self.deadlines.round_begun();
    }
}

impl Running {
    fn take_chunk(&mut self, chunk: Result<Chunk, Stop>) {
        match chunk {
            Ok(Chunk { bytes, is_last }) => {
                if !bytes.is_empty() {
                    self.outbox.push_tagged(ROUND_TAG, bytes);
                    self.deadlines.round_moved();
                }
                if is_last {
                    self.end_round();
                }
            }
            Err(Stop::Refused(error)) => self.refuse_round(&error),
            Err(Stop::Panicked) => {
                tracing::error!(client_id = %self.client, "a round panicked");
                let is_unanswered = self
                    .round
                    .as_ref()
                    .is_some_and(|round| round.is_unanswered());
                if is_unanswered {
                    self.refuse_round(&RoundError::new(
                        ErrorCode::InternalError,
                        "internal server error",
                    ));
                } else {
                    self.close(goodbye(CloseReason::Internal));
                }
            }
        }
    }

    /// Answers a round with its failure and nothing else; the connection goes on.
    fn refuse_round(&mut self, error: &RoundError) {
        if let (Some(session), Some(round)) = (&self.session, &self.round) {
            let answer = session.refusal(round.version(), error);
            self.outbox.push_tagged(ROUND_TAG, answer);
        }
        self.end_round();
    }

    fn end_round(&mut self) {
        self.round = None;
        self.inbound.round_ended();
        if let Some(session) = &mut self.session {
            session.round_ended();
        }
        self.deadlines.round_ended();
        if let Some(goodbye) = self.leaving.take() {
            self.close(goodbye);
        }
    }

    /// Says whether this was the end.
    fn take_time(&mut self) -> bool {
        let now_ms = self.server.engine.clock().now_ms();
        let Some(due) = self.deadlines.due(now_ms) else {
            return false;
        };
        match due {
            Due::Heartbeat => self.beat(now_ms),
            // A chunk of nothing: the client's patience is with rounds that bring something.
            Due::RoundSilent => self.outbox.push_tagged(ROUND_TAG, Bytes::new()),
            Due::Expired => self.close(goodbye(CloseReason::CredentialsExpired)),
            Due::Aged => self.leave(Goodbye {
                code: CloseCode::Away,
                reason: "show your credentials again",
            }),
            Due::Drained => self.leave(Goodbye {
                code: CloseCode::Away,
                reason: "the server is going away",
            }),
            Due::Unfinished => self.close(policy("the message did not arrive in time")),
            Due::Dead | Due::Stuck | Due::Closed => {
                self.server.realtime.count(due);
                tracing::debug!(client_id = %self.client, ?due, "socket cut off");
                return true;
            }
        }
        false
    }

    fn beat(&mut self, timestamp: i64) {
        // Somebody who has not read the last one needs no other.
        if self.is_closing || !self.outbox.is_empty() {
            return;
        }
        let text = ServerControl::Heartbeat { timestamp }.to_text();
        self.outbox.push_text(text.into());
        self.outbox.push_ping();
    }

    /// Closes as soon as the round in flight is answered.
    fn leave(&mut self, goodbye: Goodbye) {
        if self.round.is_some() {
            self.leaving = Some(goodbye);
        } else {
            self.close(goodbye);
        }
    }

    /// Says goodbye, once. Nothing of the hub comes after it.
    fn close(&mut self, goodbye: Goodbye) {
        if self.is_closing {
            return;
        }
        self.is_closing = true;
        self.session = None;
        self.round = None;
        self.outbox.push_close(goodbye.code, goodbye.reason);
        self.deadlines.closing();
    }
}

/// Moves what can be moved; ready as soon as anything was.
fn poll_stream<S>(
    stream: &mut S,
    outbox: &mut Outbox,
    inbound: Option<&mut Inbound>,
    incoming: &mut Vec<Incoming>,
    context: &mut Context<'_>,
) -> Poll<Event>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut written = 0;
    while !outbox.is_empty() {
        match outbox.poll_write(Pin::new(&mut *stream), context) {
            Poll::Ready(Ok(taken)) => written += taken,
            Poll::Ready(Err(error)) => return Poll::Ready(Event::Gone(error)),
            Poll::Pending => break,
        }
    }
    if written > 0 && outbox.is_empty() {
        // Nothing is kept below that would have to be waited for.
        if let Poll::Ready(Err(error)) = Pin::new(&mut *stream).poll_flush(context) {
            return Poll::Ready(Event::Gone(error));
        }
    }
    let mut read = 0;
    if let Some(inbound) = inbound {
        let mut scratch = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut scratch);
        match Pin::new(stream).poll_read(context, &mut buffer) {
            Poll::Ready(Ok(())) => {
                read = buffer.filled().len();
                if read == 0 {
                    return Poll::Ready(Event::Gone(io::ErrorKind::UnexpectedEof.into()));
                }
                if let Err(violation) = inbound.push(buffer.filled_mut(), incoming) {
                    return Poll::Ready(Event::Broken(violation));
                }
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Event::Gone(error)),
            Poll::Pending => {}
        }
    }
    if written == 0 && read == 0 {
        return Poll::Pending;
    }
    Poll::Ready(Event::Moved { written, read })
}

/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;

/// The close frame for a reason of the hub's.
fn goodbye(reason: CloseReason) -> Goodbye {
    Goodbye {
        code: CloseCode::from(reason.code()),
        reason: reason.as_str(),
    }
}

/// The version that a request has in its envelope, which was checked when it was put together.
fn request_version(request: &[u8]) -> WireVersion {
    let number = request
        .get(VERSION_BYTES)
        .and_then(|bytes| bytes.try_into().ok());
    number
        .and_then(|number| WireVersion::from_number(u16::from_le_bytes(number)))
        .unwrap_or(WireVersion::V3)
}

/// Where an envelope says its version.
const VERSION_BYTES: std::ops::Range<usize> = 4..6;
