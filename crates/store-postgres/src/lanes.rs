//! Turns of the writers within this process.
//!
//! The database has the lock that counts. But who waits for that holds a connection, and the pool
//! has few: so writers to one partition wait here first, without one.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tidewater_model::PartitionId;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// One turn for each partition that somebody writes to.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Mutex<HashMap<PartitionId, Weak<Turn<()>>>>);

/// The turns that a writer has.
pub(crate) type Turns = Vec<OwnedMutexGuard<()>>;

impl Lanes {
    /// Waits for the turns of partitions, in one order, so that nobody waits for each other.
    pub(crate) async fn take(&self, partitions: &[PartitionId]) -> Turns {
        let mut turns = Vec::with_capacity(partitions.len());
        let partitions: BTreeSet<&PartitionId> = partitions.iter().collect();
        for partition in partitions {
            turns.push(self.turn(partition).lock_owned().await);
        }
        turns
    }

    fn turn(&self, partition: &PartitionId) -> Arc<Turn<()>> {
        let mut lanes = self.0.lock();
        if let Some(turn) = lanes.get(partition).and_then(Weak::upgrade) {
            return turn;
        }
        lanes.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Turn::new(()));
        lanes.insert(partition.clone(), Arc::downgrade(&turn));
        turn
    }
}
