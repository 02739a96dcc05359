//! Random histories: the same steps on two stores, and every read compared.
//!
//! The cases of the suite say what each operation promises; a history finds what they left open,
//! because two implementations rarely leave it open in the same way. A third opinion on the rows
//! is the generator's own.
//!
//! A failure prints the seed and the step, and the same seed makes the same history again.

mod dice;
mod probe;
mod world;

use std::{fmt::Debug, mem, sync::Arc};

use self::{
    probe::Probe,
    world::{Step, World, Write},
};
use super::{
    Database, block_on,
    fixtures::{epoch, lock, partition, schema},
};
use crate::{Finished, MemoryStore, Store, StoreErrorKind, Violation, WriteLanes};

/// Runs the history of a seed on two databases and compares what they read.
///
/// # Panics
///
/// When they differ.
pub fn run(seed: u64, steps: usize, left: &dyn Database, right: &dyn Database) {
    block_on(compare(seed, steps, left, right));
}

/// Runs the history of a seed on two databases and compares what they read.
///
/// # Panics
///
/// When they differ.
pub async fn compare(seed: u64, steps: usize, left: &dyn Database, right: &dyn Database) {
    let mut world = World::new(seed);
    let databases = [left, right];
    let mut stores = [open(left).await, open(right).await];
    let spanning = stores
        .iter()
        .all(|store| store.write_lanes() == WriteLanes::One);
    for number in 0..steps {
        let step = world.step(spanning);
        if let Step::Reopen = step {
            for (store, database) in stores.iter_mut().zip(databases) {
                // Its place must not hold the store while it is closed.
                let closing = mem::replace(store, Arc::new(MemoryStore::new()));
                database.close(closing).await;
                *store = open(database).await;
            }
        }
        let outcomes = [
            take(&step, &*stores[0]).await,
            take(&step, &*stores[1]).await,
        ];
        let context = format!("seed {seed}, step {number}: {step:?}");
        assert_eq!(outcomes[0], outcomes[1], "{context}");
        if let Step::Write(write) = &step {
            world.settle(write, &outcomes[0]);
        }
        let probe = Probe::new(&mut world);
        let seen = [
            probe.read(databases[0], &stores[0]).await,
            probe.read(databases[1], &stores[1]).await,
        ];
        for (left, right) in seen[0].iter().zip(&seen[1]) {
            assert_eq!(left, right, "{context}");
        }
    }
}

async fn open(database: &dyn Database) -> Arc<dyn Store> {
    let store = database.open().await;
    store.prepare(&schema()).await.unwrap();
    store
}

/// What a step came to, in a form that compares.
#[derive(Debug, Eq, PartialEq)]
enum Outcome {
    /// The commit that broke a constraint.
    Written(Option<Violation>),
    Dropped,
    Done(String),
}

async fn take(step: &Step, store: &dyn Store) -> Outcome {
    match step {
        Step::Write(write) => take_write(write, store).await,
        Step::Touch(touch) => done(store.touch_partition(touch.clone()).await),
        Step::Rotate {
            partition: name,
            epoch: number,
            at_ms,
        } => {
            let epoch = epoch(&format!("e{number}"));
            done(store.rotate_epoch(&partition(name), &epoch, *at_ms).await)
        }
        Step::Activity(batch) => done(store.put_activity(batch.clone()).await),
        Step::Prune {
            partition: name,
            epoch: number,
            horizon,
        } => {
            let epoch = epoch(&format!("e{number}"));
            done(store.prune(&partition(name), &epoch, *horizon).await)
        }
        Step::Reopen => done(store.check().await),
    }
}

/// A refusal is an outcome, by its code; any other error ends the history.
fn done<T: Debug>(result: Result<T, crate::StoreError>) -> Outcome {
    Outcome::Done(match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => match error.kind {
            StoreErrorKind::Refused(code) => code.as_str().to_owned(),
            _ => panic!("a step failed: {error}"),
        },
    })
}

async fn take_write(write: &Write, store: &dyn Store) -> Outcome {
    let (mut txn, _) = store.begin_write(lock(&write.partitions)).await.unwrap();
    let commits: Vec<_> = write
        .commits
        .iter()
        .map(|(commit, _)| Arc::clone(commit))
        .collect();
    let (first, rest) = commits.split_at(write.applied_first);
    let violation = txn.apply(first.to_vec()).await.unwrap();
    if write.dropped {
        return Outcome::Dropped;
    }
    if violation.is_some() {
        finish(txn.finish(Vec::new()).await.unwrap());
        return Outcome::Written(violation);
    }
    match txn.finish(rest.to_vec()).await.unwrap() {
        Finished::Committed => Outcome::Written(None),
        Finished::Violated(txn, violation) => {
            finish(txn.finish(Vec::new()).await.unwrap());
            Outcome::Written(Some(Violation {
                commit: first.len() + violation.commit,
                ..violation
            }))
        }
    }
}

fn finish(finished: Finished) {
    let committed = matches!(finished, Finished::Committed);
    assert!(committed, "a finish without commits breaks no constraint");
}

impl World {
    /// Takes over what a transaction came to.
    fn settle(&mut self, write: &Write, outcome: &Outcome) {
        let applied = match outcome {
            Outcome::Written(None) => write.commits.len(),
            Outcome::Written(Some(violation)) => violation.commit,
            Outcome::Dropped | Outcome::Done(_) => 0,
        };
        if let Some((_, logs)) = applied.checked_sub(1).map(|last| &write.commits[last]) {
            self.logs.clone_from(logs);
        }
    }
}
