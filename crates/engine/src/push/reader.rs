//! What validators and planners read: the state their commit would leave behind.

use async_trait::async_trait;
use tidewater_model::ScopeFilter;
use tidewater_schema::{Table, TableIndex};
use tidewater_store::{
    IndexScan, LoadRequest, RowKey, RowScan, SqlQuery, SqlValue, StorageCode, StoreErrorKind,
};
use tokio::sync::Mutex;

use super::{
    candidate::Candidate,
    commit::Draft,
    ground::{Ground, Stop, walled},
};
use crate::{CandidateReader, CandidateRow, ReadError};

/// Most rows of one scan.
const SCAN_ROWS_MAX: usize = 1_000;

/// Reads for one validator after another, one read at a time.
pub(super) struct Reader<'r, 'd, 'g> {
    draft: &'r Draft<'d>,
    candidate: &'r Candidate,
    state: Mutex<State<'r, 'g>>,
}

struct State<'r, 'g> {
    ground: &'r mut Ground<'g>,
    /// A failure that is not the validator's: it ends the commit whatever the validator says.
    stop: Option<Stop>,
}

impl<'r, 'd, 'g> Reader<'r, 'd, 'g> {
    pub(super) fn new(
        draft: &'r Draft<'d>,
        candidate: &'r Candidate,
        ground: &'r mut Ground<'g>,
    ) -> Self {
        Self {
            draft,
            candidate,
            state: Mutex::new(State { ground, stop: None }),
        }
    }

    /// Ends the commit if a read met a failure that is not the validator's.
    pub(super) async fn check(&self) -> Result<(), Stop> {
        self.state.lock().await.stop.take().map_or(Ok(()), Err)
    }

    fn table(&self, name: &str) -> Result<(TableIndex, &Table), ReadError> {
        let schema = self.draft.engine.schema();
        let index = schema.find(name).ok_or_else(|| {
            ReadError::Refused("sync.unknown_table", format!("there is no table {name}"))
        })?;
        Ok((index, schema.table(index)))
    }
}

impl State<'_, '_> {
    fn stopped(&mut self, stop: Stop) -> ReadError {
        self.stop = Some(stop);
        ReadError::Store("the commit ends here".to_owned())
    }

    /// A wrong query is the validator's fault; anything else is the database's.
    fn failed(&mut self, stop: Stop) -> ReadError {
        if let Stop::Store(error) = &stop
            && let StoreErrorKind::Refused(code) = error.kind
        {
            return ReadError::Refused(code.as_str(), error.to_string());
        }
        self.stopped(stop)
    }
}

fn check_limit(limit: usize) -> Result<(), ReadError> {
    if (1..=SCAN_ROWS_MAX).contains(&limit) {
        return Ok(());
    }
    let text = format!("a scan reads 1 to {SCAN_ROWS_MAX} rows, not {limit}");
    Err(ReadError::Refused("sync.storage.invalid_limit", text))
}

#[async_trait]
impl CandidateReader for Reader<'_, '_, '_> {
    async fn row(&self, table: &str, row_id: &str) -> Result<Option<CandidateRow>, ReadError> {
        let (table, _) = self.table(table)?;
        let partition = self.draft.author.partition.clone();
        let key = RowKey {
            partition,
            table,
            row_id: row_id.into(),
        };
        let row = if self.candidate.knows(&key) {
            self.candidate.row(&key).row.clone()
        } else {
            let mut state = self.state.lock().await;
            let wanted = LoadRequest {
                rows: vec![key],
                ..LoadRequest::default()
            };
            match walled(state.ground.txn().load(wanted)).await {
                Ok(mut loaded) => loaded.rows.pop().flatten(),
                Err(error) => return Err(state.failed(error)),
            }
        };
        Ok(row.map(|row| CandidateRow {
            row_id: row_id.to_owned(),
            row_version: row.row_version,
            payload: row.payload,
        }))
    }

    async fn scan_rows(
        &self,
        table: &str,
        filter: ScopeFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<CandidateRow>, ReadError> {
        check_limit(limit)?;
        let (table, _) = self.table(table)?;
        if filter.is_empty() {
            let text = "a scan of rows needs a scope".to_owned();
            return Err(ReadError::Refused("sync.storage.scan_requires_scope", text));
        }
        let mut scan = RowScan {
            partition: self.draft.author.partition.clone(),
            table,
            filter,
            after: after.map(str::to_owned),
            rows_max: limit,
            bytes_max: self.draft.engine.parts.config.section_bytes_max,
        };
        let mut rows = Vec::new();
        let mut state = self.state.lock().await;
        // A page also ends at its size in bytes; a validator is given what it asked for.
        loop {
            let read = match state
                .ground
                .show(&scan.partition, &self.draft.changes)
                .await
            {
                Ok(txn) => walled(txn.scan_rows(scan.clone())).await,
                Err(stop) => return Err(state.stopped(stop)),
            };
            let page = read.map_err(|error| state.failed(error))?;
            rows.extend(page.rows().map(|row| CandidateRow {
                row_id: row.row_id.to_owned(),
                row_version: row.row_version,
                payload: row.payload.to_vec().into(),
            }));
            let Some(last) = rows.last().filter(|_| page.has_more && rows.len() < limit) else {
                return Ok(rows);
            };
            scan.after = Some(last.row_id.clone());
            scan.rows_max = limit - rows.len();
        }
    }

    async fn scan_index(
        &self,
        table: &str,
        index: &str,
        values: Vec<SqlValue>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<CandidateRow>, ReadError> {
        check_limit(limit)?;
        let (table_index, declared) = self.table(table)?;
        if !declared.materialized {
            let text = format!("table {table} has no typed columns");
            return Err(ReadError::Refused(
                "sync.storage.index_not_materialized",
                text,
            ));
        }
        let place = declared
            .indexes
            .iter()
            .position(|known| known.name == index);
        let Some(place) = place else {
            let text = format!("table {table} declares no index {index}");
            return Err(ReadError::Refused("sync.storage.index_not_found", text));
        };
        if declared.indexes[place].columns.len() != values.len() {
            let text = format!("index {index} wants one value per column");
            return Err(ReadError::Refused(
                "sync.storage.index_value_count_mismatch",
                text,
            ));
        }
        let scan = IndexScan {
            partition: self.draft.author.partition.clone(),
            table: table_index,
            index: place,
            values,
            after: after.map(str::to_owned),
            limit,
        };
        let mut state = self.state.lock().await;
        let read = match state
            .ground
            .show(&scan.partition, &self.draft.changes)
            .await
        {
            Ok(txn) => walled(txn.scan_index(scan)).await,
            Err(stop) => return Err(state.stopped(stop)),
        };
        let rows = read.map_err(|error| state.failed(error))?;
        let rows = rows.into_iter().map(|(row_id, row)| CandidateRow {
            row_id: row_id.to_string(),
            row_version: row.row_version,
            payload: row.payload,
        });
        Ok(rows.collect())
    }

    async fn query(&self, query: SqlQuery) -> Result<Vec<Vec<SqlValue>>, ReadError> {
        if query.partition != *self.draft.author.partition {
            let code = StorageCode::QueryUnsupported.as_str();
            return Err(ReadError::Refused(
                code,
                "a query reads its own partition".to_owned(),
            ));
        }
        let mut state = self.state.lock().await;
        let read = match state
            .ground
            .show(&query.partition, &self.draft.changes)
            .await
        {
            Ok(txn) => walled(txn.query(query)).await,
            Err(stop) => return Err(state.stopped(stop)),
        };
        read.map_err(|error| state.failed(error))
    }
}
