//! What the engine asks of its host: who is asking, what they may see, what time it is.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use tidewater_model::{ActorId, AllowedScopes, ErrorCode, PartitionId};

/// Who makes a request, as established by the host's authentication.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The tenant. Never taken from the request.
    pub partition: PartitionId,
    /// The actor.
    pub actor: ActorId,
    /// What the credentials say about the actor, for the resolver.
    pub claims: Arc<serde_json::Map<String, serde_json::Value>>,
    /// When the credentials stop being valid, Unix milliseconds.
    pub expires_at_ms: Option<i64>,
}

impl Identity {
    /// An identity without claims that does not expire.
    pub fn new(partition: impl Into<Arc<str>>, actor: impl Into<Arc<str>>) -> Self {
        Self {
            partition: PartitionId::new(partition),
            actor: ActorId::new(actor),
            claims: Arc::default(),
            expires_at_ms: None,
        }
    }
}

/// Asks what an actor may see and write.
#[derive(Clone, Copy, Debug)]
pub struct ResolveRequest<'a> {
    /// Who asks.
    pub identity: &'a Identity,
    /// The replica; `None` for downloads.
    pub client_id: Option<&'a str>,
}

/// Why a resolver has no answer. Each kind is answered differently (§3.2).
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// It failed: subscriptions are revoked and writes forbidden. The text is for the log.
    #[error("scope resolver failed: {0}")]
    Failed(String),
    /// The backend behind it is out: nothing is revoked.
    #[error("scope resolver is out: {0}")]
    Outage(String),
    /// The request is to fail with this code.
    #[error("scope resolver answered {}", .0.as_str())]
    Code(ErrorCode),
}

/// Decides what an actor may see and write. Called at most once per request (§3.2).
#[async_trait]
pub trait ScopeResolver: Send + Sync + 'static {
    /// The allowed scopes over all tables.
    async fn resolve(&self, request: ResolveRequest<'_>) -> Result<AllowedScopes, ResolveError>;
}

/// The wall clock.
pub trait Clock: Send + Sync + 'static {
    /// Unix milliseconds.
    fn now_ms(&self) -> i64;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clock"
    )]
    fn now_ms(&self) -> i64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }
}

/// Makes fresh opaque names.
pub trait Ids: Send + Sync + 'static {
    /// A name that nobody had before.
    fn fresh(&self) -> String;
}

/// 128 random bits in hex.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn fresh(&self) -> String {
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes).expect("the operating system has randomness");
        hex::encode(bytes)
    }
}
