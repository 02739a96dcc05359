//! The state of a group of commits while its transaction is open: what was loaded, what is
//! decided so far, what will be written.
//!
//! Entries are decided in their order, each on the rows that those before it leave. What is read
//! anew after a violation never hides what the group itself is about to record.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use sha2::{Digest, Sha256};
use tidewater_model::{ActorId, CommitSeq, ErrorCode, PartitionId};
use tidewater_store::{
    AppliedCommit, ClientKey, CommitWrite, Gate, LoadRequest, Loaded, PushKey, PushResultRecord,
    PushStatus, ResultRecord, RowKey, StoreError, StoredResult, Violation, WriteTxn,
};
use tidewater_wire::{OperationAction, PushCommit};

use super::{
    answer::{Outcome, Told},
    batch::{Failure, JobResult, Unknown},
    candidate::Candidate,
    commit::{self, Author, Decision},
    ground::{Ground, Stop},
    lane::Job,
};
use crate::{CommitEvent, Engine, RoundError};

/// One commit of one job.
pub(super) struct Entry<'a> {
    job: usize,
    commit: &'a PushCommit,
    pub(super) key: PushKey,
    digest: String,
    /// What its author is told; `None` while undecided, or when its job failed.
    pub(super) told: Option<Told>,
}

pub(super) struct Group<'a> {
    engine: &'a Engine,
    jobs: &'a [Job],
    pub(super) entries: Vec<Entry<'a>>,
    /// Why a job fails as a request, if it does, and the entry that failed.
    failures: Vec<Option<(usize, RoundError)>>,
    /// What is written, in the order of the entries.
    pub(super) writes: Vec<Arc<CommitWrite>>,
    /// The entry behind each write.
    writers: Vec<usize>,
    /// How many of the writes the transaction holds already.
    pub(super) applied: usize,
    pub(super) gates: BTreeMap<PartitionId, Gate>,
    results: BTreeMap<PushKey, StoredResult>,
    /// Who each client id belongs to, as loaded and as this group binds it.
    clients: BTreeMap<ClientKey, ActorId>,
    /// The clients that this group binds, each with the write that does.
    bound: Vec<(usize, ClientKey)>,
    /// The newest commit of each partition before this group.
    pub(super) heads: BTreeMap<PartitionId, CommitSeq>,
    candidate: Candidate,
    now_ms: i64,
}

impl<'a> Group<'a> {
    /// All commits of the jobs, or of each the one at `place`.
    pub(super) fn new(engine: &'a Engine, jobs: &'a [Job], place: Option<usize>) -> Self {
        let entries = jobs
            .iter()
            .enumerate()
            .flat_map(|(index, job)| {
                let commits = match place {
                    None => &job.commits[..],
                    Some(place) => &job.commits[place..=place],
                };
                commits.iter().map(move |commit| Entry {
                    job: index,
                    commit,
                    key: PushKey {
                        partition: job.identity.partition.clone(),
                        client: job.client.clone(),
                        client_commit_id: commit.client_commit_id.clone(),
                    },
                    digest: content_digest(commit),
                    told: None,
                })
            })
            .collect();
        Self {
            engine,
            jobs,
            entries,
            failures: vec![None; jobs.len()],
            writes: Vec::new(),
            writers: Vec::new(),
            applied: 0,
            gates: BTreeMap::new(),
            results: BTreeMap::new(),
            clients: BTreeMap::new(),
            bound: Vec::new(),
            heads: BTreeMap::new(),
            candidate: Candidate::default(),
            now_ms: engine.parts.clock.now_ms(),
        }
    }

