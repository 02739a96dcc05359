//! Statements of operators' rules, run inside the transaction that they judge.
//!
//! Such a statement cannot write, cannot take long and cannot break the transaction: it runs above
//! a savepoint, read only, and whatever it set is taken back with the savepoint.
//!
//! Its tokens are SQLite's and are translated; the rest means what PostgreSQL says it means.
//! Booleans are booleans and not numbers, `LIKE` tells upper from lower case, and a value of
//! another type is an error instead of being converted. A statement that does not run is refused,
//! which rejects the commit that asked.

use std::{fmt::Write, time::Duration};

use bytes::Bytes;
use tidewater_store::{SqlQuery, SqlValue, StorageCode, StoreError};
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

use crate::{
    dialect::translate,
    error::{describe, failure, get, is_about_statement},
    link::milliseconds,
    params::{Param, Step},
    writer::Txn,
};

const DURING: &str = "run a query";

/// The rows of a caller's own statement.
pub(crate) async fn query(
    txn: &mut Txn,
    query: &SqlQuery,
    timeout: Duration,
) -> Result<Vec<Vec<SqlValue>>, StoreError> {
    let sql = translate(&query.sql).map_err(refused)?;
    // As a table of its own it can be nothing but a statement that reads.
    let sql = format!(
        "SELECT * FROM (\n{sql}\n) AS asked LIMIT {}",
        query.rows_max
    );
    let before = format!(
        "SAVEPOINT asked; SET LOCAL transaction_read_only = on; SET LOCAL enable_seqscan = on; \
         SET LOCAL enable_sort = on; SET LOCAL statement_timeout = {}",
        milliseconds(timeout)
    );
    let mut params = vec![Param::text(query.partition.as_str())];
    params.extend(query.params.iter().map(param));
    let steps = [
        Step::command(before),
        Step::once(sql, params),
        Step::command("ROLLBACK TO asked; RELEASE asked"),
    ];
    let mut flight = txn.fly(&steps, DURING).await?;
    let rows = flight.answer(1);
    flight.rows(DURING)?;
    let rows = rows.map_err(|error| {
        if is_about_statement(&error) {
            refused(format!("the query cannot be run: {}", describe(&error)))
        } else {
            failure(&error, DURING)
        }
    })?;
    rows.iter().map(values).collect()
}

fn param(value: &SqlValue) -> Param<'_> {
    match value {
        // Of whatever type its place asks for.
        SqlValue::Null => Param::new(None::<&str>, Type::UNKNOWN),
        SqlValue::Integer(number) => Param::integer(*number),
        SqlValue::Real(number) => Param::new(*number, Type::FLOAT8),
        SqlValue::Text(text) => Param::text(text),
        SqlValue::Blob(bytes) => Param::new(&bytes[..], Type::BYTEA),
    }
}

fn values(row: &Row) -> Result<Vec<SqlValue>, StoreError> {
    let columns = 0..row.len();
    columns
        .map(|column| {
            let value: Option<AnyValue> = get(row, column, DURING)?;
            match value {
                None => Ok(SqlValue::Null),
                Some(AnyValue::Known(value)) => Ok(value),
                Some(AnyValue::Unknown(kind)) => Err(refused(format!(
                    "column {} of the query has the type {kind}, which nothing here has",
                    column + 1
                ))),
            }
        })
        .collect()
}

/// A value of any type, or the name of a type whose values are not read.
enum AnyValue {
    Known(SqlValue),
    Unknown(String),
}

