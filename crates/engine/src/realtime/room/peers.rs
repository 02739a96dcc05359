//! Presence among the connections of a room, and what other nodes hear and say of it (§8.6).

use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_wire::control::{PresenceError, ServerControl};

use super::{Room, SessionId};
use crate::realtime::presence::Fanout;

impl Room {
    /// Publishes a document on a key, or withdraws it.
    pub(crate) fn publish(
        &mut self,
        session: SessionId,
        key: &str,
        doc: Option<ByteString>,
        now_ms: i64,
    ) {
        let Some(member) = self.members.get(&session) else {
            return;
        };
        let peer = &member.peer;
        let outcome = match doc {
            Some(text) => self.presence.publish(key, session, peer, text, now_ms),
            None => self.presence.withdraw(key, session, peer, now_ms),
        };
        match outcome {
            Ok(fanout) => self.send(fanout),
            Err(error) => {
                let refusal = refusal(key, error, now_ms);
                member.mailbox.post_text(refusal);
            }
        }
    }

    /// When a document that is held back is due.
    pub(crate) fn next_due_ms(&self) -> Option<i64> {
        self.presence.next_due_ms()
    }

    pub(crate) fn send_due(&mut self, now_ms: i64) {
        let due = self.presence.take_due(now_ms);
        self.send(due);
    }

    /// Takes what another node says about a document.
    pub(crate) fn hear(&mut self, node: &Arc<str>, notice: &[u8], now_ms: i64) {
        let fanout = self.presence.hear(node, notice, now_ms);
        self.send(fanout);
    }

    pub(crate) fn lose_node(&mut self, node: &Arc<str>, now_ms: i64) {
        let fanouts = self.presence.lose_node(node, now_ms);
        self.send(fanouts);
    }

    /// From now on, other nodes are told of documents.
    pub(crate) fn share_presence(&mut self) {
        self.presence.share();
    }

    /// What other nodes are to be told, since the last time.
    pub(crate) fn take_notices(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.notices)
    }

    /// All there is to tell another node.
    pub(crate) fn notices(&self) -> Vec<Bytes> {
        self.presence.notices()
    }

    pub(super) fn send(&mut self, fanouts: impl IntoIterator<Item = Fanout>) {
        for fanout in fanouts {
            for receiver in &fanout.receivers {
                if let Some(member) = self.members.get(receiver) {
                    member.mailbox.post_text(fanout.text.clone());
                }
            }
            self.notices.extend(fanout.notice);
        }
    }
}

fn refusal(key: &str, error: PresenceError, now_ms: i64) -> Bytes {
    let refusal = ServerControl::PresenceError {
        scope_key: key.into(),
        error,
        timestamp: now_ms,
    };
    refusal.to_text().into()
}
