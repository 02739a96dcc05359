//! Who is there: documents by scope key, kept in memory and never stored (§8.6).
//!
//! A document belongs to an identity (actor and client) on a key. The connection that wrote it
//! last owns it: when an older connection of the same client ends, nothing happens to it.
//!
//! With a rate cap the newest document wins: inside the window it is kept and sent at its end.
//!
//! **Invariant:** whoever holds a key has been told of every document on it, and of nothing on
//! other keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::{ActorId, ClientId};
use tidewater_wire::control::{PresenceChange, PresenceError, PresenceFanout, ServerControl};

use super::room::SessionId;

/// Whose document it is.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Peer {
    pub(crate) actor: ActorId,
    pub(crate) client: ClientId,
}

#[derive(Debug)]
struct Document {
    owner: SessionId,
    text: ByteString,
    written_at_ms: i64,
    sent_at_ms: i64,
    /// Newer than what was sent.
    is_held_back: bool,
    /// What a newcomer is told, once somebody asked.
    join: Option<Bytes>,
}

#[derive(Debug, Default)]
struct Key {
    holders: BTreeSet<SessionId>,
    documents: BTreeMap<Peer, Document>,
}

/// A text for everybody who holds a key, but for one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Fanout {
    pub(crate) receivers: Vec<SessionId>,
    pub(crate) text: Bytes,
}

/// The bounds of presence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PresenceLimits {
    pub(crate) document_bytes_max: usize,
    pub(crate) keys_per_session_max: usize,
    pub(crate) documents_per_key_max: usize,
    /// In milliseconds; 0 is without a cap.
    pub(crate) window_ms: i64,
}

/// The documents of one partition.
#[derive(Debug)]
pub(crate) struct Presence {
    limits: PresenceLimits,
    keys: BTreeMap<Arc<str>, Key>,
    /// How many documents each session owns.
    owned: BTreeMap<SessionId, usize>,
    /// The documents held back, by when they are due.
    due: BTreeSet<(i64, Arc<str>, Peer)>,
}

impl Presence {
    pub(crate) fn new(limits: PresenceLimits) -> Self {
        Self {
            limits,
            keys: BTreeMap::new(),
            owned: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }

    /// Documents there are.
    pub(crate) fn count(&self) -> usize {
        self.owned.values().sum()
    }

    /// Publishes a document, or says why not.
    pub(crate) fn publish(
        &mut self,
        key: &str,
        session: SessionId,
        peer: &Peer,
        text: ByteString,
        now_ms: i64,
    ) -> Result<Option<Fanout>, PresenceError> {
        let limits = self.limits;
        let Some((name, entry)) = self.held(key, session) else {
            return Err(PresenceError::Forbidden);
        };
        if text.len() > limits.document_bytes_max {
            return Err(PresenceError::TooLarge);
        }
        let owned_before = entry.documents.get(peer).map(|document| document.owner);
        let full = owned_before.is_none() && entry.documents.len() >= limits.documents_per_key_max;
        let owns = self.owned.get(&session).copied().unwrap_or_default();
        if full || (owned_before != Some(session) && owns >= limits.keys_per_session_max) {
            return Err(PresenceError::Forbidden);
        }
        self.change_owner(owned_before, Some(session));
        let entry = self.keys.get_mut(&name).expect("it was found");
        let Some(document) = entry.documents.get_mut(peer) else {
            let document = Document {
                owner: session,
                text: text.clone(),
                written_at_ms: now_ms,
                sent_at_ms: now_ms,
                is_held_back: false,
                join: None,
            };
            entry.documents.insert(peer.clone(), document);
            let change = PresenceChange::Join(text);
            return Ok(fanout(&name, entry, session, peer, change, now_ms));
        };
        document.owner = session;
        document.text = text.clone();
        document.written_at_ms = now_ms;
        document.join = None;
        let due_ms = document.sent_at_ms.saturating_add(limits.window_ms);
        if now_ms < due_ms {
            document.is_held_back = true;
            self.due.insert((due_ms, name, peer.clone()));
            return Ok(None);
        }
        document.sent_at_ms = now_ms;
        let change = PresenceChange::Update(text);
        Ok(fanout(&name, entry, session, peer, change, now_ms))
    }

    /// Withdraws a document.
    pub(crate) fn withdraw(
        &mut self,
        key: &str,
        session: SessionId,
        peer: &Peer,
        now_ms: i64,
    ) -> Result<Option<Fanout>, PresenceError> {
        let Some((name, _)) = self.held(key, session) else {
            return Err(PresenceError::Forbidden);
        };
        Ok(self.remove(&name, session, peer, now_ms))
    }

    /// A session holds a key from now on; returns what it is told of its peers.
    pub(crate) fn gain(&mut self, key: &str, session: SessionId) -> Vec<Bytes> {
        let name = match self.keys.get_key_value(key) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(key),
        };
        let entry = self.keys.entry(Arc::clone(&name)).or_default();
        entry.holders.insert(session);
        entry
            .documents
            .iter_mut()
            .filter(|(_, document)| document.owner != session)
            .map(|(peer, document)| {
                let text = &document.text;
                let at_ms = document.written_at_ms;
                document
                    .join
                    .get_or_insert_with(|| {
                        message(&name, peer, PresenceChange::Join(text.clone()), at_ms)
                    })
                    .clone()
            })
            .collect()
    }

