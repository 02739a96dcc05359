//! From configuration to a server: checks everything that can be wrong before anything is
//! opened, then chooses the implementations and puts them together.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context as _, bail, ensure};
use http::HeaderName;
use tidewater_engine::{
    Engine, EngineConfig, EngineParts, Hooks, RandomIds, Retention, SystemClock, Transfers,
};
use tidewater_objects::{BlobStore, MemorySegments};
use tidewater_rules::Rules;
use tidewater_schema::Schema;
use tidewater_server::{
    Authenticator, AuthenticatorChain, BearerTokens, ConfigScopes, Console, ConsoleAccess, Origin,
    Server, ServerConfig, StaticToken, TransferConfig, TrustedHeader,
};

use crate::{
    config::{Config, TokenEntry, TrustedHeaderSection, bytes, milliseconds, store::StoreKind},
    database::{self, Opened},
    objects, schema,
};

/// What a checked configuration asks for.
pub(crate) struct Plan {
    pub(crate) schema: Arc<Schema>,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) scopes: ConfigScopes,
    pub(crate) console: Option<ConsoleAccess>,
    pub(crate) rules: Rules,
}

/// Checks a configuration with the files it names. Opens no database and no port.
pub(crate) fn check(config: &Config) -> anyhow::Result<Plan> {
    let schema = schema::of(config)?;
    let scopes = ConfigScopes::new(config.scopes.actors.clone(), config.scopes.claims.clone());
    check_scopes(&scopes, &schema)?;
    check_sizes(config)?;
    check_realtime(config)?;
    check_objects(config)?;
    let rules = check_rules(config, &schema)?;
    Ok(Plan {
        schema: Arc::new(schema),
        authenticator: authenticator(config)?,
        scopes,
        console: console(config)?,
        rules,
    })
}

/// Compiles the rules for this schema and this kind of store.
pub(crate) fn check_rules(config: &Config, schema: &Schema) -> anyhow::Result<Rules> {
    let rules = Rules::compile(&config.rules, schema)?;
    ensure!(
        config.store.kind() != StoreKind::Memory || !rules.needs_sql(),
        "rules.assert is SQL, which the memory store does not have: set store.kind to sqlite or \
         postgres"
    );
    Ok(rules)
}

fn check_scopes(scopes: &ConfigScopes, schema: &Schema) -> anyhow::Result<()> {
    for variable in scopes.variables() {
        ensure!(
            schema.declares_variable(variable),
            "scopes: no table of the schema declares the scope variable {variable:?}"
        );
    }
    Ok(())
}

fn check_sizes(config: &Config) -> anyhow::Result<()> {
    let server = &config.server;
    ensure!(
        server.request_bytes_max <= server.buffered_bytes_max,
        "server.buffered_bytes_max is smaller than one request (server.request_bytes_max)"
    );
    ensure!(
        server.request_bytes_max <= config.engine.queued_bytes_max,
        "engine.queued_bytes_max is smaller than one request (server.request_bytes_max)"
    );
    for (key, value) in [
        ("server.rounds_max", server.rounds_max),
        ("server.connections_max", server.connections_max),
        (
            "engine.operations_per_request_max",
            config.engine.operations_per_request_max,
        ),
        (
            "engine.queued_commits_max",
            config.engine.queued_commits_max,
        ),
    ] {
        ensure!(value > 0, "{key} is 0: nothing would ever be answered");
    }
    ensure!(
        config.retention.active_window <= config.retention.forced_age,
        "retention.forced_age is shorter than retention.active_window: active clients would lose \
         their history"
    );
    ensure!(
        config.retention.forced_age <= config.retention.outcome_age,
        "retention.outcome_age is shorter than retention.forced_age: a commit that is sent again \
         would be applied twice while its first copy is still in the log"
    );
    Ok(())
}

fn check_realtime(config: &Config) -> anyhow::Result<()> {
    let realtime = &config.realtime;
    ensure!(
        !realtime.heartbeat.is_zero() && realtime.heartbeat < realtime.idle_timeout,
        "realtime.idle_timeout is not longer than realtime.heartbeat: every socket would be given up"
    );
    ensure!(
        realtime.drain_spread < config.server.drain_timeout || realtime.drain_spread.is_zero(),
        "realtime.drain_spread is not shorter than server.drain_timeout: sockets would be cut off"
    );
    ensure!(
        realtime.token_cookie.is_none()
            || !config
                .server
                .cors
                .allowed_origins
                .iter()
                .any(Origin::is_any),
        "with realtime.token_cookie, server.cors.allowed_origins must name the origins: under * any \
         page could connect as whoever visits it"
    );
    Ok(())
}

