//! What the host says about writes: validators and the reaction planner (§6.7–6.9).
//!
//! They run inside the push's transaction and see the candidate state: the rows as they would
//! be. They read through [`CandidateReader`] and never write. A deliberate rejection carries a
//! code of the host; anything else that goes wrong, a panic or an overrun deadline included,
//! rejects the commit with `sync.constraint_violation` and stays in the log.

use std::{collections::BTreeMap, error::Error, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use tidewater_model::{ActorId, ClientId, Op, PartitionId, ScopeFilter};
use tidewater_schema::Table;
use tidewater_store::{SqlQuery, SqlValue};
use tidewater_wire::{
    DecodeError, RejectionDetails,
    row::{Value, decode_row},
};

use crate::crdt::CrdtMergers;

/// Everything a host may bring beside authentication and scopes. All of it is optional.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Mergers of CRDT columns; `yjs-doc` unless replaced.
    pub mergers: CrdtMergers,
    /// Validators of single writes, by table; each runs in order.
    pub row_validators: BTreeMap<String, Vec<Arc<dyn RowValidator>>>,
    /// Validators of whole commits; each runs in order.
    pub commit_validators: Vec<Arc<dyn CommitValidator>>,
    /// What follows from a commit.
    pub reaction_planner: Option<Arc<dyn ReactionPlanner>>,
}

/// Judges one write of a table (§6.7).
#[async_trait]
pub trait RowValidator: Send + Sync + 'static {
    /// Accepts by returning `Ok`. Not called for a delete of a row that does not exist.
    async fn validate(
        &self,
        write: &RowWrite<'_>,
        reader: &dyn CandidateReader,
    ) -> Result<(), ValidatorError>;
}

/// Judges a whole commit, once, after all its operations (§6.8).
#[async_trait]
pub trait CommitValidator: Send + Sync + 'static {
    /// Accepts by returning `Ok`.
    async fn validate(
        &self,
        commit: &CandidateCommit<'_>,
        reader: &dyn CandidateReader,
    ) -> Result<(), ValidatorError>;
}

/// Plans what follows from a commit, in its transaction (§6.9). Pure: it is run again whenever
/// the transaction is.
#[async_trait]
pub trait ReactionPlanner: Send + Sync + 'static {
    /// The reactions to record. A failure fails the push and nothing is recorded.
    async fn plan(
        &self,
        commit: &CandidateCommit<'_>,
        reader: &dyn CandidateReader,
    ) -> Result<Vec<PlannedReaction>, Box<dyn Error + Send + Sync>>;
}

/// One reaction as planned; its limits are checked before it is recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedReaction {
    /// Unique within the commit, 1–256 bytes.
    pub key: String,
    /// A letter, then letters, digits, `.`, `_`, `:` and `-`; at most 128 bytes.
    pub kind: String,
    /// Of the payload's form; at least 1.
    pub version: i32,
    /// At most 64 KiB and 16 levels deep.
    pub payload: serde_json::Value,
    /// Deliveries before it is given up, 1–100; 10 when absent.
    pub max_attempts: Option<i32>,
}

/// A write as a validator sees it.
#[derive(Clone, Copy)]
pub struct RowWrite<'a> {
    /// Upsert or delete.
    pub op: Op,
    /// The table.
    pub table: &'a Table,
    /// The primary key as text.
    pub row_id: &'a str,
    /// Who writes.
    pub actor: &'a ActorId,
    /// In which partition.
    pub partition: &'a PartitionId,
    /// The row that will be stored, merged; `None` for a delete.
    pub row: Option<RowView<'a>>,
    /// The row as it is; `None` for an insert.
    pub stored: Option<RowView<'a>>,
}

/// A commit as a validator sees it.
#[derive(Clone, Copy)]
pub struct CandidateCommit<'a> {
    /// From which replica.
    pub client: &'a ClientId,
    /// Under which id.
    pub client_commit_id: &'a str,
    /// By whom.
    pub actor: &'a ActorId,
    /// In which partition.
    pub partition: &'a PartitionId,
    /// In order: the client's, then those that references appended.
    pub operations: &'a [CandidateOperation<'a>],
}

