//! Counts the tasks of the hub, so that a shutdown can wait for them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Counts what runs.
#[derive(Default)]
pub(super) struct Tasks(Arc<Running>);

#[derive(Default)]
struct Running {
    count: AtomicUsize,
    idle: Notify,
}

impl Tasks {
    pub(super) fn begin(&self) -> Task {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        Task(Arc::clone(&self.0))
    }

    /// Waits until nothing runs.
    pub(super) async fn ended(&self) {
        loop {
            let idle = self.0.idle.notified();
            if self.0.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// Something that runs, until it is dropped.
pub(super) struct Task(Arc<Running>);

impl Drop for Task {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
