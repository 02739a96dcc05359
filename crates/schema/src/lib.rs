//! Schema documents, compiled: what a table is to the codecs, to authorization and to storage.
//!
//! Reads the schema IR (JSON), holds every rule of §2.4, §3.1, §5.10, §5.11 and §6.11 about what
//! a schema may say, and compares a schema with the layouts a database was written under. Every
//! refusal has a code and a sentence that says what to change.
//!
//! Not here: SQL. Storage turns a [`MigrationPlan`] into statements.

#![warn(missing_docs)]

mod compile;
mod document;
mod error;
mod identifier;
pub mod json_row;
mod layouts;
mod migration;
mod references;
mod table;
mod window;

pub use error::{SchemaCode, SchemaError};
pub use layouts::{LayoutColumn, Layouts, LayoutsError, TableLayout};
pub use migration::{MigrationPlan, MigrationRefusal, RefusalCode, Stored, WidenedTable};
pub use table::{ColumnMeta, Index, OnDelete, Reference, Schema, ScopePattern, Table, TableIndex};
pub use window::{SchemaView, WindowError};
