//! SQLite images: a table's rows as a database file that a client takes over whole (§5.3).
//!
//! An [`ImageWriter`] takes rows in bytewise order of their ids and holds none of them: they go
//! into a temporary file, whose pages leave memory as they fill. **Invariant:** an [`Image`] was
//! read back and found consistent before anybody gets it, and the same rows under the same
//! metadata give the same bytes, because a segment is named by its content.
//!
//! Everything here blocks: it belongs on a thread for that. Which rows, for whom and when is the
//! engine's to say.

#![warn(missing_docs)]

mod columns;
mod error;
mod writer;

pub use error::{ImageError, ImageErrorKind};
pub use writer::{Image, ImageSpec, ImageWriter, is_eligible};
