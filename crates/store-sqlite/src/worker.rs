//! Threads that own a connection each and run what they are sent.
//!
//! A job is a closure that gets the connection's [`Session`]. Who sends one holds the right to
//! that thread (the writer's turn, a reader's permit), so no more than one job is ever queued,
//! beside one poll of each task that the thread has adopted. The answer comes back through a
//! channel of its own; when nobody waits for it any more, the job is not begun.
//!
//! A panic inside a job is the caller's: it ends the job, not the thread, and goes on where the
//! answer would have been received.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rusqlite::Connection;
use tidewater_store::StoreError;
use tokio::sync::{mpsc, oneshot};

use crate::{
    config::SqliteConfig,
    connection::{self, Role},
    error::disconnected,
    home::Home,
    layout::CurrentLayout,
    session::Session,
    task::Task,
};

/// What a thread runs.
pub(crate) type Job = Box<dyn FnOnce(&mut Session<'_>) + Send>;

/// What a thread is sent.
pub(crate) enum Work {
    /// Work on the connection.
    Job(Job),
    /// A task that may have something to do.
    Poll(Arc<Task>),
}

/// Where a thread's work is sent.
///
/// A channel of tokio though the thread blocks on it: the standard library's wakes a thread while
/// it holds the lock that the thread takes next, and that costs two more switches.
pub(crate) type Jobs = mpsc::UnboundedSender<Work>;

type Queue = mpsc::UnboundedReceiver<Work>;

/// What a thread needs to open its connection, now and again.
pub(crate) struct Seat {
    pub(crate) home: Arc<Home>,
    pub(crate) config: Arc<SqliteConfig>,
    pub(crate) layout: Arc<CurrentLayout>,
    pub(crate) role: Role,
}

/// A running thread.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) jobs: Jobs,
    thread: JoinHandle<()>,
    /// Nothing is ever sent: it disconnects when the thread has let go of everything.
    ended: Receiver<()>,
}

impl Worker {
    /// Starts a thread that serves one connection until every sender of jobs is gone.
    pub(crate) fn start(name: String, connection: Connection, seat: Seat) -> io::Result<Self> {
        let (jobs, mut queue) = mpsc::unbounded_channel();
        let (ending, ended) = sync_channel(0);
        let thread = thread::Builder::new()
            .name(name)
            .stack_size(STACK_BYTES)
            .spawn(move || {
                run(Some(connection), &seat, &mut queue);
                drop((seat, ending));
            })?;
        Ok(Self {
            jobs,
            thread,
            ended,
        })
    }

    /// Lets the thread end when it has done what it was sent, and waits for that.
    ///
    /// Not for ever: a caller may hold a sender of jobs and wait for us. The thread then ends
    /// when the caller lets go.
    pub(crate) fn end(self) {
        drop(self.jobs);
        if self.thread.thread().id() == thread::current().id() {
            // A task was the last to hold the store. The thread ends when the task has.
            return;
        }
        let name = self.thread.thread().name().unwrap_or_default().to_owned();
        if self.ended.recv_timeout(END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(thread = %name, "a thread of the store is still busy and is left alone");
        } else if self.thread.join().is_err() {
            tracing::error!(thread = %name, "a thread of the store ended in a panic");
        }
    }
}

/// No job but a migration takes this long, and a store is not closed while it migrates.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs work on a thread and waits for what it gives back.
pub(crate) async fn submit<T: Send + 'static>(
    jobs: &Jobs,
    during: &'static str,
    work: impl FnOnce(&mut Session<'_>) -> T + Send + 'static,
) -> Result<T, StoreError> {
    let (reply, answer) = oneshot::channel();
    let job: Job = Box::new(move |session| {
        if reply.is_closed() {
            return;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| work(session)));
        if outcome.is_err() {
            session.abandon();
        }
        // Nobody listens: what was prepared for them is dropped, and undoes itself.
        drop(reply.send(outcome));
    });
    if jobs.send(Work::Job(job)).is_err() {
        return Err(disconnected(during));
    }
    match answer.await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => Err(disconnected(during)),
    }
}

