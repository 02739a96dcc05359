//! Who is there: documents by scope key, kept in memory and never stored (§8.6).
//!
//! A document belongs to an identity (actor and client) on a key. Who wrote it last owns it, a
//! connection of this process or another node: when an older connection of the same client ends,
//! nothing happens to it. A rewrite is always younger than what it replaces, whatever the clocks
//! of two nodes say, so all of them agree about the owner.
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
use serde::{Deserialize, Serialize};
use tidewater_model::{ActorId, ClientId};
use tidewater_wire::control::{PresenceChange, PresenceError, PresenceFanout, ServerControl};

use super::room::SessionId;

/// Whose document it is.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Peer {
    pub(crate) actor: ActorId,
    pub(crate) client: ClientId,
}

/// Who wrote a document last.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Owner {
    Session(SessionId),
    Node(Arc<str>),
}

#[derive(Debug)]
struct Document {
    owner: Owner,
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
    /// The same for other nodes, if it is their business.
    pub(crate) notice: Option<Bytes>,
}

/// What nodes tell one another about a document.
#[derive(Debug, Deserialize, Serialize)]
struct Notice {
    key: String,
    actor: String,
    client: String,
    /// The text of a JSON object; `None` when it is gone.
    doc: Option<String>,
    at_ms: i64,
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
    /// Whether other nodes are told.
    is_shared: bool,
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
            is_shared: false,
            keys: BTreeMap::new(),
            owned: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }

    /// From now on, other nodes are told.
    pub(crate) fn share(&mut self) {
        self.is_shared = true;
    }

    /// Documents there are.
    pub(crate) fn count(&self) -> usize {
        self.keys.values().map(|key| key.documents.len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
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
        let name = self.check_publication(key, session, peer, &text)?;
        let (limits, is_shared) = (self.limits, self.is_shared);
        let entry = self.keys.get_mut(&name).expect("it was found");
        let Some(document) = entry.documents.get_mut(peer) else {
            let document = Document {
                owner: Owner::Session(session),
                text: text.clone(),
                written_at_ms: now_ms,
                sent_at_ms: now_ms,
                is_held_back: false,
                join: None,
            };
            entry.documents.insert(peer.clone(), document);
            self.change_owner(None, Some(session));
            let change = PresenceChange::Join(text);
            return Ok(self.fanout(&name, Some(session), peer, change, now_ms, is_shared));
        };
        let before = std::mem::replace(&mut document.owner, Owner::Session(session));
        document.text = text.clone();
        document.written_at_ms = now_ms.max(document.written_at_ms.saturating_add(1));
        document.join = None;
        let at_ms = document.written_at_ms;
        let due_ms = document.sent_at_ms.saturating_add(limits.window_ms);
        let is_held_back = now_ms < due_ms;
        document.is_held_back = is_held_back;
        if !is_held_back {
            document.sent_at_ms = now_ms;
        }
        self.change_owner(Some(&before), Some(session));
        let turn = (due_ms, Arc::clone(&name), peer.clone());
        if is_held_back {
            self.due.insert(turn);
            return Ok(None);
        }
        self.due.remove(&turn);
        let change = PresenceChange::Update(text);
        Ok(self.fanout(&name, Some(session), peer, change, at_ms, is_shared))
    }

    fn check_publication(
        &self,
        key: &str,
        session: SessionId,
        peer: &Peer,
        text: &str,
    ) -> Result<Arc<str>, PresenceError> {
        let Some((name, entry)) = self.held(key, session) else {
            return Err(PresenceError::Forbidden);
        };
        if text.len() > self.limits.document_bytes_max {
            return Err(PresenceError::TooLarge);
        }
        let before = entry.documents.get(peer).map(|document| &document.owner);
        let is_full =
            before.is_none() && entry.documents.len() >= self.limits.documents_per_key_max;
        let owns = self.owned.get(&session).copied().unwrap_or_default();
        let is_over =
            before != Some(&Owner::Session(session)) && owns >= self.limits.keys_per_session_max;
        if is_full || is_over {
            return Err(PresenceError::Forbidden);
        }
        Ok(name)
    }

    /// Withdraws a document.
    pub(crate) fn withdraw(
        &mut self,
        key: &str,
        session: SessionId,
        peer: &Peer,
        now_ms: i64,
    ) -> Result<Option<Fanout>, PresenceError> {
        let Some((name, entry)) = self.held(key, session) else {
            return Err(PresenceError::Forbidden);
        };
        let document = entry.documents.get(peer);
        if document.is_some_and(|document| matches!(document.owner, Owner::Node(_))) {
            // A younger connection of the same client, elsewhere, has taken it over.
            return Ok(None);
        }
        Ok(self.remove(&name, Some(session), peer, now_ms, self.is_shared))
    }

    /// A session holds a key from now on; returns what it is told of its peers.
    pub(crate) fn gain(&mut self, key: &str, session: SessionId) -> Vec<Bytes> {
        let name = self.name(key);
        let entry = self.keys.entry(Arc::clone(&name)).or_default();
        entry.holders.insert(session);
        entry
            .documents
            .iter_mut()
            .filter(|(_, document)| document.owner != Owner::Session(session))
            .map(|(peer, document)| {
                let (text, at_ms) = (&document.text, document.written_at_ms);
                let join = || message(&name, peer, PresenceChange::Join(text.clone()), at_ms);
                document.join.get_or_insert_with(join).clone()
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
        let name = Arc::clone(self.keys.get_key_value(key)?.0);
        let entry = self.keys.get_mut(&name)?;
        entry.holders.remove(&session);
        let document = entry.documents.get(peer);
        let leave = if document.is_some_and(|found| found.owner == Owner::Session(session)) {
            self.remove(&name, Some(session), peer, now_ms, self.is_shared)
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
            let document = self
                .keys
                .get_mut(&name)
                .and_then(|entry| entry.documents.get_mut(&peer));
            let Some(document) = document.filter(|document| document.is_held_back) else {
                continue;
            };
            document.is_held_back = false;
            document.sent_at_ms = now_ms;
            let at_ms = document.written_at_ms;
            let change = PresenceChange::Update(document.text.clone());
            let Owner::Session(owner) = document.owner else {
                continue;
            };
            let is_shared = self.is_shared;
            fanouts.extend(self.fanout(&name, Some(owner), &peer, change, at_ms, is_shared));
        }
        fanouts
    }

    /// Takes what another node says. What cannot be read is ignored: it is of a version that
    /// says it otherwise.
    pub(crate) fn hear(&mut self, node: &Arc<str>, notice: &[u8], now_ms: i64) -> Option<Fanout> {
        let notice: Notice = serde_json::from_slice(notice).ok()?;
        let name = self.name(&notice.key);
        let peer = Peer {
            actor: ActorId::new(notice.actor),
            client: ClientId::new(notice.client),
        };
        let Some(text) = notice.doc.map(ByteString::from) else {
            let owner = &self.keys.get(&name)?.documents.get(&peer)?.owner;
            let leave = if *owner == Owner::Node(Arc::clone(node)) {
                self.remove(&name, None, &peer, now_ms, false)
            } else {
                None
            };
            self.forget_if_empty(&name);
            return leave;
        };
        let documents_max = self.limits.documents_per_key_max;
        let entry = self.keys.entry(Arc::clone(&name)).or_default();
        let before = entry.documents.get(&peer);
        let is_stale = match before {
            Some(known) => (notice.at_ms, &*text) <= (known.written_at_ms, &*known.text),
            None => entry.documents.len() >= documents_max,
        };
        if is_stale {
            self.forget_if_empty(&name);
            return None;
        }
        let document = Document {
            owner: Owner::Node(Arc::clone(node)),
            text: text.clone(),
            written_at_ms: notice.at_ms,
            sent_at_ms: now_ms,
            is_held_back: false,
            join: None,
        };
        let before = entry.documents.insert(peer.clone(), document);
        let change = match &before {
            Some(_) => PresenceChange::Update(text),
            None => PresenceChange::Join(text),
        };
        if let Some(before) = before {
            self.forget_turn(&name, &peer, &before);
            self.change_owner(Some(&before.owner), None);
        }
        self.fanout(&name, None, &peer, change, notice.at_ms, false)
    }

    /// The documents of another node leave.
    pub(crate) fn lose_node(&mut self, node: &Arc<str>, now_ms: i64) -> Vec<Fanout> {
        let owner = Owner::Node(Arc::clone(node));
        let gone: Vec<(Arc<str>, Peer)> = self
            .keys
            .iter()
            .flat_map(|(name, entry)| {
                let of_node = entry
                    .documents
                    .iter()
                    .filter(|(_, found)| found.owner == owner);
                of_node.map(|(peer, _)| (Arc::clone(name), peer.clone()))
            })
            .collect();
        let mut fanouts = Vec::new();
        for (name, peer) in gone {
            fanouts.extend(self.remove(&name, None, &peer, now_ms, false));
            self.forget_if_empty(&name);
        }
        fanouts
    }

    /// What another node must be told that knows nothing.
    pub(crate) fn notices(&self) -> Vec<Bytes> {
        let documents = self.keys.iter().flat_map(|(name, entry)| {
            let documents = entry.documents.iter();
            documents.map(move |(peer, document)| (name, peer, document))
        });
        documents
            .filter(|(.., document)| matches!(document.owner, Owner::Session(_)))
            .map(|(name, peer, document)| {
                notice(name, peer, Some(&document.text), document.written_at_ms)
            })
            .collect()
    }

    fn name(&self, key: &str) -> Arc<str> {
        match self.keys.get_key_value(key) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(key),
        }
    }

    fn held(&self, key: &str, session: SessionId) -> Option<(Arc<str>, &Key)> {
        let (name, entry) = self.keys.get_key_value(key)?;
        let is_held = entry.holders.contains(&session);
        is_held.then(|| (Arc::clone(name), entry))
    }

    fn remove(
        &mut self,
        name: &Arc<str>,
        except: Option<SessionId>,
        peer: &Peer,
        now_ms: i64,
        is_shared: bool,
    ) -> Option<Fanout> {
        let document = self.keys.get_mut(name)?.documents.remove(peer)?;
        self.forget_turn(name, peer, &document);
        self.change_owner(Some(&document.owner), None);
        self.fanout(name, except, peer, PresenceChange::Leave, now_ms, is_shared)
    }

    fn forget_turn(&mut self, name: &Arc<str>, peer: &Peer, document: &Document) {
        let due_ms = document.sent_at_ms.saturating_add(self.limits.window_ms);
        self.due.remove(&(due_ms, Arc::clone(name), peer.clone()));
    }

    fn change_owner(&mut self, before: Option<&Owner>, after: Option<SessionId>) {
        if let Some(Owner::Session(before)) = before
            && let Some(count) = self.owned.get_mut(before)
        {
            *count -= 1;
            if *count == 0 {
                self.owned.remove(before);
            }
        }
        if let Some(after) = after {
            *self.owned.entry(after).or_default() += 1;
        }
    }

    fn forget_if_empty(&mut self, name: &str) {
        let entry = self.keys.get(name);
        if entry.is_some_and(|entry| entry.holders.is_empty() && entry.documents.is_empty()) {
            self.keys.remove(name);
        }
    }

    fn fanout(
        &self,
        name: &str,
        except: Option<SessionId>,
        peer: &Peer,
        change: PresenceChange,
        at_ms: i64,
        is_shared: bool,
    ) -> Option<Fanout> {
        let holders = self.keys.get(name).map(|entry| &entry.holders);
        let receivers: Vec<SessionId> = holders
            .into_iter()
            .flatten()
            .copied()
            .filter(|holder| Some(*holder) != except)
            .collect();
        let notice = is_shared.then(|| {
            let doc = match &change {
                PresenceChange::Join(text) | PresenceChange::Update(text) => Some(text),
                PresenceChange::Leave => None,
            };
            notice(name, peer, doc, at_ms)
        });
        if receivers.is_empty() && notice.is_none() {
            return None;
        }
        let text = message(name, peer, change, at_ms);
        Some(Fanout {
            receivers,
            text,
            notice,
        })
    }
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

fn notice(key: &str, peer: &Peer, doc: Option<&ByteString>, at_ms: i64) -> Bytes {
    let notice = Notice {
        key: key.to_owned(),
        actor: peer.actor.as_str().to_owned(),
        client: peer.client.as_str().to_owned(),
        doc: doc.map(ToString::to_string),
        at_ms,
    };
    let text = serde_json::to_vec(&notice).expect("strings and numbers have a JSON form");
    text.into()
}

#[cfg(test)]
mod tests;