    /// Everything that the entries from `first` on name.
    pub(super) fn wanted(&self, first: usize) -> LoadRequest {
        let schema = self.engine.schema();
        let mut partitions = BTreeSet::new();
        let mut rows = BTreeSet::new();
        let mut clients = BTreeSet::new();
        let mut push_results = BTreeSet::new();
        for entry in &self.entries[first..] {
            let job = &self.jobs[entry.job];
            partitions.insert(job.identity.partition.clone());
            push_results.insert(entry.key.clone());
            if !job.client_is_bound {
                clients.insert(job.client_key());
            }
            for operation in &entry.commit.operations {
                if let Some(table) = schema.find(&operation.table) {
                    rows.insert(RowKey {
                        partition: job.identity.partition.clone(),
                        table,
                        row_id: operation.row_id.clone(),
                    });
                }
            }
        }
        LoadRequest {
            partitions: partitions.into_iter().collect(),
            rows: rows.into_iter().collect(),
            push_results: push_results.into_iter().collect(),
            clients: clients.into_iter().collect(),
        }
    }

    /// Takes the answers to what was wanted as the new ground for deciding.
    pub(super) fn take(&mut self, wanted: LoadRequest, loaded: Loaded) {
        self.gates = wanted.partitions.into_iter().zip(loaded.gates).collect();
        self.candidate = Candidate::new(wanted.rows, loaded.rows, loaded.tombstones);
        for (key, result) in wanted.push_results.into_iter().zip(loaded.push_results) {
            if let Some(result) = result {
                // What this transaction is about to record stands before what it read.
                self.results.entry(key).or_insert(result);
            }
        }
        for (key, client) in wanted.clients.into_iter().zip(loaded.clients) {
            if let Some(client) = client {
                self.clients.insert(key, client.actor);
            }
        }
    }

    /// Decides one entry. Returns the earlier write that turned out to break a constraint, if
    /// reading the candidate state brought that to light.
    pub(super) async fn decide_next(
        &mut self,
        index: usize,
        txn: &mut dyn WriteTxn,
    ) -> Result<Option<Violation>, Failure> {
        let job = self.entries[index].job;
        if self.failures[job].is_some() {
            return Ok(None);
        }
        match self.decide(index, txn).await {
            Ok(told) => self.entries[index].told = Some(told),
            Err(Stop::Fail(error)) => {
                self.candidate.roll_back();
                self.failures[job] = Some((index, error));
            }
            Err(Stop::Earlier { write, op_index }) => {
                return Ok(Some(Violation {
                    commit: write,
                    op_index,
                }));
            }
            Err(Stop::Store(error)) => return Err(error.into()),
            Err(Stop::Panicked) => return Err(Failure::Panicked),
            Err(Stop::Reject(_)) => unreachable!("a rejection is a decision"),
        }
        Ok(None)
    }

    /// Decides one commit, in the order of §6.3: gate, client, replay, operations.
    async fn decide(&mut self, index: usize, txn: &mut dyn WriteTxn) -> Result<Told, Stop> {
        let job = &self.jobs[self.entries[index].job];
        self.check_gate(job)?;
        self.check_client(job)?;
        if let Some(told) = self.replay(index, job)? {
            return Ok(told);
        }
        let commit = self.entries[index].commit;
        let author = Author {
            partition: &job.identity.partition,
            actor: &job.identity.actor,
            client: &job.client,
            allowed: job.allowed.as_deref(),
            sparse: job.version.is_sparse(),
            view: &job.view,
            held: Some(&job.held).filter(|held| held.is_good_at(self.now_ms)),
        };
        let mut ground = Ground::new(txn, &self.writes, &mut self.applied);
        let decision = commit::decide(
            self.engine,
            author,
            commit,
            &mut self.candidate,
            &mut ground,
        )
        .await?;
        let (status, results, applied) = match decision {
            Decision::Apply { changes, reactions } => {
                let gate = self.gate_mut(&job.identity.partition);
                gate.head = gate.head.next();
                let commit_seq = gate.head;
                let settled = self.candidate.settle(commit_seq);
                let applied = AppliedCommit {
                    commit_seq,
                    created_at_ms: self.now_ms,
                    changes,
                    tombstones: settled.tombstones,
                    tombstones_cleared: settled.cleared,
                    reactions,
                };
                let results = (0..).take(commit.operations.len());
                let results = results.map(|op_index| ResultRecord::Applied { op_index });
                (
                    PushStatus::Applied(commit_seq),
                    results.collect(),
                    Some(applied),
                )
            }
            Decision::Reject(record) => {
                self.candidate.roll_back();
                (PushStatus::Rejected, vec![record], None)
            }
        };
        Ok(self.record(index, status, results, applied))
    }

