//! Pages of current rows (§4.7), by bytewise row id.
//!
//! One variable of the filter finds the rows and all of it verifies them. How they are found
//! depends on how dense they lie among the rows of the table. Dense ones are found by walking the
//! table, which is the cheapest way to read a row there is. Sparse ones are found through the
//! scope index: with one value, one statement walks index and rows together; with several, the
//! least row ids are collected first, a bounded number at a time.

use std::ops::ControlFlow;

use rusqlite::{
    Row, ToSql,
    types::{ToSqlOutput, ValueRef},
};
use tidewater_model::ScopeValues;
use tidewater_store::{RowPage, RowPageBuilder, RowScan, StoreError};

use crate::{
    driver::{distinct, pick},
    error::failed,
    scopes::ScopesMatcher,
    session::Session,
    statements::{bytes, text},
    successor,
};

const DURING: &str = "scan rows";

/// Reads a page from the state that the session sees: in a snapshot or in its own transaction.
pub(crate) fn scan_rows(session: &mut Session<'_>, scan: &RowScan) -> Result<RowPage, StoreError> {
    let gate = session.gate(&scan.partition, DURING)?;
    let mut fill = Fill {
        scan,
        matcher: ScopesMatcher::new(&scan.filter),
        page: RowPageBuilder::default(),
    };
    let has_more = fill.run(session)?;
    Ok(fill.page.finish(gate, has_more))
}

struct Fill<'a> {
    scan: &'a RowScan,
    matcher: ScopesMatcher<'a>,
    page: RowPageBuilder,
}

/// The variable that finds rows, and its values.
struct Driver<'a> {
    variable: &'a str,
    values: Vec<&'a str>,
}

/// Goes on from a row id, or ends: with a matching row left, or without.
type Flow = ControlFlow<bool, String>;

