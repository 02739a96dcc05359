//! Which copies there are, and which one goes when there is no room.
//!
//! A copy is charged with what it may take when it begins and with what it takes when it is done.
//! Copies that are being made stay: somebody waits for them.

use std::sync::Arc;

use lru::LruCache;

use super::{Copy, Progress};
use crate::encoding::Coding;

/// What a copy is known by.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Key {
    id: Arc<str>,
    coding: Coding,
}

impl Key {
    pub(super) fn new(id: &str, coding: Coding) -> Self {
        Self {
            id: id.into(),
            coding,
        }
    }
}

struct Entry {
    copy: Arc<Copy>,
    charge: u64,
    is_small: bool,
}

/// Copies by use, and what they are charged with.
pub(super) struct Held {
    entries: LruCache<Key, Entry>,
    memory: Account,
    disk: Account,
    made: u64,
}

/// One kind of room.
struct Account {
    bytes: u64,
    bytes_max: u64,
    entries: usize,
    entries_max: usize,
}

/// Each costs some memory beside its bytes.
const SMALL_ENTRIES_MAX: usize = 16_384;
/// Each costs a file descriptor.
const FILES_MAX: usize = 128;

impl Account {
    fn new(bytes_max: u64, entries_max: usize) -> Self {
        Self {
            bytes: 0,
            bytes_max,
            entries: 0,
            entries_max,
        }
    }

    fn has_room(&self, charge: u64) -> bool {
        self.entries < self.entries_max && charge <= self.bytes_max.saturating_sub(self.bytes)
    }
}

impl Held {
    pub(super) fn new(memory_bytes_max: u64, disk_bytes_max: u64) -> Self {
        Self {
            entries: LruCache::unbounded(),
            memory: Account::new(memory_bytes_max, SMALL_ENTRIES_MAX),
            disk: Account::new(disk_bytes_max, FILES_MAX),
            made: 0,
        }
    }

    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// A copy that is there or being made.
    pub(super) fn find(&mut self, key: &Key) -> Option<Arc<Copy>> {
        let entry = self.entries.get(key)?;
        if entry.copy.is_dead() {
            self.remove(key);
            return None;
        }
        Some(Arc::clone(&entry.copy))
    }

    /// Adds a copy of an object of `length` bytes, unless somebody was faster: whose copy it is
    /// now and whether it is the one given. `None` where there is no room.
    pub(super) fn begin(
        &mut self,
        key: &Key,
        copy: Arc<Copy>,
        length: u64,
        is_small: bool,
    ) -> Option<(Arc<Copy>, bool)> {
        if let Some(found) = self.find(key) {
            return Some((found, false));
        }
        let charge = most_bytes(length);
        self.make_room(charge, is_small)?;
        let account = self.account(is_small);
        account.bytes += charge;
        account.entries += 1;
        let entry = Entry {
            copy: Arc::clone(&copy),
            charge,
            is_small,
        };
        self.entries.put(key.clone(), entry);
        Some((copy, true))
    }

    /// Charges a copy with what it takes in the end.
    pub(super) fn finish(&mut self, key: &Key, bytes: u64) {
        self.made += 1;
        let Some(entry) = self.entries.peek_mut(key) else {
            return;
        };
        let (before, is_small) = (std::mem::replace(&mut entry.charge, bytes), entry.is_small);
        let account = self.account(is_small);
        account.bytes = account.bytes.saturating_sub(before).saturating_add(bytes);
    }

    /// Forgets a copy; who reads it reads on.
    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.pop(key) {
            let account = self.account(entry.is_small);
            account.bytes = account.bytes.saturating_sub(entry.charge);
            account.entries = account.entries.saturating_sub(1);
        }
    }

    fn account(&mut self, is_small: bool) -> &mut Account {
        if is_small {
            &mut self.memory
        } else {
            &mut self.disk
        }
    }

    fn make_room(&mut self, charge: u64, is_small: bool) -> Option<()> {
        if charge > self.account(is_small).bytes_max {
            return None;
        }
        while !self.account(is_small).has_room(charge) {
            let oldest = self.entries.iter().rev().find(|(_, entry)| {
                entry.is_small == is_small && !matches!(entry.copy.progress(), Progress::Growing(_))
            });
            let key = oldest.map(|(key, _)| key.clone())?;
            self.remove(&key);
        }
        Some(())
    }
}

/// What a coding makes of bytes that cannot be compressed: a little more than they are.
fn most_bytes(length: u64) -> u64 {
    length.saturating_add(length / 128).saturating_add(1_024)
}
