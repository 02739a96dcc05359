//! Pages of current rows (§4.7), by bytewise row id.
//!
//! As with the log, one variable of the filter finds the rows and all of it verifies them. With
//! one value, one statement walks the scope index and the rows together. With several, the least
//! row ids are collected first, a bounded number at a time.

use rusqlite::{Row, ToSql, types::ValueRef};
use tidewater_model::ScopeValues;
use tidewater_store::{RowPage, RowPageBuilder, RowScan, StoreError};

use crate::{
    driver::{distinct, pick},
    error::{corrupt, failed},
    scopes::ScopesMatcher,
    session::Session,
    successor,
};

const DURING: &str = "scan rows";

/// Reads a page in one snapshot.
pub(crate) fn scan_rows(session: &mut Session<'_>, scan: &RowScan) -> Result<RowPage, StoreError> {
    session.snapshot(DURING, |session| {
        let gate = session.gate(&scan.partition, DURING)?;
        let mut fill = Fill {
            scan,
            matcher: ScopesMatcher::new(&scan.filter),
            page: RowPageBuilder::default(),
        };
        let has_more = fill.run(session)?;
        Ok(fill.page.finish(gate, has_more))
    })
}

struct Fill<'a> {
    scan: &'a RowScan,
    matcher: ScopesMatcher<'a>,
    page: RowPageBuilder,
}

impl Fill<'_> {
    /// Fills the page; whether a matching row is left.
    fn run(&mut self, session: &mut Session<'_>) -> Result<bool, StoreError> {
        let entries = self.scan.filter.entries();
        if entries.is_empty() || entries.iter().any(|entry| entry.values.is_empty()) {
            return Ok(false);
        }
        let layout = session.layout();
        let table = layout.table(self.scan.table).table.name.as_str();
        let partition = self.scan.partition.as_str();
        let from = successor(self.scan.after.as_deref());
        let driver = pick(entries, |value, limit| {
            let probe = &mut session.queries.count_rows_of_value;
            let found = probe.find(
                &[
                    &partition, &table, &from, &NO_BOUND, &value.0, &value.1, &limit,
                ],
                |row| row.get(0),
            );
            found.map_err(failed(DURING))
        })?;
        let values = distinct(&driver.values);
        if let [value] = values[..] {
            let mut rows = session.tables[self.scan.table.0]
                .scan
                .rows(&[&partition, &table, &from, &driver.variable, &value])
                .map_err(failed(DURING))?;
            while let Some(row) = rows.next().map_err(failed(DURING))? {
                if !self.take(text(row, 0)?, row, 1)? {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        self.run_ids(session, from, driver, &values)
    }

    fn run_ids(
        &mut self,
        session: &mut Session<'_>,
        mut from: String,
        driver: &ScopeValues,
        values: &[&str],
    ) -> Result<bool, StoreError> {
        let partition = self.scan.partition.as_str();
        loop {
            let ids = self.next_ids(session, &from, driver, values)?;
            let Some(last) = ids.last() else {
                return Ok(false);
            };
            from = successor(Some(last));
            let load = &mut session.tables[self.scan.table.0].load;
            for id in &ids {
                let mut rows = load.rows(&[&partition, id]).map_err(failed(DURING))?;
                if let Some(row) = rows.next().map_err(failed(DURING))?
                    && !self.take(id, row, 0)?
                {
                    return Ok(true);
                }
            }
        }
    }

    /// The next row ids under one of the values: the least ones, ascending.
    fn next_ids(
        &self,
        session: &mut Session<'_>,
        from: &str,
        driver: &ScopeValues,
        values: &[&str],
    ) -> Result<Vec<String>, StoreError> {
        let layout = session.layout();
        let table = layout.table(self.scan.table).table.name.as_str();
        let partition = self.scan.partition.as_str();
        let rows_left = self.scan.rows_max.saturating_sub(self.page.row_count());
        // One more tells whether there is more. Few values leave little to gain from many ids.
        let wanted = rows_left.saturating_add(1).min(IDS_MAX.max(values.len()));
        let limit = i64::try_from(wanted).unwrap_or(i64::MAX);
        let mut ids: Vec<String> = Vec::new();
        let mut before: Option<String> = None;
        for value in values {
            let bound: &dyn ToSql = match &before {
                Some(id) => id,
                None => &NO_BOUND,
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
                ids.push(text(row, 0)?.to_owned());
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

    /// Takes a row; `false` if it matches and the page is full. Its version, scopes and payload
    /// are in the columns from `at` on.
    fn take(&mut self, id: &str, row: &Row<'_>, at: usize) -> Result<bool, StoreError> {
        let scopes = bytes(row, at + 1)?;
        if self.matcher.select(scopes, DURING)?.is_none() {
            return Ok(true);
        }
        let payload = bytes(row, at + 2)?;
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

fn text<'a>(row: &'a Row<'_>, index: usize) -> Result<&'a str, StoreError> {
    let value = row.get_ref(index).map_err(failed(DURING))?;
    value
        .as_str()
        .map_err(|error| corrupt(DURING, error.to_string()))
}

fn bytes<'a>(row: &'a Row<'_>, index: usize) -> Result<&'a [u8], StoreError> {
    let value = row.get_ref(index).map_err(failed(DURING))?;
    value
        .as_bytes()
        .map_err(|error| corrupt(DURING, error.to_string()))
}

/// Above every text: SQLite sorts blobs after texts.
const NO_BOUND: ValueBound = ValueBound;

struct ValueBound;

impl ToSql for ValueBound {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(rusqlite::types::ToSqlOutput::Borrowed(ValueRef::Blob(&[])))
    }
}

/// Row ids collected at a time.
const IDS_MAX: usize = 1_024;
