//! Accepts connections until told to stop, then lets what was begun end well.
//!
//! Connections are served by hyper directly, because what bounds a slow or silent peer has to sit
//! under the request: the deadline of a header, the deadline of a write, the number of
//! connections. HTTP/1.1 only: TLS and HTTP/2 end at the proxy in front, and a flow-controlled
//! stream that nobody reads could not be told from a slow one here.
//!
//! **Invariant:** after `serve` has returned, every acknowledged commit is durable and no task of
//! the server is left.

use std::{
    convert::Infallible, io::ErrorKind, net::SocketAddr, pin::pin, sync::Arc, time::Duration,
};

use axum::{Router, extract::ConnectInfo, response::Response};
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tidewater_store::StoreError;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tower::Service as _;

use crate::{
    Server,
    error::ApiError,
    quota::{Quota, Share},
    router,
    stream::PacedStream,
};

/// Serves a server on a listener until `shutdown` ends; runs the engine's maintenance and the
/// console's feed meanwhile.
///
/// Then it accepts nothing more, lets requests in flight end within the configured time, closes
/// the engine and returns.
pub async fn serve(
    listener: TcpListener,
    server: Arc<Server>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), StoreError> {
    let mut background = JoinSet::new();
    background.spawn(Arc::clone(&server.engine).run_maintenance());
    if let Some(console) = &server.console {
        background.spawn(Arc::clone(console).follow());
    }

    let mut connections = accept(listener, &server, shutdown).await;

    server.drain();
    let drain_timeout = server.config.connections.drain_timeout;
    let finished = async {
        connections.finish().await;
        // After the connections, which can become sockets until they end.
        server.realtime.finish().await;
    };
    if tokio::time::timeout(drain_timeout, finished).await.is_err() {
        tracing::warn!(
            connections = server.connections.used(),
            sockets = server.realtime.sockets(),
            "requests were cut off at shutdown"
        );
    }
    // Whatever is left is cut off. Its writes are not: the engine ends those itself.
    connections.tasks.shutdown().await;
    server.end();
    server.realtime.finish().await;
    background.shutdown().await;
    server.engine.close().await
}

/// Accepts until `shutdown` ends. The listener is closed when this returns.
async fn accept(
    listener: TcpListener,
    server: &Arc<Server>,
    shutdown: impl Future<Output = ()>,
) -> Connections {
    let mut connections = Connections::new(server);
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => return connections,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => connections.begin(stream, peer),
                // The client changed its mind while it waited.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Out of descriptors, most likely: accepting again at once would spin.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.tasks.join_next() => {}
        }
    }
}

/// The connections being served.
struct Connections {
    server: Arc<Server>,
    router: Router,
    http: http1::Builder,
    refusals: Arc<Quota>,
    refusal: Arc<[u8]>,
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Connections {
    fn new(server: &Arc<Server>) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(server.config.connections.header_timeout);
        Self {
            server: Arc::clone(server),
            router: router(Arc::clone(server)),
            http,
            refusals: Quota::new(REFUSALS_MAX),
            refusal: refusal().into(),
            tasks: JoinSet::new(),
            stop: watch::Sender::new(false),
        }
    }

    fn begin(&mut self, stream: TcpStream, peer: SocketAddr) {
        let _ = stream.set_nodelay(true);
        let stream = PacedStream::new(stream, self.server.config.connections.write_timeout);
        if let Some(share) = self.server.connections.take(1) {
            let (http, router) = (self.http.clone(), self.router.clone());
            let stop = self.stop.subscribe();
            self.tasks
                .spawn(converse(stream, peer, http, router, stop, share));
        } else if let Some(share) = self.refusals.take(1) {
            self.tasks
                .spawn(refuse(stream, Arc::clone(&self.refusal), share));
        }
    }

    /// Lets every connection end after the request it is busy with.
    async fn finish(&mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Answers the requests of one connection.
async fn converse(
    stream: PacedStream,
    peer: SocketAddr,
    http: http1::Builder,
    router: Router,
    mut stop: watch::Receiver<bool>,
    _share: Share,
) {
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        answer(&router, request)
    });
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection.with_upgrades());
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        _ = stop.changed() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

fn answer(
    router: &Router,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response, Infallible>> + use<> {
    // A router is always ready: it has no middleware that could be busy.
    router.clone().call(request)
}

/// Tells a client that there is no room, without reading what it wants.
async fn refuse(mut stream: PacedStream, refusal: Arc<[u8]>, _share: Share) {
    if stream.write_all(&refusal).await.is_ok() {
        let _ = stream.shutdown().await;
    }
}

/// The whole response to a connection too many.
fn refusal() -> Vec<u8> {
    let body = ApiError::overloaded("the server has too many connections").to_json();
    let mut response = format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n\
         cache-control: no-store\r\nretry-after: 1\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    response.extend_from_slice(&body);
    response
}

/// Connections that are told that there is no room, at once; others are just closed.
const REFUSALS_MAX: usize = 256;
/// How long to wait after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