    /// A session does not hold a key any more; its document leaves.
    pub(crate) fn lose(
        &mut self,
        key: &str,
        session: SessionId,
        peer: &Peer,
        now_ms: i64,
    ) -> Option<Fanout> {
        let (name, entry) = self.keys.get_key_value(key)?;
        let name = Arc::clone(name);
        let owns = entry
            .documents
            .get(peer)
            .is_some_and(|document| document.owner == session);
        self.keys.get_mut(&name)?.holders.remove(&session);
        let leave = if owns {
            self.remove(&name, session, peer, now_ms)
        } else {
            None
        };
        self.forget_if_empty(&name);
        leave
    }

    /// When the next document that was held back is due.
    pub(crate) fn next_due_ms(&self) -> Option<i64> {
        self.due.first().map(|(due_ms, ..)| *due_ms)
    }

    /// Sends the documents whose window is over.
    pub(crate) fn take_due(&mut self, now_ms: i64) -> Vec<Fanout> {
        let mut fanouts = Vec::new();
        while let Some((due_ms, ..)) = self.due.first()
            && *due_ms <= now_ms
        {
            let (_, name, peer) = self.due.pop_first().expect("it was just seen");
            let Some(entry) = self.keys.get_mut(&name) else {
                continue;
            };
            let Some(document) = entry.documents.get_mut(&peer) else {
                continue;
            };
            if !std::mem::take(&mut document.is_held_back) {
                continue;
            }
            document.sent_at_ms = now_ms;
            let (owner, at_ms) = (document.owner, document.written_at_ms);
            let change = PresenceChange::Update(document.text.clone());
            fanouts.extend(fanout(&name, entry, owner, &peer, change, at_ms));
        }
        fanouts
    }

    fn held(&self, key: &str, session: SessionId) -> Option<(Arc<str>, &Key)> {
        let (name, entry) = self.keys.get_key_value(key)?;
        entry
            .holders
            .contains(&session)
            .then(|| (Arc::clone(name), entry))
    }

    fn remove(
        &mut self,
        name: &Arc<str>,
        session: SessionId,
        peer: &Peer,
        now_ms: i64,
    ) -> Option<Fanout> {
        let entry = self.keys.get_mut(name)?;
        let document = entry.documents.remove(peer)?;
        let due_ms = document.sent_at_ms.saturating_add(self.limits.window_ms);
        self.due.remove(&(due_ms, Arc::clone(name), peer.clone()));
        let leave = fanout(name, entry, session, peer, PresenceChange::Leave, now_ms);
        self.change_owner(Some(document.owner), None);
        leave
    }

    fn change_owner(&mut self, before: Option<SessionId>, after: Option<SessionId>) {
        if let Some(before) = before
            && let Some(count) = self.owned.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.owned.remove(&before);
            }
        }
        if let Some(after) = after {
            *self.owned.entry(after).or_default() += 1;
        }
    }

    fn forget_if_empty(&mut self, name: &str) {
        let is_empty = self
            .keys
            .get(name)
            .is_some_and(|entry| entry.holders.is_empty() && entry.documents.is_empty());
        if is_empty {
            self.keys.remove(name);
        }
    }
}

fn fanout(
    name: &str,
    entry: &Key,
    except: SessionId,
    peer: &Peer,
    change: PresenceChange,
    at_ms: i64,
) -> Option<Fanout> {
    let receivers: Vec<SessionId> = entry
        .holders
        .iter()
        .copied()
        .filter(|holder| *holder != except)
        .collect();
    if receivers.is_empty() {
        return None;
    }
    let text = message(name, peer, change, at_ms);
    Some(Fanout { receivers, text })
}

fn message(key: &str, peer: &Peer, change: PresenceChange, at_ms: i64) -> Bytes {
    let fanout = PresenceFanout {
        scope_key: key.into(),
        actor_id: peer.actor.as_str().into(),
        client_id: peer.client.as_str().into(),
        change,
        timestamp: at_ms,
    };
    ServerControl::Presence(fanout).to_text().into()
}

#[cfg(test)]
mod tests;
