//! One node of a cluster on a PostgreSQL database: the engine, its upkeep and its signals behind
//! the real server, for tests that kill it.
//!
//! Serves the schema `notes`; the bearer token is the actor's name, and everybody is in team t1.
//! Rows travel inside responses, so that nodes need no bucket. Prints its port, alone on one
//! line, and serves until standard input closes. Never shipped.

use std::{
    io::{Read, Write},
    net::Ipv4Addr,
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
use tidewater_server::{Server, ServerConfig};
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
}

/// Everybody is in team t1.
struct OneTeam;

#[async_trait]
impl ScopeResolver for OneTeam {
    async fn resolve(&self, _: ResolveRequest<'_>) -> Result<AllowedScopes, ResolveError> {
        Ok(AllowedScopes::from_lists(scopes([("team_id", &["t1"])])))
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
    let signals = store.signals()?;
    let engine = Engine::open(EngineParts {
        store: Arc::new(store),
        schema: notes(1).compile()?,
        segments: Arc::new(MemorySegments::new(0, 0)),
        transfers: Transfers::default(),
        resolver: Arc::new(OneTeam),
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
    let server = Arc::new(Server::new(engine, authenticator, ServerConfig::default()));
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
