//! The candidate state of a transaction: rows staged on top of it, and the reads that see them.
//!
//! What is staged lies above one savepoint that is rolled back before anything is applied, and in
//! any case before the transaction ends.

use bytes::Bytes;
use bytestring::ByteString;
use rusqlite::{
    Error, ErrorCode, ToSql,
    types::{ToSqlOutput, ValueRef},
};
use tidewater_model::{ColumnType, PartitionId};
use tidewater_schema::Table;
use tidewater_store::{
    ChangeWrite, Child, ChildQuestion, IndexScan, SqlQuery, SqlValue, StorageCode, StoreError,
    StoredRow,
};
use tidewater_wire::row::{Column, Value};

use crate::{
    apply::guarded,
    error::failed,
    load::stored_row,
    rows::{Fault, Target},
    scopes::{ScopesReader, ScopesWriter},
    session::Session,
    statements::text,
    successor,
    typed::Typed,
};

/// Writes candidate rows; the operation that breaks a constraint, if one does.
pub(crate) fn stage(
    session: &mut Session<'_>,
    partition: &PartitionId,
    changes: &[ChangeWrite],
) -> Result<Option<i32>, StoreError> {
    session.begin_stage("stage rows")?;
    let layout = session.layout();
    let staged = guarded(session, &layout, changes, |session| {
        let mut texts = ScopesWriter::default();
        for change in changes {
            let mut target = Target {
                layout: layout.table(change.table),
                table: &mut session.tables[change.table.0],
                queries: &mut session.queries,
                partition: partition.as_str(),
                row_id: &change.row_id,
            };
            target.write(change, &mut texts)?;
        }
        Ok(())
    });
    match staged {
        Ok(()) => Ok(None),
        Err(Fault::Violation { op_index }) => Ok(Some(op_index)),
        Err(Fault::Store(error)) => Err(error),
    }
}

/// Rows with exactly the given values in a declared index.
pub(crate) fn scan_index(
    session: &mut Session<'_>,
    scan: &IndexScan,
) -> Result<Vec<(ByteString, StoredRow)>, StoreError> {
    const DURING: &str = "scan an index";
    let layout = session.layout();
    let table = &layout.table(scan.table).table;
    let Some(query) = session.tables[scan.table.0].scan_index.get_mut(scan.index) else {
        return Err(no_index(table, DURING));
    };
    let columns = &table.indexes[scan.index].columns;
    assert_eq!(
        columns.len(),
        scan.values.len(),
        "one value for each column of the index"
    );
    let columns = columns.iter().map(|at| &table.columns[*at]);
    let values: Option<Vec<Typed<'_>>> = columns
        .zip(&scan.values)
        .map(|(column, value)| typed(column, value))
        .collect();
    let Some(values) = values else {
        return Ok(Vec::new());
    };
    let partition = scan.partition.as_str();
    let from = successor(scan.after.as_deref());
    let limit = i64::try_from(scan.limit).unwrap_or(i64::MAX);
    let mut params: Vec<&dyn ToSql> = vec![&partition, &from, &limit];
    params.extend(values.iter().map(|value| -> &dyn ToSql { value }));
    let mut rows = query.rows(&params).map_err(failed(DURING))?;
    let mut reader = ScopesReader::default();
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed(DURING))? {
        let row_id = ByteString::from(text(row, 0, DURING)?);
        found.push((row_id, stored_row(row, 1, &mut reader)?));
    }
    Ok(found)
}

/// Rows that name parents in a reference column.
pub(crate) fn load_children(
    session: &mut Session<'_>,
    questions: &[ChildQuestion],
) -> Result<Vec<Vec<Child>>, StoreError> {
    let answers = questions
        .iter()
        .map(|question| load_children_of(session, question));
    answers.collect()
}

fn load_children_of(
    session: &mut Session<'_>,
    question: &ChildQuestion,
) -> Result<Vec<Child>, StoreError> {
    const DURING: &str = "load children";
    let layout = session.layout();
    let table = &layout.table(question.table).table;
    let column = &table.columns[question.column];
    let query = session.tables[question.table.0].children[question.column].as_mut();
    let query = query.ok_or_else(|| no_index(table, DURING))?;
    let partition = question.partition.as_str();
    let mut children = Vec::new();
    for parent in &question.parents {
        let Some(value) = reference(column, parent) else {
            continue;
        };
        let value = Typed::of_value(column, Some(value));
        let left = question.limit - children.len();
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        let mut rows = query
            .rows(&[&partition, &value, &left])
            .map_err(failed(DURING))?;
        while let Some(row) = rows.next().map_err(failed(DURING))? {
            children.push(Child {
                parent: parent.clone(),
                row_id: ByteString::from(text(row, 0, DURING)?),
            });
        }
    }
    Ok(children)
}

/// How many instructions of SQLite's machine a caller's own statement may take: some seconds of
/// work. It holds the only writer, so nobody's statement may go on for ever.
const QUERY_INSTRUCTIONS_MAX: u64 = 200_000_000;

