//! Signals between nodes over NATS, for clusters that have one: commits are then announced by
//! whoever made them, after they are durable, and PostgreSQL does not have to.
//!
//! A node that dies between a commit and its announcement announces nothing. The others find the
//! commit when they look again, which they do from time to time; so what NATS spares the database
//! is paid for in that case only.
//!
//! **Invariant:** a listener is told that signals arrive only after one to ourselves has arrived,
//! which the server passes on after it knows that we listen. One that does not arrive, a lost
//! connection and a message that was dropped are each an interruption.
//!
//! Nothing is stored in NATS: no JetStream is needed.

mod keeper;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_nats::{ConnectOptions, ServerAddr};
use async_trait::async_trait;
use tidewater_store::signals::{self, NodeId, Outbox, Signal, SignalStream, Signals, Subscribers};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};

use self::keeper::Keeper;

/// Where NATS is and what to say there.
#[derive(Clone, Debug)]
pub struct NatsConfig {
    servers: Vec<ServerAddr>,
    /// What nodes of one database have in common, and those of another have not.
    pub subject: String,
    /// A file of credentials, as `nsc` writes them.
    pub credentials: Option<PathBuf>,
    /// Certificates to trust beside the system's.
    pub root_certificates: Option<PathBuf>,
    /// How often to find out whether signals arrive.
    pub keepalive: Duration,
}

/// A configuration that cannot be meant.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// The address is none, or there is none.
    #[error("the address of NATS is not read: {0}")]
    Address(String),
    /// Messages could be sent to it that others take for theirs.
    #[error("{0:?} is no subject: it is made of letters, digits, `-` and `_`, with dots between")]
    Subject(String),
    /// The file of credentials is not read.
    #[error("the credentials are not read: {0}")]
    Credentials(std::io::Error),
    /// The connection cannot be begun.
    #[error("NATS cannot be used: {0}")]
    Connect(#[from] async_nats::ConnectError),
    /// There is no randomness.
    #[error("this node cannot be named: {0}")]
    Name(getrandom::Error),
}

impl NatsConfig {
    /// Servers by their addresses (`nats://user:password@host:4222`, `tls://host`), with commas
    /// between.
    ///
    /// # Errors
    ///
    /// When one of them is none. The error does not repeat it: it may hold a password.
    pub fn from_addresses(addresses: &str, subject: impl Into<String>) -> Result<Self, NatsError> {
        let servers = addresses
            .split(',')
            .map(|address| address.trim().parse::<ServerAddr>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| NatsError::Address(error.kind().to_string()))?;
        let subject = subject.into();
        let is_token = |token: &str| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            !token.is_empty() && token.chars().all(is_plain)
        };
        if !subject.split('.').all(is_token) {
            return Err(NatsError::Subject(subject));
        }
        Ok(Self {
            servers,
            subject,
            credentials: None,
            root_certificates: None,
            keepalive: Duration::from_secs(5),
        })
    }

    /// Begins to connect, in the background: a NATS that is not there yet is waited for.
    ///
    /// # Errors
    ///
    /// When the configuration cannot be used, whatever NATS says.
    pub async fn open(self) -> Result<Arc<dyn Signals>, NatsError> {
        let (events, heard) = mpsc::channel(EVENTS_MAX);
        let mut options = ConnectOptions::new()
            .name("tidewater")
            .retry_on_initial_connect()
            .max_reconnects(None)
            .reconnect_delay_callback(|tries| {
                let doublings = u32::try_from(tries.min(6)).unwrap_or(6);
                (Duration::from_millis(100) * 2_u32.pow(doublings)).min(Duration::from_secs(5))
            })
            .connection_timeout(self.keepalive.max(Duration::from_secs(5)))
            .ping_interval(self.keepalive)
            .event_callback(move |event| {
                // One that finds no room says that something happened, as those before it do.
                drop(events.try_send(event));
                async {}
            });
        if let Some(file) = &self.credentials {
            let read = options.credentials_file(file).await;
            options = read.map_err(NatsError::Credentials)?;
        }
        if let Some(file) = self.root_certificates {
            options = options.add_root_certificates(file);
        }
        let client = options.connect(&self.servers[..]).await?;
        let shared = Arc::new(Shared {
            node: fresh_node()?,
            subscribers: Subscribers::default(),
            outbox: Outbox::default(),
        });
        let (closing, closed) = watch::channel(false);
        let keeper = Keeper::new(client, Arc::clone(&shared), self.subject, self.keepalive);
        let mut task = JoinSet::new();
        task.spawn(keeper.run(heard, closed));
        Ok(Arc::new(NatsSignals {
            shared,
            closing,
            _task: task,
        }))
    }
}

/// Events of the connection that wait.
const EVENTS_MAX: usize = 16;

/// How long good-byes may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

struct Shared {
    node: NodeId,
    subscribers: Subscribers,
    outbox: Outbox,
}

struct NatsSignals {
    shared: Arc<Shared>,
    closing: watch::Sender<bool>,
    /// Ends with us.
    _task: JoinSet<()>,
}

#[async_trait]
impl Signals for NatsSignals {
    fn node(&self) -> &NodeId {
        &self.shared.node
    }

    fn publish(&self, signal: Signal) {
        match signals::encode(&self.shared.node, &signal) {
            Some(text) => self.shared.outbox.push(text),
            None => tracing::warn!("a signal is too long and was not sent"),
        }
    }

    fn subscribe(&self) -> SignalStream {
        self.shared.subscribers.subscribe()
    }

    async fn close(&self) {
        self.closing.send_replace(true);
        // The keeper holds the other end until it has ended.
        if timeout(CLOSE_TIMEOUT, self.closing.closed()).await.is_err() {
            tracing::debug!("the last signals were not sent in time");
        }
    }
}

/// A name that no process had before.
fn fresh_node() -> Result<NodeId, NatsError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(NatsError::Name)?;
    Ok(NodeId::new(format!("{:032x}", u128::from_be_bytes(bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_subjects_are_checked_before_anything_is_opened() {
        let parsed = |addresses, subject: &str| NatsConfig::from_addresses(addresses, subject);
        let two = parsed("nats://a:4222, tls://b", "tidewater.prod-1_x").unwrap();
        assert_eq!(two.servers.len(), 2);
        for subject in ["", "a..b", "a.*", ">", "a b", ".a"] {
            assert!(
                matches!(parsed("nats://a", subject), Err(NatsError::Subject(_))),
                "{subject}"
            );
        }
        let Err(error) = parsed("http://user:secret@x", "s") else {
            panic!("NATS does not speak HTTP");
        };
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
