//! Which other nodes are there, by when they were last heard. Pure: the time is an argument.

use std::collections::BTreeMap;

use super::NodeId;

/// The nodes heard of lately.
#[derive(Clone, Debug)]
pub struct Roster {
    silence_ms: i64,
    heard_at_ms: BTreeMap<NodeId, i64>,
}

/// What hearing a node means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Heard {
    /// It was not there before, or was taken for lost.
    New,
    /// It was there.
    Known,
}

/// Nodes kept at most: nobody has that many, and hostile names cost no more.
const NODES_MAX: usize = 1_024;

impl Roster {
    /// A roster that takes a node for lost when it has been silent for so long.
    pub fn new(silence_ms: i64) -> Self {
        Self {
            silence_ms,
            heard_at_ms: BTreeMap::new(),
        }
    }

    /// Notes that a node was heard.
    pub fn hear(&mut self, node: &NodeId, now_ms: i64) -> Heard {
        if let Some(at_ms) = self.heard_at_ms.get_mut(node) {
            *at_ms = now_ms.max(*at_ms);
            return Heard::Known;
        }
        if self.heard_at_ms.len() < NODES_MAX {
            self.heard_at_ms.insert(node.clone(), now_ms);
        }
        Heard::New
    }

    /// Notes that a node goes. Returns whether it was there.
    pub fn remove(&mut self, node: &NodeId) -> bool {
        self.heard_at_ms.remove(node).is_some()
    }

    /// Takes out the nodes that have been silent for too long.
    pub fn take_lost(&mut self, now_ms: i64) -> Vec<NodeId> {
        let silence_ms = self.silence_ms;
        let lost = |at_ms: i64| now_ms.saturating_sub(at_ms) > silence_ms;
        let nodes: Vec<NodeId> = self
            .heard_at_ms
            .iter()
            .filter(|(_, at_ms)| lost(**at_ms))
            .map(|(node, _)| node.clone())
            .collect();
        self.heard_at_ms.retain(|_, at_ms| !lost(*at_ms));
        nodes
    }

    /// Gives everybody the time to be heard again: nothing was heard for a while, and that says
    /// nothing about them.
    pub fn excuse(&mut self, now_ms: i64) {
        for at_ms in self.heard_at_ms.values_mut() {
            *at_ms = now_ms;
        }
    }

    /// The other nodes that are there.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.heard_at_ms.keys()
    }

    /// How many other nodes are there.
    pub fn len(&self) -> usize {
        self.heard_at_ms.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.heard_at_ms.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_silent_is_lost_once() {
        let mut roster = Roster::new(1_000);
        let (a, b) = (NodeId::new("a"), NodeId::new("b"));
        assert_eq!(roster.hear(&a, 0), Heard::New);
        assert_eq!(roster.hear(&b, 500), Heard::New);
        assert_eq!(roster.hear(&b, 900), Heard::Known);
        assert!(roster.take_lost(1_000).is_empty());
        assert_eq!(roster.take_lost(1_001), std::slice::from_ref(&a));
        assert!(roster.take_lost(1_001).is_empty());
        assert_eq!(roster.hear(&a, 1_100), Heard::New, "it is back");
        assert!(roster.remove(&b) && !roster.remove(&b));
        assert_eq!(roster.len(), 1);
    }

    #[test]
    fn nobody_is_lost_while_nothing_is_heard() {
        let mut roster = Roster::new(1_000);
        roster.hear(&NodeId::new("a"), 0);
        roster.excuse(5_000);
        assert!(roster.take_lost(6_000).is_empty());
        assert_eq!(roster.take_lost(6_001).len(), 1);
    }
}