impl Fill<'_> {
    /// Fills the page; whether a matching row is left.
    fn run(&mut self, session: &mut Session<'_>) -> Result<bool, StoreError> {
        let entries = self.scan.filter.entries();
        if entries.is_empty() || entries.iter().any(|entry| entry.values.is_empty()) {
            return Ok(false);
        }
        let mut from = successor(self.scan.after.as_deref());
        let driver = self.driver(session, entries, &from)?;
        // A few ids show how dense rows lie. Where they lie sparse, ever more are collected.
        let mut ids_max = SAMPLE_IDS;
        loop {
            let ids = self.next_ids(session, &from, &driver, ids_max)?;
            let flow = if self.is_dense(session, &from, &ids)? {
                ids_max = SAMPLE_IDS;
                self.walk(session, &from)?
            } else if driver.values.len() == 1 {
                self.join(session, &from, &driver)?
            } else {
                ids_max = IDS_MAX.min(4 * ids_max);
                self.load(session, &ids)?
            };
            match flow {
                ControlFlow::Break(has_more) => return Ok(has_more),
                ControlFlow::Continue(next) => from = next,
            }
        }
    }

    fn driver<'a>(
        &self,
        session: &mut Session<'_>,
        entries: &'a [ScopeValues],
        from: &str,
    ) -> Result<Driver<'a>, StoreError> {
        let layout = session.layout();
        let table = layout.table(self.scan.table).table.name.as_str();
        let partition = self.scan.partition.as_str();
        let entry = pick(entries, |(variable, value), limit| {
            let count = &mut session.queries.count_rows_of_value;
            let params: &[&dyn ToSql] = &[
                &partition,
                &table,
                &from,
                &AboveEveryText,
                &variable,
                &value,
                &limit,
            ];
            count.find(params, |row| row.get(0)).map_err(failed(DURING))
        })?;
        Ok(Driver {
            variable: &entry.variable,
            values: distinct(&entry.values),
        })
    }

    /// The next row ids under one of the values: the least ones, ascending.
    fn next_ids(
        &self,
        session: &mut Session<'_>,
        from: &str,
        driver: &Driver<'_>,
        ids_max: usize,
    ) -> Result<Vec<String>, StoreError> {
        let layout = session.layout();
        let table = layout.table(self.scan.table).table.name.as_str();
        let partition = self.scan.partition.as_str();
        let rows_left = self.scan.rows_max.saturating_sub(self.page.row_count());
        // One more tells whether there is more. Many values are looked up for many ids at once.
        let wanted = rows_left
            .saturating_add(1)
            .min(ids_max.max(driver.values.len()));
        let limit = i64::try_from(wanted).unwrap_or(i64::MAX);
        let mut ids: Vec<String> = Vec::new();
        let mut before: Option<String> = None;
        for value in &driver.values {
            let bound: &dyn ToSql = match &before {
                Some(id) => id,
                None => &AboveEveryText,
            };
            let mut rows = session
                .queries
                .rows_of_value
                .rows(&[
                    &partition,
                    &table,
                    &from,
                    bound,
                    &driver.variable,
                    value,
                    &limit,
                ])
                .map_err(failed(DURING))?;
            while let Some(row) = rows.next().map_err(failed(DURING))? {
                ids.push(text(row, 0, DURING)?.to_owned());
            }
            // Enough are known: a later value only matters below them.
            if ids.len() > 4 * wanted {
                ids.sort_unstable();
                ids.truncate(wanted);
                before = ids.last().cloned();
            }
        }
        // A row has one value per variable, so no id is there twice.
        ids.sort_unstable();
        ids.truncate(wanted);
        Ok(ids)
    }

    /// Whether the next rows found are a large part of the rows that are there.
    fn is_dense(
        &self,
        session: &mut Session<'_>,
        from: &str,
        ids: &[String],
    ) -> Result<bool, StoreError> {
        let Some(last) = ids.last().filter(|_| ids.len() >= SAMPLE_IDS) else {
            return Ok(false);
        };
        let enough = i64::try_from(ids.len() * WALKED_PER_FOUND).unwrap_or(i64::MAX);
        let partition = self.scan.partition.as_str();
        let counted: Option<i64> = session.tables[self.scan.table.0]
            .count
            .find(&[&partition, &from, last, &enough], |row| row.get(0))
            .map_err(failed(DURING))?;
        Ok(counted.unwrap_or(0) < enough)
    }

    /// Walks the table for as long as enough of its rows match.
    fn walk(&mut self, session: &mut Session<'_>, from: &str) -> Result<Flow, StoreError> {
        let partition = self.scan.partition.as_str();
        let mut rows = session.tables[self.scan.table.0]
            .walk
            .rows(&[&partition, &from])
            .map_err(failed(DURING))?;
        let mut walked = 0;
        let mut found_before = self.page.row_count();
        while let Some(row) = rows.next().map_err(failed(DURING))? {
            let id = text(row, 0, DURING)?;
            if !self.take(id, row, 1)? {
                return Ok(ControlFlow::Break(true));
            }
            walked += 1;
            if walked == STRETCH_ROWS {
                let found = self.page.row_count() - found_before;
                if found * WALKED_PER_FOUND * 2 < walked {
                    return Ok(ControlFlow::Continue(successor(Some(id))));
                }
                walked = 0;
                found_before += found;
            }
        }
        Ok(ControlFlow::Break(false))
    }

    /// Walks the index entries of the only value, each with its row.
    fn join(
        &mut self,
        session: &mut Session<'_>,
        from: &str,
        driver: &Driver<'_>,
    ) -> Result<Flow, StoreError> {
        let layout = session.layout();
        let table = layout.table(self.scan.table).table.name.as_str();
        let partition = self.scan.partition.as_str();
        let value = driver.values[0];
        let mut rows = session.tables[self.scan.table.0]
            .scan
            .rows(&[&partition, &table, &from, &driver.variable, &value])
            .map_err(failed(DURING))?;
        while let Some(row) = rows.next().map_err(failed(DURING))? {
            if !self.take(text(row, 0, DURING)?, row, 1)? {
                return Ok(ControlFlow::Break(true));
            }
        }
        Ok(ControlFlow::Break(false))
    }

    /// Reads the rows with these ids.
    fn load(&mut self, session: &mut Session<'_>, ids: &[String]) -> Result<Flow, StoreError> {
        let Some(last) = ids.last() else {
            return Ok(ControlFlow::Break(false));
        };
        let partition = self.scan.partition.as_str();
        let load = &mut session.tables[self.scan.table.0].load;
        for id in ids {
            let mut rows = load.rows(&[&partition, id]).map_err(failed(DURING))?;
            if let Some(row) = rows.next().map_err(failed(DURING))?
                && !self.take(id, row, 0)?
            {
                return Ok(ControlFlow::Break(true));
            }
        }
        Ok(ControlFlow::Continue(successor(Some(last))))
    }

    /// Takes a row; `false` if it matches and the page is full. Its version, scopes and payload
    /// are in the columns from `at` on.
    fn take(&mut self, id: &str, row: &Row<'_>, at: usize) -> Result<bool, StoreError> {
        let scopes = bytes(row, at + 1, DURING)?;
        if self.matcher.select(scopes, DURING)?.is_none() {
            return Ok(true);
        }
        let payload = bytes(row, at + 2, DURING)?;
        let page = &mut self.page;
        if page.row_count() > 0
            && (page.row_count() >= self.scan.rows_max
                || page.byte_count() + payload.len() > self.scan.bytes_max)
        {
            return Ok(false);
        }
        page.row(id, row.get(at).map_err(failed(DURING))?, payload);
        Ok(true)
    }
}

/// SQLite sorts blobs after texts.
pub(crate) struct AboveEveryText;

impl ToSql for AboveEveryText {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Blob(&[])))
    }
}

/// Most row ids collected at a time, unless there are more values.
const IDS_MAX: usize = 1_024;

/// Row ids that show how dense rows lie. With fewer found there is little to gain.
const SAMPLE_IDS: usize = 64;

/// Walking over this many rows costs as much as finding one by its id.
const WALKED_PER_FOUND: usize = 4;

/// Rows walked between two looks at whether it is still worth it.
const STRETCH_ROWS: usize = 512;
