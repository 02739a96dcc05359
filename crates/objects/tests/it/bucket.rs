//! An S3 server on a local port, with a layer in front of it that fails as it is told.
//!
//! Conditional writes are made atomic here, which they are in S3 and not in this server.

use std::{convert::Infallible, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use s3s::{
    auth::SimpleAuth,
    service::{S3Service, S3ServiceBuilder},
};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tidewater_objects::{Backend, BackendLimits, S3Config};
use tokio::{net::TcpListener, task::JoinHandle};

type Body = UnsyncBoxBody<Bytes, s3s::StdError>;

/// A bucket over HTTP. It ends with this value.
pub(crate) struct Bucket {
    pub(crate) front: Arc<Front>,
    address: SocketAddr,
    folder: TempDir,
    server: JoinHandle<()>,
}

/// What is in front of the server.
pub(crate) struct Front {
    service: S3Service,
    faults: Mutex<Vec<Fault>>,
    requests: Mutex<Vec<(Method, String)>>,
    /// Conditional writes have it for themselves.
    turn: tokio::sync::RwLock<()>,
}

/// What goes wrong, with which requests, and how often.
#[derive(Clone)]
pub(crate) struct Fault {
    pub(crate) method: Method,
    /// A part of the path.
    pub(crate) path: &'static str,
    pub(crate) times: usize,
    pub(crate) what: What,
}

#[derive(Clone, Copy)]
pub(crate) enum What {
    /// Nothing is done.
    Answer(StatusCode),
    /// Something is done, and who asked is told that it failed.
    DoAndAnswer(StatusCode),
    /// Nothing is done, and nobody is told.
    Hang,
    /// The answer begins and never ends.
    HangInBody,
}

const NAME: &str = "bucket";
const KEY: &str = "test-access-key";
const SECRET: &str = "test-secret-key";

impl Bucket {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(NAME)).unwrap();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(folder.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let front = Arc::new(Front {
            service: builder.build(),
            faults: Mutex::default(),
            requests: Mutex::default(),
            turn: tokio::sync::RwLock::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(accept(listener, Arc::clone(&front)));
        Self {
            front,
            address,
            folder,
            server,
        }
    }

    /// Limits that make failures quick.
    pub(crate) fn limits() -> BackendLimits {
        BackendLimits {
            call_timeout: Duration::from_secs(10),
            retries_max: 3,
            ..BackendLimits::default()
        }
    }

    pub(crate) fn backend(&self) -> Backend {
        self.backend_with(SECRET, Self::limits())
    }

    pub(crate) fn backend_with(&self, secret: &str, limits: BackendLimits) -> Backend {
        let config = S3Config {
            bucket: NAME.to_owned(),
            region: "us-east-1".to_owned(),
            endpoint: Some(self.endpoint()),
            access_key_id: Some(KEY.to_owned()),
            secret_access_key: Some(secret.to_owned()),
            session_token: None,
            virtual_hosted: false,
            allow_http: true,
        };
        Backend::s3(config, "tw/", limits).unwrap()
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Goes wrong from now on.
    pub(crate) fn fail(&self, method: Method, path: &'static str, times: usize, what: What) {
        self.front.faults.lock().push(Fault {
            method,
            path,
            times,
            what,
        });
    }

    /// How many requests there were since this was last asked.
    pub(crate) fn take_requests(&self) -> Vec<(Method, String)> {
        std::mem::take(&mut self.front.requests.lock())
    }

    /// Where an object is on the disk of the server.
    pub(crate) fn file(&self, key: &str) -> PathBuf {
        self.folder.path().join(NAME).join(key)
    }

    /// The keys of all objects.
    pub(crate) fn keys(&self) -> Vec<String> {
        fn visit(folder: &std::path::Path, prefix: &str, keys: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
                if entry.file_type().unwrap().is_dir() {
                    visit(&entry.path(), &format!("{name}/"), keys);
                } else {
                    keys.push(name);
                }
            }
        }
        let mut keys = Vec::new();
        visit(&self.folder.path().join(NAME), "", &mut keys);
        keys.sort_unstable();
        keys
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn accept(listener: TcpListener, front: Arc<Front>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let front = Arc::clone(&front);
        let service = hyper::service::service_fn(move |request| {
            let front = Arc::clone(&front);
            async move { Ok::<_, Infallible>(front.answer(request).await) }
        });
        tokio::spawn(async move {
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            // Who hangs up early is a test that has seen enough.
            drop(server.serve_connection(TokioIo::new(socket), service).await);
        });
    }
}

impl Front {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        self.requests.lock().push((method.clone(), path.clone()));
        match self.fault(&method, &path) {
            None => self.serve(request).await,
            Some(What::Answer(status)) => {
                // A client that is still sending would see a reset and no status.
                drop(request.into_body().collect().await);
                empty(status)
            }
            Some(What::DoAndAnswer(status)) => {
                drop(self.serve(request).await.into_body().collect().await);
                empty(status)
            }
            Some(What::Hang) => std::future::pending().await,
            Some(What::HangInBody) => {
                let response = self.serve(request).await;
                response.map(|body| {
                    let begin = BodyStream::new(body).take(0);
                    let never = begin.chain(futures_util::stream::pending());
                    UnsyncBoxBody::new(StreamBody::new(never))
                })
            }
        }
    }

    /// Nothing goes wrong any more.
    pub(crate) fn forgive(&self) {
        self.faults.lock().clear();
    }

    fn fault(&self, method: &Method, path: &str) -> Option<What> {
        let mut faults = self.faults.lock();
        let fault = faults.iter_mut().find(|fault| {
            fault.times > 0 && fault.method == *method && path.contains(fault.path)
        })?;
        fault.times -= 1;
        Some(fault.what)
    }

    async fn serve(&self, request: Request<Incoming>) -> Response<Body> {
        let is_conditional = [header::IF_MATCH, header::IF_NONE_MATCH]
            .iter()
            .any(|name| request.headers().contains_key(name));
        let (_alone, _with_others) = if is_conditional {
            (Some(self.turn.write().await), None)
        } else {
            (None, Some(self.turn.read().await))
        };
        match self.service.call(request.map(s3s::Body::from)).await {
            Ok(response) => response.map(UnsyncBoxBody::new),
            Err(_) => empty(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

fn empty(status: StatusCode) -> Response<Body> {
    let body = Full::new(Bytes::new()).map_err(|never| match never {});
    let mut response = Response::new(UnsyncBoxBody::new(body));
    *response.status_mut() = status;
    response
}
