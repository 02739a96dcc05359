//! Reads of the candidate state: rows by the values of an index, children of parents.

use bytestring::ByteString;
use tidewater_model::ColumnType;
use tidewater_schema::Table;
use tidewater_store::{
    Child, ChildQuestion, IndexScan, SqlValue, StorageCode, StoreError, StoredRow,
};
use tidewater_wire::row::Column;
use tokio_postgres::types::Type;

use crate::{
    error::{corrupt, get},
    layout::Layout,
    load::stored_row,
    params::{Param, Step},
    scopes::ScopesReader,
    successor,
    typed::is_null,
    writer::Txn,
};

/// Rows with exactly the given values in a declared index.
pub(crate) async fn scan_index(
    txn: &mut Txn,
    layout: &Layout,
    scan: &IndexScan,
) -> Result<Vec<(ByteString, StoredRow)>, StoreError> {
    const DURING: &str = "scan an index";
    let layout = layout.table(scan.table);
    let table = &layout.table;
    let Some(sql) = layout.sql.scan_index.get(scan.index) else {
        return Err(no_index(table, DURING));
    };
    let columns = &table.indexes[scan.index].columns;
    assert_eq!(
        columns.len(),
        scan.values.len(),
        "one value for each column of the index"
    );
    let from = successor(scan.after.as_deref());
    let mut params = vec![
        Param::text(scan.partition.as_str()),
        Param::text(&from),
        Param::count(scan.limit),
    ];
    let mut nulls = Vec::with_capacity(columns.len());
    for (at, value) in columns.iter().zip(&scan.values) {
        let sent = sent(&table.columns[*at], value);
        nulls.push(matches!(sent, Sent::Null));
        match sent {
            Sent::Null => {}
            Sent::Value(param) => params.push(param),
            Sent::Impossible => return Ok(Vec::new()),
        }
    }
    let steps = [Step::new(sql.text(&nulls), params)];
    let answers = txn.fly(&steps, DURING).await?.rows(DURING)?;
    let mut reader = ScopesReader::default();
    let rows = answers.iter().flatten();
    rows.map(|row| {
        let row_id = ByteString::from(get::<&str>(row, 0, DURING)?);
        Ok((row_id, stored_row(row, &mut reader, DURING)?))
    })
    .collect()
}

/// A value as its column keeps it.
enum Sent<'a> {
    Null,
    Value(Param<'a>),
    /// No row has it.
    Impossible,
}

fn sent<'a>(column: &Column, value: &'a SqlValue) -> Sent<'a> {
    Sent::Value(match (column.kind, value) {
        (_, SqlValue::Null) => return Sent::Null,
        (ColumnType::Float, SqlValue::Real(number)) if is_null(*number, column.nullable) => {
            return Sent::Null;
        }
        (ColumnType::Integer, SqlValue::Integer(number)) => Param::integer(*number),
        (ColumnType::Boolean, SqlValue::Integer(number @ (0 | 1))) => {
            Param::new(*number == 1, Type::BOOL)
        }
        (ColumnType::Float, SqlValue::Real(number)) => Param::new(*number, Type::FLOAT8),
        (ColumnType::String | ColumnType::Json | ColumnType::BlobRef, SqlValue::Text(text))
            if !text.contains('\0') =>
        {
            Param::text(text)
        }
        (ColumnType::Bytes | ColumnType::Crdt, SqlValue::Blob(bytes)) => {
            Param::new(&bytes[..], Type::BYTEA)
        }
        _ => return Sent::Impossible,
    })
}

/// Rows that name parents in a reference column.
pub(crate) async fn load_children(
    txn: &mut Txn,
    layout: &Layout,
    questions: &[ChildQuestion],
) -> Result<Vec<Vec<Child>>, StoreError> {
    const DURING: &str = "load children";
    let mut steps = Vec::with_capacity(questions.len());
    // For each question, which of its parents are asked about.
    let mut asked: Vec<Vec<&ByteString>> = Vec::with_capacity(questions.len());
    for question in questions {
        let layout = layout.table(question.table);
        let sql = layout.sql.children[question.column].as_deref();
        let sql = sql.ok_or_else(|| no_index(&layout.table, DURING))?;
        let column = &layout.table.columns[question.column];
        let (parents, param) = parents(column, question);
        asked.push(parents);
        steps.push(Step::new(
            sql,
            vec![
                Param::text(question.partition.as_str()),
                param,
                Param::count(question.limit),
            ],
        ));
    }
    let answers = txn.fly(&steps, DURING).await?.rows(DURING)?;
    let mut children = Vec::with_capacity(questions.len());
    for (rows, parents) in answers.iter().zip(asked) {
        let found = rows.iter().map(|row| {
            let ordinal: i64 = get(row, 0, DURING)?;
            let parent = usize::try_from(ordinal - 1)
                .ok()
                .and_then(|at| parents.get(at))
                .ok_or_else(|| corrupt(DURING, "an answer to no question"))?;
            Ok(Child {
                parent: (*parent).clone(),
                row_id: ByteString::from(get::<&str>(row, 1, DURING)?),
            })
        });
        children.push(found.collect::<Result<_, StoreError>>()?);
    }
    Ok(children)
}

/// The parents whose keys the column can have, and these keys.
fn parents<'a>(column: &Column, question: &'a ChildQuestion) -> (Vec<&'a ByteString>, Param<'a>) {
    let parents = question.parents.iter();
    match column.kind {
        ColumnType::Integer => {
            let keys = parents.filter_map(|parent| {
                let number: i64 = parent.parse().ok()?;
                (number.to_string() == **parent).then_some((parent, number))
            });
            let (parents, numbers) = keys.unzip();
            (parents, Param::integers(numbers))
        }
        ColumnType::Boolean => {
            let keys = parents.filter_map(|parent| Some((parent, parent.parse::<bool>().ok()?)));
            let (parents, values): (Vec<_>, Vec<bool>) = keys.unzip();
            (parents, Param::new(values, Type::BOOL_ARRAY))
        }
        _ => {
            let parents: Vec<&ByteString> =
                parents.filter(|parent| !parent.contains('\0')).collect();
            let keys = parents.iter().map(|parent| &***parent).collect();
            (parents, Param::texts(keys))
        }
    }
}

fn no_index(table: &Table, during: &'static str) -> StoreError {
    let name = &table.name;
    StoreError::refused(
        StorageCode::QueryUnsupported,
        during,
        format!("table `{name}` has no such index in the database"),
    )
}