/// Runs work on a thread that tells its outcome itself.
pub(crate) fn post(
    jobs: &Jobs,
    during: &'static str,
    work: impl FnOnce(&mut Session<'_>) + Send + 'static,
) -> Result<(), StoreError> {
    let job: Job = Box::new(move |session| {
        // Its channels were dropped with it: that is how whoever listens learns of a panic.
        if catch_unwind(AssertUnwindSafe(|| work(session))).is_err() {
            session.abandon();
        }
    });
    jobs.send(Work::Job(job)).map_err(|_| disconnected(during))
}

fn run(first: Option<Connection>, seat: &Seat, queue: &mut Queue) {
    let mut connection = first;
    while let Some(work) = queue.blocking_recv() {
        let job = match work {
            Work::Job(job) => job,
            Work::Poll(task) => {
                task.poll();
                continue;
            }
        };
        if connection.is_none() {
            connection = reopen(seat);
        }
        // Without a connection the job is dropped, and who waits for it learns that.
        if let Some(open) = &connection
            && serve(open, seat, job, queue) == Served::Broken
        {
            connection = None;
        }
    }
    if let Some(connection) = connection {
        close(connection, seat);
    }
}

#[derive(Eq, PartialEq)]
enum Served {
    Done,
    Broken,
}

/// Runs jobs until there will be no more, or until the connection breaks.
fn serve(connection: &Connection, seat: &Seat, first: Job, queue: &mut Queue) -> Served {
    let mut session = Session::new(connection);
    let mut work = Work::Job(first);
    loop {
        match work {
            Work::Job(job) => {
                session.adopt(seat.layout.find());
                job(&mut session);
                if session.is_broken() {
                    return Served::Broken;
                }
            }
            Work::Poll(task) => task.poll(),
        }
        match queue.blocking_recv() {
            Some(next) => work = next,
            None => return Served::Done,
        }
    }
}

fn reopen(seat: &Seat) -> Option<Connection> {
    connection::open(&seat.home, &seat.config, seat.role)
        .inspect_err(|error| tracing::error!(%error, "a connection could not be opened again"))
        .ok()
}

fn close(connection: Connection, seat: &Seat) {
    if seat.role == Role::Writer {
        seat.home.mark(&connection);
    }
    if seat.role == Role::Writer
        && !seat.home.is_temporary()
        && let Err(error) = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    {
        tracing::warn!(%error, "the write-ahead log stays as it is");
    }
    if let Err((_, error)) = connection.close() {
        tracing::warn!(%error, "a connection was not closed cleanly");
    }
}

/// SQLite's parser and our closures need little of it.
const STACK_BYTES: usize = 512 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Worker {
        let config = Arc::new(SqliteConfig::in_memory());
        let home = Arc::new(Home::claim(&config.location).unwrap());
        let connection = connection::open(&home, &config, Role::Writer).unwrap();
        let seat = Seat {
            home,
            config,
            layout: Arc::default(),
            role: Role::Writer,
        };
        Worker::start("test".to_owned(), connection, seat).unwrap()
    }

    async fn count(worker: &Worker) -> Result<i64, StoreError> {
        submit(&worker.jobs, "count", |session| {
            let count =
                session
                    .connection
                    .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0));
            count.unwrap()
        })
        .await
    }

    #[tokio::test]
    async fn a_broken_connection_is_opened_again() {
        let worker = start();
        submit(&worker.jobs, "break", |session| {
            let lost = "CREATE TABLE kept (a); BEGIN; CREATE TABLE lost (a)";
            session.connection.execute_batch(lost).unwrap();
            session.break_connection();
        })
        .await
        .unwrap();
        assert_eq!(count(&worker).await.unwrap(), 1, "what was open is gone");
        worker.end();
    }

    #[tokio::test]
    async fn a_thread_that_is_let_go_ends_and_takes_its_files_with_it() {
        let worker = start();
        let path = submit(&worker.jobs, "find the file", |session| {
            session.connection.path().unwrap().to_owned()
        });
        let path = std::path::PathBuf::from(path.await.unwrap());
        assert!(path.exists());
        worker.end();
        assert!(!path.exists());
    }
}
