//! Connections of the pool, and what is sent over them.
//!
//! **Invariant:** a connection in the pool has no open transaction. A [`Link`] that is dropped
//! with one, wherever that happens, keeps its connection until the rollback was answered; where
//! nothing runs that could wait for that, the connection is closed.
//!
//! Messages that go together are a flight: all are sent, and then all answers are awaited, in
//! their order. That is one round trip.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use deadpool_postgres::{
    Hook, Manager, ManagerConfig, Object, Pool as Connections, RecyclingMethod, Runtime, Timeouts,
};
use tidewater_store::{StoreError, StoreErrorKind};
use tokio_postgres::{
    Error, Row, Statement,
    types::{ToSql, Type},
};

use crate::{
    config::PostgresConfig,
    error::{ends_connection, failed, failure, no_connection},
    params::Step,
    tls,
};

/// The connections of a store.
#[derive(Debug)]
pub(crate) struct Pool {
    connections: Connections,
    shared: Arc<Shared>,
}

/// What we ask has an index in the order that we ask for. Statistics lag behind a table that
/// grows, and where they say that it has one row, any other way to it costs as much: to walk it, or
/// another index and a sort, and that once for each of the rows asked for. A way that is not wanted
/// and without alternative is taken for so expensive that it seems worth compiling, which takes
/// longer than any of our statements.
const PLANNING: &str =
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL jit = off";

#[derive(Debug)]
struct Shared {
    prepared: bool,
    settings: String,
    /// Whether the server has to be told that a commit waits for the disk.
    asks_durability: AtomicBool,
    round_trips: AtomicU64,
}

/// What a transaction is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// One snapshot.
    Read,
    /// Writes; each statement sees what was committed before it.
    Write,
    /// Writes, and may take as long as it takes.
    Migrate,
}

impl Pool {
    /// At most so many connections.
    pub(crate) fn new(config: &PostgresConfig, size: usize) -> Result<Self, StoreError> {
        let manager = Manager::from_config(
            config.address.clone(),
            tls::connector(&config.trust)?,
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        let connect_timeout = config.address.get_connect_timeout().copied();
        let connections = Connections::builder(manager)
            .max_size(size.max(1))
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts {
                wait: Some(config.checkout_timeout),
                // The driver's own timeout does not count what follows the socket's opening.
                create: connect_timeout.map(|timeout| timeout * 2),
                recycle: None,
            })
            .post_create(Hook::sync_fn(|_, _| {
                tracing::debug!("a connection to the database was opened");
                Ok(())
            }))
            .build()
            .map_err(|error| {
                StoreError::new(StoreErrorKind::Unavailable, "open the database").with_source(error)
            })?;
        let settings = format!(
            "SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = {}; \
             SET LOCAL idle_in_transaction_session_timeout = {}; {PLANNING}",
            milliseconds(config.statement_timeout),
            milliseconds(config.lock_timeout),
            milliseconds(config.idle_in_transaction_timeout),
        );
        Ok(Self {
            connections,
            shared: Arc::new(Shared {
                prepared: config.prepared_statements,
                settings,
                asks_durability: AtomicBool::new(false),
                round_trips: AtomicU64::new(0),
            }),
        })
    }

    /// A connection, once one is free.
    pub(crate) async fn lease(&self, during: &'static str) -> Result<Link, StoreError> {
        let connection = self.connections.get().await;
        Ok(Link {
            connection: Some(connection.map_err(|error| no_connection(error, during))?),
            shared: Arc::clone(&self.shared),
            is_open: false,
            is_ended: false,
        })
    }

    /// Whether statements are prepared.
    pub(crate) fn prepares(&self) -> bool {
        self.shared.prepared
    }

    /// Has every write wait for the disk from now on, though the server's settings do not.
    pub(crate) fn ask_for_durability(&self) {
        self.shared.asks_durability.store(true, Ordering::Relaxed);
    }

    pub(crate) fn round_trips(&self) -> u64 {
        self.shared.round_trips.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self) {
        self.connections.close();
    }
}

pub(crate) fn milliseconds(duration: Duration) -> u128 {
    // More than the server takes is as good as its most; zero would mean none.
    duration.as_millis().clamp(1, 2_147_483_647)
}

/// A connection of the pool, with at most one transaction.
#[derive(Debug)]
pub(crate) struct Link {
    /// There until it is dropped.
    connection: Option<Object>,
    shared: Arc<Shared>,
    is_open: bool,
    /// Whether the server has said that it ends the connection.
    is_ended: bool,
}

/// The answers of a flight, in the order of its steps.
pub(crate) struct Flight(Vec<Result<Vec<Row>, Error>>);

