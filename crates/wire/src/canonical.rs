//! Canonical JSON for digests and headers (§11.2).

use tidewater_model::ScopeFilter;

/// The canonical JSON of a scope map.
pub fn canonical_scopes(_scopes: &ScopeFilter) -> String {
    unimplemented!()
}

/// The digest of a scope map (§3.5).
pub fn scope_digest(_scopes: &ScopeFilter) -> String {
    unimplemented!()
}
