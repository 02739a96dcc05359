//! Ways to run a future that only tests need: in part, beside another, or into a panic.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use tidewater_model::PartitionId;

use super::{
    Database,
    fixtures::{Draft, lock, partition, schema, touch},
};
use crate::{CommitWrite, Finished, Gate, Loaded, Store, StoreErrorKind, WriteTxn};

/// The most polls that any future of a store needs: more means that it never ends.
const POLLS_MAX: usize = 1_000;

/// Opens and prepares the database, and registers the partition `p`.
pub(super) async fn ready(database: &dyn Database) -> Arc<dyn Store> {
    let store = database.open().await;
    store.prepare(&schema()).await.unwrap();
    touch(&*store, "p").await;
    store
}

/// Opens a write transaction on one partition.
pub(super) async fn begin(store: &dyn Store, name: &str) -> (Box<dyn WriteTxn>, Gate) {
    let (txn, mut loaded) = store.begin_write(lock(&[name])).await.unwrap();
    (txn, loaded.gates.remove(0))
}

/// The head of a partition, from within a transaction of its own.
pub(super) async fn head(store: &dyn Store, name: &str) -> u64 {
    begin(store, name).await.1.head.get()
}

/// Commits in one transaction and says how it went.
pub(super) async fn try_write(
    store: &dyn Store,
    drafts: impl IntoIterator<Item = Draft>,
) -> Finished {
    let commits: Vec<Arc<CommitWrite>> = drafts.into_iter().map(Draft::build).collect();
    let mut partitions: Vec<PartitionId> = commits
        .iter()
        .map(|commit| commit.key.partition.clone())
        .collect();
    partitions.dedup();
    let wanted = crate::LoadRequest {
        partitions,
        ..Default::default()
    };
    let (txn, _): (_, Loaded) = store.begin_write(wanted).await.unwrap();
    txn.finish(commits).await.unwrap()
}

/// Commits in one transaction.
pub(super) async fn write(store: &dyn Store, drafts: impl IntoIterator<Item = Draft>) {
    finished(try_write(store, drafts).await);
}

#[track_caller]
pub(super) fn finished(finished: Finished) {
    match finished {
        Finished::Committed => {}
        Finished::Violated(_, violation) => panic!("a constraint is broken: {violation:?}"),
    }
}

#[track_caller]
pub(super) fn refused<T>(result: Result<T, crate::StoreError>) -> crate::StorageCode {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => match error.kind {
            StoreErrorKind::Refused(code) => code,
            kind => panic!("it failed instead of being refused: {kind}"),
        },
    }
}

/// When to drop a future: at its n-th `Pending`, or when it is woken after that.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cancel {
    AtOnce(usize),
    WhenWoken(usize),
}

impl Cancel {
    /// Ever later moments, first of the one kind, then of the other.
    pub(super) fn moments() -> [fn(usize) -> Self; 2] {
        [Self::AtOnce, Self::WhenWoken]
    }
}

/// Runs a future up to a moment and drops it there; the output if it ended before.
pub(super) async fn cancel<F: Future>(moment: Cancel, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut pending = 0;
    poll_fn(|context| {
        if let Cancel::WhenWoken(polls) = moment
            && pending == polls
        {
            return Poll::Ready(None);
        }
        match future.as_mut().poll(context) {
            Poll::Ready(output) => return Poll::Ready(Some(output)),
            Poll::Pending => pending += 1,
        }
        if let Cancel::AtOnce(polls) = moment
            && pending == polls
        {
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await
}

/// Drops a future at every moment there is: `attempt` makes it, runs it with [`cancel`] and says
/// whether it ended.
pub(super) async fn at_every_moment(mut attempt: impl AsyncFnMut(Cancel) -> bool) {
    for moment in Cancel::moments() {
        let mut polls = 1;
        while !attempt(moment(polls)).await {
            polls += 1;
            assert!(polls < POLLS_MAX, "the future never ends");
        }
    }
}

/// Polls a future once.
pub(super) async fn poll_once<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// Whether a future panics, in its own polls or by passing a panic on.
pub(super) async fn panics<F: Future>(future: F) -> bool {
    let mut future = pin!(future);
    poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(_)) => Poll::Ready(false),
            Err(_) => Poll::Ready(true),
        },
    )
    .await
}

/// Checks that the store serves reads and writes: nothing was left locked, open or half done.
pub(super) async fn serves(store: &dyn Store, name: &str) {
    store.check().await.unwrap();
    let (txn, gate) = begin(store, name).await;
    let read = store.find_partition(&partition(name)).await.unwrap();
    if let Some(read) = read {
        assert_eq!(read.head, gate.head, "a reader and a writer see one head");
    }
    finished(txn.finish(Vec::new()).await.unwrap());
}
