//! SQL statements, compiled once for each connection.
//!
//! A [`Query`] is one statement of one connection. It is compiled when it is first used and lives
//! as long as the connection does, on the stack of the connection's thread. Statements about the
//! log are fixed; those about an app table are built when a schema comes into force.

mod fixed;
mod table;

use std::borrow::Cow;

use rusqlite::{Connection, PrepFlags, Result, Row, Rows, Statement, ToSql};
use tidewater_store::StoreError;

pub(crate) use self::{
    fixed::Queries,
    table::{TableQueries, TableSql, quoted},
};

use crate::error::{corrupt, failed};

/// One statement of a connection.
pub(crate) struct Query<'c> {
    connection: &'c Connection,
    sql: Cow<'static, str>,
    statement: Option<Statement<'c>>,
}

impl<'c> Query<'c> {
    /// A statement that is compiled when it is first used.
    pub(crate) fn new(connection: &'c Connection, sql: impl Into<Cow<'static, str>>) -> Self {
        Self {
            connection,
            sql: sql.into(),
            statement: None,
        }
    }

    /// Runs it to its end; the number of rows written.
    pub(crate) fn execute(&mut self, params: &[&dyn ToSql]) -> Result<usize> {
        self.compiled()?.execute(params)
    }

    /// Runs it row by row.
    pub(crate) fn rows(&mut self, params: &[&dyn ToSql]) -> Result<Rows<'_>> {
        self.compiled()?.query(params)
    }

    /// Reads its first row, if there is one.
    pub(crate) fn find<T>(
        &mut self,
        params: &[&dyn ToSql],
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut rows = self.rows(params)?;
        match rows.next()? {
            Some(row) => read(row).map(Some),
            None => Ok(None),
        }
    }

    /// The statement itself, to bind one value after the other.
    pub(crate) fn compiled(&mut self) -> Result<&mut Statement<'c>> {
        if self.statement.is_none() {
            let flags = PrepFlags::SQLITE_PREPARE_PERSISTENT;
            let statement = self.connection.prepare_with_flags(&self.sql, flags)?;
            self.statement = Some(statement);
        }
        Ok(self.statement.as_mut().expect("it was just compiled"))
    }
}

/// A text in a row, where it lies.
pub(crate) fn text<'a>(
    row: &'a Row<'_>,
    index: usize,
    during: &'static str,
) -> std::result::Result<&'a str, StoreError> {
    let value = row.get_ref(index).map_err(failed(during))?;
    value
        .as_str()
        .map_err(|error| corrupt(during, error.to_string()))
}

/// Bytes in a row, of a text or a blob, where they lie.
pub(crate) fn bytes<'a>(
    row: &'a Row<'_>,
    index: usize,
    during: &'static str,
) -> std::result::Result<&'a [u8], StoreError> {
    let value = row.get_ref(index).map_err(failed(during))?;
    value
        .as_bytes()
        .map_err(|error| corrupt(during, error.to_string()))
}

/// Bytes in a row, or none for NULL.
pub(crate) fn bytes_or_null<'a>(
    row: &'a Row<'_>,
    index: usize,
    during: &'static str,
) -> std::result::Result<Option<&'a [u8]>, StoreError> {
    let value = row.get_ref(index).map_err(failed(during))?;
    value
        .as_bytes_or_null()
        .map_err(|error| corrupt(during, error.to_string()))
}