    /// Turns a write into a rejection and loads anew what the entries after it name. Returns
    /// the first entry to decide again.
    pub(super) async fn redo(
        &mut self,
        violation: Violation,
        txn: &mut dyn WriteTxn,
    ) -> Result<usize, StoreError> {
        self.applied = violation.commit;
        let next = self.reject(violation.commit, violation.op_index);
        let wanted = self.wanted(next);
        let loaded = txn.load(wanted.clone()).await?;
        self.take(wanted, loaded);
        Ok(next)
    }

    /// Notes an outcome as what is to be written, and found by replays from here on.
    fn record(
        &mut self,
        index: usize,
        status: PushStatus,
        results: Vec<ResultRecord>,
        applied: Option<AppliedCommit>,
    ) -> Told {
        let entry = &self.entries[index];
        let job = &self.jobs[entry.job];
        let result = PushResultRecord {
            status,
            results,
            recorded_at_ms: Some(self.now_ms),
            actor: Some(job.identity.actor.clone()),
            schema_version: Some(self.engine.schema().version()),
            content_digest: Some(entry.digest.clone()),
        };
        let client = job.client_key();
        let unbound = !job.client_is_bound && !self.clients.contains_key(&client);
        if unbound {
            self.clients
                .insert(client.clone(), job.identity.actor.clone());
            self.bound.push((self.writes.len(), client));
        }
        let write = Arc::new(CommitWrite {
            key: entry.key.clone(),
            actor: job.identity.actor.clone(),
            result: result.clone(),
            applied,
            bind_client_at_ms: unbound.then_some(self.now_ms),
        });
        let key = entry.key.clone();
        self.results
            .insert(key, StoredResult::Readable(Box::new(result.clone())));
        self.writes.push(write);
        self.writers.push(index);
        Told::Fresh(Arc::new(result))
    }

    fn check_gate(&mut self, job: &Job) -> Result<(), RoundError> {
        let (engine, partition) = (self.engine, &job.identity.partition);
        let gate = self.gate_mut(partition);
        let checked = crate::partition::check_gate(engine, gate, partition, &job.log_epoch);
        if checked.is_err() {
            // Another node has rotated the epoch: the next round learns of it.
            engine.partitions.forget(partition);
        }
        checked
    }

    fn check_client(&self, job: &Job) -> Result<(), RoundError> {
        let bound = self.clients.get(&job.client_key());
        match bound {
            Some(actor) if *actor != job.identity.actor => Err(other_actor()),
            _ => Ok(()),
        }
    }

    /// The outcome recorded for this commit, if there is one. Its content is not looked at:
    /// encryption and schema upgrades change the bytes of an honest retry (§2.3).
    fn replay(&self, index: usize, job: &Job) -> Result<Option<Told>, RoundError> {
        let entry = &self.entries[index];
        let record = match self.results.get(&entry.key) {
            None => return Ok(None),
            Some(StoredResult::Unreadable) => return Ok(Some(Told::Unreadable)),
            Some(StoredResult::Readable(record)) => record,
        };
        if record
            .actor
            .as_ref()
            .is_some_and(|actor| *actor != job.identity.actor)
        {
            return Err(other_actor());
        }
        if record
            .content_digest
            .as_ref()
            .is_some_and(|digest| *digest != entry.digest)
        {
            tracing::warn!(
                partition = %job.identity.partition,
                client_id = %job.client,
                client_commit_id = %entry.key.client_commit_id,
                "a commit id was pushed again with other content; the recorded outcome stands"
            );
        }
        Ok(Some(Told::Replayed(Arc::new(record.as_ref().clone()))))
    }

