//! Signals between nodes over the database itself.

use std::sync::Arc;

use async_trait::async_trait;
use tidewater_store::signals::{self, NodeId, Signal, SignalStream, Signals};

use crate::side::Side;

/// The signals of a node, over the connection beside its pool.
#[derive(Debug)]
pub(crate) struct PostgresSignals {
    pub(crate) node: NodeId,
    pub(crate) side: Arc<Side>,
}

#[async_trait]
impl Signals for PostgresSignals {
    fn node(&self) -> &NodeId {
        &self.node
    }

    fn publish(&self, signal: Signal) {
        if matches!(signal, Signal::Commits { .. } | Signal::Registry { .. }) {
            // Their transactions have said so.
            return;
        }
        match signals::encode(&self.node, &signal) {
            Some(text) => self.side.send(text),
            None => tracing::warn!("a signal is too long and was not sent"),
        }
    }

    fn subscribe(&self) -> SignalStream {
        self.side.subscribe()
    }

    async fn close(&self) {
        self.side.close().await;
    }
}
