//! Decides one commit against the candidate state, all or nothing (§6.3).
//!
//! In order: each operation with its row validators, then the declared references of the whole,
//! then the commit validators, then the reaction planner. The first that refuses ends it.

use bytestring::ByteString;
use tidewater_model::{ActorId, AllowedScopes, ClientId, ErrorCode, Op, PartitionId};
use tidewater_schema::{SchemaView, Table};
use tidewater_store::{ChangeKind, ChangeWrite, ReactionWrite, ResultRecord, RowKey, StoredRow};
use tidewater_wire::PushCommit;
use tokio::time::Instant;

use super::{
    appended,
    candidate::Candidate,
    ground::{Ground, Stop},
    judge, operation,
};
use crate::{Engine, blobs::Held};

/// Who writes, under which rules.
#[derive(Clone, Copy)]
pub(super) struct Author<'a> {
    pub(super) partition: &'a PartitionId,
    pub(super) actor: &'a ActorId,
    pub(super) client: &'a ClientId,
    /// `None` when the resolver failed: everything is then forbidden.
    pub(super) allowed: Option<&'a AllowedScopes>,
    pub(super) sparse: bool,
    /// The schema as the author knows it.
    pub(super) view: &'a SchemaView,
    /// The blobs that may be referenced; `None` when they were held too long ago.
    pub(super) held: Option<&'a Held>,
}

/// What the operations of a commit come to.
#[derive(Debug)]
pub(super) enum Decision {
    /// All of them are accepted; the candidate state shows their effect.
    Apply {
        /// The client's changes, then those that references appended.
        changes: Vec<ChangeWrite>,
        /// What follows.
        reactions: Vec<ReactionWrite>,
    },
    /// This record terminates the commit; the candidate state must be rolled back.
    Reject(ResultRecord),
}

/// One operation and what it did, for those that look at the commit as a whole.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    /// Its place; above the client's own for appended ones.
    pub(super) op_index: i32,
    /// The client operation that is told of a rejection.
    pub(super) origin: i32,
    pub(super) key: RowKey,
    pub(super) op: Op,
    pub(super) before: Option<StoredRow>,
    pub(super) after: Option<StoredRow>,
}

/// A commit in the making.
pub(super) struct Draft<'d> {
    pub(super) engine: &'d Engine,
    pub(super) author: Author<'d>,
    pub(super) commit: &'d PushCommit,
    pub(super) changes: Vec<ChangeWrite>,
    pub(super) traces: Vec<Trace>,
    /// When the host's code has had the time that one commit gives it.
    pub(super) hooks_end: Instant,
}

/// Decides a commit. An error other than a rejection means that nothing of it is recorded.
pub(super) async fn decide(
    engine: &Engine,
    author: Author<'_>,
    commit: &PushCommit,
    candidate: &mut Candidate,
    ground: &mut Ground<'_>,
) -> Result<Decision, Stop> {
    let mut draft = Draft {
        engine,
        author,
        commit,
        changes: Vec::with_capacity(commit.operations.len()),
        traces: Vec::with_capacity(commit.operations.len()),
        hooks_end: judge::hooks_end(engine),
    };
    let mut decided = draft.run(candidate, ground).await;
    if matches!(decided, Err(Stop::Reject(_) | Stop::Fail(_))) && draft.wrote_unique_values() {
        // The writes came before what was refused, and so does a constraint that one of them
        // breaks: the first failure is the one that counts, whoever happened to read.
        if let Err(first) = ground.show(author.partition, &draft.changes).await {
            decided = Err(first);
        }
    }
    if matches!(decided, Err(Stop::Panicked)) {
        return Err(Stop::Panicked);
    }
    ground.hide().await?;
    match decided {
        Ok(reactions) => Ok(Decision::Apply {
            changes: draft.changes,
            reactions,
        }),
        Err(Stop::Reject(record)) => Ok(Decision::Reject(*record)),
        Err(stop) => Err(stop),
    }
}

impl Draft<'_> {
    async fn run(
        &mut self,
        candidate: &mut Candidate,
        ground: &mut Ground<'_>,
    ) -> Result<Vec<ReactionWrite>, Stop> {
        for (index, asked) in self.commit.operations.iter().enumerate() {
            let op_index = i32::try_from(index).expect("a request has few operations");
            let accepted =
                operation::decide(self.engine, &self.author, asked, op_index, candidate)?;
            let op = match accepted.kind {
                Some(ChangeKind::Upsert { .. }) => Op::Upsert,
                Some(ChangeKind::Delete { .. }) | None => Op::Delete,
            };
            let trace = Trace {
                op_index,
                origin: op_index,
                key: accepted.key,
                op,
                before: accepted.stored,
                after: accepted.kind.as_ref().and_then(row_after),
            };
            self.take(trace, accepted.kind, candidate, ground).await?;
        }
        if self.engine.has_references {
            appended::append(self, candidate, ground).await?;
        }
        judge::commit(self, candidate, ground).await?;
        judge::reactions(self, candidate, ground).await
    }

    /// Lets the row validators see an accepted operation, then makes it part of the commit.
    pub(super) async fn take(
        &mut self,
        trace: Trace,
        kind: Option<ChangeKind>,
        candidate: &mut Candidate,
        ground: &mut Ground<'_>,
    ) -> Result<(), Stop> {
        let Some(kind) = kind else {
            self.traces.push(trace);
            return Ok(());
        };
        judge::row(self, &trace, candidate, ground).await?;
        candidate.write(&trace.key, trace.after.clone());
        self.changes.push(ChangeWrite {
            table: trace.key.table,
            row_id: trace.key.row_id.clone(),
            op_index: trace.origin,
            kind,
        });
        self.traces.push(trace);
        Ok(())
    }

    fn wrote_unique_values(&self) -> bool {
        let schema = self.engine.schema();
        self.changes.iter().any(|change| {
            let table = schema.table(change.table);
            table.materialized && table.indexes.iter().any(|index| index.unique)
        })
    }

    pub(super) fn table(&self, key: &RowKey) -> &Table {
        self.engine.schema().table(key.table)
    }

    pub(super) fn key(&self, row: &super::references::RowRef) -> RowKey {
        let row_id: ByteString = row.row_id.clone();
        RowKey {
            partition: self.author.partition.clone(),
            table: row.table,
            row_id,
        }
    }
}

/// An error record of the catalogue, without details.
pub(super) fn error_record(op_index: i32, code: ErrorCode, message: &str) -> ResultRecord {
    ResultRecord::Error {
        op_index,
        code: code.as_str().to_owned(),
        message: message.to_owned(),
        retryable: false,
        details: None,
    }
}

fn row_after(kind: &ChangeKind) -> Option<StoredRow> {
    match kind {
        ChangeKind::Delete { .. } => None,
        ChangeKind::Upsert { row, .. } => Some(StoredRow {
            row_version: row.row_version,
            scopes: row.scopes.clone(),
            payload: row.payload.clone(),
            column_versions: row.column_versions.clone(),
        }),
    }
}
