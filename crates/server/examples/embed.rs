//! Tidewater inside another axum service, with the application's own sessions and rules.
use std::{error::Error, sync::Arc};

use async_trait::async_trait;
use axum::{Router, routing::get};
use tidewater_engine::*;
use tidewater_model::AllowedScopes;
use tidewater_objects::MemorySegments;
use tidewater_schema::Schema;
use tidewater_server::*;

const SCHEMA: &str = r#"{"irVersion": 1, "schemaVersion": 1, "tables": [{
    "name": "notes", "primaryKey": "id", "scopes": ["owner:{owner}"], "columns": [
        {"name": "id", "type": "string", "nullable": false},
        {"name": "owner", "type": "string", "nullable": false}]}]}"#;

/// Whoever the application's session belongs to.
struct Sessions;
#[async_trait]
impl Authenticator for Sessions {
    async fn authenticate(&self, head: RequestHead<'_>) -> Result<Option<Identity>, AuthError> {
        let session = head.headers.get("x-session").map(|value| value.to_str());
        Ok(session.and_then(|user| Some(Identity::new("main", user.ok()?))))
    }
}

/// Everybody has what is their own.
struct Owners;
#[async_trait]
impl ScopeResolver for Owners {
    async fn resolve(&self, request: ResolveRequest<'_>) -> Result<AllowedScopes, ResolveError> {
        let actor = request.identity.actor.to_string();
        Ok(AllowedScopes::from_lists([("owner".to_owned(), [actor])]))
    }
}

pub(crate) async fn app() -> Result<Router, Box<dyn Error>> {
    let parts = EngineParts {
        store: Arc::new(tidewater_store::MemoryStore::new()),
        schema: Arc::new(Schema::from_json(SCHEMA)?),
        segments: Arc::new(MemorySegments::new(64 << 20, 86_400_000)),
        transfers: Transfers::default(),
        resolver: Arc::new(Owners),
        clock: Arc::new(SystemClock),
        ids: Arc::new(RandomIds),
        config: EngineConfig::default(),
        hooks: Hooks::default(),
    };
    let engine = Engine::open(parts).await?;
    tokio::spawn(Arc::clone(&engine).run_maintenance());
    let server = Server::new(engine, Arc::new(Sessions), ServerConfig::default());
    let app = Router::new().route("/", get("my own service"));
    Ok(app.nest("/tidewater", router(Arc::new(server))))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8787").await?;
    Ok(axum::serve(listener, app().await?).await?)
}
