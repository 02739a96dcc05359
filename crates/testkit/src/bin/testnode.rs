//! One node of a cluster on a PostgreSQL database: the engine, its upkeep and its signals behind
//! the real server, for tests that kill it.
//!
//! Serves the schema `notes`; the bearer token is the actor's name, and everybody is in team t1
//! whom the file of teams does not put elsewhere. The operator's token is `admin`.
//! Rows travel inside responses, so that nodes need no bucket. Prints its port, alone on one
//! line, and serves until standard input closes. Never shipped.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::Ipv4Addr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use clap::Parser;
use tidewater_engine::{
    Engine, EngineConfig, EngineParts, Hooks, RandomIds, ResolveError, ResolveRequest,
    ScopeResolver, SystemClock, Transfers,
};
use tidewater_model::{AllowedScopes, PartitionId};
use tidewater_objects::MemorySegments;
use tidewater_server::{Secret, Server, ServerConfig};
use tidewater_signals_nats::NatsConfig;
use tidewater_store_postgres::{PostgresConfig, PostgresStore};
use tidewater_testkit::{NameIsToken, schema::notes, scopes};
use tokio::{net::TcpListener, sync::oneshot};

/// Serves notes as one of several nodes.
#[derive(Parser)]
struct Options {
    /// The database.
    #[arg(long)]
    database: String,
    /// The port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// A JSON file of the teams that actors are in, looked at whenever it matters.
    #[arg(long)]
    teams: Option<PathBuf>,
    /// The NATS server by which nodes hear of one another; absent, it is the database.
    #[arg(long)]
    nats: Option<String>,
}

struct Teams(Option<PathBuf>);

#[async_trait]
impl ScopeResolver for Teams {
    async fn resolve(&self, request: ResolveRequest<'_>) -> Result<AllowedScopes, ResolveError> {
        let mut teams = match &self.0 {
            Some(file) => tokio::fs::read(file).await.ok(),
            None => None,
        }
        .and_then(|text| serde_json::from_slice::<BTreeMap<String, Vec<String>>>(&text).ok())
        .unwrap_or_default();
        let teams = teams
            .remove(request.identity.actor.as_str())
            .unwrap_or_else(|| vec!["t1".to_owned()]);
        let teams: Vec<&str> = teams.iter().map(String::as_str).collect();
        Ok(AllowedScopes::from_lists(scopes([("team_id", &teams)])))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    // Tests make things fail; what that looks like is only of interest when it is asked for.
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing_subscriber::filter::LevelFilter::OFF.into())
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .init();
    let mut config = PostgresConfig::from_url(&options.database)?;
    config.connections_max = 4;
    config.keepalive = Duration::from_millis(500);
    let store = PostgresStore::new(config)?;
    let signals = match &options.nats {
        Some(address) => NatsConfig::from_addresses(address, "nodes")?.open().await?,
        None => store.signals()?,
    };
    let engine = Engine::open(EngineParts {
        store: Arc::new(store),
        schema: notes(1).compile()?,
        segments: Arc::new(MemorySegments::new(0, 0)),
        transfers: Transfers::default(),
        resolver: Arc::new(Teams(options.teams)),
        clock: Arc::new(SystemClock),
        ids: Arc::new(RandomIds),
        hooks: Hooks::default(),
        config: EngineConfig {
            image_builds_max: 0,
            inline_segment_bytes_max: usize::MAX,
            prune_interval: Duration::from_millis(300),
            ..EngineConfig::default()
        },
    })
    .await?;
    engine.join_nodes(signals);
    let authenticator = Arc::new(NameIsToken::new(PartitionId::new("p1")));
    let server = Server::new(engine, authenticator, ServerConfig::default());
    let server = Arc::new(server.with_admin_token(Secret::new("admin")));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port))
        .await
        .context("listen")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", listener.local_addr()?.port())?;
    out.flush()?;
    drop(out);
    tidewater_server::serve(listener, server, input_closed()).await?;
    Ok(())
}

/// Ends when whoever started this program is gone or says so.
async fn input_closed() {
    let (closed, ended) = oneshot::channel();
    // Reading standard input cannot be canceled, so it has a thread that dies with the process.
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        let mut input = std::io::stdin();
        while input.read(&mut buffer).is_ok_and(|read| read > 0) {}
        let _ = closed.send(());
    });
    // An error says the same.
    drop(ended.await);
}
