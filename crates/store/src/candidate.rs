//! Reads of the candidate state: what a decision asks for beyond the rows a commit names.

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::PartitionId;
use tidewater_schema::TableIndex;

/// Asks for the rows that name one of these parents in one reference column (§6.11).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChildQuestion {
    /// The partition, locked by the transaction.
    pub partition: PartitionId,
    /// The children's table.
    pub table: TableIndex,
    /// The reference column's place in it.
    pub column: usize,
    /// The parents' keys as text, in the order their children are wanted.
    pub parents: Vec<ByteString>,
    /// Most children over all parents.
    pub limit: usize,
}

/// A row that names a parent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Child {
    /// The parent's key as text.
    pub parent: ByteString,
    /// The row's own key as text.
    pub row_id: ByteString,
}

/// Asks for the rows with exactly these values in a declared index, by bytewise row id.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexScan {
    /// The partition, locked by the transaction.
    pub partition: PartitionId,
    /// The table.
    pub table: TableIndex,
    /// The index, by its place in the table.
    pub index: usize,
    /// One value per column of the index; NULL matches NULL.
    pub values: Vec<SqlValue>,
    /// Exclusive start.
    pub after: Option<String>,
    /// Most rows.
    pub limit: usize,
}

/// A query on the typed columns of the application's tables.
///
/// `?1` is the partition; the caller has confined every table of the text to it.
#[derive(Clone, Debug, PartialEq)]
pub struct SqlQuery {
    /// One statement that only reads.
    pub sql: String,
    /// The values of `?2`, `?3`, …
    pub params: Vec<SqlValue>,
    /// The partition, locked by the transaction.
    pub partition: PartitionId,
    /// Most rows; the rest is not read.
    pub rows_max: usize,
}

/// A value in a query, as databases know them.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue {
    /// NULL.
    Null,
    /// A whole number; booleans are 0 and 1.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// Text; JSON and blob references too.
    Text(String),
    /// Bytes.
    Blob(Bytes),
}
