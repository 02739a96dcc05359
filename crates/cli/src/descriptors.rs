//! Room for connections: the number of files that the process may have open.
//!
//! Most systems start a process with room for 1,024, and leave it to the process to ask for more
//! up to a hard limit. A server that does not ask refuses clients long before it is busy.

/// Descriptors beside those of connections: databases, logs, the runtime.
const OTHERS: usize = 1_024;

/// Raises the limit as far as this many connections need it and the system allows.
#[cfg(unix)]
pub(crate) fn make_room(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = u64::try_from(connections.saturating_add(OTHERS)).unwrap_or(u64::MAX);
    let limit = getrlimit(Resource::Nofile);
    // No limit is none.
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let allowed = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let raised = Rlimit {
        current: Some(allowed),
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    } else if allowed < wanted {
        tracing::warn!(
            allowed,
            wanted,
            "the system allows fewer open files than the configured connections need"
        );
    }
}

/// Other systems have no such limit.
#[cfg(not(unix))]
pub(crate) fn make_room(_connections: usize) {}