    /// Turns the write at this place into a rejection and forgets what was decided after it.
    /// Returns the first entry to decide again.
    fn reject(&mut self, write: usize, op_index: i32) -> usize {
        let index = self.writers[write];
        self.writes.truncate(write);
        self.writers.truncate(write);
        self.results.clear();
        for (_, client) in self.bound.extract_if(.., |(at, _)| *at >= write) {
            self.clients.remove(&client);
        }
        for failure in &mut self.failures {
            // A request that had failed before stays failed: its entries are not decided again.
            failure.take_if(|(entry, _)| *entry > index);
        }
        for entry in &mut self.entries[index..] {
            entry.told = None;
        }
        let record = commit::error_record(
            op_index,
            ErrorCode::ConstraintViolation,
            "write violates a relational constraint",
        );
        let told = self.record(index, PushStatus::Rejected, vec![record], None);
        self.entries[index].told = Some(told);
        index + 1
    }

    fn gate_mut(&mut self, partition: &PartitionId) -> &mut Gate {
        self.gates
            .get_mut(partition)
            .expect("every partition of the group was loaded")
    }

    /// Tells everyone, now that it is durable.
    pub(super) fn settle(mut self, unknown: &mut Unknown) -> Vec<JobResult> {
        // Also without a write of its own: a replay may be the first to learn of a commit whose
        // transaction failed after it was durable, and its author must be able to pull it.
        let mut heads = std::mem::take(&mut self.heads);
        for write in &self.writes {
            if let Some(applied) = &write.applied {
                heads.insert(write.key.partition.clone(), applied.commit_seq);
            }
        }
        for (partition, head) in &heads {
            self.engine.partitions.advance_head(partition, *head);
        }
        self.engine.push_totals.count(self.writes.len());
        let found = unknown.take_durable(&self);
        for write in found.iter().chain(&self.writes) {
            self.engine.hub.announce(write);
        }
        for (partition, head) in &heads {
            self.engine.hub.announce_head(partition, *head);
        }
        for (write, client) in &self.bound {
            let actor = &self.writes[*write].actor;
            self.engine.activity.learn_bound(client, actor, self.now_ms);
        }
        for write in found.iter().chain(&self.writes) {
            let changed = write
                .applied
                .as_ref()
                .is_some_and(|applied| !applied.changes.is_empty());
            if changed {
                // Nobody listening is no failure.
                let _ = self.engine.commits.send(CommitEvent {
                    commit: Arc::clone(write),
                });
            }
        }
        let mut results: Vec<JobResult> = self
            .failures
            .into_iter()
            .map(|failure| failure.map_or_else(|| Ok(Vec::new()), |(_, error)| Err(error)))
            .collect();
        for entry in self.entries {
            if let (Ok(outcomes), Some(told)) = (&mut results[entry.job], entry.told) {
                outcomes.push(Outcome::new(entry.commit, told));
            }
        }
        results
    }
}

fn other_actor() -> RoundError {
    RoundError::new(
        ErrorCode::InvalidClientId,
        "the client id belongs to another actor",
    )
}

/// SHA-256 over the operations, so that an operator can see when one id carries two contents.
fn content_digest(commit: &PushCommit) -> String {
    let mut hasher = Sha256::new();
    let mut part = |bytes: &[u8]| {
        let length = u64::try_from(bytes.len()).expect("a slice is shorter than 2^64");
        hasher.update(length.to_le_bytes());
        hasher.update(bytes);
    };
    for operation in &commit.operations {
        part(operation.table.as_bytes());
        part(operation.row_id.as_bytes());
        match operation.base_version {
            Some(base) => part(&base.to_le_bytes()),
            None => part(&[]),
        }
        match &operation.action {
            OperationAction::Upsert(payload) => part(payload),
            OperationAction::Delete => part(b"delete"),
        }
    }
    hex::encode(hasher.finalize())
}
