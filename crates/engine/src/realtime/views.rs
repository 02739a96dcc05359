//! What clients were last told that they see.
//!
//! A client that comes back is registered for what it may see now. If that is not what its last
//! pull told it, deltas would leave it with rows it never got: it must pull first. Client records
//! do not say, so it is remembered here, as a digest, for as many clients as there is room.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroUsize,
};

use lru::LruCache;
use parking_lot::Mutex;
use tidewater_store::ClientKey;

use super::registrations::Registration;

/// Clients remembered.
const CLIENTS_MAX: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// Digests by client.
pub(crate) struct Views(Mutex<LruCache<ClientKey, u64>>);

impl Default for Views {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(CLIENTS_MAX)))
    }
}

impl Views {
    /// A pull told the client that it sees this.
    pub(crate) fn put(&self, key: ClientKey, registrations: &[Registration]) {
        self.0.lock().put(key, digest(registrations));
    }

    /// Whether this is what the client was told; `None` when it is not remembered.
    pub(crate) fn is(&self, key: &ClientKey, registrations: &[Registration]) -> Option<bool> {
        let told = *self.0.lock().get(key)?;
        Some(told == digest(registrations))
    }
}

/// Of no meaning to anybody else, so any good hash does.
fn digest(registrations: &[Registration]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for registration in registrations {
        let version = registration.schema_version;
        (&*registration.id, registration.table.0, version).hash(&mut hasher);
        for entry in registration.effective.entries() {
            (&entry.variable, &entry.values).hash(&mut hasher);
        }
    }
    hasher.finish()
}