/// One operation of a commit, with the rows it leads from and to.
#[derive(Clone, Copy)]
pub struct CandidateOperation<'a> {
    /// Its place; above the client's own for appended ones.
    pub op_index: i32,
    /// Upsert or delete.
    pub op: Op,
    /// The table.
    pub table: &'a Table,
    /// The primary key as text.
    pub row_id: &'a str,
    /// The row afterwards; `None` for a delete.
    pub row: Option<RowView<'a>>,
    /// The row before; `None` for an insert and for a delete of nothing.
    pub stored: Option<RowView<'a>>,
}

/// A row's values by column name.
#[derive(Clone, Copy)]
pub struct RowView<'a> {
    table: &'a Table,
    /// The row's version.
    pub row_version: i64,
    /// The row in codec bytes.
    pub payload: &'a [u8],
}

impl<'a> RowView<'a> {
    pub(crate) fn new(table: &'a Table, row_version: i64, payload: &'a [u8]) -> Self {
        Self {
            table,
            row_version,
            payload,
        }
    }

    /// Every column with its value; `None` is NULL.
    ///
    /// A row that cannot be decoded is an error: a validator that saw no columns would accept it.
    pub fn values(&self) -> Result<Vec<(&'a str, Option<Value<'a>>)>, ReadError> {
        let names = self.table.columns.iter().map(|column| column.name.as_str());
        let fields = decode_row(&self.table.columns, self.payload)?;
        let values = fields
            .into_iter()
            .map(|field| field.map(|field| field.value));
        Ok(names.zip(values).collect())
    }

    /// The value of one column; `None` when it is NULL or there is no such column.
    pub fn value(&self, column: &str) -> Result<Option<Value<'a>>, ReadError> {
        let mut values = self.values()?.into_iter();
        Ok(values
            .find(|(name, _)| *name == column)
            .and_then(|(_, value)| value))
    }
}

/// Reads the state that the commit would leave behind (§6.8). Nobody else sees it yet.
#[async_trait]
pub trait CandidateReader: Send + Sync {
    /// One row.
    async fn row(&self, table: &str, row_id: &str) -> Result<Option<CandidateRow>, ReadError>;

