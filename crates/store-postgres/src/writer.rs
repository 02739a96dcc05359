//! Write transactions.
//!
//! **Invariant:** a transaction whose call failed or was canceled holds no link any more: what it
//! had written is unknown, so it can only be dropped. Its link rolls back and goes to the pool.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytestring::ByteString;
use tidewater_model::{CommitSeq, PartitionId};
use tidewater_store::{
    ChangeWrite, Child, ChildQuestion, CommitWrite, Finished, Gate, IndexScan, LoadRequest, Loaded,
    RowPage, RowScan, SqlQuery, SqlValue, StoreError, StoreErrorKind, StoredRow, Violation,
    WriteTxn,
    signals::{NodeId, Signal},
};

use crate::{
    announce,
    apply::{self, apply_commits},
    candidates, gate,
    lanes::Turns,
    layout::Layout,
    link::{Flight, Link, Mode},
    load::Questions,
    params::Step,
    query,
    scan::scan_rows,
};

/// An open transaction.
pub(crate) struct Txn {
    link: Link,
    /// Heads of the partitions that are locked.
    pub(crate) heads: HashMap<PartitionId, CommitSeq>,
    /// What they were when they were locked.
    pub(crate) heads_before: HashMap<PartitionId, CommitSeq>,
    /// The least versions of writers that the partitions take commits of.
    pub(crate) fences: HashMap<PartitionId, i32>,
    stage: Stage,
}

/// Where the savepoint of candidate rows is.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Stage {
    None,
    Open,
    /// Rolled back with the next thing that is sent.
    TakenBack,
}

impl Txn {
    /// Sends steps, and before them what is still to be taken back.
    pub(crate) async fn fly(
        &mut self,
        steps: &[Step<'_>],
        during: &'static str,
    ) -> Result<Flight, StoreError> {
        if self.stage == Stage::TakenBack {
            self.stage = Stage::None;
            return self.link.fly_after(UNSTAGE, steps, during).await;
        }
        self.link.fly(steps, during).await
    }

    /// Remembers what the gate says of a partition that was just locked, or is locked already.
    pub(crate) fn know_gate(&mut self, partition: &PartitionId, gate: &Gate) {
        if let Some(required) = gate.writer_fence {
            self.fences.insert(partition.clone(), required);
        }
        let head = gate.head;
        self.heads.insert(partition.clone(), head);
        let before = self.heads_before.entry(partition.clone());
        before.or_insert(head);
    }

    /// What the transaction has appended to logs.
    fn appended(&self) -> Vec<Signal> {
        let moved = self.heads.iter().filter(|(partition, head)| {
            let before = self.heads_before.get(*partition);
            before.is_none_or(|before| before < *head)
        });
        moved
            .map(|(partition, head)| announce::commits(partition, *head))
            .collect()
    }

    /// Whether the savepoint of candidate rows is open.
    pub(crate) fn is_staging(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Remembers that it is.
    pub(crate) fn set_staging(&mut self) {
        self.stage = Stage::Open;
    }

    /// Takes back what is staged, if something is.
    pub(crate) fn unstage(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::TakenBack;
        }
    }
}

const UNSTAGE: &str = "ROLLBACK TO staged; RELEASE staged";

const BEGIN: &str = "begin a write transaction";

/// Begins a transaction on a link and loads: one round trip.
pub(crate) async fn begin(
    link: &mut Link,
    layout: &Layout,
    wanted: &LoadRequest,
) -> Result<Loaded, StoreError> {
    let questions = Questions::new(wanted);
    let mut steps = vec![link.begin(Mode::Write)];
    let timeline = layout.timeline.as_deref();
    match timeline {
        Some(_) if !wanted.partitions.is_empty() => {
            let partitions: Vec<&PartitionId> = wanted.partitions.iter().collect();
            steps.extend(gate::lock_with_timeline(&partitions));
        }
        _ => steps.extend(lock_steps(wanted)),
    }
    let before = steps.len();
    steps.extend(questions.steps(layout));
    let answers = link.fly(&steps, BEGIN).await?;
    let mut answers = answers.rows(BEGIN)?;
    if let (Some(timeline), Some(locked)) = (timeline, answers[..before].get(2)) {
        gate::check_timeline(locked, timeline, BEGIN)?;
    }
    questions.read(answers.split_off(before))
}

fn lock_steps(wanted: &LoadRequest) -> Vec<Step<'_>> {
    if wanted.partitions.is_empty() {
        return Vec::new();
    }
    let partitions: Vec<&PartitionId> = wanted.partitions.iter().collect();
    Vec::from(gate::lock(&partitions))
}

/// A write transaction of a caller.
pub(crate) struct PostgresTxn {
    /// `None` once a call failed or was canceled.
    txn: Option<Txn>,
    layout: Arc<Layout>,
    query_timeout: Duration,
    /// Who announces what was committed.
    announcer: Option<NodeId>,
    /// Given back after the link.
    _turns: Turns,
}

impl PostgresTxn {
    /// A transaction that was begun with [`begin`].
    pub(crate) fn new(
        link: Link,
        layout: Arc<Layout>,
        query_timeout: Duration,
        turns: Turns,
        announcer: Option<NodeId>,
        wanted: &LoadRequest,
        loaded: &Loaded,
    ) -> Self {
        let mut txn = Txn {
            link,
            heads: HashMap::new(),
            heads_before: HashMap::new(),
            fences: HashMap::new(),
            stage: Stage::None,
        };
        remember_heads(&mut txn, wanted, loaded);
        Self {
            txn: Some(txn),
            layout,
            query_timeout,
            announcer,
            _turns: turns,
        }
    }

