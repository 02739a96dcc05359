//! A server in this process, with a database that can be held up.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use async_trait::async_trait;
use serde_json::{Map, json};
use tidewater_engine::{
    Clock, Engine, EngineConfig, EngineParts, Hooks, Identity, RandomIds, Transfers,
};
use tidewater_objects::MemorySegments;
use tidewater_schema::Schema;
use tidewater_server::{
    AuthError, Authenticator, AuthenticatorChain, BearerTokens, ConfigScopes, Console,
    ConsoleAccess, RequestHead, Secret, Server, ServerConfig, StaticToken,
};
use tidewater_store::{MemoryStore, Store, StoreError};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use crate::store::HeldStore;

pub(crate) const SCHEMA: &str = r#"{
  "irVersion": 1, "schemaVersion": 1,
  "tables": [{"name": "notes", "primaryKey": "id",
    "columns": [
      {"name": "id", "type": "string", "nullable": false},
      {"name": "team_id", "type": "string", "nullable": false},
      {"name": "body", "type": "string", "nullable": true},
      {"name": "photo", "type": "bytes", "nullable": true}],
    "scopes": ["team:{team_id}"]},
  {"name": "files", "primaryKey": "id",
    "columns": [
      {"name": "id", "type": "string", "nullable": false},
      {"name": "team_id", "type": "string", "nullable": false},
      {"name": "content", "type": "blob_ref", "nullable": true}],
    "scopes": ["team:{team_id}"]}]
}"#;

/// A server on a port of its own.
pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    pub(crate) server: Arc<Server>,
    pub(crate) store: Arc<HeldStore>,
    pub(crate) clock: Arc<TestClock>,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<Result<(), StoreError>>>,
}

/// How a host differs from the usual one.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) config: ServerConfig,
    pub(crate) console: Option<ConsoleAccess>,
    pub(crate) admin_token: Option<&'static str>,
    pub(crate) transfers: Transfers,
    pub(crate) engine: EngineConfig,
}

impl Host {
    pub(crate) async fn start() -> Self {
        Self::start_with(Setup::default()).await
    }

    pub(crate) async fn start_with(setup: Setup) -> Self {
        let store = Arc::new(HeldStore::new(MemoryStore::new()));
        let clock = Arc::new(TestClock(AtomicI64::new(1_000_000)));
        let engine = open_engine(
            Arc::<HeldStore>::clone(&store),
            Arc::<TestClock>::clone(&clock),
            setup.transfers,
            setup.engine,
        )
        .await;
        let mut server = Server::new(Arc::clone(&engine), authenticator(), setup.config);
        if let Some(access) = setup.console {
            server = server.with_console(Console::new(engine, access));
        }
        if let Some(token) = setup.admin_token {
            server = server.with_admin_token(Secret::new(token));
        }
        let server = Arc::new(server);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(tidewater_server::serve(
            listener,
            Arc::clone(&server),
            async {
                let _ = stopped.await;
            },
        ));
        Self {
            address,
            server,
            store,
            clock,
            stop: Some(stop),
            task: Some(task),
        }
    }

    /// Tells the server to stop, without waiting for it.
    pub(crate) fn begin_stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits for the server to have stopped.
    pub(crate) async fn stopped(&mut self) {
        self.task.take().unwrap().await.unwrap().unwrap();
    }
}

/// An engine on a store and a clock.
pub(crate) async fn open_engine(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    transfers: Transfers,
    config: EngineConfig,
) -> Arc<Engine> {
    let everything = [("team_id".to_owned(), vec!["*".to_owned()])].into();
    let one_team = [("team_id".to_owned(), vec!["é".to_owned()])].into();
    let actors = [("*".to_owned(), everything), ("eve".to_owned(), one_team)].into();
    Engine::open(EngineParts {
        store,
        schema: Arc::new(Schema::from_json(SCHEMA).unwrap()),
        segments: Arc::new(MemorySegments::new(64 * 1024 * 1024, 60_000)),
        transfers,
        resolver: Arc::new(ConfigScopes::new(actors, Default::default())),
        clock,
        ids: Arc::new(RandomIds),
        config,
        hooks: Hooks::default(),
    })
    .await
    .unwrap()
}

/// `Bearer alice`, `Bearer bob` and `Bearer eve`, and tokens that show how things go wrong.
fn authenticator() -> Arc<dyn Authenticator> {
    let tokens = ["alice", "bob", "eve"].map(|name| StaticToken {
        token: Secret::new(name),
        partition: "p".to_owned(),
        actor: name.to_owned(),
        claims: Map::from_iter([("name".to_owned(), json!(name))]),
    });
    let tokens = BearerTokens::new(tokens).unwrap();
    Arc::new(AuthenticatorChain::new(vec![
        Arc::new(Trouble),
        Arc::new(tokens),
    ]))
}

struct Trouble;

#[async_trait]
impl Authenticator for Trouble {
    async fn authenticate(&self, head: RequestHead<'_>) -> Result<Option<Identity>, AuthError> {
        let sent = head
            .headers
            .get("authorization")
            .and_then(|value| value.to_str().ok());
        match sent {
            Some("panic") => panic!("the secret is 42"),
            Some("fail") => Err(AuthError::Failed("the secret is 42".to_owned())),
            Some("hang") => std::future::pending().await,
            Some("expires") => {
                let mut identity = Identity::new("p", "carol");
                identity.expires_at_ms = Some(2_000_000);
                Ok(Some(identity))
            }
            _ => Ok(None),
        }
    }
}

/// A clock that stands still.
pub(crate) struct TestClock(AtomicI64);

impl TestClock {
    pub(crate) fn set(&self, now_ms: i64) {
        self.0.store(now_ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}
