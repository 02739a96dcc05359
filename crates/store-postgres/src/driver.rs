//! Which variable of a filter finds what it selects.
//!
//! Any of them would do: the rest of the filter is verified on what was found. The one with the
//! fewest entries leaves the least to verify. Counting stops early, so that it costs little
//! beside the read, and is not done at all where there is nothing to choose.

use tidewater_model::{PartitionId, ScopeFilter, ScopeValues};
use tidewater_store::StoreError;

use crate::{
    error::get,
    link::Link,
    params::{Param, Step},
};

/// The variable that finds things, and its values: each once, and none that cannot be stored.
pub(crate) struct Driver<'a> {
    pub(crate) variable: &'a str,
    pub(crate) values: Vec<&'a str>,
}

impl Driver<'_> {
    /// Most entries of one value, where `wanted` over all values are: so many values, each with
    /// so many entries, are more than anybody reads.
    pub(crate) fn entries_of_value(&self, wanted: usize) -> usize {
        wanted.min((ENTRIES_MAX / self.values.len().max(1)).max(VALUE_ENTRIES_MIN))
    }
}

/// Entries found at a time, over all values.
const ENTRIES_MAX: usize = 65_536;

/// Entries found at a time of each value, however many there are.
const VALUE_ENTRIES_MIN: usize = 64;

/// Where the entries of a filter's values are counted.
#[derive(Clone, Copy)]
pub(crate) enum Counted<'a> {
    /// Commits with a change under the value, after the first and through the second place.
    Commits(i64, i64),
    /// Rows under the value, from this row id on.
    Rows(&'a str),
}

/// Whether a filter selects nothing at all.
pub(crate) fn is_empty(filter: &ScopeFilter) -> bool {
    let entries = filter.entries();
    entries.is_empty() || entries.iter().any(|entry| entry.values.is_empty())
}

/// Picks the variable of a filter that selects something.
pub(crate) async fn pick<'a>(
    link: &mut Link,
    filter: &'a ScopeFilter,
    partition: &PartitionId,
    table: &str,
    counted: Counted<'_>,
    during: &'static str,
) -> Result<Driver<'a>, StoreError> {
    let [first, rest @ ..] = filter.entries() else {
        unreachable!("an empty filter selects nothing and is answered before");
    };
    if rest.is_empty() {
        return Ok(driver(first));
    }
    let mut variables = Vec::new();
    let mut values = Vec::new();
    for entry in filter.entries() {
        for value in distinct(&entry.values) {
            variables.push(entry.variable.as_str());
            values.push(value);
        }
    }
    let (sql, span) = match counted {
        Counted::Commits(after, through) => (
            COUNT_COMMITS,
            vec![Param::integer(after), Param::integer(through)],
        ),
        Counted::Rows(from) => (COUNT_ROWS, vec![Param::text(from)]),
    };
    let mut params = vec![
        Param::text(partition.as_str()),
        Param::text(table),
        Param::texts(variables),
        Param::texts(values),
    ];
    params.extend(span);
    let mut answers = link
        .fly(&[Step::new(sql, params)], during)
        .await?
        .rows(during)?;
    let counts = answers.pop().unwrap_or_default();
    let mut best: Option<(i64, &ScopeValues)> = None;
    for entry in filter.entries() {
        let mut count = 0;
        for row in &counts {
            if get::<&str>(row, 0, during)? == entry.variable {
                count = get(row, 1, during)?;
            }
        }
        if best.is_none_or(|(least, _)| count < least) {
            best = Some((count, entry));
        }
    }
    Ok(driver(best.map_or(first, |(_, entry)| entry)))
}

/// A variable as the one that finds things.
fn driver(entry: &ScopeValues) -> Driver<'_> {
    Driver {
        variable: &entry.variable,
        values: distinct(&entry.values),
    }
}

/// Values sorted, each once: those from a client repeat. What cannot be stored is never found.
pub(crate) fn distinct(values: &[String]) -> Vec<&str> {
    let mut distinct: Vec<&str> = values
        .iter()
        .map(String::as_str)
        .filter(|value| !value.contains('\0'))
        .collect();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}

const COUNT_COMMITS: &str = "SELECT e.var, sum(n.entries)::int8 \
    FROM unnest($3::text[], $4::text[]) AS e (var, value) \
    CROSS JOIN LATERAL (SELECT count(*) AS entries FROM (SELECT 1 FROM sync_change_scopes c \
    WHERE c.partition = $1 AND c.tbl = $2 AND c.var = e.var AND c.value = e.value \
    AND c.commit_seq > $5 AND c.commit_seq <= $6 LIMIT 512) x) n GROUP BY e.var";

const COUNT_ROWS: &str = "SELECT e.var, sum(n.entries)::int8 \
    FROM unnest($3::text[], $4::text[]) AS e (var, value) \
    CROSS JOIN LATERAL (SELECT count(*) AS entries FROM (SELECT 1 FROM sync_row_scopes r \
    WHERE r.partition = $1 AND r.tbl = $2 AND r.var = e.var AND r.value = e.value \
    AND r.row_id >= $5 LIMIT 512) x) n GROUP BY e.var";
