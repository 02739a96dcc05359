//! Pages of current rows (§4.7), by bytewise row id.
//!
//! One variable of the filter finds the rows and all of it verifies them. The least row ids under
//! its values are collected, a bounded number at a time, and their rows joined, as many as there
//! is room for.

use tidewater_store::{RowPage, RowPageBuilder, RowScan, StoreError};
use tokio_postgres::Row;

use crate::{
    driver::{self, Counted, Driver, distinct},
    error::{corrupt, get},
    gate,
    layout::TableLayout,
    link::{Link, Mode},
    params::{Param, Step},
    scopes::ScopesMatcher,
    successor,
};

const DURING: &str = "scan rows";

/// Reads a page: in a snapshot that begins with it and is left to be ended, or in the transaction
/// that is open.
pub(crate) async fn scan_rows(
    link: &mut Link,
    table: &TableLayout,
    scan: &RowScan,
    begins: bool,
) -> Result<RowPage, StoreError> {
    let mut fill = Fill {
        scan,
        table,
        matcher: ScopesMatcher::new(&scan.filter),
        page: RowPageBuilder::default(),
    };
    let from = successor(scan.after.as_deref());
    let mut steps = Vec::new();
    if begins {
        steps.push(link.begin(Mode::Read));
    }
    steps.push(gate::read(&[&scan.partition]));
    let gate_at = steps.len() - 1;
    let filter = &scan.filter;
    // Where there is nothing to choose, gate and first chunk are one round trip.
    let only = match filter.entries() {
        [entry] if !entry.values.is_empty() => Some(Driver {
            variable: &entry.variable,
            values: distinct(&entry.values),
        }),
        _ => None,
    };
    if let Some(driver) = &only {
        steps.push(fill.chunk(driver, &from));
    }
    let mut answers = link.fly(&steps, DURING).await?.rows(DURING)?;
    drop(steps);
    let gate = gate::only(&answers[gate_at], DURING)?;
    let has_more = match only {
        Some(driver) => {
            let rows = answers.pop().unwrap_or_default();
            match fill.take_chunk(&rows, &from)? {
                Next::Ended(has_more) => has_more,
                Next::From(next) => fill.run(link, &driver, next).await?,
            }
        }
        None if driver::is_empty(filter) => false,
        None => {
            let (name, counted) = (table.name(), Counted::Rows(&from));
            let driver = driver::pick(link, filter, &scan.partition, name, counted, DURING).await?;
            fill.run(link, &driver, from.clone()).await?
        }
    };
    Ok(fill.page.finish(gate, has_more))
}

/// What follows a chunk.
enum Next {
    From(String),
    /// Whether a matching row is left.
    Ended(bool),
}

struct Fill<'a> {
    scan: &'a RowScan,
    table: &'a TableLayout,
    matcher: ScopesMatcher<'a>,
    page: RowPageBuilder,
}

impl<'a> Fill<'a> {
    async fn run(
        &mut self,
        link: &mut Link,
        driver: &Driver<'a>,
        mut from: String,
    ) -> Result<bool, StoreError> {
        loop {
            let steps = [self.chunk(driver, &from)];
            let mut answers = link.fly(&steps, DURING).await?.rows(DURING)?;
            drop(steps);
            let rows = answers.pop().unwrap_or_default();
            match self.take_chunk(&rows, &from)? {
                Next::Ended(has_more) => return Ok(has_more),
                Next::From(next) => from = next,
            }
        }
    }

    /// Most ids of a chunk: one more than fit shows whether there is more.
    fn ids_max(&self) -> usize {
        let wanted = self.scan.rows_max.saturating_add(1);
        wanted
            .saturating_sub(self.page.row_count())
            .clamp(IDS_MIN, IDS_MAX)
    }

    fn chunk<'s>(&self, driver: &Driver<'s>, from: &'s str) -> Step<'s>
    where
        'a: 's,
    {
        let ids_max = self.ids_max();
        Step::new(
            self.table.sql.scan.as_str(),
            vec![
                Param::text(self.scan.partition.as_str()),
                Param::text(self.table.name()),
                Param::text(driver.variable),
                Param::texts(driver.values.clone()),
                Param::text(from),
                Param::count(ids_max),
                Param::count(driver.entries_of_value(ids_max)),
                Param::count(self.scan.bytes_max.clamp(BYTES_MIN, BYTES_MAX)),
            ],
        )
    }

    fn take_chunk(&mut self, rows: &[Row], from: &str) -> Result<Next, StoreError> {
        let Some(last) = rows.last() else {
            return Ok(Next::Ended(false));
        };
        for row in rows {
            if !self.take(row)? {
                return Ok(Next::Ended(true));
            }
        }
        let id: &str = get(last, 0, DURING)?;
        let total: i64 = get(last, 4, DURING)?;
        let total = usize::try_from(total).unwrap_or(usize::MAX);
        let is_last: bool = get(last, 5, DURING)?;
        if rows.len() >= total && is_last {
            return Ok(Next::Ended(false));
        }
        let next = successor(Some(id));
        if next.as_str() <= from {
            return Err(corrupt(DURING, "row ids are not in bytewise order"));
        }
        Ok(Next::From(next))
    }

    /// Takes a row; `false` if it matches and the page is full.
    fn take(&mut self, row: &Row) -> Result<bool, StoreError> {
        // An entry of the index whose row is gone.
        let Some(scopes) = get::<Option<&str>>(row, 2, DURING)? else {
            return Ok(true);
        };
        if self.matcher.select(scopes, DURING)?.is_none() {
            return Ok(true);
        }
        let payload: &[u8] = get(row, 3, DURING)?;
        let page = &mut self.page;
        if page.row_count() > 0
            && (page.row_count() >= self.scan.rows_max
                || page.byte_count() + payload.len() > self.scan.bytes_max)
        {
            return Ok(false);
        }
        page.row(get(row, 0, DURING)?, get(row, 1, DURING)?, payload);
        Ok(true)
    }
}

/// Ids collected at a time.
const IDS_MIN: usize = 16;
const IDS_MAX: usize = 4_096;

/// Payload bytes in a chunk, before the last row.
const BYTES_MIN: usize = 64 * 1024;
const BYTES_MAX: usize = 8 * 1024 * 1024;
