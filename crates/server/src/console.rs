//! A page that shows what happens on a server: partitions, devices, commits as they land.
//!
//! For a first look and for development. It shows row values, so it is off unless it is built
//! into a server, and then open either to whoever has the admin token or, for a quickstart, to
//! this machine only. The page itself holds no data and is served to anybody.
//!
//! **Invariant:** it only reads, and everything it holds is bounded: commits remembered, watchers,
//! bytes of a commit shown.

mod describe;
mod feed;
mod overview;

use std::{fmt, net::IpAddr, sync::Arc};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::request::Parts,
    response::Response,
    routing::get,
};
use http::{HeaderName, HeaderValue, header};
use tidewater_engine::Engine;

use self::feed::Feed;
use crate::{
    RequestHead, Secret, Server,
    auth::{bearer_token, digest},
    error::ApiError,
    reply,
    router::{guard, only},
    state::peer,
};

/// Who may see the console's data.
#[derive(Clone, Debug)]
pub enum ConsoleAccess {
    /// Whoever sends this token as `Authorization: Bearer`.
    Token(Secret),
    /// Browsers on this machine. For servers that listen on a loopback address.
    Loopback,
}

/// The console of one server.
pub struct Console {
    engine: Arc<Engine>,
    access: ConsoleAccess,
    feed: Feed,
}

impl Console {
    /// A console with nothing to show yet.
    pub fn new(engine: Arc<Engine>, access: ConsoleAccess) -> Arc<Self> {
        Arc::new(Self {
            engine,
            access,
            feed: Feed::new(),
        })
    }

    /// Follows the commits of the engine, for as long as it is polled.
    pub async fn follow(self: Arc<Self>) {
        self.feed.follow(&self.engine).await;
    }

    fn admits(&self, parts: &Parts) -> bool {
        match &self.access {
            ConsoleAccess::Token(token) => {
                let head = RequestHead {
                    method: &parts.method,
                    uri: &parts.uri,
                    headers: &parts.headers,
                    peer: None,
                };
                let sent = bearer_token(&head);
                !token.is_empty() && sent.is_some_and(|sent| digest(sent) == digest(token.expose()))
            }
            ConsoleAccess::Loopback => {
                let here = peer(parts).is_some_and(|peer| peer.ip().to_canonical().is_loopback());
                // A page of another site can make its own name mean this machine, but it cannot
                // make the browser send ours.
                here && parts.headers.get(header::HOST).is_some_and(names_loopback)
            }
        }
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Console")
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

fn names_loopback(host: &HeaderValue) -> bool {
    let Some(host) = host
        .to_str()
        .ok()
        .and_then(|text| text.parse::<http::uri::Authority>().ok())
    else {
        return false;
    };
    let name = host.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Adds the console's routes.
pub(crate) fn add_routes(router: Router<Arc<Server>>) -> Router<Arc<Server>> {
    router
        .route("/console", only(get(page), "GET, HEAD"))
        .route("/console/", only(get(page), "GET, HEAD"))
        .route("/console/state", only(get(state), "GET, HEAD"))
        .route("/console/events", only(get(events), "GET"))
}

/// `GET /console/`
async fn page() -> Response {
    let mut response = Response::new(Body::from(PAGE));
    let headers = response.headers_mut();
    for (name, value) in PAGE_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// `GET /console/state`
async fn state(State(server): State<Arc<Server>>, request: Request) -> Response {
    guard(async move {
        admitted(&server, request)?;
        let overview = overview::read(&server).await.map_err(|error| {
            tracing::error!(%error, "the console could not read its overview");
            ApiError::internal()
        })?;
        Ok(reply::json(&overview))
    })
    .await
}

/// `GET /console/events`
async fn events(State(server): State<Arc<Server>>, request: Request) -> Response {
    guard(async move {
        let console = admitted(&server, request)?;
        let watcher = console.feed.watch(server.engine().schema());
        let watcher =
            watcher.ok_or_else(|| ApiError::overloaded("the console has no room left"))?;
        let mut response = Response::new(watcher.into_body(server.drain_begun()));
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // A proxy that buffers would hold events back.
        headers.insert(
            HeaderName::from_static("x-accel-buffering"),
            HeaderValue::from_static("no"),
        );
        Ok(response)
    })
    .await
}

fn admitted(server: &Server, request: Request) -> Result<Arc<Console>, ApiError> {
    let console = server.console.as_ref().ok_or_else(ApiError::not_found)?;
    let (parts, _) = request.into_parts();
    if !console.admits(&parts) {
        return Err(ApiError::auth_required());
    }
    Ok(Arc::clone(console))
}

const PAGE: &str = include_str!("console/page.html");

const PAGE_HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_TYPE, "text/html; charset=utf-8"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_accepted_as_host() {
        for (host, accepted) in [
            ("localhost", true),
            ("LocalHost:8787", true),
            ("127.0.0.1:8787", true),
            ("127.9.9.9", true),
            ("[::1]:8787", true),
            ("localhost.example.com", false),
            ("example.com:8787", false),
            ("192.168.0.1", false),
            ("", false),
        ] {
            assert_eq!(
                names_loopback(&HeaderValue::from_static(host)),
                accepted,
                "{host}"
            );
        }
    }
}
