//! Tasks that a thread of the store runs beside its jobs.
//!
//! A lane of commits decides, writes, and decides again. On a thread of its own each step would
//! wake the writer's thread and be woken by it, twice a transaction: more than the writing
//! itself costs a lone commit. Here its steps and its jobs follow each other in one queue.
//!
//! **Invariant:** no more than one poll of a task is queued.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use parking_lot::Mutex;
use tidewater_store::Lane;
use tokio::runtime::Handle;

use crate::worker::{Jobs, Work};

/// A task of one thread. It keeps the thread from ending, and the thread keeps it from nothing.
pub(crate) struct Task {
    /// `None` once it has ended.
    lane: Mutex<Option<Lane>>,
    jobs: Jobs,
    /// Where it was handed over: its timers are there.
    runtime: Option<Handle>,
    is_queued: AtomicBool,
}

/// Begins to run a task on the thread that takes these jobs.
pub(crate) fn spawn(jobs: Jobs, lane: Lane) {
    let task = Arc::new(Task {
        lane: Mutex::new(Some(lane)),
        jobs,
        runtime: Handle::try_current().ok(),
        is_queued: AtomicBool::new(false),
    });
    task.wake();
}

impl Task {
    /// Lets it go on until it waits for something. A panic ends it.
    pub(crate) fn poll(self: Arc<Self>) {
        // First, so that whatever happens from here on queues the next poll.
        self.is_queued.store(false, Ordering::Release);
        let _entered = self.runtime.as_ref().map(Handle::enter);
        let waker = Waker::from(Arc::clone(&self));
        let mut lane = self.lane.lock();
        let Some(running) = lane.as_mut() else { return };
        let polled = catch_unwind(AssertUnwindSafe(|| {
            running
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
        }));
        if polled.is_err() {
            tracing::error!("a task of the store ended in a panic");
        }
        if polled.unwrap_or(true) {
            let ended = lane.take();
            drop(lane);
            // It may be the last to hold the store.
            drop(ended);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            let jobs = self.jobs.clone();
            // The thread is there as long as somebody can send it work, and the task can.
            drop(jobs.send(Work::Poll(self)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use tokio::sync::oneshot;

    use crate::{SqliteConfig, SqliteStore};

    use tidewater_store::Store;

    fn open() -> Arc<SqliteStore> {
        Arc::new(SqliteStore::open(SqliteConfig::in_memory()).unwrap())
    }

    fn this_thread() -> Option<String> {
        thread::current().name().map(str::to_owned)
    }

    #[tokio::test]
    async fn a_lane_runs_on_the_writers_thread_whoever_wakes_it() {
        let store = open();
        let (told, heard) = oneshot::channel();
        let (wake, woken) = oneshot::channel::<()>();
        let lane = Box::pin(async move {
            let first = this_thread();
            let limit = Duration::from_secs(60);
            tokio::time::timeout(limit, woken).await.unwrap().unwrap();
            told.send((first, this_thread())).unwrap();
        });
        assert!(store.adopt_lane(lane).is_none());
        wake.send(()).unwrap();
        let writer = Some("sqlite-writer".to_owned());
        assert_eq!(heard.await.unwrap(), (writer.clone(), writer));
    }

    #[tokio::test]
    async fn a_lane_that_panics_takes_nothing_with_it() {
        let store = open();
        let (told, heard) = oneshot::channel();
        assert!(
            store
                .adopt_lane(Box::pin(async { panic!("on purpose") }))
                .is_none()
        );
        let next = Box::pin(async move { told.send(()).unwrap() });
        assert!(store.adopt_lane(next).is_none());
        heard.await.unwrap();
    }

    #[tokio::test]
    async fn the_last_to_hold_the_store_may_be_its_own_lane() {
        let store = open();
        let (go, wait) = oneshot::channel::<()>();
        let (told, heard) = oneshot::channel();
        let held = Arc::clone(&store);
        let lane = Box::pin(async move {
            wait.await.unwrap();
            drop(held);
            told.send(()).unwrap();
        });
        assert!(store.adopt_lane(lane).is_none());
        drop(store);
        go.send(()).unwrap();
        heard.await.unwrap();
    }

    #[tokio::test]
    async fn a_closed_store_gives_a_lane_back() {
        let store = open();
        store.close();
        assert!(store.adopt_lane(Box::pin(async {})).is_some());
    }
}