impl Flight {
    /// The rows of every step, or the first failure.
    pub(crate) fn rows(self, during: &'static str) -> Result<Vec<Vec<Row>>, StoreError> {
        let rows = self.0.into_iter();
        rows.collect::<Result<_, _>>().map_err(failed(during))
    }

    /// The step that failed first. All after it failed because of it.
    pub(crate) fn first_failure(&self) -> Option<(usize, &Error)> {
        let mut answers = self.0.iter().enumerate();
        answers.find_map(|(index, answer)| answer.as_ref().err().map(|error| (index, error)))
    }

    /// The answer of one step.
    pub(crate) fn answer(&mut self, index: usize) -> Result<Vec<Row>, Error> {
        std::mem::replace(&mut self.0[index], Ok(Vec::new()))
    }
}

impl Link {
    /// The step that begins a transaction.
    pub(crate) fn begin(&self, mode: Mode) -> Step<'static> {
        let settings = &self.shared.settings;
        let mut sql = match mode {
            Mode::Read => format!("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; {settings}"),
            Mode::Write => format!("BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; {settings}"),
            Mode::Migrate => format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; \
                 SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; \
                 SET LOCAL idle_in_transaction_session_timeout = 0; {PLANNING}"
            ),
        };
        if mode != Mode::Read && self.shared.asks_durability.load(Ordering::Relaxed) {
            sql.push_str("; SET LOCAL synchronous_commit = on");
        }
        Step::command(sql)
    }

    /// Sends every step and waits for every answer.
    ///
    /// Fails where nothing was sent, or where the connection is gone; a step that the server
    /// refused is in the answer.
    pub(crate) async fn fly(
        &mut self,
        steps: &[Step<'_>],
        during: &'static str,
    ) -> Result<Flight, StoreError> {
        let steps: Vec<&Step<'_>> = steps.iter().collect();
        self.send_all(&steps, during).await
    }

    async fn send_all(
        &mut self,
        steps: &[&Step<'_>],
        during: &'static str,
    ) -> Result<Flight, StoreError> {
        let statements = self.prepare(steps, during).await?;
        self.is_open = true;
        self.shared.round_trips.fetch_add(1, Ordering::Relaxed);
        let connection = self.connection();
        let answers = steps
            .iter()
            .zip(&statements)
            .map(|(step, statement)| send(connection, step, statement.as_ref()))
            .collect();
        let answers = in_order(answers).await;
        let failures = answers.iter().filter_map(|answer| answer.as_ref().err());
        self.is_ended |= failures.into_iter().any(ends_connection);
        Ok(Flight(answers))
    }

    /// Sends a command before the steps, whose answers are those of the flight. Fails where the
    /// command does.
    pub(crate) async fn fly_after(
        &mut self,
        command: &'static str,
        steps: &[Step<'_>],
        during: &'static str,
    ) -> Result<Flight, StoreError> {
        let before = [Step::command(command)];
        let steps: Vec<&Step<'_>> = before.iter().chain(steps).collect();
        let Flight(mut answers) = self.send_all(&steps, during).await?;
        answers.remove(0).map_err(failed(during))?;
        Ok(Flight(answers))
    }

    /// A flight that is a transaction of its own: begins, runs the steps and commits. The rows of
    /// the steps.
    pub(crate) async fn transact(
        &mut self,
        mode: Mode,
        steps: Vec<Step<'_>>,
        during: &'static str,
    ) -> Result<Vec<Vec<Row>>, StoreError> {
        let mut all = vec![self.begin(mode)];
        all.extend(steps);
        all.push(Step::command("COMMIT"));
        let flight = self.fly(&all, during).await?;
        let mut rows = flight.rows(during)?;
        self.is_open = false;
        rows.pop();
        rows.remove(0);
        Ok(rows)
    }

    /// Makes the transaction durable, after the steps.
    pub(crate) async fn commit(
        &mut self,
        mut steps: Vec<Step<'_>>,
        during: &'static str,
    ) -> Result<Vec<Vec<Row>>, StoreError> {
        steps.push(Step::command("COMMIT"));
        let rows = self.fly(&steps, during).await?.rows(during)?;
        self.is_open = false;
        Ok(rows)
    }

    /// Whether work that failed may be tried again from its start: it lost to another
    /// transaction, or the connection was lost. For work that may be done twice.
    pub(crate) fn may_retry(&self, error: &StoreError, tries: usize) -> bool {
        let is_passing = match error.kind {
            StoreErrorKind::Contention => true,
            StoreErrorKind::Unavailable => self.is_ended || self.connection().is_closed(),
            StoreErrorKind::Corrupt | StoreErrorKind::Refused(_) => false,
        };
        is_passing && tries < TRIES_MAX
    }

    fn connection(&self) -> &Object {
        self.connection
            .as_ref()
            .expect("it is there until it is dropped")
    }

    /// The statements of the steps, prepared where they are not yet: all at once.
    async fn prepare(
        &mut self,
        steps: &[&Step<'_>],
        during: &'static str,
    ) -> Result<Vec<Option<Statement>>, StoreError> {
        if !self.shared.prepared {
            return Ok(steps.iter().map(|_| None).collect());
        }
        let connection = self.connection();
        let known = connection.statement_cache.size();
        let mut prepared = Vec::with_capacity(steps.len());
        for step in steps {
            prepared.push(async move {
                if !step.repeats {
                    return Ok(None);
                }
                let types: Vec<Type> = step.types();
                let statement = connection.prepare_typed_cached(&step.sql, &types).await?;
                Ok::<_, Error>(Some(statement))
            });
        }
        let prepared = prepared
            .into_iter()
            .map(|one| -> Answer<'_, Result<Option<Statement>, Error>> { Box::pin(one) });
        let statements = in_order(prepared.collect()).await;
        if connection.statement_cache.size() != known {
            self.shared.round_trips.fetch_add(1, Ordering::Relaxed);
        }
        let statements: Result<_, Error> = statements.into_iter().collect();
        statements.map_err(|error| {
            self.is_ended |= ends_connection(&error);
            failure(&error, during)
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        if self.is_ended {
            drop(Object::take(connection));
            return;
        }
        if !self.is_open || connection.is_closed() {
            return;
        }
        // Whoever drops it may be anywhere; the rollback needs somebody who waits.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(roll_back(connection))),
            Err(_) => drop(Object::take(connection)),
        }
    }
}

/// Returns the connection to the pool when its transaction has ended, or closes it.
async fn roll_back(connection: Object) {
    let ended = tokio::time::timeout(ROLLBACK_TIMEOUT, connection.batch_execute("ROLLBACK"));
    if !matches!(ended.await, Ok(Ok(()))) {
        drop(Object::take(connection));
    }
}

/// A connection that takes longer to get free is not worth waiting for: a statement of a canceled
/// caller may go on for as long as it is allowed to.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(5);

/// How often work is tried again.
const TRIES_MAX: usize = 3;

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

fn send<'a>(
    connection: &'a Object,
    step: &'a Step<'_>,
    statement: Option<&'a Statement>,
) -> Answer<'a, Result<Vec<Row>, Error>> {
    let Some(params) = &step.params else {
        return Box::pin(async move {
            connection.batch_execute(&step.sql).await?;
            Ok(Vec::new())
        });
    };
    Box::pin(async move {
        match statement {
            Some(statement) => {
                let params: Vec<&(dyn ToSql + Sync)> = params
                    .iter()
                    .map(|param| -> &(dyn ToSql + Sync) { &*param.value })
                    .collect();
                connection.query(statement, &params).await
            }
            None => {
                let params: Vec<(&(dyn ToSql + Sync), Type)> = params
                    .iter()
                    .map(|param| -> (&(dyn ToSql + Sync), Type) {
                        (&*param.value, param.kind.clone())
                    })
                    .collect();
                connection.query_typed(&step.sql, &params).await
            }
        }
    })
}

/// Begins all futures in their order, which sends what they send in this order, and waits for
/// them one after the other, which is the order of the answers.
async fn in_order<T>(mut futures: Vec<Answer<'_, T>>) -> Vec<T> {
    let mut begun: Vec<Option<T>> = poll_fn(|context| {
        let polls = futures.iter_mut();
        Poll::Ready(
            polls
                .map(|future| match future.as_mut().poll(context) {
                    Poll::Ready(value) => Some(value),
                    Poll::Pending => None,
                })
                .collect(),
        )
    })
    .await;
    let mut values = Vec::with_capacity(futures.len());
    for (future, begun) in futures.into_iter().zip(begun.iter_mut()) {
        values.push(match begun.take() {
            Some(value) => value,
            None => future.await,
        });
    }
    values
}

/// Does work that may be done twice, and does it again where that can help.
macro_rules! retried {
    ($pool:expr, $during:expr, $link:ident => $work:expr) => {{
        let mut tries = 0;
        loop {
            let mut $link = $pool.lease($during).await?;
            match $work.await {
                Err(error) if $link.may_retry(&error, tries) => tries += 1,
                result => break result,
            }
        }
    }};
}

pub(crate) use retried;
