//! Spans of the log (§4.5), read from SQLite's row buffers straight into a window.
//!
//! A filter is answered from the index of one variable; the changes found are verified against
//! all of it. With one value, one statement walks the index and the log together. With several,
//! the places of matching commits are collected first, a bounded number at a time, and the log is
//! read at those places.

use rusqlite::Row;
use tidewater_model::{CommitSeq, PartitionId, ScopeValues};
use tidewater_schema::TableIndex;
use tidewater_store::{StoreError, Window, WindowBuilder, WindowRequest};

use crate::{
    driver::{distinct, pick},
    error::{corrupt, failed},
    scopes::ScopesMatcher,
    session::{Session, place},
};

const DURING: &str = "read the log";

/// Reads a window in one snapshot.
pub(crate) fn read_window(
    session: &mut Session<'_>,
    request: &WindowRequest,
) -> Result<Window, StoreError> {
    session.snapshot(DURING, |session| {
        let gate = session.gate(&request.partition, DURING)?;
        let span = Span {
            // What is at or below the horizon may be half gone and counts as gone.
            after: request.after.max(gate.horizon.seq()),
            through: request.through.min(gate.head),
        };
        let mut fill = Fill::new(request);
        let exhausted = fill.run(session, span)?;
        Ok(fill.window.finish(gate, exhausted))
    })
}

/// The newest commit with a change that carries one of the values.
pub(crate) fn newest_change(
    session: &mut Session<'_>,
    partition: &PartitionId,
    table: TableIndex,
    variable: &str,
    values: &[String],
) -> Result<Option<CommitSeq>, StoreError> {
    const DURING: &str = "find the newest change";
    session.snapshot(DURING, |session| {
        let horizon = session.gate(partition, DURING)?.horizon;
        let layout = session.layout();
        let table = layout.table(table).table.name.as_str();
        let mut newest = CommitSeq::START;
        for value in distinct(values) {
            let found: Option<i64> = session
                .queries
                .newest_change
                .find(&[&partition.as_str(), &table, &variable, &value], |row| {
                    row.get(0)
                })
                .map_err(failed(DURING))?
                .flatten();
            if let Some(found) = found {
                newest = newest.max(place(found, DURING)?);
            }
        }
        Ok((newest > horizon.seq()).then_some(newest))
    })
}

#[derive(Clone, Copy)]
struct Span {
    after: CommitSeq,
    through: CommitSeq,
}

struct Fill<'a> {
    request: &'a WindowRequest,
    matcher: ScopesMatcher<'a>,
    window: WindowBuilder,
    /// The commit that the window ends with.
    last: Option<i64>,
    commits: usize,
}

impl<'a> Fill<'a> {
    fn new(request: &'a WindowRequest) -> Self {
        Self {
            request,
            matcher: ScopesMatcher::new(&request.filter),
            window: WindowBuilder::default(),
            last: None,
            commits: 0,
        }
    }

    /// Fills the window; whether the span was read to its end.
    fn run(&mut self, session: &mut Session<'_>, span: Span) -> Result<bool, StoreError> {
        let entries = self.request.filter.entries();
        if span.after >= span.through
            || entries.is_empty()
            || entries.iter().any(|entry| entry.values.is_empty())
        {
            return Ok(true);
        }
        let layout = session.layout();
        let table = layout.table(self.request.table).table.name.as_str();
        let partition = self.request.partition.as_str();
        let (after, through) = (span.after.to_i64(), span.through.to_i64());
        let driver = pick(entries, |value, limit| {
            let probe = &mut session.queries.count_commits_of_value;
            let found = probe.find(
                &[
                    &partition, &table, &after, &through, &value.0, &value.1, &limit,
                ],
                |row| row.get(0),
            );
            found.map_err(failed(DURING))
        })?;
        let values = distinct(&driver.values);
        if let [value] = values[..] {
            let mut rows = session
                .queries
                .window_of_value
                .rows(&[
                    &partition,
                    &table,
                    &after,
                    &through,
                    &driver.variable,
                    &value,
                ])
                .map_err(failed(DURING))?;
            return self.take_all(&mut rows);
        }
        // A short span costs less to read than many values to look up.
        if span.through.get() - span.after.get() <= u64::try_from(values.len()).unwrap_or(0) {
            let mut rows = session
                .queries
                .window_of_span
                .rows(&[&partition, &table, &after, &through])
                .map_err(failed(DURING))?;
            return self.take_all(&mut rows);
        }
        self.run_places(session, span, driver, &values)
    }

