//! The index of rows by the blobs they reference (§5.9.4).
//!
//! The bytes are elsewhere, in a store that knows nothing of transactions. What is here changes
//! with the rows: a commit that references a blob is in the index as soon as it is visible.

use std::{fmt, sync::Arc};

use tidewater_model::StoredScopes;
use tidewater_schema::TableIndex;

/// Whether a row with these scopes is wanted.
///
/// A function and not a filter: a row of any table may reference a blob, and each table has its
/// own scope variables.
#[derive(Clone)]
pub struct ScopesTest(Arc<Test>);

type Test = dyn Fn(TableIndex, &StoredScopes) -> bool + Send + Sync;

impl ScopesTest {
    /// Wants the rows that a function says. It is called on a thread of the store: it must not
    /// block.
    pub fn new(test: impl Fn(TableIndex, &StoredScopes) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(test))
    }

    /// Whether a row of this table with these scopes is wanted.
    pub fn admits(&self, table: TableIndex, scopes: &StoredScopes) -> bool {
        (self.0)(table, scopes)
    }
}

impl fmt::Debug for ScopesTest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ScopesTest")
    }
}
