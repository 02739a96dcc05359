//! Statements about one app table, built when its schema comes into force.
//!
//! An app table is named by the schema and so by people: every name is quoted.
//!
//! One row of many is asked for as the least that is not before it: only the primary key has
//! that order. Where statistics are old, PostgreSQL could otherwise take an index that knows no
//! more than the partition, for every row anew (`link` tells it not to sort).

use std::fmt::Write;

use tidewater_schema::{Index, Table};

use crate::typed::{conversion, sent_type};

/// The texts of a table's statements.
#[derive(Debug)]
pub(crate) struct TableSql {
    /// Partitions and row ids: place in the question, version, scopes, payload, column versions.
    pub(crate) load: String,
    /// Partition and row ids: row id and scopes of those that exist.
    pub(crate) scopes: String,
    /// Writes rows in their order: partitions, row ids, versions, scopes, payloads, column
    /// versions, typed columns.
    pub(crate) put: String,
    /// Partitions and row ids.
    pub(crate) remove: String,
    /// A chunk of the rows under scope values: see `scan`.
    pub(crate) scan: String,
    /// A chunk of all rows: see `operator`.
    pub(crate) walk: String,
    /// For each declared index, if the database has them, the parts of its statement.
    pub(crate) scan_index: Vec<IndexSql>,
    /// For each column, if it has an index of its own: partition, parents, limit.
    pub(crate) children: Vec<Option<String>>,
}

