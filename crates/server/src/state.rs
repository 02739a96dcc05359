//! What the handlers of one server share.

use std::{fmt, future::Future, net::SocketAddr, sync::Arc};

use axum::{extract::ConnectInfo, http::request::Parts};
use http::HeaderMap;
use tidewater_engine::{Engine, Identity};
use tokio::sync::watch;

use crate::{
    AuthError, Authenticator, Console, RequestHead, Secret, ServerConfig, TransferCounts,
    encoding::Coding, error::ApiError, quota::Quota, realtime::Realtime, transfer::Transfers,
};

/// One engine behind HTTP: what [`crate::router`] and [`crate::serve`] work with.
pub struct Server {
    pub(crate) engine: Arc<Engine>,
    pub(crate) config: ServerConfig,
    pub(crate) console: Option<Arc<Console>>,
    pub(crate) admin_token: Option<Secret>,
    pub(crate) connections: Arc<Quota>,
    pub(crate) rounds: Arc<Quota>,
    pub(crate) buffered_bytes: Arc<Quota>,
    pub(crate) realtime: Realtime,
    pub(crate) transfers: Transfers,
    authenticator: Arc<dyn Authenticator>,
    stage: watch::Sender<Stage>,
}

/// How far a server is on its way.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Stage {
    /// It takes what comes.
    Serving,
    /// What was begun is to end.
    Draining,
    /// What has not ended is cut off.
    Ended,
}

/// How much of each bounded amount is in use now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Usage {
    /// Open connections.
    pub connections: usize,
    /// Rounds being answered, those whose client has stopped reading included.
    pub rounds: usize,
    /// Bytes of request bodies.
    pub buffered_bytes: usize,
    /// Open sockets of the realtime channel.
    pub sockets: usize,
    /// Sockets that were cut off because their peer did not read, up to now.
    pub sockets_stuck: u64,
    /// Sockets that were given up because their peer was gone, up to now.
    pub sockets_dead: u64,
    /// Downloads whose last byte is not on its way yet.
    pub downloads: usize,
    /// Uploads that have not ended.
    pub uploads: usize,
}

impl Server {
    /// Puts an engine behind HTTP.
    pub fn new(
        engine: Arc<Engine>,
        authenticator: Arc<dyn Authenticator>,
        config: ServerConfig,
    ) -> Self {
        Self {
            engine,
            console: None,
            admin_token: None,
            connections: Quota::new(config.connections.connections_max),
            rounds: Quota::new(config.rounds_max),
            buffered_bytes: Quota::new(config.buffered_bytes_max),
            realtime: Realtime::new(&config.realtime),
            transfers: Transfers::new(&config.transfers),
            config,
            authenticator,
            stage: watch::Sender::new(Stage::Serving),
        }
    }

    /// Adds the console. Its feed runs while [`Console::follow`] is polled.
    #[must_use]
    pub fn with_console(mut self, console: Arc<Console>) -> Self {
        self.console = Some(console);
        self
    }

    /// Adds the operator's routes, for whoever sends this token as `Authorization: Bearer`.
    #[must_use]
    pub fn with_admin_token(mut self, token: Secret) -> Self {
        self.admin_token = Some(token);
        self
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// How much of each bounded amount is in use now.
    pub fn usage(&self) -> Usage {
        let (sockets_stuck, sockets_dead) = self.realtime.cut();
        Usage {
            connections: self.connections.used(),
            rounds: self.rounds.used(),
            buffered_bytes: self.buffered_bytes.used(),
            sockets: self.realtime.sockets(),
            sockets_stuck,
            sockets_dead,
            downloads: self.transfers.downloads.used(),
            uploads: self.transfers.uploads.used(),
        }
    }

    /// What was sent and taken since the start.
    pub fn transfer_counts(&self) -> TransferCounts {
        self.transfers.counts()
    }

    /// From now on the server says that it is not ready, endless responses end, and sockets are
    /// told to come back elsewhere, one after the other.
    pub fn drain(&self) {
        self.advance(Stage::Draining);
    }

    /// What has not ended by itself is cut off.
    pub(crate) fn end(&self) {
        self.advance(Stage::Ended);
    }

    /// Cuts every socket off and waits until it is gone. No new one is agreed to: this is how a
    /// host that mounts [`crate::router`] ends what is left after [`Server::drain`].
    pub async fn end_sockets(&self) {
        self.end();
        self.realtime.finish().await;
    }

    fn advance(&self, to: Stage) {
        self.stage.send_if_modified(|stage| {
            let is_later = *stage < to;
            *stage = to.max(*stage);
            is_later
        });
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.stage.borrow() >= Stage::Draining
    }

    /// How far the server is, now and later.
    pub(crate) fn stages(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// Ends when the server begins to drain.
    pub(crate) fn drain_begun(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stages = self.stages();
        async move {
            // An error means that the server is gone, which ends things as well.
            let _ = stages.wait_for(|stage| *stage >= Stage::Draining).await;
        }
    }

    /// How a response to a request with these headers is compressed.
    pub(crate) fn coding(&self, headers: &HeaderMap) -> Option<Coding> {
        self.config
            .compress
            .then(|| Coding::negotiate(headers))
            .flatten()
    }

    /// The identity behind a request, or the answer to one without.
    pub(crate) async fn identify(&self, parts: &Parts) -> Result<Identity, ApiError> {
        let head = RequestHead {
            method: &parts.method,
            uri: &parts.uri,
            headers: &parts.headers,
            peer: peer(parts),
        };
        let asked = self.authenticator.authenticate(head);
        let identity = match tokio::time::timeout(self.config.auth_timeout, asked).await {
            Ok(Ok(identity)) => identity,
            Ok(Err(AuthError::Code(code))) => {
                return Err(ApiError::new(code, "authentication was refused"));
            }
            Ok(Err(error @ AuthError::Failed(_))) => {
                tracing::error!(%error, "authentication failed");
                return Err(ApiError::internal());
            }
            Err(_) => {
                tracing::error!("authentication took too long");
                return Err(ApiError::internal());
            }
        };
        let identity = identity.ok_or_else(ApiError::auth_required)?;
        let now_ms = self.engine.clock().now_ms();
        if identity
            .expires_at_ms
            .is_some_and(|expires_at_ms| expires_at_ms <= now_ms)
        {
            return Err(ApiError::auth_required());
        }
        Ok(identity)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Server")
            .field("config", &self.config)
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}

/// The other end of the connection, as `serve` and axum's own server record it.
pub(crate) fn peer(parts: &Parts) -> Option<SocketAddr> {
    parts
        .extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map(|info| info.0)
}
