//! Spans of the log (§4.5), read chunk by chunk in one snapshot.
//!
//! A filter is answered from the index of one variable; the changes found are verified against
//! all of it. A chunk has a bounded number of commits, of changes and of payload bytes: what the
//! window has no room for is not sent.

use tidewater_model::{CommitSeq, PartitionId};
use tidewater_store::{StoreError, Window, WindowBuilder, WindowRequest};
use tokio_postgres::Row;

use crate::{
    driver::{self, Counted, Driver, distinct},
    error::{corrupt, get},
    gate::{self, place},
    link::{Link, Mode},
    params::{Param, Step},
    scopes::ScopesMatcher,
};

const DURING: &str = "read the log";

/// Reads a window. The link's transaction is left to be ended.
pub(crate) async fn read_window(
    link: &mut Link,
    table: &str,
    request: &WindowRequest,
) -> Result<Window, StoreError> {
    let mut fill = Fill {
        request,
        table,
        matcher: ScopesMatcher::new(&request.filter),
        window: WindowBuilder::default(),
        last: None,
        commits: 0,
    };
    let from = Position {
        after: request.after.to_i64(),
        from: (request.after.to_i64(), i32::MAX),
    };
    let beginning = [link.begin(Mode::Read), gate::read(&[&request.partition])];
    if driver::is_empty(&request.filter) || request.through <= request.after {
        let answers = link.fly(&beginning, DURING).await?.rows(DURING)?;
        return Ok(fill.window.finish(gate::only(&answers[1], DURING)?, true));
    }
    if request.filter.entries().len() > 1 {
        let answers = link.fly(&beginning, DURING).await?.rows(DURING)?;
        let gate = gate::only(&answers[1], DURING)?;
        let span = Counted::Commits(request.after.to_i64(), request.through.to_i64());
        let (filter, name) = (&request.filter, &request.partition);
        let driver = driver::pick(link, filter, name, table, span, DURING).await?;
        let exhausted = fill.run(link, &driver, from).await?;
        return Ok(fill.window.finish(gate, exhausted));
    }
    // Nothing to choose: gate and first chunk are one round trip.
    let entry = &request.filter.entries()[0];
    let driver = Driver {
        variable: &entry.variable,
        values: distinct(&entry.values),
    };
    let mut steps = Vec::from(beginning);
    steps.push(fill.chunk(&driver, from));
    let mut answers = link.fly(&steps, DURING).await?.rows(DURING)?;
    drop(steps);
    let rows = answers.pop().unwrap_or_default();
    let gate = gate::only(&answers[1], DURING)?;
    let exhausted = match fill.take_chunk(&rows, from)? {
        Next::Ended(exhausted) => exhausted,
        Next::From(next) => fill.run(link, &driver, next).await?,
    };
    Ok(fill.window.finish(gate, exhausted))
}

/// Asks for the newest commit with a change that carries one of the values.
pub(crate) fn newest<'a>(
    partition: &'a PartitionId,
    table: &'a str,
    variable: &'a str,
    values: &'a [String],
) -> Step<'a> {
    Step::new(
        NEWEST,
        vec![
            Param::text(partition.as_str()),
            Param::text(table),
            Param::text(variable),
            Param::texts(distinct(values)),
        ],
    )
}

/// The answer to [`newest`].
pub(crate) fn only_newest(
    rows: &[Row],
    during: &'static str,
) -> Result<Option<CommitSeq>, StoreError> {
    let newest: Option<i64> = match rows.first() {
        Some(row) => get(row, 0, during)?,
        None => None,
    };
    newest.map(|newest| place(newest, during)).transpose()
}

const NEWEST: &str = "SELECT max(n.newest) FROM unnest($4::text[]) AS v (value) \
    CROSS JOIN LATERAL (SELECT max(c.commit_seq) AS newest FROM sync_change_scopes c \
    WHERE c.partition = $1 AND c.tbl = $2 AND c.var = $3 AND c.value = v.value) n \
    WHERE n.newest > coalesce((SELECT horizon_seq FROM sync_partitions WHERE partition = $1), 0)";

