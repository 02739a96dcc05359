//! A connection at work: its statements and its transaction.
//!
//! **Invariant:** between two jobs no transaction is open, except the one of a `WriteTxn`. Every
//! way out of a transaction that is not a commit goes through [`Session::abandon`].

use std::{collections::HashMap, sync::Arc};

use rusqlite::{Connection, MAIN_DB};
use tidewater_model::{CommitSeq, HorizonSeq, LogEpoch, PartitionId};
use tidewater_store::{Gate, StoreError, StoreErrorKind};

use crate::{
    error::{corrupt, failed},
    layout::Layout,
    statements::{Queries, TableQueries},
};

/// A connection with its statements.
pub(crate) struct Session<'c> {
    pub(crate) connection: &'c Connection,
    pub(crate) queries: Queries<'c>,
    /// The statements of the tables, in the order of the layout.
    pub(crate) tables: Vec<TableQueries<'c>>,
    layout: Option<Arc<Layout>>,
    /// Heads of the open transaction. They are written once, when it commits.
    pub(crate) heads: HashMap<PartitionId, Head>,
    /// Whether every commit of a transaction is guarded by a savepoint.
    pub(crate) always_guarded: bool,
    /// Whether the savepoint of candidate rows is open.
    staged: bool,
    broken: bool,
}

/// The head of a partition within a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) seq: CommitSeq,
    pub(crate) moved: bool,
}

impl<'c> Session<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        Self {
            connection,
            queries: Queries::new(connection),
            tables: Vec::new(),
            layout: None,
            heads: HashMap::new(),
            always_guarded: false,
            staged: false,
            broken: false,
        }
    }

    /// Whether the connection can serve no more.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Makes the connection one that can serve no more.
    #[cfg(test)]
    pub(crate) fn break_connection(&mut self) {
        self.broken = true;
    }

    /// Builds the statements of a layout, unless it is the one in use.
    pub(crate) fn adopt(&mut self, layout: Option<Arc<Layout>>) {
        let Some(layout) = layout else { return };
        if let Some(current) = &self.layout
            && Arc::ptr_eq(current, &layout)
        {
            return;
        }
        self.tables = layout
            .tables
            .iter()
            .map(|table| TableQueries::new(self.connection, &table.sql))
            .collect();
        self.layout = Some(layout);
    }

    /// The layout in force.
    ///
    /// # Panics
    ///
    /// Before the store is prepared, as the contract says.
    pub(crate) fn layout(&self) -> Arc<Layout> {
        Arc::clone(self.layout.as_ref().expect("`prepare` comes first"))
    }

    /// Runs reads in one snapshot.
    pub(crate) fn snapshot<T>(
        &mut self,
        during: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.queries
            .begin_snapshot
            .execute(&[])
            .map_err(failed(during))?;
        let value = read(self);
        self.abandon();
        value
    }

    /// Opens a write transaction.
    pub(crate) fn begin_write(&mut self, during: &'static str) -> Result<(), StoreError> {
        self.queries
            .begin_write
            .execute(&[])
            .map_err(failed(during))?;
        // SQLite begins a transaction that cannot write, and says so at the first write.
        let is_readonly = self.connection.is_readonly(MAIN_DB).map_err(failed(during));
        if is_readonly? {
            self.abandon();
            let mut error = StoreError::new(StoreErrorKind::Unavailable, during);
            error.detail = Some("the database cannot be written".to_owned());
            return Err(error);
        }
        Ok(())
    }

    /// Makes the open transaction durable, or abandons it.
    pub(crate) fn commit(&mut self, during: &'static str) -> Result<(), StoreError> {
        let committed = self.write_heads().and_then(|()| {
            self.queries.commit.execute(&[])?;
            Ok(())
        });
        if committed.is_err() {
            self.abandon();
        }
        self.heads.clear();
        committed.map_err(failed(during))
    }

    /// Runs a write transaction.
    pub(crate) fn transact<T>(
        &mut self,
        during: &'static str,
        write: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.begin_write(during)?;
        match write(self) {
            Ok(value) => {
                self.commit(during)?;
                Ok(value)
            }
            Err(error) => {
                self.abandon();
                Err(error)
            }
        }
    }

    /// Ends the open transaction, if there is one, as if it had never been.
    pub(crate) fn abandon(&mut self) {
        self.heads.clear();
        self.staged = false;
        if self.connection.is_autocommit() {
            return;
        }
        if let Err(error) = self.queries.rollback.execute(&[]) {
            tracing::error!(%error, "a transaction could not be rolled back");
        }
        // Rolling back needs no space and no lock. Where it fails, a new connection is the cure.
        self.broken |= !self.connection.is_autocommit();
    }

    /// Begins to stage candidate rows, if that has not begun.
    pub(crate) fn begin_stage(&mut self, during: &'static str) -> Result<(), StoreError> {
        if !self.staged {
            let begun = self.queries.begin_stage.execute(&[]);
            begun.map_err(failed(during))?;
            self.staged = true;
        }
        Ok(())
    }

    /// Takes back what is staged, if something is.
    pub(crate) fn unstage(&mut self, during: &'static str) -> Result<(), StoreError> {
        if self.staged {
            let queries = &mut self.queries;
            let taken_back = queries.rollback_stage.execute(&[]);
            taken_back
                .and_then(|_| queries.release_stage.execute(&[]))
                .map_err(failed(during))?;
            self.staged = false;
        }
        Ok(())
    }

    /// The gate of a partition.
    pub(crate) fn gate(
        &mut self,
        partition: &PartitionId,
        during: &'static str,
    ) -> Result<Gate, StoreError> {
        let stored = self
            .queries
            .gate
            .find(&[&partition.as_str()], |row| {
                Ok((
                    row.get::<_, Option<String>>(0)?,
                    row.get::<_, i32>(1)?,
                    row.get::<_, Option<i64>>(2)?,
                    row.get::<_, Option<i64>>(3)?,
                    row.get::<_, Option<i32>>(4)?,
                    row.get::<_, Option<String>>(5)?,
                ))
            })
            .map_err(failed(during))?;
        let (log_epoch, schema_version, head, horizon, writer_fence, pending) =
            stored.ok_or_else(|| corrupt(during, "a SELECT without FROM gave no row"))?;
        let head = match self.heads.get(partition) {
            Some(head) => head.seq,
            None => place(head.unwrap_or(0), during)?,
        };
        Ok(Gate {
            log_epoch: log_epoch.map(LogEpoch::new),
            schema_version,
            head,
            horizon: HorizonSeq::at(place(horizon.unwrap_or(0), during)?),
            writer_fence,
            pending_checkpoints: pending.map_or_else(Vec::new, |names| {
                let mut names: Vec<String> = names.split('\0').map(str::to_owned).collect();
                names.sort_unstable();
                names
            }),
        })
    }

    fn write_heads(&mut self) -> rusqlite::Result<()> {
        for (partition, head) in &self.heads {
            if head.moved {
                self.queries
                    .set_head
                    .execute(&[&partition.as_str(), &head.seq.to_i64()])?;
            }
        }
        Ok(())
    }
}

/// A stored number as a place in the log.
pub(crate) fn place(raw: i64, during: &'static str) -> Result<CommitSeq, StoreError> {
    CommitSeq::from_i64(raw).ok_or_else(|| corrupt(during, format!("{raw} is no place in a log")))
}
