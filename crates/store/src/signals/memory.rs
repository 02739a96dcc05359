//! Signals between nodes that live in one process: for tests, which may cut them off.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{NodeId, Signal, SignalStream, Signals, Subscribers};

/// What connects the nodes.
#[derive(Clone, Debug, Default)]
pub struct MemoryNetwork(Arc<Mutex<BTreeMap<NodeId, Weak<Node>>>>);

#[derive(Debug)]
struct Node {
    subscribers: Subscribers,
    is_cut: Mutex<bool>,
}

impl MemoryNetwork {
    /// A network without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more node.
    pub fn join(&self, node: impl Into<Arc<str>>) -> Arc<dyn Signals> {
        let id = NodeId::new(node);
        let node = Arc::new(Node {
            subscribers: Subscribers::default(),
            is_cut: Mutex::new(false),
        });
        node.subscribers.resume();
        self.0.lock().insert(id.clone(), Arc::downgrade(&node));
        Arc::new(MemorySignals {
            id,
            node,
            network: self.clone(),
        })
    }

    /// Cuts a node off: it hears nothing and is not heard.
    pub fn cut(&self, node: &NodeId) {
        if let Some(node) = self.find(node) {
            *node.is_cut.lock() = true;
            node.subscribers.interrupt();
        }
    }

    /// Connects a node again.
    pub fn heal(&self, node: &NodeId) {
        if let Some(node) = self.find(node) {
            *node.is_cut.lock() = false;
            node.subscribers.resume();
        }
    }

    fn find(&self, node: &NodeId) -> Option<Arc<Node>> {
        self.0.lock().get(node).and_then(Weak::upgrade)
    }
}

struct MemorySignals {
    id: NodeId,
    node: Arc<Node>,
    network: MemoryNetwork,
}

#[async_trait]
impl Signals for MemorySignals {
    fn node(&self) -> &NodeId {
        &self.id
    }

    fn publish(&self, signal: Signal) {
        if *self.node.is_cut.lock() {
            return;
        }
        let nodes = self.network.0.lock();
        for (id, node) in nodes.iter() {
            let Some(node) = node.upgrade() else {
                continue;
            };
            if *id != self.id && !*node.is_cut.lock() {
                node.subscribers.receive(&self.id, &signal);
            }
        }
    }

    fn subscribe(&self) -> SignalStream {
        self.node.subscribers.subscribe()
    }

    async fn close(&self) {
        self.network.0.lock().remove(&self.id);
        self.node.subscribers.close();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::signals::SignalEvent;

    fn drain(stream: &mut SignalStream) -> Vec<SignalEvent> {
        std::iter::from_fn(|| stream.next().now_or_never().flatten()).collect()
    }

    #[test]
    fn a_signal_reaches_everybody_but_its_sender_and_those_cut_off() {
        let network = MemoryNetwork::new();
        let [a, b, c] = ["a", "b", "c"].map(|node| network.join(node));
        let mut streams = [a.subscribe(), b.subscribe(), c.subscribe()];
        let heard = |signal| SignalEvent::Received {
            from: NodeId::new("a"),
            signal,
        };
        a.publish(Signal::Anything);
        network.cut(b.node());
        a.publish(Signal::Gone);
        b.publish(Signal::Gone);
        network.heal(b.node());
        let [a, b, c] = streams.each_mut().map(drain);
        let (resumed, interrupted) = (SignalEvent::Resumed, SignalEvent::Interrupted);
        assert_eq!(a, std::slice::from_ref(&resumed));
        let anything = heard(Signal::Anything);
        assert_eq!(
            b,
            [
                resumed.clone(),
                anything.clone(),
                interrupted,
                resumed.clone()
            ]
        );
        assert_eq!(c, [resumed, anything, heard(Signal::Gone)]);
    }
}