/// Where a chunk begins.
#[derive(Clone, Copy)]
struct Position {
    /// Commits after this place,
    after: i64,
    /// and of those the changes after this one.
    from: (i64, i32),
}

/// What follows a chunk.
enum Next {
    From(Position),
    /// Whether the span was read to its end.
    Ended(bool),
}

struct Fill<'a> {
    request: &'a WindowRequest,
    table: &'a str,
    matcher: ScopesMatcher<'a>,
    window: WindowBuilder,
    /// The commit that the window ends with.
    last: Option<i64>,
    commits: usize,
}

impl<'a> Fill<'a> {
    async fn run(
        &mut self,
        link: &mut Link,
        driver: &Driver<'a>,
        mut from: Position,
    ) -> Result<bool, StoreError> {
        loop {
            let steps = [self.chunk(driver, from)];
            let mut answers = link.fly(&steps, DURING).await?.rows(DURING)?;
            drop(steps);
            let rows = answers.pop().unwrap_or_default();
            match self.take_chunk(&rows, from)? {
                Next::Ended(exhausted) => return Ok(exhausted),
                Next::From(next) => from = next,
            }
        }
    }

    fn chunk(&self, driver: &Driver<'a>, from: Position) -> Step<'a> {
        // One change more than fit shows that the window is full.
        let changes = self.request.changes_max.saturating_add(1);
        let changes = changes.saturating_sub(self.window.change_count());
        Step::new(
            CHUNK,
            vec![
                Param::text(self.request.partition.as_str()),
                Param::text(self.table),
                Param::text(driver.variable),
                Param::texts(driver.values.clone()),
                Param::integer(from.after),
                Param::integer(self.request.through.to_i64()),
                Param::count(COMMITS_MAX),
                Param::count(driver.entries_of_value(COMMITS_MAX)),
                Param::integer(from.from.0),
                Param::integer(i64::from(from.from.1)),
                Param::count(changes.clamp(1, CHANGES_MAX)),
                Param::count(self.request.bytes_max.clamp(BYTES_MIN, BYTES_MAX)),
            ],
        )
    }

    fn take_chunk(&mut self, rows: &[Row], before: Position) -> Result<Next, StoreError> {
        let Some(last) = rows.last() else {
            return Ok(Next::Ended(true));
        };
        for row in rows {
            if !self.take(row)? {
                return Ok(Next::Ended(false));
            }
        }
        let seq: i64 = get(last, 0, DURING)?;
        let total: i64 = get(last, 8, DURING)?;
        let is_cut = total > i64::try_from(rows.len()).unwrap_or(i64::MAX);
        if is_cut {
            let index: Option<i32> = get(last, 7, DURING)?;
            let index = index.unwrap_or(i32::MAX);
            let next = (seq, index);
            if next <= before.from {
                return Err(corrupt(DURING, "a chunk of the log does not go on"));
            }
            return Ok(Next::From(Position {
                after: seq - 1,
                from: next,
            }));
        }
        // Every change of the commits found is here. Where a value or all of them had as many as
        // are found at a time, there may be more.
        let is_last: bool = get(last, 9, DURING)?;
        let found: i64 = get(last, 10, DURING)?;
        if is_last {
            return Ok(Next::Ended(true));
        }
        Ok(Next::From(Position {
            after: found,
            from: (found, i32::MAX),
        }))
    }

    /// Takes a change; whether there was room for it.
    fn take(&mut self, row: &Row) -> Result<bool, StoreError> {
        // A commit whose changes of this table are gone has a row without a change.
        let Some(scopes) = get::<Option<&str>>(row, 5, DURING)? else {
            return Ok(true);
        };
        let Some(scopes) = self.matcher.select(scopes, DURING)? else {
            return Ok(true);
        };
        let seq: i64 = get(row, 0, DURING)?;
        if self.last != Some(seq) {
            let created_at_ms = get(row, 1, DURING)?;
            let actor = get(row, 2, DURING)?;
            self.window
                .commit(place(seq, DURING)?, created_at_ms, actor);
            self.last = Some(seq);
            self.commits += 1;
        }
        let upsert = match get::<Option<&[u8]>>(row, 6, DURING)? {
            Some(payload) => Some((get(row, 4, DURING)?, payload)),
            None => None,
        };
        self.window.change(get(row, 3, DURING)?, upsert, scopes);
        let is_over = self.window.change_count() > self.request.changes_max
            || self.window.byte_count() > self.request.bytes_max;
        if is_over && self.commits > 1 {
            self.window.drop_last_commit();
            return Ok(false);
        }
        Ok(true)
    }
}

/// Partition, table, variable, values; after and through; most commits, most of a value; the
/// change to go on after; most changes, most bytes before the last.
///
/// Orders that seem to say nothing choose the index, as in `statements`.
///
/// A value with as many commits as are looked at hides its later ones, and so places after the
/// last of such a value are left for the next chunk.
const CHUNK: &str = "WITH entries AS MATERIALIZED (\
    SELECT s.commit_seq, v.place, row_number() OVER (PARTITION BY v.place ORDER BY s.commit_seq) \
    AS nth FROM unnest($4::text[]) WITH ORDINALITY AS v (value, place) CROSS JOIN LATERAL (\
    SELECT c.commit_seq FROM sync_change_scopes c WHERE c.partition = $1 AND c.tbl = $2 \
    AND c.var = $3 AND c.value = v.value AND c.commit_seq > greatest($5, coalesce((\
    SELECT horizon_seq FROM sync_partitions WHERE partition = $1), 0)) AND c.commit_seq <= $6 \
    ORDER BY c.commit_seq LIMIT $8) s), \
    known AS (SELECT min(commit_seq) AS through FROM entries WHERE nth = $8), \
    places AS MATERIALIZED (SELECT DISTINCT e.commit_seq FROM entries e \
    WHERE e.commit_seq <= coalesce((SELECT through FROM known), e.commit_seq) \
    ORDER BY e.commit_seq LIMIT $7), \
    found AS (SELECT p.commit_seq, h.idx, h.row_id, h.row_version, h.scopes, h.payload, \
    count(*) OVER () AS total, row_number() OVER w AS nth, \
    sum(coalesce(octet_length(h.payload), 0)) OVER w - coalesce(octet_length(h.payload), 0) \
    AS before FROM places p LEFT JOIN LATERAL (SELECT * FROM sync_changes r WHERE r.partition = $1 \
    AND r.commit_seq = p.commit_seq AND r.tbl = $2 ORDER BY r.idx OFFSET 0) h ON true \
    WHERE p.commit_seq > $9 OR h.idx > $10 WINDOW w AS (ORDER BY p.commit_seq, h.idx)) \
    SELECT f.commit_seq, c.created_at_ms, c.actor_id, f.row_id, f.row_version, f.scopes::text, \
    f.payload, f.idx, f.total, \
    (SELECT through FROM known) IS NULL AND (SELECT count(*) FROM places) < $7, \
    (SELECT max(commit_seq) FROM places) \
    FROM found f CROSS JOIN LATERAL (SELECT * FROM sync_commits m WHERE m.partition = $1 \
    AND m.commit_seq >= f.commit_seq ORDER BY m.commit_seq LIMIT 1) c \
    WHERE c.commit_seq = f.commit_seq AND f.nth <= $11 AND f.before <= $12 ORDER BY f.commit_seq, f.idx";

/// Commits looked at in a chunk.
const COMMITS_MAX: usize = 256;

/// Changes in a chunk.
const CHANGES_MAX: usize = 8_192;

/// Payload bytes in a chunk, before the last change.
const BYTES_MIN: usize = 64 * 1024;
const BYTES_MAX: usize = 8 * 1024 * 1024;
