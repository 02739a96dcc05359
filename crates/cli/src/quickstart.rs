//! `quickstart`: a server with something to see, without a configuration file.
//!
//! A to-do schema, two users of one partition, a database that is gone afterwards unless a folder
//! for it is named, and the console. It is the server of `serve`, put together by the same code.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use clap::Args;
use tidewater_rules::Rules;
use tidewater_schema::Schema;
use tidewater_server::{BearerTokens, ConfigScopes, ConsoleAccess, Secret};

use crate::{
    Failure,
    assemble::{Plan, static_token},
    config::{Config, TokenEntry},
    run, telemetry,
};

/// Options of `quickstart`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8787")]
    listen: SocketAddr,
    /// A folder that keeps the database. Without one it is gone when the server stops.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// What to log, for example `info`.
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    log: String,
}

/// The users, and what their clients send. The sample client sends the same.
const USERS: [(&str, &str); 2] = [("alice", "demo-alice"), ("bob", "demo-bob")];
const PARTITION: &str = "demo";
const SCHEMA: &str = include_str!("../assets/todo.schema.json");

/// Runs the server.
pub(crate) fn run(options: Options) -> Result<(), Failure> {
    let mut config = Config::default();
    config.server.listen = options.listen;
    config.log.filter = options.log;
    telemetry::start(&config.log).map_err(Failure::Wrong)?;
    // Dropped, and with it the database, after everything else.
    let temporary;
    let folder = match options.data {
        Some(folder) => {
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("create {}", folder.display()))?;
            folder
        }
        None => {
            temporary = tempfile::tempdir().context("make a temporary folder")?;
            temporary.path().to_owned()
        }
    };
    config.resolve(&folder);
    run::runtime()?.block_on(async {
        let stop = run::stop_signal()?;
        // The port first: nothing else is worth doing without it.
        let listener = run::listen(config.server.listen).await?;
        let address = listener.local_addr().context("read the address")?;
        let plan = plan(address)?;
        let has_console = plan.console.is_some();
        let server = plan.open(&config).await?;
        run::print(&greeting(address, has_console))?;
        run::until_stopped(listener, server, stop).await
    })?;
    Ok(())
}

fn plan(address: SocketAddr) -> anyhow::Result<Plan> {
    let tokens = USERS.map(|(actor, token)| {
        static_token(TokenEntry {
            token: Secret::new(token),
            actor: actor.to_owned(),
            partition: PARTITION.to_owned(),
            claims: serde_json::Map::new(),
        })
    });
    let everything = [("list_id".to_owned(), vec!["*".to_owned()])].into();
    let actors = [("*".to_owned(), everything)].into();
    Ok(Plan {
        schema: Arc::new(Schema::from_json(SCHEMA).context("the sample schema")?),
        authenticator: Arc::new(BearerTokens::new(tokens).context("the sample users")?),
        scopes: ConfigScopes::new(actors, std::collections::BTreeMap::new()),
        // It shows every row without asking for a token, so only to this machine.
        console: address
            .ip()
            .is_loopback()
            .then_some(ConsoleAccess::Loopback),
        rules: Rules::default(),
    })
}

fn greeting(address: SocketAddr, has_console: bool) -> String {
    let url = format!("http://{address}");
    let watch = if has_console {
        format!("Watch it:       {url}/console/\n\n")
    } else {
        "No console: it is shown only on a loopback address.\n\n".to_owned()
    };
    let commands: String = USERS
        .iter()
        .map(|(name, _)| {
            format!("  cargo run --release --example todo -- --name {name} --server {url}\n")
        })
        .collect();
    format!(
        "Tidewater is listening on {url}\n\n{watch}\
         Two people with one to-do list, each in a terminal of their own:\n{commands}\n\
         Ctrl-C stops the server.\n"
    )
}
