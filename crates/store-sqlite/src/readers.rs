//! The readers: a few threads, each with a connection that only reads.
//!
//! A read takes a permit and an idle reader, the one that was busy last: its page cache is warm,
//! and under little load the others keep theirs empty.

use std::sync::Arc;

use parking_lot::Mutex;
use tidewater_store::StoreError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    error::disconnected,
    session::Session,
    worker::{Jobs, Worker, post, submit},
};

/// The handle on the readers' threads.
#[derive(Debug)]
pub(crate) struct Readers {
    /// As many permits as idle readers. Waiters get them in the order in which they came.
    permits: Arc<Semaphore>,
    idle: Arc<Idle>,
    workers: Mutex<Vec<Worker>>,
}

impl Readers {
    pub(crate) fn new(workers: Vec<Worker>) -> Self {
        let idle = workers.iter().map(|worker| worker.jobs.clone()).collect();
        Self {
            permits: Arc::new(Semaphore::new(workers.len())),
            idle: Arc::new(Mutex::new(Some(idle))),
            workers: Mutex::new(workers),
        }
    }

    /// Runs reads on one connection.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        during: &'static str,
        read: impl FnOnce(&mut Session<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (jobs, seat) = self.take_seat(during).await?;
        submit(&jobs, during, move |session| {
            let result = read(session);
            drop(seat);
            result
        })
        .await?
    }

    /// Begins work on one connection and does not wait for its end.
    pub(crate) async fn begin(
        &self,
        during: &'static str,
        work: impl FnOnce(&mut Session<'_>) + Send + 'static,
    ) -> Result<(), StoreError> {
        let (jobs, seat) = self.take_seat(during).await?;
        post(&jobs, during, move |session| {
            work(session);
            drop(seat);
        })
    }

    async fn take_seat(&self, during: &'static str) -> Result<(Jobs, IdleAgain), StoreError> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|_| disconnected(during))?;
        let jobs = self.idle.lock().as_mut().and_then(Vec::pop);
        let jobs = jobs.ok_or_else(|| disconnected(during))?;
        let seat = IdleAgain {
            jobs: Some(jobs.clone()),
            idle: Arc::clone(&self.idle),
            _permit: permit,
        };
        Ok((jobs, seat))
    }

    /// Ends the threads when they have done what they were sent, and waits for that.
    pub(crate) fn close(&self) {
        self.permits.close();
        drop(self.idle.lock().take());
        for worker in self.workers.lock().drain(..) {
            worker.end();
        }
    }
}

/// The readers with nothing to do; `None` once the store is closed.
type Idle = Mutex<Option<Vec<Jobs>>>;

/// Makes a reader idle when its job is done, or was not begun.
struct IdleAgain {
    jobs: Option<Jobs>,
    idle: Arc<Idle>,
    /// Given back after the reader is.
    _permit: OwnedSemaphorePermit,
}

impl Drop for IdleAgain {
    fn drop(&mut self) {
        if let Some(idle) = &mut *self.idle.lock() {
            idle.extend(self.jobs.take());
        }
    }
}