    fn take(&mut self, during: &'static str) -> Result<Txn, StoreError> {
        self.txn.take().ok_or_else(|| {
            let mut error = StoreError::new(StoreErrorKind::Corrupt, during);
            error.detail = Some("the transaction failed before and can only be dropped".to_owned());
            error
        })
    }

    /// Keeps the transaction for the next call, if this one was done or refused.
    fn keep<T>(&mut self, txn: Txn, result: Result<T, StoreError>) -> Result<T, StoreError> {
        let goes_on = match &result {
            Ok(_) => true,
            Err(error) => matches!(
                error.kind,
                StoreErrorKind::Refused(tidewater_store::StorageCode::QueryUnsupported)
            ),
        };
        if goes_on {
            self.txn = Some(txn);
        }
        result
    }
}

fn remember_heads(txn: &mut Txn, wanted: &LoadRequest, loaded: &Loaded) {
    for (partition, gate) in wanted.partitions.iter().zip(&loaded.gates) {
        txn.know_gate(partition, gate);
    }
}

async fn load(txn: &mut Txn, layout: &Layout, wanted: &LoadRequest) -> Result<Loaded, StoreError> {
    let questions = Questions::new(wanted);
    let mut steps = lock_steps(wanted);
    let before = steps.len();
    steps.extend(questions.steps(layout));
    const DURING: &str = "load rows";
    let mut answers = txn.fly(&steps, DURING).await?.rows(DURING)?;
    let loaded = questions.read(answers.split_off(before))?;
    remember_heads(txn, wanted, &loaded);
    Ok(loaded)
}

#[async_trait]
impl WriteTxn for PostgresTxn {
    async fn load(&mut self, wanted: LoadRequest) -> Result<Loaded, StoreError> {
        let mut txn = self.take("load rows")?;
        let result = load(&mut txn, &self.layout, &wanted).await;
        self.keep(txn, result)
    }

    async fn apply(
        &mut self,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Option<Violation>, StoreError> {
        let mut txn = self.take("apply commits")?;
        let result = apply_commits(&mut txn, &self.layout, &commits).await;
        self.keep(txn, result)
    }

    async fn stage(
        &mut self,
        partition: &PartitionId,
        changes: Vec<ChangeWrite>,
    ) -> Result<Option<i32>, StoreError> {
        let mut txn = self.take("stage rows")?;
        let result = apply::stage(&mut txn, &self.layout, partition, &changes).await;
        self.keep(txn, result)
    }

    async fn unstage(&mut self) -> Result<(), StoreError> {
        let mut txn = self.take("unstage rows")?;
        txn.unstage();
        self.keep(txn, Ok(()))
    }

    async fn scan_rows(&mut self, scan: RowScan) -> Result<RowPage, StoreError> {
        let mut txn = self.take("scan rows")?;
        let result = scan_in(&mut txn, &self.layout, &scan).await;
        self.keep(txn, result)
    }

    async fn scan_index(
        &mut self,
        scan: IndexScan,
    ) -> Result<Vec<(ByteString, StoredRow)>, StoreError> {
        let mut txn = self.take("scan an index")?;
        let result = candidates::scan_index(&mut txn, &self.layout, &scan).await;
        self.keep(txn, result)
    }

    async fn load_children(
        &mut self,
        questions: Vec<ChildQuestion>,
    ) -> Result<Vec<Vec<Child>>, StoreError> {
        let mut txn = self.take("load children")?;
        let result = candidates::load_children(&mut txn, &self.layout, &questions).await;
        self.keep(txn, result)
    }

    async fn query(&mut self, query: SqlQuery) -> Result<Vec<Vec<SqlValue>>, StoreError> {
        let mut txn = self.take("run a query")?;
        let result = query::query(&mut txn, &query, self.query_timeout).await;
        self.keep(txn, result)
    }

    async fn finish(
        mut self: Box<Self>,
        commits: Vec<Arc<CommitWrite>>,
    ) -> Result<Finished, StoreError> {
        const DURING: &str = "finish a write transaction";
        let mut txn = self.take(DURING)?;
        if let Some(violation) = apply_commits(&mut txn, &self.layout, &commits).await? {
            self.txn = Some(txn);
            return Ok(Finished::Violated(self, violation));
        }
        let mut steps = Vec::new();
        if txn.stage == Stage::TakenBack {
            steps.push(Step::command(UNSTAGE));
        }
        let appended = txn.appended();
        if let Some(node) = &self.announcer
            && !appended.is_empty()
        {
            steps.push(announce::step(node, appended));
        }
        txn.link.commit(steps, DURING).await?;
        Ok(Finished::Committed)
    }
}

async fn scan_in(txn: &mut Txn, layout: &Layout, scan: &RowScan) -> Result<RowPage, StoreError> {
    if txn.stage == Stage::TakenBack {
        // A scan sends by itself.
        txn.fly(&[], "scan rows").await?.rows("scan rows")?;
    }
    scan_rows(&mut txn.link, layout.table(scan.table), scan, false).await
}
