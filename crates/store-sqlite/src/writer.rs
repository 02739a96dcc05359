//! The writer: one thread, one connection, one turn.
//!
//! Who has the turn may send the thread a job. A short write sends the turn along, and the thread
//! gives it back when the job is done. A write transaction keeps it from begin to end, over many
//! jobs: during a job the turn is in the job's hands, between two in the transaction's.
//!
//! **Invariant:** a turn that is dropped, wherever that happens, queues the rollback of what may
//! be open, and only then goes to the next in line. So a canceled future leaves no trace, and
//! the queue never holds more than one job.
//!
//! A lane that writes again and again runs on the thread itself: between the jobs it waits for
//! it is polled there, and a commit costs one wake-up on its way in and one on its way out.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use bytestring::ByteString;
use parking_lot::Mutex;
use tidewater_model::PartitionId;
use tidewater_store::{
    ChangeWrite, Child, ChildQuestion, CommitWrite, Finished, IndexScan, Lane, LoadRequest, Loaded,
    RowPage, RowScan, SqlQuery, SqlValue, StoreError, StoreErrorKind, StoredRow, Violation,
    WriteTxn,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    apply::apply_commits,
    candidates,
    error::disconnected,
    load::load,
    scan::scan_rows,
    session::Session,
    task,
    worker::{Job, Jobs, Work, Worker, submit},
};

const BEGIN: &str = "begin a write transaction";

/// The handle on the writer's thread.
#[derive(Debug)]
pub(crate) struct Writer {
    /// One permit. Waiters get it in the order in which they came.
    turns: Arc<Semaphore>,
    worker: Mutex<Option<Worker>>,
    /// Transactions in the hands of callers.
    open_txns: Arc<AtomicUsize>,
}

impl Writer {
    pub(crate) fn new(worker: Worker) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(1)),
            worker: Mutex::new(Some(worker)),
            open_txns: Arc::default(),
        }
    }

    /// Runs a short write that is a transaction of its own.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        during: &'static str,
        write: impl FnOnce(&mut Session<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (permit, jobs) = self.take_turn(during).await?;
        submit(&jobs, during, move |session| {
            let result = session.transact(during, write);
            drop(permit);
            result
        })
        .await?
    }

    /// Runs work that opens its transactions itself.
    pub(crate) async fn run_bare<T: Send + 'static>(
        &self,
        during: &'static str,
        work: impl FnOnce(&mut Session<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (permit, jobs) = self.take_turn(during).await?;
        submit(&jobs, during, move |session| {
            let result = work(session);
            drop(permit);
            result
        })
        .await?
    }

    /// Opens a write transaction and loads.
    pub(crate) async fn begin(
        &self,
        wanted: LoadRequest,
    ) -> Result<(Box<dyn WriteTxn>, Loaded), StoreError> {
        let (permit, jobs) = self.take_turn(BEGIN).await?;
        let turn = Turn {
            permit: Some(permit),
            jobs: jobs.clone(),
        };
        let (turn, loaded) = submit(&jobs, BEGIN, move |session| {
            session.begin_write(BEGIN)?;
            let loaded = load(session, &wanted)?;
            Ok::<_, StoreError>((turn, loaded))
        })
        .await??;
        let txn = SqliteTxn::new(turn, Arc::clone(&self.open_txns));
        Ok((Box::new(txn), loaded))
    }

    /// Runs a task on the thread. Gives it back when there is no thread any more.
    pub(crate) fn adopt(&self, lane: Lane) -> Option<Lane> {
        let Some(jobs) = self.jobs() else {
            return Some(lane);
        };
        task::spawn(jobs, lane);
        None
    }

    /// Ends the thread when it has done what it was sent, and waits for that, unless a
    /// transaction is still in the hands of a caller: then the thread ends after it.
    pub(crate) fn close(&self) {
        self.turns.close();
        let Some(worker) = self.worker.lock().take() else {
            return;
        };
        if self.open_txns.load(Ordering::Acquire) == 0 {
            worker.end();
        }
    }

    async fn take_turn(
        &self,
        during: &'static str,
    ) -> Result<(OwnedSemaphorePermit, Jobs), StoreError> {
        let permit = Arc::clone(&self.turns)
            .acquire_owned()
            .await
            .map_err(|_| disconnected(during))?;
        Ok((permit, self.jobs().ok_or_else(|| disconnected(during))?))
    }

    /// `None` once the store is closed.
    fn jobs(&self) -> Option<Jobs> {
        let worker = self.worker.lock();
        worker.as_ref().map(|worker| worker.jobs.clone())
    }
}