    /// Rows that a filter selects, by bytewise row id after `after`; at most `limit`, which is
    /// 1–1,000. An empty filter is refused.
    async fn scan_rows(
        &self,
        table: &str,
        filter: ScopeFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<CandidateRow>, ReadError>;

    /// Rows with exactly these values in a declared index, one per indexed column, by bytewise
    /// row id after `after`; at most `limit`, which is 1–1,000.
    async fn scan_index(
        &self,
        table: &str,
        index: &str,
        values: Vec<SqlValue>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<CandidateRow>, ReadError>;

    /// The rows of a registered query, already confined to the partition.
    async fn query(&self, query: SqlQuery) -> Result<Vec<Vec<SqlValue>>, ReadError>;
}

/// A row of the candidate state.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateRow {
    /// The primary key as text.
    pub row_id: String,
    /// The row's version.
    pub row_version: i64,
    /// The row in codec bytes.
    pub payload: Bytes,
}

/// Why a validator's read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The read itself is wrong: the code says how (§10.3).
    #[error("{0}: {1}")]
    Refused(&'static str, String),
    /// The row is not one of its table: the database is damaged.
    #[error("the row cannot be decoded: {0}")]
    Undecodable(#[from] DecodeError),
    /// The database failed; so does the push.
    #[error("read failed: {0}")]
    Store(String),
}

/// Why a validator does not accept.
#[derive(Debug)]
pub enum ValidatorError {
    /// It says no.
    Rejected(Rejection),
    /// It could not say.
    Failed(Box<dyn Error + Send + Sync>),
}

impl From<Rejection> for ValidatorError {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl From<ReadError> for ValidatorError {
    fn from(error: ReadError) -> Self {
        Self::Failed(Box::new(error))
    }
}

/// A deliberate rejection: a host's code, a message for people, optional details.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rejection {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) details: Option<String>,
    pub(crate) op_index: Option<i32>,
}

/// A rejection that must not travel: a fault of the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RejectionError {
    /// The code is empty.
    #[error("a rejection needs a code")]
    EmptyCode,
    /// The code belongs to the protocol.
    #[error("the code begins with a prefix that is reserved for the protocol")]
    ReservedCode,
    /// The details break §6.3.1; the text says how.
    #[error("the details are not allowed: {0}")]
    Details(&'static str),
}

/// Codes of the protocol begin like these; a host's may not.
const RESERVED_PREFIXES: [&str; 5] = ["sync.", "blob.", "operation.", "presence.", "client."];

impl Rejection {
    /// A rejection with a code of the host's own.
    pub fn new(
        code: impl Into<String>,
        message: impl Into<String>,
    ) -> Result<Self, RejectionError> {
        let code = code.into();
        if code.is_empty() {
            return Err(RejectionError::EmptyCode);
        }
        if RESERVED_PREFIXES
            .iter()
            .any(|prefix| code.starts_with(prefix))
        {
            return Err(RejectionError::ReservedCode);
        }
        Ok(Self {
            code,
            message: message.into(),
            details: None,
            op_index: None,
        })
    }

    /// Adds details that code can act on.
    pub fn with_details(mut self, details: RejectionDetails) -> Result<Self, RejectionError> {
        let text = details.build().map_err(RejectionError::Details)?;
        self.details = Some(text.to_string());
        Ok(self)
    }

    /// Blames one operation of the commit; operation 0 otherwise.
    #[must_use]
    pub fn at_operation(mut self, op_index: i32) -> Self {
        self.op_index = Some(op_index);
        self
    }
}

#[cfg(test)]
mod tests {
    use tidewater_schema::Schema;
    use tidewater_wire::row::encode_row;

    use super::*;

    #[test]
    fn a_row_that_cannot_be_decoded_is_an_error_and_not_a_row_without_values() {
        let text = r#"{"version": 1, "tables": [{"name": "notes", "primaryKey": "id",
            "scopes": ["team:{id}"],
            "columns": [{"name": "id", "type": "string", "nullable": false}]}]}"#;
        let schema = Schema::from_json(text).unwrap();
        let table = &schema.tables()[0];
        let payload = encode_row(&[Some(b"\x01\0\0\0a")]);
        let row = RowView::new(table, 1, &payload);
        assert_eq!(row.value("id").unwrap(), Some(Value::String("a")));
        assert_eq!(row.value("other").unwrap(), None);
        let torn = RowView::new(table, 1, &payload[..payload.len() - 1]);
        assert!(matches!(torn.values(), Err(ReadError::Undecodable(_))));
        for column in ["id", "other"] {
            assert!(matches!(torn.value(column), Err(ReadError::Undecodable(_))));
        }
    }

    #[test]
    fn a_host_may_not_use_a_code_of_the_protocol() {
        for prefix in RESERVED_PREFIXES {
            let code = format!("{prefix}anything");
            assert_eq!(
                Rejection::new(code, "no"),
                Err(RejectionError::ReservedCode)
            );
        }
        assert_eq!(Rejection::new("", "no"), Err(RejectionError::EmptyCode));
        assert!(Rejection::new("todo.title_too_long", "no").is_ok());
    }

    #[test]
    fn details_that_break_the_rules_are_refused_when_they_are_built() {
        let rejection = || Rejection::new("todo.bad", "no").unwrap();
        let empty = rejection().with_details(RejectionDetails::new());
        assert!(matches!(empty, Err(RejectionError::Details(_))));
        let prose = RejectionDetails::new().reason("The title is too long.");
        assert!(matches!(
            rejection().with_details(prose),
            Err(RejectionError::Details(_))
        ));
        let token = RejectionDetails::new()
            .reason("title_too_long")
            .field_path("title");
        assert!(rejection().with_details(token).is_ok());
    }
}