/// Everything about segments, blobs and URLs that can be wrong without asking a bucket.
fn check_objects(config: &Config) -> anyhow::Result<()> {
    config.store.check()?;
    if let Some(nats) = &config.nats {
        nats.check(&config.store)?;
    }
    config.segments.check(&config.store)?;
    config.blobs.check(&config.store)?;
    config.signed_urls.check(&config.segments, &config.blobs)?;
    objects::signing_keys(config)?;
    ensure!(
        !config.blobs.enabled
            || config.blobs.path.is_none()
            || config.blobs.path != config.segments.path,
        "blobs.path and segments.path are the same: segments are removed, blobs are not"
    );
    Ok(())
}

/// How clients are authenticated.
fn authenticator(config: &Config) -> anyhow::Result<Arc<dyn Authenticator>> {
    let mut members: Vec<Arc<dyn Authenticator>> = Vec::new();
    if let Some(section) = &config.auth.trusted_header {
        members.push(Arc::new(trusted_header(section)?));
    }
    let tokens = config.tokens()?;
    if !tokens.is_empty() {
        let tokens = BearerTokens::new(tokens.into_iter().map(static_token)).context("auth")?;
        members.push(Arc::new(tokens));
    }
    match members.len() {
        0 => bail!("auth: nobody could authenticate; set tokens, tokens_file or trusted_header"),
        1 => Ok(members.remove(0)),
        _ => Ok(Arc::new(AuthenticatorChain::new(members))),
    }
}

/// A token as the server takes it.
pub(crate) fn static_token(entry: TokenEntry) -> StaticToken {
    StaticToken {
        token: entry.token,
        partition: entry.partition,
        actor: entry.actor,
        claims: entry.claims,
    }
}

fn trusted_header(section: &TrustedHeaderSection) -> anyhow::Result<TrustedHeader> {
    ensure!(
        !section.proxies.is_empty(),
        "auth.trusted_header.proxies is empty: no request would be believed"
    );
    ensure!(
        section.partition.is_some() || section.partition_header.is_some(),
        "auth.trusted_header needs partition or partition_header"
    );
    let name = |key: &str, text: &str| {
        HeaderName::try_from(text)
            .with_context(|| format!("auth.trusted_header.{key}: {text:?} is no header name"))
    };
    let optional =
        |key: &str, text: &Option<String>| text.as_deref().map(|text| name(key, text)).transpose();
    Ok(TrustedHeader {
        actor_header: name("actor_header", &section.actor_header)?,
        partition_header: optional("partition_header", &section.partition_header)?,
        partition: section.partition.clone(),
        claims_header: optional("claims_header", &section.claims_header)?,
        proxies: section.proxies.clone(),
    })
}

fn console(config: &Config) -> anyhow::Result<Option<ConsoleAccess>> {
    if !config.console.enabled {
        return Ok(None);
    }
    match &config.console.admin_token {
        Some(token) if !token.is_empty() => Ok(Some(ConsoleAccess::Token(token.clone()))),
        _ => bail!("console.admin_token is not set: the console shows every row"),
    }
}

impl Plan {
    /// Opens the database for the person at the machine, who may see and write everything.
    pub(crate) async fn open_for_operator(
        self,
        config: &Config,
        operations_max: u32,
    ) -> anyhow::Result<Arc<Engine>> {
        let (engine, _) = self
            .open_for_operator_with_blobs(config, operations_max)
            .await?;
        Ok(engine)
    }

