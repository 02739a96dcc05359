//! What the nodes of one database tell one another.
//!
//! The database has the truth. A signal says that it has changed, or carries what no database
//! keeps: who is present, whose scopes are to be looked at again. Signals arrive in the order of
//! each sender, mostly at once; but whatever carries them may break.
//!
//! **Invariant:** nobody misses a signal without being told. Whoever hears
//! [`SignalEvent::Resumed`] reads what changed by its place in the log, and asks the others for
//! what has no place in it.
//!
//! **Bound:** what waits for a slow listener is bounded in number and bytes. Beyond that all of
//! it is dropped, and the listener is told that it has missed something.

mod codec;
mod memory;
mod outbox;
mod queue;
mod roster;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use tidewater_model::{ActorId, CommitSeq, PartitionId};
use tidewater_wire::control::WakeReason;

pub use self::{
    codec::{SIGNAL_BYTES_MAX, decode, encode},
    memory::MemoryNetwork,
    outbox::{Batch, Outbox},
    queue::{SignalStream, Subscribers},
    roster::{Heard, Roster},
};

/// Names one process among those that share a database. Nobody else ever had the name: a process
/// that is started again has another one.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// Wraps the text as it is.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What one node tells the others.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Signal {
    /// The commits of a partition up to this one are durable.
    Commits {
        /// Whose log.
        partition: PartitionId,
        /// The newest of them.
        up_to: CommitSeq,
    },
    /// What the registry says about a partition has changed: its epoch.
    Registry {
        /// Which one.
        partition: PartitionId,
    },
    /// Something about who is present. What the bytes mean is between the engines.
    Presence {
        /// Where.
        partition: PartitionId,
        /// The message.
        bytes: Bytes,
    },
    /// Scopes are to be resolved again.
    RefreshScopes {
        /// Where.
        partition: PartitionId,
        /// Whose; `None` is everybody's.
        actor: Option<ActorId>,
    },
    /// The host wants every connected client to pull (§8.3).
    Wake {
        /// Where.
        partition: PartitionId,
        /// What the clients are told.
        reason: WakeReason,
    },
    /// Anything may have changed: the sender cannot say what.
    Anything,
    /// The sender is there.
    Alive {
        /// It knows nothing of the others yet: they are to say who is present with them.
        asks: bool,
    },
    /// The sender goes, and everybody who was present with it.
    Gone,
}

/// What a listener hears.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SignalEvent {
    /// A signal of another node.
    Received {
        /// Who sent it.
        from: NodeId,
        /// What it says.
        signal: Signal,
    },
    /// From here on nothing is heard, until [`SignalEvent::Resumed`]. What is known in memory
    /// about a partition is not to be relied on.
    Interrupted,
    /// From here on signals are heard. Of what was sent before, anything may be missing.
    Resumed,
}

/// Carries signals between nodes.
///
/// A new listener hears first whether it hears anything: [`SignalEvent::Interrupted`] or
/// [`SignalEvent::Resumed`]. Nobody hears its own signals.
#[async_trait]
pub trait Signals: Send + Sync + 'static {
    /// Who we are to the others.
    fn node(&self) -> &NodeId;

    /// Tells the other nodes. Never waits: what cannot be sent now waits within bounds, and where
    /// something had to be dropped, the others are told [`Signal::Anything`].
    ///
    /// Where the store announces commits itself, inside their transactions, [`Signal::Commits`]
    /// and [`Signal::Registry`] are not sent again.
    fn publish(&self, signal: Signal);

    /// Listens from now on.
    fn subscribe(&self) -> SignalStream;

    /// Sends what waits, if it can be sent within a moment, and ends.
    async fn close(&self);
}