    fn run_places(
        &mut self,
        session: &mut Session<'_>,
        span: Span,
        driver: &ScopeValues,
        values: &[&str],
    ) -> Result<bool, StoreError> {
        let layout = session.layout();
        let table = layout.table(self.request.table).table.name.as_str();
        let partition = self.request.partition.as_str();
        let mut after = span.after.to_i64();
        loop {
            let places = self.next_places(session, after, span.through.to_i64(), driver, values)?;
            let Some(last) = places.last() else {
                return Ok(true);
            };
            after = *last;
            for place in places {
                let mut rows = session
                    .queries
                    .window_of_span
                    .rows(&[&partition, &table, &(place - 1), &place])
                    .map_err(failed(DURING))?;
                if !self.take_all(&mut rows)? {
                    return Ok(false);
                }
            }
        }
    }

    /// The next places in the log under one of the values: the least ones, ascending.
    fn next_places(
        &self,
        session: &mut Session<'_>,
        after: i64,
        through: i64,
        driver: &ScopeValues,
        values: &[&str],
    ) -> Result<Vec<i64>, StoreError> {
        let layout = session.layout();
        let table = layout.table(self.request.table).table.name.as_str();
        let partition = self.request.partition.as_str();
        let wanted = PLACES_MAX.min(self.request.changes_max.saturating_add(1));
        let limit = i64::try_from(wanted).unwrap_or(i64::MAX);
        let mut through = through;
        let mut places: Vec<i64> = Vec::new();
        for value in values {
            let mut rows = session
                .queries
                .commits_of_value
                .rows(&[
                    &partition,
                    &table,
                    &after,
                    &through,
                    &driver.variable,
                    value,
                    &limit,
                ])
                .map_err(failed(DURING))?;
            while let Some(row) = rows.next().map_err(failed(DURING))? {
                places.push(row.get(0).map_err(failed(DURING))?);
            }
            // Enough are known: a later value only matters below them.
            if places.len() > 4 * wanted {
                least(&mut places, wanted);
                through = places.last().copied().unwrap_or(through);
            }
        }
        least(&mut places, wanted);
        Ok(places)
    }

    /// Takes changes until the window is full; whether there was room for all.
    fn take_all(&mut self, rows: &mut rusqlite::Rows<'_>) -> Result<bool, StoreError> {
        while let Some(row) = rows.next().map_err(failed(DURING))? {
            if !self.take(row)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take(&mut self, row: &Row<'_>) -> Result<bool, StoreError> {
        let bytes = |index: usize| {
            let value = row.get_ref(index).map_err(failed(DURING))?;
            value
                .as_bytes_or_null()
                .map_err(|error| corrupt(DURING, error.to_string()))
        };
        let Some(scopes) = self.matcher.select(bytes(5)?.unwrap_or_default(), DURING)? else {
            return Ok(true);
        };
        let seq: i64 = row.get(0).map_err(failed(DURING))?;
        if self.last != Some(seq) {
            let actor = text(row, 2)?;
            let created_at_ms = row.get(1).map_err(failed(DURING))?;
            self.window
                .commit(place(seq, DURING)?, created_at_ms, actor);
            self.last = Some(seq);
            self.commits += 1;
        }
        let upsert = match bytes(6)? {
            Some(payload) => Some((row.get(4).map_err(failed(DURING))?, payload)),
            None => None,
        };
        self.window.change(text(row, 3)?, upsert, scopes);
        let is_over = self.window.change_count() > self.request.changes_max
            || self.window.byte_count() > self.request.bytes_max;
        if is_over && self.commits > 1 {
            self.window.drop_last_commit();
            return Ok(false);
        }
        Ok(true)
    }
}

fn text<'a>(row: &'a Row<'_>, index: usize) -> Result<&'a str, StoreError> {
    let value = row.get_ref(index).map_err(failed(DURING))?;
    value
        .as_str()
        .map_err(|error| corrupt(DURING, error.to_string()))
}

/// Leaves the `count` least numbers, ascending, each once.
fn least(numbers: &mut Vec<i64>, count: usize) {
    numbers.sort_unstable();
    numbers.dedup();
    numbers.truncate(count);
}

/// Places collected at a time.
const PLACES_MAX: usize = 1_024;