/// The writer's turn, while a transaction may be open on its connection.
struct Turn {
    permit: Option<OwnedSemaphorePermit>,
    jobs: Jobs,
}

impl Turn {
    /// Gives the turn back: the transaction has ended.
    fn release(mut self) {
        self.permit = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        let rollback: Job = Box::new(move |session| {
            session.abandon();
            drop(permit);
        });
        // If the thread is gone, its connection is, and with it the transaction.
        drop(self.jobs.send(Work::Job(rollback)));
    }
}

/// A write transaction.
struct SqliteTxn {
    /// `None` once a call failed or was canceled: what the transaction holds is then unknown.
    turn: Option<Turn>,
    jobs: Jobs,
    open_txns: Arc<AtomicUsize>,
}

impl SqliteTxn {
    fn new(turn: Turn, open_txns: Arc<AtomicUsize>) -> Self {
        open_txns.fetch_add(1, Ordering::AcqRel);
        Self {
            jobs: turn.jobs.clone(),
            turn: Some(turn),
            open_txns,
        }
    }

    /// Runs a job that the transaction goes on after, if it is done or refused.
    async fn call<T: Send + 'static>(
        &mut self,
        during: &'static str,
        work: impl FnOnce(&mut Session<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = self.turn.take().ok_or_else(|| poisoned(during))?;
        let (turn, result) = submit(&self.jobs, during, move |session| match work(session) {
            Err(error) if !matches!(error.kind, StoreErrorKind::Refused(_)) => Err(error),
            result => Ok((turn, result)),
        })
        .await??;
        self.turn = Some(turn);
        result
    }
}

#[async_trait]
impl WriteTxn for SqliteTxn {
    async fn load(&mut self, wanted: LoadRequest) -> Result<Loaded, StoreError> {
        self.call("load rows", move |session| load(session, &wanted))
            .await
    }

    async fn apply(
        &mut self,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Option<Violation>, StoreError> {
        self.call("apply commits", move |session| {
            apply_commits(session, &commits)
        })
        .await
    }

    async fn stage(
        &mut self,
        partition: &PartitionId,
        changes: Vec<ChangeWrite>,
    ) -> Result<Option<i32>, StoreError> {
        let partition = partition.clone();
        self.call("stage rows", move |session| {
            candidates::stage(session, &partition, &changes)
        })
        .await
    }

    async fn unstage(&mut self) -> Result<(), StoreError> {
        const DURING: &str = "unstage rows";
        self.call(DURING, |session| session.unstage(DURING)).await
    }

    async fn scan_rows(&mut self, scan: RowScan) -> Result<RowPage, StoreError> {
        self.call("scan rows", move |session| scan_rows(session, &scan))
            .await
    }

    async fn scan_index(
        &mut self,
        scan: IndexScan,
    ) -> Result<Vec<(ByteString, StoredRow)>, StoreError> {
        self.call("scan an index", move |session| {
            candidates::scan_index(session, &scan)
        })
        .await
    }

    async fn load_children(
        &mut self,
        questions: Vec<ChildQuestion>,
    ) -> Result<Vec<Vec<Child>>, StoreError> {
        self.call("load children", move |session| {
            candidates::load_children(session, &questions)
        })
        .await
    }

    async fn query(&mut self, query: SqlQuery) -> Result<Vec<Vec<SqlValue>>, StoreError> {
        self.call("run a query", move |session| {
            candidates::query(session, &query)
        })
        .await
    }

    async fn finish(
        mut self: Box<Self>,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Finished, StoreError> {
        const DURING: &str = "finish a write transaction";
        let turn = self.turn.take().ok_or_else(|| poisoned(DURING))?;
        let violated = submit(&self.jobs, DURING, move |session| {
            if let Some(violation) = apply_commits(session, &commits)? {
                return Ok::<_, StoreError>(Some((turn, violation)));
            }
            session.commit(DURING)?;
            turn.release();
            Ok(None)
        })
        .await??;
        Ok(match violated {
            None => Finished::Committed,
            Some((turn, violation)) => {
                self.turn = Some(turn);
                Finished::Violated(self, violation)
            }
        })
    }
}

impl Drop for SqliteTxn {
    fn drop(&mut self) {
        // The turn goes first: who sees the count at zero must find the rollback queued.
        self.turn = None;
        self.open_txns.fetch_sub(1, Ordering::AcqRel);
    }
}

fn poisoned(during: &'static str) -> StoreError {
    let mut error = StoreError::new(StoreErrorKind::Corrupt, during);
    error.detail = Some("the transaction failed before and can only be dropped".to_owned());
    error
}