    /// The same, with the blobs beside it.
    pub(crate) async fn open_for_operator_with_blobs(
        self,
        config: &Config,
        operations_max: u32,
    ) -> anyhow::Result<(Arc<Engine>, Option<Arc<dyn BlobStore>>)> {
        // The database first: who has it has all the rest.
        let store = database::open(config)?;
        // Rows that refer to blobs can be imported when the blobs are there.
        let blobs = objects::open_blobs(config)?;
        let everything = self
            .schema
            .tables()
            .iter()
            .flat_map(|table| &table.scopes)
            .map(|pattern| (pattern.variable.clone(), vec!["*".to_owned()]))
            .collect();
        let actors = std::iter::once(("*".to_owned(), everything)).collect();
        let engine = engine_config(config);
        let mut hooks = Hooks::default();
        // Scopes are about who writes and do not bind the operator; rules are about the rows.
        self.rules.install(&mut hooks);
        let parts = EngineParts {
            store,
            schema: self.schema,
            segments: Arc::new(MemorySegments::new(0, 0)),
            transfers: Transfers {
                blobs: blobs.clone(),
                ..Transfers::default()
            },
            resolver: Arc::new(ConfigScopes::new(actors, Default::default())),
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            config: EngineConfig {
                operations_per_request_max: usize::try_from(operations_max)?,
                ..engine
            },
            hooks,
        };
        let engine = Engine::open(parts).await.context("prepare the database")?;
        Ok((engine, blobs))
    }

    /// Opens the database and puts the engine behind HTTP.
    pub(crate) async fn open(self, config: &Config) -> anyhow::Result<Arc<Server>> {
        let mut hooks = Hooks::default();
        self.rules.install(&mut hooks);
        // The database first: a server that is running has what is cleaned up here.
        let Opened { store, signals } = database::open_for_nodes(config).await?;
        let scratch = objects::prepare_scratch(config)?;
        let parts = EngineParts {
            store,
            schema: self.schema,
            segments: objects::open_segments(config)?,
            transfers: objects::transfers(config)?,
            resolver: Arc::new(self.scopes),
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            config: EngineConfig {
                image_directory: scratch.clone(),
                segments_are_shared: config.store.has_other_nodes(),
                ..engine_config(config)
            },
            hooks,
        };
        let engine = Engine::open(parts).await.context("prepare the database")?;
        if let Some(signals) = signals {
            engine.join_nodes(signals);
        }
        let mut server = Server::new(
            Arc::clone(&engine),
            self.authenticator,
            ServerConfig {
                transfers: transfer_config(config, scratch),
                ..config.server.to_server(&config.realtime)
            },
        );
        let token = config.console.admin_token.clone();
        if let Some(token) = token.filter(|token| !token.is_empty()) {
            server = server.with_admin_token(token);
        }
        if let Some(access) = self.console {
            server = server.with_console(Console::new(engine, access));
        }
        Ok(Arc::new(server))
    }
}

fn transfer_config(config: &Config, scratch: Option<PathBuf>) -> TransferConfig {
    TransferConfig {
        downloads_max: config.segments.downloads_max,
        uploads_max: config.blobs.uploads_max,
        copies_memory_bytes_max: config.segments.copies_memory_bytes_max.as_u64(),
        copies_disk_bytes_max: config.segments.copies_disk_bytes_max.as_u64(),
        scratch,
    }
}

fn engine_config(config: &Config) -> EngineConfig {
    let engine = &config.engine;
    EngineConfig {
        operations_per_request_max: engine.operations_per_request_max,
        appended_operations_max: engine.appended_operations_max,
        crdt_bytes_max: bytes(engine.crdt_bytes_max),
        inline_segment_bytes_max: bytes(engine.inline_segment_bytes_max),
        section_bytes_max: bytes(engine.section_bytes_max),
        queued_commits_max: engine.queued_commits_max,
        queued_bytes_max: bytes(engine.queued_bytes_max),
        resolver_timeout: engine.resolver_timeout,
        activity_interval: engine.activity_interval,
        prune_interval: config.retention.interval,
        retention: Retention {
            active_window_ms: milliseconds(config.retention.active_window),
            forced_age_ms: milliseconds(config.retention.forced_age),
            retained_commits: config.retention.retained_commits,
        },
        outcome_age_ms: milliseconds(config.retention.outcome_age),
        hook_timeout: engine.hook_timeout,
        hub: config.realtime.to_hub(),
        blob_bytes_max: config.blobs.blob_bytes_max.as_u64(),
        blob_partition_bytes_max: config
            .blobs
            .partition_bytes_max
            .map_or(u64::MAX, |size| size.as_u64()),
        blob_grace_ms: milliseconds(config.blobs.sweep_grace),
        blob_sweep_interval: config.blobs.sweep_interval,
        image_builds_max: config.segments.image_builds_max,
        image_builds_waiting_max: config.segments.image_builds_waiting_max,
        image_build_timeout: config.segments.image_build_timeout,
        declared_checkpoints: config.schema.checkpoints.clone(),
        ..EngineConfig::default()
    }
}
