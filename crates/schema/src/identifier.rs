//! Names that become names in a database: of tables, columns and indexes (§2.4).
//!
//! **Invariant:** two different things of one schema never share a name in either database.
//! SQLite compares names without regard to ASCII case, so neither do we, on both: every client
//! is a SQLite replica.

use std::collections::BTreeSet;

use tidewater_model::limits::IDENTIFIER_BYTES_MAX;

use crate::{SchemaCode, SchemaError};

/// Beginnings that belong to the server's own tables and columns, or to SQLite.
const RESERVED_PREFIXES: [&str; 3] = ["sync_", "_sync", "sqlite_"];

/// What every physical name of a declared index begins with.
const INDEX_PREFIX: &str = "sync_ix_";

/// Says why `name` cannot be an identifier.
pub(crate) fn identifier_fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("the name is empty: give it one".to_owned());
    }
    if name.len() > IDENTIFIER_BYTES_MAX {
        return Some(format!(
            "the name has {} bytes and a database keeps {IDENTIFIER_BYTES_MAX}: shorten it",
            name.len()
        ));
    }
    let folded = name.to_ascii_lowercase();
    if let Some(prefix) = RESERVED_PREFIXES
        .iter()
        .find(|prefix| folded.starts_with(*prefix))
    {
        return Some(format!(
            "names that begin with `{prefix}` are reserved: choose another"
        ));
    }
    if name.chars().any(char::is_control) {
        return Some("the name contains a control character: remove it".to_owned());
    }
    None
}

/// Refuses a name that breaks the rules of an identifier.
pub(crate) fn check_identifier(name: &str, place: &str) -> Result<(), SchemaError> {
    match identifier_fault(name) {
        None => Ok(()),
        Some(fault) => Err(SchemaError::new(
            SchemaCode::InvalidIdentifier,
            place,
            fault,
        )),
    }
}

/// Names in use within one name space of a database.
#[derive(Default)]
pub(crate) struct NamesInUse(BTreeSet<String>);

impl NamesInUse {
    /// Whether `name` was free. It is in use afterwards.
    pub(crate) fn take(&mut self, name: &str) -> bool {
        self.0.insert(name.to_ascii_lowercase())
    }
}

/// The name of a declared index in the database.
///
/// A long name is replaced by its FNV-1a hash, as in the databases of the reference, so that
/// both servers know which indexes are Syncular's own.
pub(crate) fn physical_index_name(declared: &str) -> String {
    let name = format!("{INDEX_PREFIX}{declared}");
    if name.len() <= IDENTIFIER_BYTES_MAX {
        return name;
    }
    format!("{INDEX_PREFIX}{:016x}", fnv1a_64(declared.as_bytes()))
}

fn fnv1a_64(bytes: &[u8]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.iter().fold(OFFSET_BASIS, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a_of_64_bits() {
        assert_eq!(fnv1a_64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a_64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a_64(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn an_index_name_is_hashed_only_when_the_prefix_makes_it_too_long() {
        let fits = "i".repeat(55);
        assert_eq!(physical_index_name(&fits), format!("sync_ix_{fits}"));
        let hashed = physical_index_name(&"i".repeat(56));
        assert_eq!(hashed.len(), "sync_ix_".len() + 16);
        assert_eq!(
            hashed,
            format!("sync_ix_{:016x}", fnv1a_64("i".repeat(56).as_bytes()))
        );
    }
}
