//! Spans of the log (§4.5), read from SQLite's row buffers straight into a window.
//!
//! A filter is answered from the index of one variable; the changes found are verified against
//! all of it. The places of matching commits are collected first, a bounded number at a time.
//! Where they lie close together, the log is read from the first to the last: a commit is then
//! the next one, and need not be found. Elsewhere it is read at those places, for one value by a
//! statement that walks the index and the log together.

use rusqlite::{Row, Rows, ToSql};
use tidewater_model::{CommitSeq, PartitionId, ScopeValues};
use tidewater_schema::TableIndex;
use tidewater_store::{StoreError, Window, WindowBuilder, WindowRequest};

use crate::{
    driver::{distinct, pick},
    error::failed,
    scopes::ScopesMatcher,
    session::{Session, place},
    statements::{bytes, bytes_or_null, text},
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
            after: request.after.max(gate.horizon.seq()).to_i64(),
            through: request.through.min(gate.head).to_i64(),
        };
        let layout = session.layout();
        let mut fill = Fill {
            request,
            partition: request.partition.as_str(),
            table: &layout.table(request.table).table.name,
            matcher: ScopesMatcher::new(&request.filter),
            window: WindowBuilder::default(),
            last: None,
            commits: 0,
        };
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
        newest_in_snapshot(session, partition, table, variable, values)
    })
}

/// The same in the snapshot that is open.
pub(crate) fn newest_in_snapshot(
    session: &mut Session<'_>,
    partition: &PartitionId,
    table: TableIndex,
    variable: &str,
    values: &[String],
) -> Result<Option<CommitSeq>, StoreError> {
    const DURING: &str = "find the newest change";
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
}

/// Places in the log: exclusive start, inclusive end.
#[derive(Clone, Copy)]
struct Span {
    after: i64,
    through: i64,
}

impl Span {
    fn places(self) -> i64 {
        self.through - self.after
    }
}

struct Fill<'a> {
    request: &'a WindowRequest,
    partition: &'a str,
    table: &'a str,
    matcher: ScopesMatcher<'a>,
    window: WindowBuilder,
    /// The commit that the window ends with.
    last: Option<i64>,
    commits: usize,
}

impl Fill<'_> {
    /// Fills the window; whether the span was read to its end.
    fn run(&mut self, session: &mut Session<'_>, span: Span) -> Result<bool, StoreError> {
        let entries = self.request.filter.entries();
        if span.places() <= 0
            || entries.is_empty()
            || entries.iter().any(|entry| entry.values.is_empty())
        {
            return Ok(true);
        }
        let driver = pick(entries, |(variable, value), limit| {
            let count = &mut session.queries.count_commits_of_value;
            let params: &[&dyn ToSql] = &[
                &self.partition,
                &self.table,
                &span.after,
                &span.through,
                &variable,
                &value,
                &limit,
            ];
            count.find(params, |row| row.get(0)).map_err(failed(DURING))
        })?;
        let values = distinct(&driver.values);
        // A short span costs less to read than many values to look up.
        if span.places() <= count(values.len()) {
            return self.take_span(session, span);
        }
        self.take_places(session, span, driver, &values)
    }

    fn take_value(
        &mut self,
        session: &mut Session<'_>,
        span: Span,
        variable: &str,
        value: &str,
    ) -> Result<bool, StoreError> {
        let mut rows = session
            .queries
            .window_of_value
            .rows(&[
                &self.partition,
                &self.table,
                &span.after,
                &span.through,
                &variable,
                &value,
            ])
            .map_err(failed(DURING))?;
        self.take_all(&mut rows)
    }

    fn take_span(&mut self, session: &mut Session<'_>, span: Span) -> Result<bool, StoreError> {
        let mut rows = session
            .queries
            .window_of_span
            .rows(&[&self.partition, &self.table, &span.after, &span.through])
            .map_err(failed(DURING))?;
        self.take_all(&mut rows)
    }

    fn take_places(
        &mut self,
        session: &mut Session<'_>,
        mut rest: Span,
        driver: &ScopeValues,
        values: &[&str],
    ) -> Result<bool, StoreError> {
        loop {
            let places = self.next_places(session, rest, driver, values)?;
            let Some(&last) = places.last() else {
                return Ok(true);
            };
            let stretch = Span {
                through: last,
                ..rest
            };
            let found = count(places.len());
            let all_taken = match values {
                [value] if stretch.places() * 2 > found * READ_PER_TWO_JOINED => {
                    self.take_value(session, stretch, &driver.variable, value)?
                }
                [_, _, ..] if stretch.places() > found * READ_PER_FOUND => {
                    self.take_each(session, &places)?
                }
                _ => self.take_span(session, stretch)?,
            };
            if !all_taken {
                return Ok(false);
            }
            rest.after = last;
        }
    }

    fn take_each(&mut self, session: &mut Session<'_>, places: &[i64]) -> Result<bool, StoreError> {
        for &place in places {
            let span = Span {
                after: place - 1,
                through: place,
            };
            if !self.take_span(session, span)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The next places in the log under one of the values: the least ones, ascending.
    fn next_places(
        &self,
        session: &mut Session<'_>,
        rest: Span,
        driver: &ScopeValues,
        values: &[&str],
    ) -> Result<Vec<i64>, StoreError> {
        let wanted = PLACES_MAX.min(self.request.changes_max.saturating_add(1));
        let mut through = rest.through;
        let mut places: Vec<i64> = Vec::new();
        for value in values {
            let mut rows = session
                .queries
                .commits_of_value
                .rows(&[
                    &self.partition,
                    &self.table,
                    &rest.after,
                    &through,
                    &driver.variable,
                    value,
                    &count(wanted),
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
    fn take_all(&mut self, rows: &mut Rows<'_>) -> Result<bool, StoreError> {
        while let Some(row) = rows.next().map_err(failed(DURING))? {
            if !self.take(row)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take(&mut self, row: &Row<'_>) -> Result<bool, StoreError> {
        let scopes = bytes(row, 5, DURING)?;
        let Some(scopes) = self.matcher.select(scopes, DURING)? else {
            return Ok(true);
        };
        let seq: i64 = row.get(0).map_err(failed(DURING))?;
        if self.last != Some(seq) {
            let created_at_ms = row.get(1).map_err(failed(DURING))?;
            let actor = text(row, 2, DURING)?;
            self.window
                .commit(place(seq, DURING)?, created_at_ms, actor);
            self.last = Some(seq);
            self.commits += 1;
        }
        let upsert = match bytes_or_null(row, 6, DURING)? {
            Some(payload) => Some((row.get(4).map_err(failed(DURING))?, payload)),
            None => None,
        };
        self.window.change(text(row, 3, DURING)?, upsert, scopes);
        let is_over = self.window.change_count() > self.request.changes_max
            || self.window.byte_count() > self.request.bytes_max;
        if is_over && self.commits > 1 {
            self.window.drop_last_commit();
            return Ok(false);
        }
        Ok(true)
    }
}

/// Leaves the `wanted` least numbers, ascending, each once.
fn least(numbers: &mut Vec<i64>, wanted: usize) {
    numbers.sort_unstable();
    numbers.dedup();
    numbers.truncate(wanted);
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// Places collected at a time.
const PLACES_MAX: usize = 1_024;

/// Reading on over this many places costs as much as finding one with a statement of its own.
const READ_PER_FOUND: i64 = 3;

/// Reading on over this many places costs as much as finding two with one statement for all.
const READ_PER_TWO_JOINED: i64 = 3;
