//! The realtime channel: `GET /realtime`, and what browsers need to get there (§8).
//!
//! Everything that can refuse a client happens before the upgrade and is an HTTP answer like any
//! other, the hub's part included: when the upgrade is agreed to, the session exists and nothing
//! that is committed from then on is missed. Whatever the client sends at once waits in the
//! connection until the socket's task reads it, so nothing is lost in between either.
//!
//! What the sockets say and hear is the hub's business, in the engine.

mod deadlines;
mod handshake;
mod inbound;
mod outbox;
mod round;
mod seats;
mod socket;
mod tickets;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
    routing::{get, post},
};
use http::{HeaderValue, StatusCode, header, request::Parts};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tidewater_engine::Identity;
use tidewater_model::ErrorCode;
use tokio_util::task::TaskTracker;

use self::{
    deadlines::Due,
    handshake::{Handshake, carry_token, check_origin},
    seats::Seats,
    socket::Socket,
    tickets::Tickets,
};
use crate::{
    RealtimeConfig, Server,
    error::ApiError,
    reply,
    router::{guard, only},
};

/// What the sockets of one server share.
#[derive(Debug)]
pub(crate) struct Realtime {
    seats: Arc<Seats>,
    tickets: Tickets,
    tasks: TaskTracker,
    stuck: AtomicU64,
    dead: AtomicU64,
}

impl Realtime {
    /// No socket yet.
    pub(crate) fn new(config: &RealtimeConfig) -> Self {
        Self {
            seats: Seats::new(config),
            tickets: Tickets::default(),
            tasks: TaskTracker::new(),
            stuck: AtomicU64::new(0),
            dead: AtomicU64::new(0),
        }
    }

    /// Sockets open.
    pub(crate) fn sockets(&self) -> usize {
        self.seats.used()
    }

    /// Sockets whose peer did not read, and sockets whose peer was gone, up to now.
    pub(crate) fn cut(&self) -> (u64, u64) {
        (
            self.stuck.load(Ordering::Relaxed),
            self.dead.load(Ordering::Relaxed),
        )
    }

    /// Ends when every socket has.
    pub(crate) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn count(&self, due: Due) {
        match due {
            Due::Stuck => self.stuck.fetch_add(1, Ordering::Relaxed),
            Due::Dead => self.dead.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

/// Adds the channel's routes.
pub(crate) fn add_routes(router: Router<Arc<Server>>) -> Router<Arc<Server>> {
    router
        .route("/realtime", only(get(upgrade), "GET"))
        .route("/realtime/ticket", only(post(ticket), "POST"))
}

/// `GET /realtime?clientId=…`
async fn upgrade(State(server): State<Arc<Server>>, request: Request) -> Response {
    guard(async move {
        let (mut parts, _) = request.into_parts();
        let handshake = Handshake::read(&parts)?;
        check_origin(&parts.headers, &server.config.allowed_origins)?;
        if server.is_draining() {
            return Err(full());
        }
        let identity = identify(&server, &mut parts, handshake.ticket.as_deref()).await?;
        let seats = &server.realtime.seats;
        let seat = seats.take(&identity, &handshake.client).ok_or_else(full)?;
        let session = server
            .engine
            .connect(identity.clone(), handshake.client.clone())
            .await?;
        let upgraded = parts
            .extensions
            .remove::<hyper::upgrade::OnUpgrade>()
            .ok_or_else(|| ApiError::unreadable("this connection cannot be upgraded"))?;
        let response = agree(handshake.accept, handshake.subprotocol);
        let held = Arc::clone(&server);
        let client = handshake.client;
        server.realtime.tasks.spawn(async move {
            match upgraded.await {
                Ok(stream) => {
                    let socket = Socket {
                        server: held,
                        stream: TokioIo::new(stream),
                        session,
                        identity,
                        client,
                        seat,
                    };
                    socket.run().await;
                }
                Err(error) => tracing::debug!(%client, %error, "the upgrade was not finished"),
            }
        });
        Ok(response)
    })
    .await
}

/// Whom the socket is for: a ticket's owner, or whoever authentication says.
async fn identify(
    server: &Server,
    parts: &mut Parts,
    ticket: Option<&str>,
) -> Result<Identity, ApiError> {
    if let Some(ticket) = ticket {
        let now_ms = server.engine.clock().now_ms();
        let identity = server.realtime.tickets.redeem(ticket, now_ms);
        return identity.ok_or_else(ApiError::auth_required);
    }
    let cookie = server.config.realtime.token_cookie.as_deref();
    carry_token(&mut parts.headers, cookie);
    server.identify(parts).await
}

fn agree(accept: HeaderValue, subprotocol: Option<HeaderValue>) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(subprotocol) = subprotocol {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, subprotocol);
    }
    response
}

/// One of the limits on sockets is reached.
fn full() -> ApiError {
    ApiError::limit(
        ErrorCode::WebsocketConnectionLimit,
        "there are too many sockets",
    )
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TicketBody<'a> {
    ticket: &'a str,
    expires_at_ms: i64,
}

/// `POST /realtime/ticket`
async fn ticket(State(server): State<Arc<Server>>, request: Request) -> Response {
    guard(async move {
        let (mut parts, _) = request.into_parts();
        check_origin(&parts.headers, &server.config.allowed_origins)?;
        let config = &server.config.realtime;
        let identity = identify(&server, &mut parts, None).await?;
        let now_ms = server.engine.clock().now_ms();
        let lifetime_ms = i64::try_from(config.ticket_lifetime.as_millis()).unwrap_or(i64::MAX);
        let expires_at_ms = identity
            .expires_at_ms
            .unwrap_or(i64::MAX)
            .min(now_ms.saturating_add(lifetime_ms));
        let name = tickets::fresh_name().map_err(|error| {
            tracing::error!(%error, "the system has no randomness");
            ApiError::internal()
        })?;
        let tickets = &server.realtime.tickets;
        if !tickets.issue(&name, identity, now_ms, expires_at_ms) {
            return Err(ApiError::overloaded("there are too many tickets"));
        }
        Ok(reply::json(&TicketBody {
            ticket: &name,
            expires_at_ms,
        }))
    })
    .await
}
