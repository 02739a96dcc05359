//! Rewriting the stored rows of a table that got columns (§9): what all databases do alike.
//!
//! The first transaction of an upgrade changes the tables, moves the marker and notes what is to
//! be rewritten. Bounded pieces follow, each a transaction of its own, which also notes how far
//! it came: an upgrade that was interrupted goes on where it was.
//!
//! **Invariant:** what is before the noted place has the new columns and what is behind it has
//! not, so no row is ever widened twice.

use std::fmt;

use tidewater_schema::{Table, WidenedTable};
use tidewater_wire::row::{Column, decode_row, encode_row};

use crate::{StoreError, StoreErrorKind};

/// Rows of one transaction: some tens of milliseconds, and little to hold.
pub const PIECE_ROWS: usize = 5_000;

/// Rows between two lines in the log.
pub const REPORTED_ROWS: i64 = 10_000;

/// How rows of a table get columns.
#[derive(Clone, Copy, Debug)]
pub struct Widening<'a> {
    /// The columns they have.
    before: &'a [Column],
    /// How many they get, as NULL.
    appended: usize,
}

impl<'a> Widening<'a> {
    /// What a schema asks for.
    pub fn of(widened: &'a WidenedTable) -> Self {
        Self {
            before: widened.before(),
            appended: widened.appended().len(),
        }
    }

    /// Whether a row is encoded with the columns that it should have.
    pub fn can_read(&self, payload: &[u8]) -> bool {
        decode_row(self.before, payload).is_ok()
    }

    /// The row with its new columns; `None` when it cannot be read.
    pub fn append_nulls(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let fields = decode_row(self.before, payload).ok()?;
        let mut values: Vec<Option<&[u8]>> = fields
            .iter()
            .map(|field| field.as_ref().map(|field| field.encoded))
            .collect();
        values.resize(self.before.len() + self.appended, None);
        Some(encode_row(&values))
    }
}

/// What is left to be rewritten of one table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rewrite {
    /// Which table.
    pub table: String,
    /// How many columns rows have before.
    pub stored_columns: u32,
    /// How many they have after.
    pub columns: u32,
    /// Whether the rows are done, and it is at the log.
    pub in_log: bool,
    /// Where it goes on: the partition,
    pub partition: String,
    /// the least row id that is not done,
    pub row_id: String,
    /// or the place of the last change that is, -1 before the first,
    pub commit_seq: i64,
    /// and its index.
    pub idx: i64,
    /// Rows and changes so far.
    pub done: i64,
}

impl Rewrite {
    /// All of it.
    pub fn whole(widened: &WidenedTable) -> Self {
        Self {
            table: widened.table.name.clone(),
            stored_columns: count(widened.stored_columns),
            columns: count(widened.table.columns.len()),
            in_log: false,
            partition: String::new(),
            row_id: String::new(),
            commit_seq: -1,
            idx: -1,
            done: 0,
        }
    }

    /// What becomes of a row, by a table that has its columns or more.
    ///
    /// # Errors
    ///
    /// `Corrupt` when what was noted fits no such table.
    pub fn widening<'t>(
        &self,
        table: &'t Table,
        during: &'static str,
    ) -> Result<Widening<'t>, StoreError> {
        let columns = usize::try_from(self.columns).unwrap_or(usize::MAX);
        let stored = usize::try_from(self.stored_columns).unwrap_or(usize::MAX);
        let before = table.columns.get(..stored);
        match (before, columns.checked_sub(stored)) {
            (Some(before), Some(appended)) if columns <= table.columns.len() => {
                Ok(Widening { before, appended })
            }
            _ => {
                let mut error = StoreError::new(StoreErrorKind::Corrupt, during);
                error.detail = Some("what is left to be rewritten makes no sense".to_owned());
                Err(error)
            }
        }
    }

    /// Counts rows or changes that were done.
    pub fn count(&mut self, rows: usize) {
        self.done = self
            .done
            .saturating_add_unsigned(rows.try_into().unwrap_or(u64::MAX));
    }

    /// Goes over to the log, which is walked from its beginning.
    pub fn begin_log(&mut self) {
        self.in_log = true;
        self.partition.clear();
    }
}

/// For people who want to know what an upgrade would do.
impl fmt::Display for Rewrite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "go on rewriting table `{}`, of which {} rows and changes are done",
            self.table, self.done
        )
    }
}

/// A table has a few hundred columns at most.
fn count(columns: usize) -> u32 {
    u32::try_from(columns).expect("a table has few columns")
}

/// A stored row does not have the columns that the database says.
pub fn undecodable(table: &str, during: &'static str) -> StoreError {
    let mut error = StoreError::new(StoreErrorKind::Corrupt, during);
    error.detail = Some(format!(
        "a row of table `{table}` is not encoded as the database says: restore a backup"
    ));
    error
}