impl<'a> FromSql<'a> for AnyValue {
    fn from_sql(
        kind: &Type,
        raw: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let integer = |number: i64| Self::Known(SqlValue::Integer(number));
        Ok(match *kind {
            Type::BOOL => integer(i64::from(bool::from_sql(kind, raw)?)),
            Type::INT2 => integer(i64::from(i16::from_sql(kind, raw)?)),
            Type::INT4 => integer(i64::from(i32::from_sql(kind, raw)?)),
            Type::INT8 => integer(i64::from_sql(kind, raw)?),
            Type::FLOAT4 => Self::Known(SqlValue::Real(f32::from_sql(kind, raw)?.into())),
            Type::FLOAT8 => Self::Known(SqlValue::Real(f64::from_sql(kind, raw)?)),
            Type::NUMERIC => Self::Known(numeric(raw).ok_or("a number that is none")?),
            Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN | Type::JSON => {
                Self::Known(SqlValue::Text(str::from_utf8(raw)?.to_owned()))
            }
            // Its text comes after the number of its format.
            Type::JSONB => {
                let text = raw.get(1..).unwrap_or_default();
                Self::Known(SqlValue::Text(str::from_utf8(text)?.to_owned()))
            }
            Type::BYTEA => Self::Known(SqlValue::Blob(Bytes::copy_from_slice(raw))),
            _ => Self::Unknown(kind.name().to_owned()),
        })
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// A decimal number: whole where it is one, and as near as a double comes where it is not.
fn numeric(raw: &[u8]) -> Option<SqlValue> {
    let words: Vec<u16> = raw
        .chunks_exact(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
        .collect();
    let [_, weight, sign, _, digits @ ..] = words.as_slice() else {
        return None;
    };
    let is_negative = match sign {
        0x0000 => false,
        0x4000 => true,
        0xC000 => return Some(SqlValue::Real(f64::NAN)),
        0xD000 => return Some(SqlValue::Real(f64::INFINITY)),
        0xF000 => return Some(SqlValue::Real(f64::NEG_INFINITY)),
        _ => return None,
    };
    let weight = i32::from(i16::from_be_bytes(weight.to_be_bytes()));
    // As text, which rounds correctly: each digit is one of base 10,000.
    let mut text = String::from(if is_negative { "-0" } else { "0" });
    for digit in digits {
        write!(text, "{digit:04}").ok()?;
    }
    let digits_after = i32::try_from(digits.len()).ok()? - 1 - weight;
    let exponent = -4 * digits_after;
    if exponent >= 0 {
        let zeros = usize::try_from(exponent).ok()?;
        if let Ok(number) = format!("{text}{}", "0".repeat(zeros)).parse::<i64>() {
            return Some(SqlValue::Integer(number));
        }
    } else if let Some(whole) = whole(&text, exponent) {
        return Some(SqlValue::Integer(whole));
    }
    format!("{text}e{exponent}")
        .parse()
        .ok()
        .map(SqlValue::Real)
}

/// The digits without those after the point, where all of these are zero.
fn whole(text: &str, exponent: i32) -> Option<i64> {
    let after = usize::try_from(-exponent).ok()?;
    let point = text.len().checked_sub(after)?;
    let (before, fraction) = text.split_at(point);
    if fraction.bytes().any(|digit| digit != b'0') {
        return None;
    }
    before.parse().ok()
}

fn refused(detail: String) -> StoreError {
    StoreError::refused(StorageCode::QueryUnsupported, DURING, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(words: &[u16], expected: &SqlValue) {
        let raw: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        assert_eq!(numeric(&raw).as_ref(), Some(expected), "{words:?}");
    }

    #[test]
    fn decimal_numbers_are_whole_where_they_are_whole() {
        check(&[0, 0, 0, 0], &SqlValue::Integer(0));
        check(&[1, 0, 0, 0, 12], &SqlValue::Integer(12));
        check(&[1, 1, 0x4000, 0, 3], &SqlValue::Integer(-30_000));
        check(&[2, 1, 0, 0, 1, 5], &SqlValue::Integer(10_005));
        check(&[2, 0, 0, 2, 1, 5000], &SqlValue::Real(1.5));
        check(&[1, 0xFFFF, 0x4000, 4, 25], &SqlValue::Real(-0.0025));
        check(&[1, 20, 0, 0, 1], &SqlValue::Real(1e80));
    }
}