/// The statement that reads an index, in parts: which of its values are NULL decides on the rest.
#[derive(Debug)]
pub(crate) struct IndexSql {
    select: String,
    columns: Vec<(String, &'static str)>,
}

impl IndexSql {
    /// Partition, first row id and limit, then the values that are not NULL.
    pub(crate) fn text(&self, nulls: &[bool]) -> String {
        let mut sql = self.select.clone();
        let mut parameter = 4;
        for ((column, conversion), is_null) in self.columns.iter().zip(nulls) {
            if *is_null {
                write!(sql, " AND {column} IS NULL")
            } else {
                parameter += 1;
                write!(sql, " AND {column} = ${}{conversion}", parameter - 1)
            }
            .expect("a string takes what is written to it");
        }
        sql.push_str(" ORDER BY _sync_row_id LIMIT $3");
        sql
    }
}

impl TableSql {
    /// Builds them for a table whose columns at the positions `typed` are kept beside the
    /// payload.
    pub(crate) fn new(table: &Table, typed: &[usize]) -> Self {
        let name = quoted(&table.name);
        let indexes: &[Index] = if table.materialized {
            &table.indexes
        } else {
            &[]
        };
        Self {
            load: format!(
                "SELECT q.place, t._sync_server_version, t._sync_scopes::text, t._sync_payload, \
                 t._sync_column_versions \
                 FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS q (partition, row_id, place) \
                 CROSS JOIN LATERAL (SELECT * FROM {name} r WHERE r._sync_partition = q.partition \
                 AND r._sync_row_id >= q.row_id ORDER BY r._sync_row_id LIMIT 1) t \
                 WHERE t._sync_row_id = q.row_id"
            ),
            scopes: format!(
                "SELECT t._sync_row_id, t._sync_scopes::text FROM unnest($2::text[]) AS q (row_id) \
                 CROSS JOIN LATERAL (SELECT * FROM {name} r WHERE r._sync_partition = $1 \
                 AND r._sync_row_id >= q.row_id ORDER BY r._sync_row_id LIMIT 1) t \
                 WHERE t._sync_row_id = q.row_id"
            ),
            put: put(table, &name, typed),
            remove: format!(
                "DELETE FROM {name} t USING unnest($1::text[], $2::text[]) AS q (partition, row_id) \
                 WHERE t._sync_partition = q.partition AND t._sync_row_id = q.row_id"
            ),
            scan: scan(&name),
            walk: format!(
                "WITH next AS MATERIALIZED (SELECT _sync_row_id, _sync_server_version, \
                 _sync_payload FROM {name} WHERE _sync_partition = $1 AND _sync_row_id >= $2 \
                 ORDER BY _sync_row_id LIMIT $3), \
                 found AS (SELECT n.*, count(*) OVER () AS total, \
                 sum(octet_length(n._sync_payload)) OVER (ORDER BY n._sync_row_id) \
                 - octet_length(n._sync_payload) AS before FROM next n) \
                 SELECT _sync_row_id, _sync_server_version, _sync_payload, total \
                 FROM found WHERE before <= $4 ORDER BY _sync_row_id"
            ),
            scan_index: indexes
                .iter()
                .map(|index| scan_index(table, &name, index))
                .collect(),
            children: (0..table.columns.len())
                .map(|column| {
                    indexes
                        .iter()
                        .any(|index| index.columns == [column])
                        .then(|| children(table, &name, column))
                })
                .collect(),
        }
    }
}

/// Inserts rows or replaces them in place, one after the other: a value that another row has in a
/// unique index fails, and one that an earlier row has given up does not.
fn put(table: &Table, name: &str, typed: &[usize]) -> String {
    let mut columns: Vec<String> = PUT_META
        .iter()
        .map(|(column, ..)| (*column).to_owned())
        .collect();
    let mut arrays: Vec<String> = PUT_META
        .iter()
        .map(|(_, kind, _)| (*kind).to_owned())
        .collect();
    let mut values: Vec<String> = PUT_META
        .iter()
        .enumerate()
        .map(|(place, (.., conversion))| format!("q.v{place}{conversion}"))
        .collect();
    for at in typed {
        let column = &table.columns[*at];
        values.push(format!("q.v{}{}", columns.len(), conversion(column.kind)));
        columns.push(quoted(&column.name));
        arrays.push(sent_type(column.kind).to_owned());
    }
    let number = |text: &dyn Fn(usize) -> String| -> String {
        let texts: Vec<String> = (0..columns.len()).map(text).collect();
        texts.join(", ")
    };
    let arrays = number(&|at| format!("${}::{}[]", at + 1, arrays[at]));
    let names = number(&|at| format!("v{at}"));
    let updates: Vec<String> = columns[2..]
        .iter()
        .map(|column| format!("{column} = excluded.{column}"))
        .collect();
    format!(
        "INSERT INTO {name} ({}) SELECT {} FROM unnest({arrays}) WITH ORDINALITY \
         AS q ({names}, place) ORDER BY q.place \
         ON CONFLICT (_sync_partition, _sync_row_id) DO UPDATE SET {}",
        columns.join(", "),
        values.join(", "),
        updates.join(", ")
    )
}

/// What `put` writes before the typed columns: column, type sent, conversion.
const PUT_META: [(&str, &str, &str); 6] = [
    ("_sync_partition", "text", ""),
    ("_sync_row_id", "text", ""),
    ("_sync_server_version", "int8", ""),
    ("_sync_scopes", "text", "::jsonb"),
    ("_sync_payload", "bytea", ""),
    ("_sync_column_versions", "bytea", ""),
];

/// Partition, table, variable, values, first row id, most ids, most ids of a value, most bytes
/// before the last row.
///
/// Rows are looked up one by one, which a planner that has counted nothing would not always do.
///
/// An id without a row gives a row without values, so that a chunk is empty only at the end. A
/// value with as many ids as are looked at hides its later ones, and so ids after the last of such
/// a value are left for the next chunk.
fn scan(name: &str) -> String {
    format!(
        "WITH entries AS MATERIALIZED (SELECT s.row_id, row_number() OVER (PARTITION BY v.place \
         ORDER BY s.row_id) AS nth FROM unnest($4::text[]) WITH ORDINALITY AS v (value, place) \
         CROSS JOIN LATERAL (SELECT r.row_id FROM sync_row_scopes r WHERE r.partition = $1 \
         AND r.tbl = $2 AND r.var = $3 AND r.value = v.value AND r.row_id >= $5 \
         ORDER BY r.row_id LIMIT $7) s), \
         known AS (SELECT min(row_id) AS through FROM entries WHERE nth = $7), \
         ids AS MATERIALIZED (SELECT e.row_id FROM entries e \
         WHERE e.row_id <= coalesce((SELECT through FROM known), e.row_id) \
         ORDER BY e.row_id LIMIT $6), \
         found AS (SELECT i.row_id, t._sync_server_version, t._sync_scopes, t._sync_payload, \
         count(*) OVER () AS total, \
         sum(coalesce(octet_length(t._sync_payload), 0)) OVER (ORDER BY i.row_id) \
         - coalesce(octet_length(t._sync_payload), 0) AS before \
         FROM ids i LEFT JOIN LATERAL (SELECT * FROM {name} r WHERE r._sync_partition = $1 \
         AND r._sync_row_id >= i.row_id ORDER BY r._sync_row_id LIMIT 1) t \
         ON t._sync_row_id = i.row_id) \
         SELECT row_id, _sync_server_version, _sync_scopes::text, _sync_payload, total, \
         (SELECT through FROM known) IS NULL AND (SELECT count(*) FROM ids) < $6 \
         FROM found WHERE before <= $8 ORDER BY row_id"
    )
}

fn scan_index(table: &Table, name: &str, index: &Index) -> IndexSql {
    let columns = index.columns.iter().map(|at| &table.columns[*at]);
    IndexSql {
        select: format!(
            "SELECT _sync_row_id, _sync_server_version, _sync_scopes::text, _sync_payload, \
             _sync_column_versions FROM {name} WHERE _sync_partition = $1 AND _sync_row_id >= $2"
        ),
        columns: columns
            .map(|column| (quoted(&column.name), conversion(column.kind)))
            .collect(),
    }
}

fn children(table: &Table, name: &str, column: usize) -> String {
    let column = &table.columns[column];
    format!(
        "SELECT q.place, c._sync_row_id \
         FROM unnest($2::{}[]) WITH ORDINALITY AS q (parent, place) \
         CROSS JOIN LATERAL (SELECT t._sync_row_id FROM {name} t WHERE t._sync_partition = $1 \
         AND t.{} = q.parent{} ORDER BY t._sync_row_id LIMIT $3) c \
         ORDER BY q.place, c._sync_row_id LIMIT $3",
        sent_type(column.kind),
        quoted(&column.name),
        conversion(column.kind),
    )
}

/// A name as SQL takes it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_in_a_name_does_not_end_it() {
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
