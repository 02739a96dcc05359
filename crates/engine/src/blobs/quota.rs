//! How much a partition's blobs may take, with what is on its way.
//!
//! What is stored is asked from the blob store now and then and counted along between; uploads
//! under way and granted URLs reserve their size before the first byte. **Bound:** one process
//! never lets a partition over its bound; several may, by what they take between two looks.

use std::{num::NonZeroUsize, sync::Arc};

use lru::LruCache;
use parking_lot::Mutex;
use tidewater_model::{ErrorCode, PartitionId};

use crate::{Engine, RoundError};

/// Partitions remembered; others cost one look at the blob store.
const ACCOUNTS_MAX: NonZeroUsize = NonZeroUsize::new(4_096).expect("not zero");

/// How long a look at the blob store is good for, in milliseconds.
const LOOK_MS: i64 = 60_000;

/// Grants remembered per partition; more at once are refused.
const GRANTS_MAX: usize = 10_000;

/// What the partitions use.
pub(crate) struct Quota(Mutex<LruCache<PartitionId, Account>>);

#[derive(Debug, Default)]
struct Account {
    stored: u64,
    looked_at_ms: Option<i64>,
    /// Of uploads under way.
    pending: u64,
    /// Of URLs that are good until a time.
    granted: Vec<(i64, u64)>,
}

impl Account {
    fn used(&mut self, now_ms: i64) -> u64 {
        self.granted.retain(|(until_ms, _)| *until_ms > now_ms);
        let granted = self.granted.iter().map(|(_, bytes)| *bytes);
        let granted = granted.fold(0, u64::saturating_add);
        self.stored
            .saturating_add(self.pending)
            .saturating_add(granted)
    }

    /// Reserves room: what was asked for, or as much as there is up to `most`.
    fn reserve(
        &mut self,
        asked: Option<u64>,
        most: u64,
        bytes_max: u64,
        now_ms: i64,
    ) -> Option<u64> {
        let left = bytes_max.saturating_sub(self.used(now_ms));
        let room = match asked {
            Some(asked) => (asked <= left).then_some(asked)?,
            None => (left > 0).then_some(most.min(left))?,
        };
        self.pending = self.pending.saturating_add(room);
        Some(room)
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(ACCOUNTS_MAX)))
    }
}

impl Quota {
    /// Forgets what is stored: blobs were removed.
    pub(crate) fn look_again(&self, partition: &PartitionId) {
        if let Some(account) = self.0.lock().peek_mut(partition) {
            account.looked_at_ms = None;
        }
    }

    fn change(&self, partition: &PartitionId, change: impl FnOnce(&mut Account)) {
        if let Some(account) = self.0.lock().get_mut(partition) {
            change(account);
        }
    }
}

/// Room that is kept for an upload. Dropping it gives it back.
pub(super) struct Room {
    engine: Arc<Engine>,
    partition: PartitionId,
    bytes: u64,
    /// Whether there is an account: without a bound nothing is counted.
    is_counted: bool,
}

/// Keeps room for an upload, or refuses.
pub(super) async fn reserve(
    engine: &Arc<Engine>,
    partition: &PartitionId,
    asked: Option<u64>,
) -> Result<Room, RoundError> {
    let config = &engine.parts.config;
    let mut room = Room {
        engine: Arc::clone(engine),
        partition: partition.clone(),
        bytes: asked.unwrap_or(config.blob_bytes_max),
        is_counted: false,
    };
    let bytes_max = config.blob_partition_bytes_max;
    if bytes_max == u64::MAX {
        return Ok(room);
    }
    let now_ms = engine.parts.clock.now_ms();
    let is_known = |account: &Account| {
        account
            .looked_at_ms
            .is_some_and(|at_ms| now_ms.saturating_sub(at_ms) < LOOK_MS)
    };
    let known = engine.quota.0.lock().get(partition).is_some_and(is_known);
    if !known {
        let usage = super::usage(engine, partition).await?;
        let mut accounts = engine.quota.0.lock();
        let account = accounts.get_or_insert_mut(partition.clone(), Account::default);
        account.stored = usage.bytes;
        account.looked_at_ms = Some(now_ms);
    }
    let mut accounts = engine.quota.0.lock();
    let account = accounts.get_or_insert_mut(partition.clone(), Account::default);
    let is_full = account.granted.len() >= GRANTS_MAX;
    let reserved = account.reserve(asked, config.blob_bytes_max, bytes_max, now_ms);
    drop(accounts);
    match reserved.filter(|_| !is_full) {
        Some(bytes) => {
            room.bytes = bytes;
            room.is_counted = true;
            Ok(room)
        }
        None => {
            if let Some(bytes) = reserved {
                let give_back = |account: &mut Account| account.pending -= bytes;
                engine.quota.change(partition, give_back);
            }
            let message = "the blobs of this partition take all the room they may";
            Err(RoundError::new(ErrorCode::BlobTooLarge, message)
                .with_details(serde_json::json!({ "partitionBytesMax": bytes_max })))
        }
    }
}

impl Room {
    /// Most bytes that the upload may have.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes
    }

    /// Counts what was stored.
    pub(super) fn take(&self, bytes: u64) {
        if self.is_counted {
            let take = |account: &mut Account| {
                account.stored = account.stored.saturating_add(bytes);
            };
            self.engine.quota.change(&self.partition, take);
        }
    }

    /// Keeps the room until a time, whatever becomes of this value.
    pub(super) fn keep_until(&self, until_ms: i64) {
        if self.is_counted {
            let keep = |account: &mut Account| account.granted.push((until_ms, self.bytes));
            self.engine.quota.change(&self.partition, keep);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.is_counted {
            let give_back = |account: &mut Account| {
                account.pending = account.pending.saturating_sub(self.bytes);
            };
            self.engine.quota.change(&self.partition, give_back);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_is_left_beside_all_that_is_stored_or_on_its_way() {
        let mut account = Account {
            stored: 50,
            looked_at_ms: Some(0),
            pending: 20,
            granted: vec![(100, 10), (200, 5)],
        };
        assert_eq!(account.reserve(Some(16), 99, 100, 50), None);
        assert_eq!(account.reserve(Some(15), 99, 100, 50), Some(15));
        assert_eq!(account.reserve(None, 99, 100, 50), None);
        assert_eq!(account.reserve(Some(0), 99, 100, 50), Some(0));
        // A grant has ended.
        assert_eq!(account.reserve(None, 99, 100, 100), Some(10));
        account.pending = 0;
        assert_eq!(account.reserve(None, 7, 100, 100), Some(7));
        assert_eq!(account.reserve(Some(u64::MAX), 7, 100, 100), None);
    }
}