/// How often they are counted.
const INSTRUCTIONS_COUNTED: i32 = 10_000;

/// The rows of a caller's own statement.
pub(crate) fn query(
    session: &mut Session<'_>,
    query: &SqlQuery,
) -> Result<Vec<Vec<SqlValue>>, StoreError> {
    const DURING: &str = "run a query";
    let mut left = QUERY_INSTRUCTIONS_MAX / u64::from(INSTRUCTIONS_COUNTED.unsigned_abs());
    let is_over = move || {
        left = left.saturating_sub(1);
        left == 0
    };
    let connection = session.connection;
    connection
        .progress_handler(INSTRUCTIONS_COUNTED, Some(is_over))
        .map_err(failed(DURING))?;
    let found = run_query(session, query);
    connection
        .progress_handler(0, None::<fn() -> bool>)
        .map_err(failed(DURING))?;
    found
}

fn run_query(
    session: &mut Session<'_>,
    query: &SqlQuery,
) -> Result<Vec<Vec<SqlValue>>, StoreError> {
    const DURING: &str = "run a query";
    let refused = |error: Error| match error.sqlite_error_code() {
        // The text is wrong, not the database.
        None | Some(ErrorCode::Unknown) => {
            unsupported(DURING, format!("the query cannot be run: {error}"))
        }
        Some(ErrorCode::OperationInterrupted) => unsupported(DURING, "the query takes too long"),
        Some(_) => failed(DURING)(error),
    };
    let mut statement = session
        .connection
        .prepare_cached(&query.sql)
        .map_err(refused)?;
    let columns = statement.column_count();
    // BEGIN and its like read nothing, and would count as reading only.
    if !statement.readonly() || columns == 0 {
        return Err(unsupported(DURING, "the statement does not only read"));
    }
    let partition = query.partition.as_str();
    let params: Vec<Param<'_>> = query.params.iter().map(Param).collect();
    let mut all: Vec<&dyn ToSql> = vec![&partition];
    all.extend(params.iter().map(|param| -> &dyn ToSql { param }));
    all.truncate(statement.parameter_count());
    let mut rows = statement.query(&all[..]).map_err(refused)?;
    let mut found = Vec::new();
    while found.len() < query.rows_max {
        let Some(row) = rows.next().map_err(refused)? else {
            break;
        };
        let values = (0..columns).map(|index| {
            let value = row.get_ref(index).map_err(failed(DURING))?;
            Ok(match value {
                ValueRef::Null => SqlValue::Null,
                ValueRef::Integer(number) => SqlValue::Integer(number),
                ValueRef::Real(number) => SqlValue::Real(number),
                ValueRef::Text(_) => SqlValue::Text(text(row, index, DURING)?.to_owned()),
                ValueRef::Blob(bytes) => SqlValue::Blob(Bytes::copy_from_slice(bytes)),
            })
        });
        found.push(values.collect::<Result<_, StoreError>>()?);
    }
    Ok(found)
}

struct Param<'a>(&'a SqlValue);

impl ToSql for Param<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self.0 {
            SqlValue::Null => ValueRef::Null,
            SqlValue::Integer(number) => ValueRef::Integer(*number),
            SqlValue::Real(number) => ValueRef::Real(*number),
            SqlValue::Text(text) => ValueRef::Text(text.as_bytes()),
            SqlValue::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// A value as its column keeps it; `None` when the column cannot have it.
fn typed<'a>(column: &Column, value: &'a SqlValue) -> Option<Typed<'a>> {
    let value = match (column.kind, value) {
        (_, SqlValue::Null) => return Some(Typed::of_value(column, None)),
        (ColumnType::Integer, SqlValue::Integer(number)) => Value::Integer(*number),
        (ColumnType::Boolean, SqlValue::Integer(number @ (0 | 1))) => Value::Boolean(*number == 1),
        (ColumnType::Float, SqlValue::Real(number)) => Value::Float(*number),
        (ColumnType::String | ColumnType::Json | ColumnType::BlobRef, SqlValue::Text(text)) => {
            Value::String(text)
        }
        (ColumnType::Bytes | ColumnType::Crdt, SqlValue::Blob(bytes)) => Value::Bytes(bytes),
        _ => return None,
    };
    Some(Typed::of_value(column, Some(value)))
}

/// A parent's key as its children's column keeps it; `None` when no value has that text.
fn reference<'a>(column: &Column, key: &'a str) -> Option<Value<'a>> {
    match column.kind {
        ColumnType::Integer => key
            .parse()
            .ok()
            .filter(|number: &i64| number.to_string() == key)
            .map(Value::Integer),
        ColumnType::Boolean => key.parse().ok().map(Value::Boolean),
        _ => Some(Value::String(key)),
    }
}

fn no_index(table: &Table, during: &'static str) -> StoreError {
    let name = &table.name;
    unsupported(
        during,
        format!("table `{name}` has no such index in the database"),
    )
}

fn unsupported(during: &'static str, detail: impl Into<String>) -> StoreError {
    StoreError::refused(StorageCode::QueryUnsupported, during, detail)
}
